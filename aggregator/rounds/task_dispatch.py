"""Dispatch the tasks of single devices: build their messages and repeat them until answered.

The store keeps every device's newest task and its content. A task is sent when it is created,
after every hello, and periodically without its vectors to a present device that has not answered:
a broker may have lost it, and the device requests the vectors it lacks. Nothing is retained, and
nothing here is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from aggregator.store.store import Store
from aggregator.store.types import DownloadBody, PendingTask
from edge_sdk.protocol import messages
from edge_sdk.protocol.codec import encode, pack_tensor
from edge_sdk.protocol.contract.method import Array, Ask, Task
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.protocol.envelope import digest, ref
from edge_sdk.protocol.messages import HEADER_LIMIT

REMIND = 15.0  # s without an answer before a task is repeated; doubles
RARELY = 900.0  # s, upper bound of the doubling


def content_of(task: Task, ask: Ask, spec: ParamSpec, run: int) -> bytes:
    """Return the content body of a task: its concatenated vectors, or nothing.

    The body of a task with one vector equals that of a model with the same vector, so it is stored
    once, and downloaded once by a device that needs both.
    """
    arrays = [task.arrays[name] for name in ask.down if name in task.arrays]
    blobs = [pack_tensor(np.ravel(array), "f4") for array in arrays]
    if not blobs:
        return b""
    body = messages.ContentBody(
        run=run, version=task.base, part="shared", spec=spec.digest, enc="f4", blob=b"".join(blobs)
    )
    return encode(body)


def recorded(
    tasks: Iterable[Task], contract: Mapping[str, Ask], spec: ParamSpec, *, run: int, chunk: int
) -> tuple[tuple[PendingTask, ...], tuple[DownloadBody, ...]]:
    """Return tasks in their stored form, and each of their contents once.

    Args:
        spec: Layout of every vector.
        chunk: Size of one chunk of a content, bytes.
    """
    asked: list[PendingTask] = []
    contents: dict[bytes, DownloadBody] = {}
    bodies: dict[tuple[int, ...], bytes] = {}
    for task in tasks:
        same = (task.base, *map(id, _arrays(task, contract)))
        if same not in bodies:
            bodies[same] = content_of(task, contract[task.ask], spec, run)
        body = bodies[same]
        name = ref(digest(body)) if body else b""
        if body:
            contents[name] = DownloadBody("task", name, body, chunk)
        asked.append(
            PendingTask(
                device=task.to,
                run=run,
                round=task.round,
                attempt=task.attempt,
                step=task.step,
                base=task.base,
                ask=task.ask,
                values={key: float(value) for key, value in task.values.items()},
                content=name,
            )
        )
    return tuple(asked), tuple(contents.values())


class Peers(NamedTuple):
    """Neighbours of a device, as listed in a task."""

    peers: tuple[str, ...] = ()
    keys: tuple[bytes, ...] = ()
    weights: tuple[float, ...] = ()
    open: tuple[bytes, ...] = ()
    serial: int = 0


NO_PEERS = Peers()


def message(
    asked: PendingTask,
    content: DownloadBody | None,
    spec: bytes,
    *,
    whole: bool,
    peers: Peers = NO_PEERS,
) -> messages.TaskMessage:
    """Build the message of a task; ``whole`` includes the content if it is small enough."""
    body = content.body if content is not None else b""
    chunk = content.chunk if content is not None else 0
    fits = whole and len(body) <= chunk - HEADER_LIMIT
    return messages.TaskMessage(
        run=asked.run,
        round=asked.round,
        base=asked.base,
        ask=asked.ask,
        spec=spec,
        attempt=asked.attempt,
        step=asked.step,
        digest=digest(body) if body else None,
        size=len(body) or None,
        chunk=chunk or None,
        vals=dict(asked.values),
        **peers._asdict(),
        blob=body if fits else b"",
    )


@dataclass(slots=True)
class _Reminder:
    at: float
    wait: float
    anyway: bool = False  # also to devices whose presence is unknown


class OpenTasks:
    """Open tasks of one run, and the schedule of their reminders.

    Args:
        spec: Layout digest of their vectors.
        now: Start time, seconds of the monotonic clock.
        peers: Returns a device's neighbours, where the method has some.
    """

    def __init__(
        self,
        store: Store,
        run: int,
        spec: bytes,
        now: float,
        peers: Callable[[str], Peers] = lambda _device: NO_PEERS,
    ) -> None:
        self._store = store
        self._peers = peers
        self._run = run
        self._spec = spec
        self._reminders = {
            one.device: _Reminder(now + REMIND, REMIND) for one in store.tasks.of_run(run)
        }
        self._whole: dict[str, tuple[tuple[int, int, int], float]] = {}
        self.sent: dict[str, int] = {}

    def message_to(
        self, device: str, now: float, *, whole: bool = True
    ) -> messages.TaskMessage | None:
        """Return the message of a device's open task; None if it has none."""
        asked = self._store.tasks.get(device, self._run)
        if asked is None or not asked.is_open:
            self._reminders.pop(device, None)
            return None
        if whole:
            self._reminders[device] = _Reminder(now + REMIND, REMIND)
            whole = self._is_fresh(asked, now)
        self.sent[device] = self.sent.get(device, 0) + 1
        content = self._store.contents.get(asked.content) if asked.content else None
        peers = self._peers(device)
        return message(asked, content, self._spec, whole=whole, peers=peers)

    def _is_fresh(self, asked: PendingTask, now: float) -> bool:
        """Return whether the message may include the vectors: not again soon after repeated hellos.

        A device that has lost them requests them.
        """
        turn, at = self._whole.get(asked.device, ((0, 0, 0), -REMIND))
        if turn == asked.turn and now - at < REMIND:
            return False
        self._whole[asked.device] = asked.turn, now
        return True

    def hurry(self, now: float) -> None:
        """Schedule early reminders for all devices, after the loss of the link and its queue.

        One reminder also goes to devices whose presence is unknown. After a restart it is unknown
        until the retained status arrives; a broker that kept the session need not send that again,
        and a waiting device sends nothing.
        """
        for device in self._reminders:
            self._reminders[device] = _Reminder(now, REMIND, anyway=True)

    def returned(self, device: str, now: float) -> None:
        """Schedule an early reminder for a device that returned without a hello."""
        if device in self._reminders:
            self._reminders[device] = _Reminder(now, REMIND)

    def due(self, now: float, present: Container[str]) -> list[tuple[str, messages.TaskMessage]]:
        """Return the due reminders, for devices that are present."""
        names = [
            name
            for name, one in self._reminders.items()
            if one.at <= now and (one.anyway or name in present)
        ]
        messages_due = []
        for device in sorted(names):
            wait = min(RARELY, 2 * self._reminders[device].wait)
            self._reminders[device] = _Reminder(now + wait, wait)
            sent = self.message_to(device, now, whole=False)
            if sent is not None:
                messages_due.append((device, sent))
        return messages_due


def _arrays(task: Task, contract: Mapping[str, Ask]) -> list[Array]:
    return [task.arrays[name] for name in contract[task.ask].down if name in task.arrays]
