"""Audit a run: replay its journal and compare every round with the recorded one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aggregator.store import state_codec
from aggregator.store.store import Store
from aggregator.store.types import JournalEntry, Version
from edge_sdk.protocol.contract.method import Closed, Half, Unlearned
from edge_sdk.protocol.contract.parameter_layout import Vector


@dataclass(frozen=True, slots=True)
class Audit:
    """Result of an audit."""

    run: int = 0  # the audited run; 0 if there is none
    events: int = 0
    rounds: int = 0
    moved: int = 0  # number of these rounds that changed the model
    # number of updates used, by device, each counted once
    updates: Mapping[str, int] = field(default_factory=dict)
    faults: tuple[str, ...] = ()  # differences, a sentence each; empty if there are none
    # round after which the audit begins, because older vectors were deleted; 0 for all
    since: int = 0
    # position and device of every removal of a contribution
    unlearned: tuple[tuple[int, str], ...] = ()

    @property
    def is_sound(self) -> bool:
        return not self.faults


def recompute(store: Store, half: Half[Any], initial: Vector, run: int | None = None) -> Audit:
    """Replay a run's journal and compare the state after every closed round.

    The replay begins at the oldest state kept by the store's retention and ends at the last one
    committed. It only reads.

    Args:
        half: Server half with the run's rule and settings.
        initial: Any vector of the run's shape, which gives the states their layout.
        run: Number of the run; the latest if None.

    Raises:
        LeafError: The saved state does not belong to this half.
    """
    number = run if run is not None else (latest.run if (latest := store.runs.latest()) else 0)
    if not number:
        return Audit()
    saved = store.states.first(number)
    state = state_codec.rebuild(half.init(initial), saved.leaves)
    upto = store.states.load(number).upto
    recorded = {v.round: v for v in store.runs.versions(number) if v.position > saved.upto}
    state, found = _fold(half, state, store.journal.entries(number, saved.upto), upto, recorded)
    faults = list(found.faults)
    faults += [f"round {r} was announced and is not in the journal" for r in recorded]
    committed = state_codec.rebuild(half.init(initial), store.states.load(number).leaves)
    if not faults and state_codec.digest(committed) != state_codec.digest(state):
        faults.append("the last committed state differs from the replayed journal")
    return Audit(
        number,
        found.events,
        found.rounds,
        found.moved,
        found.updates,
        tuple(faults),
        store.runs.closed_by(number, saved.upto),
        found.unlearned,
    )


def _fold(
    half: Half[Any],
    state: Any,  # noqa: ANN401 - the half's own
    journal: Iterator[JournalEntry],
    upto: int,
    recorded: dict[int, Version],
) -> tuple[Any, Audit]:
    """Apply the events up to a position; remove every recomputed round from ``recorded``."""
    events = rounds = moved = 0
    updates: dict[str, int] = {}
    faults: list[str] = []
    removals: list[tuple[int, str]] = []
    for entry in journal:
        if entry.position > upto:
            break
        if entry.event is None:
            faults.append(f"event {entry.position} has no vector")
            break
        state, effects = half.apply(state, entry.event)
        events += 1
        if isinstance(entry.event, Unlearned):
            removals.append((entry.position, entry.event.client))
        for closed in (effect for effect in effects if isinstance(effect, Closed)):
            rounds, moved = rounds + 1, moved + closed.moved
            for device in closed.report.get("cohort", ()) if closed.moved else ():
                updates[device] = updates.get(device, 0) + 1
            faults += _compare(closed, recorded.pop(closed.round, None), state_codec.digest(state))
    counted = Audit(0, events, rounds, moved, updates, tuple(faults))
    return state, replace(counted, unlearned=tuple(removals))


def _compare(closed: Closed, version: Version | None, digest: bytes) -> list[str]:
    if version is None:
        return [f"round {closed.round} closed and was never announced"]
    if (version.version, version.moved) != (closed.version, closed.moved):
        return [f"round {closed.round}: announced version {version.version}, not {closed.version}"]
    if version.digest != digest:
        return [f"round {closed.round}: recomputed state differs from version {version.version}"]
    return []
