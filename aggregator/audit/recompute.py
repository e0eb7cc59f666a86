"""The history check: fold the journal again and compare every round with what was announced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from aggregator.store import state_codec
from aggregator.store.types import JournalEntry, RunRecord, SavedState, Version
from edge_sdk.wire.contract.method import Closed, Half
from edge_sdk.wire.contract.parameter_layout import Vector


class History(Protocol):
    """What an audit reads of a store."""

    def run(self) -> RunRecord | None:
        """Return the latest run."""

    def first(self, run: int) -> SavedState:
        """Return the oldest state from which the journal is whole."""

    def load(self, run: int) -> SavedState:
        """Return the state as last committed."""

    def journal(self, run: int, after: int = 0) -> Iterator[JournalEntry]:
        """Return a run's events behind a position, in order."""

    def closed_by(self, run: int, position: int) -> int:
        """Return the last round of a run that had closed by a position; 0 before the first."""

    def versions(self, run: int, last: int | None = None) -> list[Version]:
        """Return a run's closed rounds."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What the check found.

    Attributes:
        run: The run that was checked; 0 if there is none.
        since: Round after which it begins: the vectors of older ones were dropped; 0 for all.
        events: Events folded.
        rounds: Rounds compared.
        moved: Rounds among them that moved the model.
        updates: Answers used, by device: every one of them once.
        faults: What does not agree, a sentence each; empty if all is well.
    """

    run: int = 0
    events: int = 0
    rounds: int = 0
    moved: int = 0
    updates: Mapping[str, int] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    since: int = 0

    @property
    def is_sound(self) -> bool:
        """Return whether every round was recomputed to the same bits."""
        return not self.faults


def recompute(store: History, half: Half[Any], initial: Vector, run: int | None = None) -> Audit:
    """Fold a run's journal through its half and compare every closed round's state.

    Begins at the oldest state kept (the store's retention drops what came before) and ends at the
    last one committed. Reads only.

    Args:
        store: The history.
        half: The server half with the run's rule and settings.
        initial: Any vector of the run's shape: it gives the states their form.
        run: Which run; the latest if None.

    Raises:
        LeafError: The saved state is not one of this half.
    """
    number = run if run is not None else (latest.run if (latest := store.run()) else 0)
    if not number:
        return Audit()
    saved = store.first(number)
    state = state_codec.rebuild(half.init(initial), saved.leaves)
    upto = store.load(number).upto
    told = {v.round: v for v in store.versions(number) if v.position > saved.upto}
    state, found = _fold(half, state, store.journal(number, saved.upto), upto, told)
    faults = list(found.faults)
    faults += [f"round {r} was announced and is not in the journal" for r in told]
    committed = state_codec.rebuild(half.init(initial), store.load(number).leaves)
    if not faults and state_codec.digest(committed) != state_codec.digest(state):
        faults.append("the state last committed is not what the journal gives")
    return Audit(
        number,
        found.events,
        found.rounds,
        found.moved,
        found.updates,
        tuple(faults),
        store.closed_by(number, saved.upto),
    )


def _fold(
    half: Half[Any],
    state: Any,  # noqa: ANN401 - the half's own
    journal: Iterator[JournalEntry],
    upto: int,
    told: dict[int, Version],
) -> tuple[Any, Audit]:
    """Apply the events up to a position; takes from ``told`` every round it recomputes."""
    events = rounds = moved = 0
    updates: dict[str, int] = {}
    faults: list[str] = []
    for entry in journal:
        if entry.position > upto:
            break
        if entry.event is None:
            faults.append(f"event {entry.position} has lost its vector")
            break
        state, effects = half.apply(state, entry.event)
        events += 1
        for closed in (effect for effect in effects if isinstance(effect, Closed)):
            rounds, moved = rounds + 1, moved + closed.moved
            for device in closed.report.get("cohort", ()) if closed.moved else ():
                updates[device] = updates.get(device, 0) + 1
            faults += _compare(closed, told.pop(closed.round, None), state_codec.digest(state))
    return state, Audit(0, events, rounds, moved, updates, tuple(faults))


def _compare(closed: Closed, version: Version | None, digest: bytes) -> list[str]:
    if version is None:
        return [f"round {closed.round} closed and was never announced"]
    if (version.version, version.moved) != (closed.version, closed.moved):
        return [f"round {closed.round}: announced version {version.version}, not {closed.version}"]
    if version.digest != digest:
        return [f"round {closed.round}: recomputed state differs from version {version.version}"]
    return []
