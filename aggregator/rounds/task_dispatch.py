"""What single devices are asked: which words, and when they are said again.

The store keeps every device's newest task and the content it brings. A task is said when it is
made, after every hello, and now and then without its vectors to a device that is there and has not
answered: a broker may have lost it, and the device asks for the vectors it lacks. Nothing is
retained, nothing here outlives the process.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from aggregator.store import SqliteStore
from aggregator.store.types import DownloadBody, PendingTask
from edge_sdk.wire.contract.method import Array, Ask, Task
from edge_sdk.wire.contract.parameter_layout import ParamSpec
from edge_sdk.wire.protocol import messages
from edge_sdk.wire.protocol.codec import encode, pack_tensor
from edge_sdk.wire.protocol.envelope import digest, ref
from edge_sdk.wire.protocol.messages import HEADER_LIMIT

REMIND = 15.0  # s without an answer before a task is said again; doubles
RARELY = 900.0  # s, where the doubling ends


def content_of(task: Task, ask: Ask, spec: ParamSpec, run: int) -> bytes:
    """Return the content body of a task: its vectors one after the other, or nothing.

    A task with one vector has the very body of a model that consists of it, so that it is kept
    once, and fetched once by a device that needs both.
    """
    arrays = [task.arrays[name] for name in ask.down if name in task.arrays]
    blobs = [pack_tensor(np.ravel(array), "f4") for array in arrays]
    if not blobs:
        return b""
    body = messages.ContentBody(
        run=run,
        version=task.base,
        part="shared",
        spec=spec.digest,
        enc="f4",
        blob=b"".join(blobs),
    )
    return encode(body)


def recorded(
    tasks: Iterable[Task], contract: Mapping[str, Ask], spec: ParamSpec, *, run: int, chunk: int
) -> tuple[tuple[PendingTask, ...], tuple[DownloadBody, ...]]:
    """Return tasks as they are kept, and every content they bring once.

    Args:
        tasks: To one device each.
        contract: Of the run's method.
        spec: Layout of every vector.
        run: The run.
        chunk: Bytes of one chunk of a content.
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
    """A device's neighbours, as a task names them."""

    peers: tuple[str, ...] = ()
    keys: tuple[bytes, ...] = ()
    weights: tuple[float, ...] = ()


NOBODY = Peers()


def message(
    asked: PendingTask,
    content: DownloadBody | None,
    spec: bytes,
    *,
    whole: bool,
    peers: Peers = NOBODY,
) -> messages.TaskMessage:
    """Write a task's words; ``whole`` puts the content into them where it is small enough."""
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
    anyway: bool = False  # also to who is not known to be there


class Asking:
    """The open tasks of one run: what to say now, and to whom to say it again.

    Args:
        store: Where they are kept.
        run: The run.
        spec: Layout digest of their vectors.
        now: Seconds of the monotonic clock, at the start.
        peers: Returns a device's neighbours, where the method has some.
    """

    def __init__(
        self,
        store: SqliteStore,
        run: int,
        spec: bytes,
        now: float,
        peers: Callable[[str], Peers] = lambda _device: NOBODY,
    ) -> None:
        self._store = store
        self._peers = peers
        self._run = run
        self._spec = spec
        self._reminders = {one.device: _Reminder(now + REMIND, REMIND) for one in store.tasks(run)}
        self._whole: dict[str, tuple[tuple[int, int, int], float]] = {}
        self.said: dict[str, int] = {}

    def tell(self, device: str, now: float, *, whole: bool = True) -> messages.TaskMessage | None:
        """Return what a device should work on, if it has not answered it yet."""
        asked = self._store.asked(device, self._run)
        if asked is None or not asked.is_open:
            self._reminders.pop(device, None)
            return None
        if whole:
            self._reminders[device] = _Reminder(now + REMIND, REMIND)
            whole = self._is_fresh(asked, now)
        self.said[device] = self.said.get(device, 0) + 1
        content = self._store.content(asked.content) if asked.content else None
        peers = self._peers(device)
        return message(asked, content, self._spec, whole=whole, peers=peers)

    def _is_fresh(self, asked: PendingTask, now: float) -> bool:
        """Whether the vectors may ride along: not so soon again, for whoever says hello and hello.

        A device that truly lost them asks.
        """
        turn, at = self._whole.get(asked.device, ((0, 0, 0), -REMIND))
        if turn == asked.turn and now - at < REMIND:
            return False
        self._whole[asked.device] = asked.turn, now
        return True

    def hurry(self, now: float) -> None:
        """The link was away, and with it whatever waited to be said: remind everybody soon.

        Once also who is not known to be there. After a restart nobody is, until its retained status
        comes; a broker that kept our session need not send that again, and who waits says nothing.
        """
        for device in self._reminders:
            self._reminders[device] = _Reminder(now, REMIND, anyway=True)

    def returned(self, device: str, now: float) -> None:
        """A device is back without having said hello: remind it soon."""
        if device in self._reminders:
            self._reminders[device] = _Reminder(now, REMIND)

    def again(self, now: float, there: Container[str]) -> list[tuple[str, messages.TaskMessage]]:
        """Return the reminders that are due, for devices that are there."""
        due = [
            name
            for name, one in self._reminders.items()
            if one.at <= now and (one.anyway or name in there)
        ]
        told = []
        for device in sorted(due):
            wait = min(RARELY, 2 * self._reminders[device].wait)
            self._reminders[device] = _Reminder(now + wait, wait)
            words = self.tell(device, now, whole=False)
            if words is not None:
                told.append((device, words))
        return told


def _arrays(task: Task, contract: Mapping[str, Ask]) -> list[Array]:
    return [task.arrays[name] for name in contract[task.ask].down if name in task.arrays]
