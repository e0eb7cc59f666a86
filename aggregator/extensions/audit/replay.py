"""Replay rounds of a run from its journal under another rule, and compare them with the record.

Two courses are computed beside the recorded one. In the single course every round begins with the
recorded model, so its result is exact: the devices answered that model. In the chained course every
round begins with the replayed model. From its second round on, the devices would have received
another model and sent other updates, which no journal contains.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.base.round_machine import ABANDON, ASK, RoundState, published
from aggregator.methods.base.wrappers import innermost, replaced
from aggregator.store import state_codec
from aggregator.store.store import Store
from edge_sdk.errors import RUNTIME, Failure
from edge_sdk.protocol.contract.method import Closed, Due, Event, Half, Member, Update
from edge_sdk.protocol.contract.parameter_layout import Vector


class ReplayError(Failure):
    """Rounds that cannot be replayed."""

    exit_code = RUNTIME


@dataclass(frozen=True, slots=True)
class ReplayScenario:
    """Rounds to replay, and the changed circumstances."""

    first: int
    last: int
    without: Collection[str] = ()  # devices whose updates are left out
    is_other_rule: bool = True  # true if the rule is another one, which begins without memory


@dataclass(frozen=True, slots=True)
class RoundResult:
    """Result of one round in one course."""

    moved: bool  # true if the model changed
    why: str  # reason that it did not; empty if it did
    # devices whose updates were given to the rule and not excluded by it, sorted
    used: tuple[str, ...]
    # reason by excluded device. Rules on single coordinates exclude no whole device.
    excluded: Mapping[str, str]
    step: float  # length of the model's change
    # mean of the losses that the used devices reported for the model they received, or None
    loss: float | None
    model: str  # SHA-256 of the published model, hex


@dataclass(frozen=True, slots=True)
class ReplayedRound:
    """One round as recorded, and as replayed in both courses."""

    round: int
    recorded: RoundResult
    single: RoundResult  # result where the round begins with the recorded model; exact
    chained: RoundResult  # result where the round begins with the replayed model
    single_distance: float  # distance between the single and the recorded model
    chained_distance: float  # distance between the chained and the recorded model


@dataclass(slots=True)
class _Course:
    """One course of the replay: its half, its state and the state at the beginning of the round."""

    half: Half[Any]
    state: RoundState
    start: RoundState = field(init=False)
    losses: dict[str, float] = field(default_factory=dict)
    closed: Closed | None = None

    def __post_init__(self) -> None:
        self.start = self.state

    def begin_round(self) -> None:
        self.start, self.losses, self.closed = self.state, {}, None

    def apply(self, event: Event) -> tuple[Due, ...]:
        """Apply an event; return the timers that it sets."""
        if isinstance(event, Update) and "loss" in event.values:
            self.losses.setdefault(event.sender, float(event.values["loss"]))
        self.state, effects = self.half.apply(self.state, event)
        found = next((one for one in effects if isinstance(one, Closed)), None)
        self.closed = self.closed or found
        return tuple(one for one in effects if isinstance(one, Due))

    def close(self, ask: str) -> None:
        """Close the round as at its deadline; abandon it if too few updates were left."""
        for event in (Due(self.start.round, ask), Due(self.start.round, ABANDON)):
            if self.closed is None:
                self.apply(event)

    def result(self) -> RoundResult:
        """Return the result of the round; raise ReplayError if it did not close."""
        closed = self.closed
        if closed is None:
            raise ReplayError(f"round {self.start.round} did not close in the replay")
        report = closed.report
        excluded = {str(one): str(why) for one, why in report.get("dropped", {}).items()}
        for device, weight in report.get("weights", {}).items():
            if weight == 0.0:
                excluded.setdefault(device, "weight 0")
        used = tuple(sorted(set(report.get("cohort", ())) - set(excluded)))
        losses = [self.losses[one] for one in used if one in self.losses]
        return RoundResult(
            closed.moved,
            str(report.get("why", "")),
            used,
            excluded,
            float(np.linalg.norm(self.state.w - self.start.w)),
            float(np.mean(losses)) if losses else None,
            model_digest(self.state),
        )


def model_digest(state: RoundState) -> str:
    """Return the SHA-256 of the model that a state publishes, hex."""
    return hashlib.sha256(published(state.w).astype("<f4").tobytes()).hexdigest()


def replay(
    store: Store,
    run: int,
    scenario: ReplayScenario,
    *,
    recorded: Half[Any],
    other: Half[Any],
    initial: Vector,
    seen: Callable[[NDArray[np.float64]], None] | None = None,
) -> list[ReplayedRound]:
    """Apply a run's journal under its own half and under another one; return the compared rounds.

    Only reads. The recorded half must reproduce every round of the record to the bit.

    Args:
        recorded: Server half with the run's rule and settings.
        other: Server half of the same method with another rule or other settings.
        initial: Any vector of the run's shape, shape ``(P,)``.
        seen: Receives the model of the single course after each of the rounds.

    Raises:
        ReplayError: The method has turns within a round, updates of the rounds were deleted, or the
            recorded half does not reproduce the record.
        LeafError: The saved state does not belong to this half.
    """
    saved = store.states.first(run)
    state = state_codec.rebuild(recorded.init(initial), saved.leaves)
    if recorded.play is not None or not isinstance(innermost(state), RoundState):
        raise ReplayError(f"run {run}: rounds of this method have turns and cannot be replayed")
    _check_kept(store, run, scenario)
    fold = _Fold(scenario, other, _Course(recorded, state), seen)
    digests = {one.round: one.digest for one in store.runs.versions(run)}
    for entry in store.journal.entries(run, saved.upto):
        if entry.event is None:
            raise ReplayError(
                f"event {entry.position}: its update was deleted during the replay",
                hint="start the replay again",
            )
        closed = fold.apply(entry.event)
        if closed is None:
            continue
        if digests.get(closed.round) != state_codec.digest(fold.recorded.state):
            raise ReplayError(
                f"round {closed.round}: this configuration does not reproduce the recorded round",
                hint="give the configuration under which the run was begun",
            )
        if closed.round >= scenario.last:
            break
    if [one.round for one in fold.rounds] != list(range(scenario.first, scenario.last + 1)):
        raise ReplayError(
            f"rounds {scenario.first}:{scenario.last}: the journal closes only "
            f"{len(fold.rounds)} of them under this configuration",
            hint="gridfed-aggregator audit compares the whole journal with the record",
        )
    return fold.rounds


@dataclass(slots=True)
class _Fold:
    """The recorded course, and beside it the two replayed ones once the first round is open."""

    scenario: ReplayScenario
    other: Half[Any]
    recorded: _Course
    seen: Callable[[NDArray[np.float64]], None] | None = None
    chained: _Course | None = None
    single: _Course | None = None
    ask: str = ASK
    rounds: list[ReplayedRound] = field(default_factory=list)

    def apply(self, event: Event) -> Closed | None:
        """Apply one event to every course; return the round that it closed in the recorded one."""
        before = self.recorded.state
        replayed, ask = self._begun(before), self.ask
        self.ask = next((one.ask for one in self.recorded.apply(event)), self.ask)
        if replayed and not self._is_left_out(event):
            for course in replayed:
                course.apply(_shifted(event, before, course.state))
        closed = self.recorded.closed
        if closed is not None:
            if replayed:
                self._compare(closed.round, replayed, ask)
            self.single = None
            self.recorded.begin_round()
        return closed

    def _begun(self, state: RoundState) -> tuple[_Course, ...]:
        if not self.scenario.first <= state.round <= self.scenario.last or not state.is_open:
            return ()
        if self.single is None:
            self.single = _Course(self.other, self._without_memory(state))
            self.chained = self.chained or _Course(self.other, self._without_memory(state))
            self.chained.begin_round()
        assert self.chained is not None
        return self.single, self.chained

    def _without_memory(self, state: RoundState) -> RoundState:
        has_memory = hasattr(state, "memory")
        return replaced(state, memory={}) if self.scenario.is_other_rule and has_memory else state

    def _is_left_out(self, event: Event) -> bool:
        match event:
            case Update(sender=device) | Member(client=device):
                return device in self.scenario.without
            case Due(ask=ask):
                return ask == ABANDON  # the recorded rule met a defect
        return False

    def _compare(self, number: int, replayed: tuple[_Course, ...], ask: str) -> None:
        single, chained = replayed
        for course in replayed:
            course.close(ask)
        if self.seen is not None:
            self.seen(single.state.w)
        model = self.recorded.state.w
        self.rounds.append(
            ReplayedRound(
                number,
                self.recorded.result(),
                single.result(),
                chained.result(),
                float(np.linalg.norm(single.state.w - model)),
                float(np.linalg.norm(chained.state.w - model)),
            )
        )


def _shifted(event: Event, recorded: RoundState, replayed: RoundState) -> Event:
    lag = replayed.version - recorded.version
    return replace(event, base=event.base + lag) if isinstance(event, Update) and lag else event


def kept_rounds(store: Store, run: int) -> tuple[int, int]:
    """Return the first and the last closed round whose updates are kept.

    Raises:
        ReplayError: There is none.
    """
    oldest = store.runs.closed_by(run, store.states.first(run).upto) + 1
    newest = max((one.round for one in store.runs.versions(run)), default=0)
    if newest < oldest:
        raise ReplayError(f"run {run}: no closed round has its updates, so none can be replayed")
    return oldest, newest


def _check_kept(store: Store, run: int, scenario: ReplayScenario) -> None:
    oldest, newest = kept_rounds(store, run)
    if not oldest <= scenario.first <= scenario.last <= newest:
        raise ReplayError(
            f"rounds {scenario.first}:{scenario.last}: expected rounds of {oldest}:{newest}, "
            f"whose updates are kept",
            hint="retention.rounds and retention.vector_bytes decide how many are kept",
        )
