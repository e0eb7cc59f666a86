"""The server half without link and store: messages of devices in, their tasks out.

Admission, the half and the digest of a round are those of the aggregator.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from aggregator.config import BoundRun
from aggregator.ingress.admission_policy import OpenRound, admit_update
from aggregator.methods import OPEN
from aggregator.methods.base.wrappers import STEP
from aggregator.store.state_codec import digest
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol.contract import method
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.protocol.messages import UpdateMessage
from edge_sdk.session.manifest_checks import vectors

RUN = 1  # number of the run, as that of a new fleet: minibatches are drawn by it


@dataclass(frozen=True, slots=True)
class DirectRound:
    """A round that ended."""

    round: int
    version: int  # number of times the model has moved
    moved: bool
    model: str  # SHA-256 of the model's float64 vector, hexadecimal
    cohort: tuple[str, ...] = ()  # devices whose updates were used, in order of their ids
    loss: float | None = None  # mean training loss that they reported; None if none did


@dataclass(slots=True)
class DirectServer:
    """The server of a direct simulation."""

    bound: BoundRun  # the bound configuration, as a daemon has it
    devices: Sequence[str]  # ids of the devices, sorted
    state: Any = None
    rounds: list[DirectRound] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)  # number of refused updates, by reason
    bytes_up: int = 0  # bytes of the updates' vectors; ``bytes_down``: of the tasks' vectors
    bytes_down: int = 0
    _free: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = self.bound.first_state()

    @property
    def is_done(self) -> bool:
        return self.state.round > 0 and not self.state.is_open

    @property
    def digest(self) -> str:
        return digest(self.state).hex()

    def open(self) -> tuple[list[method.Task], list[method.Due]]:
        """Open the first round, and let every device join in order of the ids."""
        tasks, timers = self._apply(OPEN)
        for device in self.devices:
            more, later = self._apply(method.Member(device, present=True))
            tasks, timers = tasks + more, timers + later
        return tasks, timers

    def expire(self, due: method.Due) -> tuple[list[method.Task], list[method.Due]]:
        return self._apply(due)

    def receive(
        self, device: str, message: UpdateMessage
    ) -> tuple[list[method.Task], list[method.Due]]:
        """Admit an update and apply it; a refused one is counted and changes nothing."""
        now, self.bytes_up = self.state, self.bytes_up + len(message.blob)
        opened = OpenRound(RUN, now.round, now.version, is_open=now.is_open)
        try:
            update = admit_update(
                message, sender=device, limits=self.bound.limits, round_state=opened
            )
            if why := self.bound.fault(update):
                raise Refused(Reason.NORM_EXCEEDED, why)  # noqa: TRY301 - one place counts
        except Refused as refused:
            self.refused[refused.reason.name] += 1
            self._free[device] = message.round
            return self._ask_refused()
        single = np.asarray(update.vector, np.float32)  # as the journal keeps it
        is_exact = np.array_equal(single, update.vector)
        tasks, timers = self._apply(replace(update, vector=single) if is_exact else update)
        more, later = self._ask_refused()
        return tasks + more, timers + later

    def _ask_refused(self) -> tuple[list[method.Task], list[method.Due]]:
        """Repeat the task of devices whose update was refused in an earlier round than the open one."""
        tasks: list[method.Task] = []
        timers: list[method.Due] = []
        if not self.bound.ask.personal:
            self._free.clear()
        for device in [name for name, number in self._free.items() if number < self.state.round]:
            del self._free[device]
            more, later = self._apply(method.Member(device, present=True))
            tasks, timers = tasks + more, timers + later
        return tasks, timers

    def final_tasks(self) -> list[method.Task]:
        """Return the tasks by which the devices adopt the final model."""
        state, model = self.state, self.bound.half.model(self.state)
        w = np.asarray(model["p"], np.float32)
        values = {x.name: float(model[x.name]) for x in self.bound.ask.numbers if x.name in model}
        return [
            method.Task(
                device, state.round, method.END, base=state.version, values=values, arrays={"w": w}
            )
            for device in self.devices
        ]

    def _apply(self, event: method.Event) -> tuple[list[method.Task], list[method.Due]]:
        self.state, effects = self.bound.half.apply(self.state, event)
        return self._followed(effects)

    def _followed(self, effects: method.Effects) -> tuple[list[method.Task], list[method.Due]]:
        tasks: list[method.Task] = []
        timers: list[method.Due] = []
        for effect in effects:
            if isinstance(effect, method.Closed):
                self._record(effect)
            elif isinstance(effect, method.Due):
                timers.append(effect)
            elif isinstance(effect, method.Task):
                tasks += self._addressed(effect)
        return tasks, timers

    def _record(self, closed: method.Closed) -> None:
        report = closed.report
        self.rounds.append(
            DirectRound(
                closed.round,
                closed.version,
                closed.moved,
                hashlib.sha256(self.state.w.tobytes()).hexdigest(),
                tuple(sorted(report.get("cohort", ()))),
                report.get("loss"),
            )
        )

    def _addressed(self, task: method.Task) -> list[method.Task]:
        """Return a task as its devices decode it: vectors in float32, declared scalars."""
        if task.to != method.ALL:
            self.bytes_down += 4 * sum(array.size for array in task.arrays.values())
            values = {name: float(value) for name, value in task.values.items()}
            return [replace(task, values=values, arrays=self._personal(task))]
        ask = self.bound.ask
        name = ask.down[0] if ask.down else "w"
        w = np.asarray(task.arrays[name], np.float32)
        whole = 4 * w.size  # a device that took the task before has the version of the step
        self.bytes_down += task.arrays.get(STEP, np.zeros(whole, np.uint8)).size * len(self.devices)
        declared = {one.name for one in ask.numbers}
        values = {key: float(value) for key, value in task.values.items() if key in declared}
        arrays = {name: w}
        return [replace(task, to=one, values=values, arrays=arrays) for one in self.devices]

    def _personal(self, task: method.Task) -> dict[str, Vector]:
        ask = method.CONTRACTS[self.bound.config.run.method][task.ask]
        present = [np.ravel(task.arrays[name]) for name in ask.down if name in task.arrays]
        if not present:
            return {}
        joined = np.concatenate(present).astype(np.float32)
        return vectors(ask.down, joined, self.bound.spec.shared_size, stacked=ask.stacked)
