"""Drive the steps inside split rounds: signals in, task messages out, and their timers.

Nothing here is durable. The play starts again whenever the half's round, attempt or settlement
changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from aggregator.extensions.papers.split.signal_assembler import SignalAssembler
from aggregator.rounds.round_steps import RoundSteps, TaskMessages
from edge_sdk.app.clock import Clock
from edge_sdk.errors import Refused
from edge_sdk.protocol import messages
from edge_sdk.protocol.array_fragments import cut
from edge_sdk.protocol.contract.method import (
    Contract,
    Due,
    Effects,
    Event,
    Member,
    Play,
    Played,
    Signal,
    Task,
)


class SplitDriver(RoundSteps):
    """Driver of one run's split rounds.

    Args:
        play: State machine of the rounds.
        contract: Contract of the run's method.
        run: Number of the run.
        spec: Layout digest in every task.
        clock: Monotonic time.

    Attributes:
        unsent: Number of tasks not sent because a scalar in them was not finite.
    """

    def __init__(
        self, play: Play[Any], contract: Contract, run: int, spec: bytes, clock: Clock
    ) -> None:
        super().__init__()
        self.play, self.contract, self.run, self.spec, self.clock = play, contract, run, spec, clock
        self.signals = SignalAssembler(contract, self.wants)
        self.unsent = 0
        self._act: Any = None
        self._key: tuple[object, ...] = ()
        self._alarms: tuple[tuple[float, Due], ...] = ()
        self._order: Counter[str] = Counter()

    def mark(self) -> tuple[Any, ...]:
        """Return a mark for ``rewind``."""
        return (self.result, self.unsent, self._act, self._key, self._alarms, Counter(self._order))

    def rewind(self, mark: tuple[Any, ...]) -> None:
        self.result, self.unsent, self._act, self._key, self._alarms, self._order = mark

    def follow(self, state: Any) -> TaskMessages:  # noqa: ANN401 - the half's own
        """Start the play again if the half has moved; return the messages to send."""
        key = (state.round, state.attempt, state.settled, state.is_open, tuple(state.slots.items()))
        if key == self._key:
            return ()
        is_same, is_same_round = self._key[:4] == key[:4], self._key[:2] == key[:2]
        self._key = key
        if is_same:  # only a slot has changed
            self._act = self.play.placed(self._act, state)
            return ()
        self._act, self.result = self.play.begin(state, self._act), None
        if not is_same_round:
            self._order.clear()
        self._alarms = tuple(alarm for alarm in self._alarms if not alarm[1].round)
        return self._apply(Due(state.round, "begin"))

    def receive(self, event: Signal | Member) -> TaskMessages:
        """Apply a signal or a membership change; return the messages to send."""
        return self._apply(event) if self._act is not None else ()

    def wants(self, signal: Signal, shape: tuple[int, ...]) -> bool:
        """Return whether a signal is wanted now."""
        return self._act is not None and self.play.wants(self._act, signal, shape)

    def wake(self) -> TaskMessages:
        """Apply every timer that is due; return the messages to send."""
        now = self.clock.monotonic()
        sent: list[tuple[str, messages.TaskMessage]] = []
        for alarm in [one for one in self._alarms if one[0] <= now]:
            if alarm in self._alarms:
                self._alarms = tuple(one for one in self._alarms if one != alarm)
                sent += self._apply(alarm[1])
        return tuple(sent)

    @property
    def next_due(self) -> float | None:
        """Return the due time of the next timer, on the monotonic clock."""
        return min((at for at, _ in self._alarms), default=None)

    def _apply(self, event: Event) -> TaskMessages:
        self._act, effects = self.play.apply(self._act, event)
        return self._done(effects)

    def _done(self, effects: Effects) -> TaskMessages:
        sent: list[tuple[str, messages.TaskMessage]] = []
        for effect in effects:
            if isinstance(effect, Task):
                sent += self._encoded(effect)
            elif isinstance(effect, Due):
                kept = [one for one in self._alarms if (one[1].round == 0) != (effect.round == 0)]
                alarm = (self.clock.monotonic() + effect.after, effect)
                self._alarms = (*kept, alarm)  # one for the round, one for the served step
            elif isinstance(effect, Played):
                self.result = effect
        return tuple(sent)

    def _encoded(self, task: Task) -> list[tuple[str, messages.TaskMessage]]:
        if task.round:
            self._order[task.to] += 1
            task = replace(task, values={**task.values, "order": float(self._order[task.to])})
        try:
            return [(task.to, message) for message in written(task, self.contract, self)]
        except Refused:
            self.unsent += 1
            return []


def written(task: Task, contract: Contract, about: SplitDriver) -> Iterator[messages.TaskMessage]:
    """Encode a transient task: one message without an array, else fragments of whole rows.

    Raises:
        Refused: BAD_TENSOR.
    """
    ask = contract[task.ask]
    whole: dict[str, Any] = {
        "run": about.run,
        "round": task.round,
        "base": task.base,
        "ask": task.ask,
        "spec": about.spec,
        "attempt": task.attempt,
        "step": task.step,
        "vals": {name: float(value) for name, value in task.values.items()},
    }
    array = next((task.arrays[name] for name in ask.down if name in task.arrays), None)
    if array is None:
        yield messages.TaskMessage(**whole)
        return
    enc = "f2" if task.values.get("half", 0.0) == 1.0 else "f4"
    enc = "i4" if array.dtype.kind == "i" else enc
    shape = tuple(map(int, array.shape))
    pieces = list(cut(array, enc))
    for piece in pieces:
        yield messages.TaskMessage(**whole, enc=enc, shape=shape, **piece._asdict())
