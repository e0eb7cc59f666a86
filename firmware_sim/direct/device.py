"""One simulated device without link and store: a task in, the message of its update out.

The training is that of the installed device: its model runtime, its half, the canary, and the
encoding of its update. Tests compare the bits with those of ``Client`` over a broker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from edge_sdk.forecasting.windows import Scale
from edge_sdk.protocol.contract.method import CONTRACTS, END, Ask, Effects, Task, Update
from edge_sdk.protocol.messages import UpdateMessage
from edge_sdk.protocol.outbox_state import UplinkCounters
from edge_sdk.training.active_run import Residual
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.training.training_transaction import (
    UplinkEncoding,
    encoding_of,
    update_message,
    uplink_encoding,
)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceProgress:
    """State of a device of a direct simulation; it can be sent to another process."""

    state: Any
    residual: Residual | None  # rounding error that has not been sent yet; None if exact
    sent: int
    scale: Scale | None  # scale of the training; None before the first


@dataclass(slots=True)
class DirectDevice:
    """A device of a direct simulation."""

    learner: ModelRuntime  # model runtime of the run's bundle
    # encodings of updates that the run allows; a quantised one is preferred
    encodings: tuple[str, ...]
    state: Any = None
    residual: Residual | None = None  # rounding error that has not been sent yet; None if exact
    sent: int = 0
    _windows: int | None = field(default=None)

    def __post_init__(self) -> None:
        self.state = self.learner.first_state()

    @property
    def id(self) -> str:
        return self.learner.config.id

    @property
    def has_windows(self) -> bool:
        if self._windows is None:
            self._windows = len(self.learner.windows())
        return self._windows > 0

    def progress(self) -> DeviceProgress:
        return DeviceProgress(self.state, self.residual, self.sent, self.learner.scale)

    def restore(self, progress: DeviceProgress) -> None:
        """Continue from a result of ``progress``, earlier or in another process.

        A scale that is fixed stays: it depends on the readings only, which never change here.
        """
        self.state, self.residual, self.sent = progress.state, progress.residual, progress.sent
        if progress.scale is not None and self.learner.scale != progress.scale:
            self.learner.fix_scale(progress.scale)
            self.learner.refresh()

    def answer(self, task: Task) -> UpdateMessage | None:
        """Process a task as ``TrainingTransaction`` does; return the update's message, if any.

        A common task without a window to train on adopts the model, and a task for this device
        alone is not processed.
        """
        ask = CONTRACTS[self.learner.role.method].get(task.ask)
        if ask is not None and ask.personal and not self.has_windows:
            return None
        state, effects = self.learner.learn(self.state, task)
        if self.learner.fault_of(state, self.state):
            effects = effects if self._may_send_faulty(state, task, ask) else ()
            state = type(self.state).from_arrays(self.state.arrays())
        updates = self._updates(task, effects)
        message = None
        if updates and ask is not None:
            update = self.learner.mechanism.release(updates[0])
            encoding = self._encoding(update, task, ask)
            counters = UplinkCounters(1, self.sent, self.sent + 1, lost=False)
            message = update_message(
                update,
                task,
                counters,
                run=self.learner.role.run,
                learner=self.learner,
                encoding=encoding,
            )
            self.residual = encoding.residual(update, run=self.learner.role.run)
            self.sent += 1
        self.state = state
        return message

    def _updates(self, task: Task, effects: Effects) -> list[Update]:
        if (task.ask != END and not self.has_windows) or not self.learner.spec.shared_size:
            return []
        return [effect for effect in effects if isinstance(effect, Update)]

    def _may_send_faulty(self, state: Any, task: Task, ask: Ask | None) -> bool:  # noqa: ANN401 - the half's own
        is_mirrored = ask is None or ask.mirrored
        return not is_mirrored and self.learner.mends(state, self.state, task)

    def _encoding(self, update: Update, task: Task, ask: Ask) -> UplinkEncoding:
        enc = uplink_encoding(ask, self.encodings, self.encodings)
        run = self.learner.role.run
        return encoding_of(enc, update, task, self.residual, device=self.id, run=run)
