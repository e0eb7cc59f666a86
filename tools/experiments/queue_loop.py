"""Both ends of any method in one queue, with transient turns and Byzantine devices.

The halves are the product's own, driven as the two shells drive them, in order and at once. Bytes
are therefore never taken from here, and deadlines do not pass unless nobody has anything to say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from edge_sdk.protocol.contract.method import (
    ALL,
    Array,
    Closed,
    Due,
    Effect,
    Event,
    Half,
    Member,
    Played,
    Signal,
    Task,
    Update,
    answered,
)
from edge_sdk.protocol.contract.method import CONTRACTS as KNOWN
from edge_sdk.protocol.contract.parameter_layout import Vector
from tools.experiments.simulated_clock import OPEN, Tamper

Twist = Callable[[Signal], Signal]
"""Attack on an activation or a gradient before it is sent."""

IDLE = 3
"""Consecutive deadlines without a message after which a run is abandoned."""


@dataclass(frozen=True, slots=True)
class Step:
    """A round that moved the models."""

    closed: Closed  # what the server half says of it
    state: Any  # the server half's state after it
    states: Mapping[str, Any]  # the devices' states after it


_CHANGING = ("states", "_state", "_act", "_queue", "_dues", "_asked", "_honest")


@dataclass(slots=True, eq=False)
class Stage:
    """All halves of a run; ``steps`` drives it."""

    method: str  # a key of ``CONTRACTS``
    server: Half[Any]  # the server half, bound to its settings
    devices: Mapping[str, Half[Any]]  # the device halves by client
    states: dict[str, Any]  # the device states by client
    # what is done to the answers of some clients
    liars: Mapping[str, Tamper] = field(default_factory=dict)
    twists: Mapping[str, Twist] = field(default_factory=dict)  # what is done to their signals
    _state: Any = None
    _act: Any = None
    _queue: deque[Effect | Event] = field(default_factory=deque)
    _dues: deque[Due] = field(default_factory=deque)
    _asked: dict[str, Task] = field(default_factory=dict)
    _honest: dict[str, Update] = field(default_factory=dict)

    def steps(self, common: Vector) -> Iterator[Step]:
        """Start the run from a common vector, or continue it, and yield every round that moved.

        It ends when the method says that it is done, or when nobody speaks any more.
        """
        if self._state is None:
            self._state = self.server.init(common)
            self._queue.extend(Member(name, present=True) for name in sorted(self.devices))
            self._queue.append(OPEN)
        quiet = 0
        while quiet < IDLE:
            if not self._queue:
                quiet += 1
                self._late()
                continue
            quiet = 0
            closed = self._handled(self._queue.popleft())
            if closed is not None and closed.moved:
                yield Step(closed, self._state, dict(self.states))
                if closed.report.get("stop"):
                    return

    @property
    def state(self) -> Any:  # noqa: ANN401 - the server half's own
        """Return the server half's state; None before the first step."""
        return self._state

    def saved(self) -> dict[str, Any]:
        """Return the changing state of a run between two of its rounds."""
        return {name: getattr(self, name) for name in _CHANGING}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue from a result of ``saved``; ``steps`` then yields the rounds after it."""
        for name in _CHANGING:
            setattr(self, name, saved[name])

    def _handled(self, what: Effect | Event) -> Closed | None:
        match what:
            case Task(to=to):
                for name in sorted(self.devices) if to == ALL else [to]:
                    self._told(name, what)
            case Signal():
                self._heard(what)
            case Update() if what.sender in self.liars and self._is_early():
                self._queue.append(what)  # a liar speaks when it has heard all others
            case Update():
                return self._folded(self._uploaded(what))
            case Closed():
                return what
            case Due() | Member() | Played():
                return self._folded(what)
        return None

    def _is_early(self) -> bool:
        honest = self.devices.keys() - self.liars.keys()
        senders = {x.sender for x in self._queue if isinstance(x, Update)}
        asked = {x.to for x in self._queue if isinstance(x, Task)}
        return bool(honest & (senders | asked)) or ALL in asked

    def _told(self, name: str, task: Task) -> None:
        if task.ask == answered(KNOWN[self.method])[0]:
            self._asked[name] = task
        self.states[name], answers = self.devices[name].apply(self.states[name], task)
        for one in answers:
            is_twisted = isinstance(one, Signal) and name in self.twists and one.array.size
            self._queue.append(self.twists[name](one) if is_twisted else one)  # type: ignore[arg-type]

    def _uploaded(self, update: Update) -> Update | None:
        """Apply an attack, then screen as the product's ingress does: finite numbers, float64."""
        name = update.sender
        uploaded: Update | None = update
        if name in self.liars:
            uploaded = self.liars[name](update, self._asked[name], self._honest)
        else:
            self._honest[name] = update
        if uploaded is None or not np.isfinite(uploaded.vector).all():
            return None
        return replace(uploaded, vector=np.asarray(uploaded.vector, np.float64))

    def _folded(self, event: Event | None) -> Closed | None:
        if event is None:
            return None
        before = self._mark()
        self._state, effects = self.server.apply(self._state, event)
        closed = None
        for effect in effects:
            if isinstance(effect, Closed):
                closed = effect
            elif isinstance(effect, Due):
                self._dues.append(effect)
            else:
                self._queue.append(effect)
        self._followed(event, is_new=self._act is None or before != self._mark())
        return closed

    def _followed(self, event: Event, *, is_new: bool) -> None:
        play = self.server.play
        if play is None:
            return
        if is_new:
            self._act = play.begin(self._state, self._act)
            self._played(Due(self._state.round, "begin"))
        elif isinstance(event, Member):
            self._act = replace(self._act, slots=self._state.slots)
            self._played(event)

    def _mark(self) -> tuple[int, int, int]:
        state = self._state
        return state.round, getattr(state, "attempt", 0), getattr(state, "settled", 0)

    def _heard(self, said: Signal) -> None:
        """Admit a signal as the ingress does: finite, of this turn and shape."""
        play = self.server.play
        shape = said.array.shape if said.array.size else ()
        if play is None or not np.isfinite(said.array).all():
            return
        if play.wants(self._act, said, shape):
            self._played(said)

    def _played(self, event: Event) -> None:
        assert self.server.play is not None
        self._act, effects = self.server.play.apply(self._act, event)
        for effect in effects:
            if isinstance(effect, Due):
                self._dues.append(effect)
            else:
                self._queue.append(effect)

    def _late(self) -> None:
        if not self._dues:
            return
        due = self._dues.pop()
        self._dues.clear()
        if self.server.play is not None:
            self._played(due)
        if not self._queue:
            self._folded(due)


def twisted(part: str, act: Callable[[Array], Array]) -> Twist:
    """Change every activation (``encode``) or gradient (``decode``) that is sent."""

    def twist(said: Signal) -> Signal:
        if said.ask != part:
            return said
        return replace(said, array=np.asarray(act(said.array), said.array.dtype))

    return twist
