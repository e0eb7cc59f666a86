"""Drive the steps inside split rounds: signals in, task messages out, and their timers.

Nothing here is durable. The play starts again whenever the half's round, attempt or settlement
changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from aggregator.ingress.message_ingress import Signals
from aggregator.rounds.round_steps import RoundSteps, TaskMessages
from edge_sdk.app.clock import Clock
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.papers.split.array_rows import Sheet, cut
from edge_sdk.protocol import messages
from edge_sdk.protocol.contract import method
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
        return self._apply(event) if self._act is not None else ()

    def wants(self, signal: Signal, shape: tuple[int, ...]) -> bool:
        """Return whether a signal is wanted now."""
        return self._act is not None and self.play.wants(self._act, signal, shape)

    def wake(self) -> TaskMessages:
        now = self.clock.monotonic()
        sent: list[tuple[str, messages.TaskMessage]] = []
        for alarm in [one for one in self._alarms if one[0] <= now]:
            if alarm in self._alarms:
                self._alarms = tuple(one for one in self._alarms if one != alarm)
                sent += self._apply(alarm[1])
        return tuple(sent)

    @property
    def next_due(self) -> float | None:
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
    """Encode a transient task: one message without an array, else fragments of rows; raise Refused, BAD_TENSOR."""
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


# predicate: whether a signal of this sender, step and shape is wanted now
Wants = Callable[[method.Signal, tuple[int, ...]], bool]
_NOTHING: Any = np.zeros(0, np.float32)


def nothing_wanted(_signal: method.Signal, _shape: tuple[int, ...]) -> bool:
    """Refuse every signal: no split round is open."""
    return False


@dataclass
class SignalAssembler(Signals):
    """Partial signals: at most one array for each question and device.

    A refused fragment is counted and not answered: no round waits for it, and a reply to each of eight
    fragments would amplify traffic.
    """

    contract: Mapping[str, method.Ask]  # contract of the run's method
    wants: Wants = nothing_wanted  # Predicate of the signals wanted now
    _sheets: dict[tuple[str, str], tuple[tuple[object, ...], Sheet]] = field(default_factory=dict)

    def assemble(self, device: str, fragment: messages.SignalMessage) -> method.Signal | None:
        """Add a fragment; return the whole signal if it is complete, else None.

        Raises:
            Refused: UNKNOWN_KIND for a question that the method does not have; BAD_SCALAR;
                MALFORMED for a missing required scalar; WRONG_ENCODING; LATE if the signal is not
                wanted now; BAD_TENSOR, which drops the fragments received so far.
        """
        ask = self.contract.get(fragment.ask)
        if ask is None or ask.up is not method.Up.SIGNAL:
            raise Refused(Reason.UNKNOWN_KIND, f"ask {fragment.ask!r}")
        _check_numbers(fragment, ask)
        answer = method.Signal(
            device,
            fragment.round,
            fragment.ask,
            fragment.step,
            _NOTHING,
            {name: float(value) for name, value in fragment.vals.items()},
            fragment.attempt,
        )
        if not self.wants(answer, fragment.shape):
            raise Refused(
                Reason.LATE, f"{fragment.ask} {fragment.round}.{fragment.attempt}.{fragment.step}"
            )
        return self._added(device, fragment, answer) if fragment.shape else answer

    def forget(self, device: str) -> None:
        for key in [key for key in self._sheets if key[0] == device]:
            del self._sheets[key]

    def _added(
        self, device: str, fragment: messages.SignalMessage, answer: method.Signal
    ) -> method.Signal | None:
        if fragment.enc == "i4":
            raise Refused(Reason.WRONG_ENCODING, "i4")
        key = device, fragment.ask
        about = (fragment.round, fragment.attempt, fragment.step, fragment.enc, fragment.shape)
        known, sheet = self._sheets.get(key, (None, None))
        if sheet is None or known != about:
            sheet = Sheet(fragment.enc, fragment.shape)
            self._sheets[key] = (about, sheet)
        try:
            sheet.add(fragment.off, fragment.num, fragment.blob)
        except Refused:
            del self._sheets[key]
            raise
        if not sheet.is_complete:
            return None
        del self._sheets[key]
        return method.Signal(
            device,
            answer.round,
            answer.ask,
            answer.step,
            sheet.array(),
            answer.values,
            answer.attempt,
        )


def _check_numbers(signal: messages.SignalMessage, ask: method.Ask) -> None:
    declared = {number.name: number for number in ask.report}
    for name, value in signal.vals.items():
        if name not in declared or not declared[name].admits(value):
            raise Refused(Reason.BAD_SCALAR, f"{name} = {value}")
    for number in ask.report:
        if number.needed and number.name not in signal.vals:
            raise Refused(Reason.MALFORMED, f"{signal.ask} without {number.name}")
