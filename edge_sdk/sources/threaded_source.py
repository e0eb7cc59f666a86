"""A source that goes on: its reader thread waits for the interface, so that the agent never does.

The thread knows a feed and a bounded queue of frames, nothing else. Decoding, normalising and what
is remembered happen in ``poll``, in the agent's own thread. While the agent trains, frames wait;
when the queue is full the thread stops reading, and registers lose nothing by what a line drops.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import Empty, Full, Queue
from typing import Any

from edge_sdk.app.clock import Clock, SystemClock
from edge_sdk.forecasting.series import Reading
from edge_sdk.sources.base import UNDECODABLE, Decoder, FramedLink, RawFrame, Rejected, SourceSample
from edge_sdk.sources.normaliser import Normaliser

_PATIENCE = 0.2  # seconds a feed waits: how soon the thread hears that it shall stop
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0  # before a lost link is tried again


@dataclass(slots=True)
class ThreadedSource:
    """One configured source at work.

    Attributes:
        kind: Its type in the configuration.
        feed: What blocks.
        decode: Of one frame.
        normaliser: What it remembers.
        is_finite: Whether the medium has an end: then ``__iter__`` reads to it.
        is_retold: Whether the medium tells everything again after a restart: then nothing of it
            is remembered.
        clock: Where ``health`` reads time from.
        ahead: How many frames may wait for the agent.
        record: Called with every frame, in the reader's thread.
        rejected: Frames and values dropped, by reason.
        accepted: Frames decoded.
        lost: How often the link was lost, or could not be opened.
        is_linked: Whether the link is open.
    """

    kind: str
    feed: FramedLink
    decode: Decoder
    normaliser: Normaliser
    is_finite: bool = False
    is_retold: bool = False
    clock: Clock = field(default_factory=SystemClock)
    ahead: int = 512
    record: Callable[[RawFrame], object] | None = None
    rejected: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    lost: int = 0
    is_linked: bool = False
    _heard: float | None = None
    _offset: float | None = None
    _queue: Queue[RawFrame] = field(init=False)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        """Make the queue."""
        self._queue = Queue(self.ahead)

    @property
    def streams(self) -> frozenset[str]:
        """Which streams its readings may be of."""
        return self.normaliser.streams

    def on_grid(self, step: float) -> None:
        """Cut registers on this grid, unless the configuration named another."""
        self.normaliser.settle(step)

    def start(self, saved: bytes | None = None) -> None:
        """Begin to listen, going on where ``saved`` was taken."""
        if saved and not self.is_retold:
            self.normaliser.restore(saved)
        name = f"source {self.kind}"
        self._thread = threading.Thread(target=self._listen, name=name, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        """Run in the thread: wait for frames, and for a lost link to come back."""
        wait = _FIRST_WAIT
        while not self._stopping.is_set():
            try:
                frames = self.feed.frames(_PATIENCE)
            except EOFError:
                break
            except OSError:
                self.lost += 1
                self.is_linked = False
                self.feed.close()
                self._stopping.wait(wait * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries
                wait = min(2 * wait, _LONGEST_WAIT)
                continue
            self.is_linked, wait = True, _FIRST_WAIT
            for frame in frames:
                self._put(frame)
        self.feed.close()
        self.is_linked = False

    def _put(self, frame: RawFrame) -> None:
        if self.record is not None:
            self.record(frame)
        while not self._stopping.is_set():
            try:
                self._queue.put(frame, timeout=_PATIENCE)
            except Full:
                continue
            return

    def poll(self) -> Iterator[Reading]:
        """Yield the readings of the frames that came since the last call; never waits."""
        for _, readings in self.turn():
            yield from readings

    def turn(self) -> Iterator[tuple[list[SourceSample], Iterator[Reading]]]:
        """Yield what came since the last call, frame by frame: as told, and as it is taken."""
        for _ in range(self.ahead):
            try:
                frame = self._queue.get_nowait()
            except Empty:
                return
            samples = self.samples(frame)
            yield samples, self.normaliser.take(samples)

    def samples(self, frame: RawFrame) -> list[SourceSample]:
        """Decode one frame; what cannot be meant is counted by its reason."""
        try:
            samples = self.decode(frame)
        except Rejected as verdict:
            self.rejected[verdict.reason] += 1
            return []
        except UNDECODABLE:
            self.rejected["undecodable"] += 1
            return []
        self.accepted += 1
        self._heard = self.clock.monotonic()
        if samples:
            self._offset = samples[0].time - frame.at
        return samples

    def saved(self) -> bytes:
        """Return what ``start`` needs after a restart."""
        return b"" if self.is_retold else self.normaliser.saved()

    def health(self) -> dict[str, Any]:
        """Say how the interface is: nothing measured is in it."""
        age = None if self._heard is None else round(self.clock.monotonic() - self._heard, 1)
        return {
            "type": self.kind,
            "linked": self.is_linked,
            "lost": self.lost,
            "accepted": self.accepted,
            "rejected": dict(self.rejected + Counter(dict(self.feed.rejected))),
            "noticed": dict(self.normaliser.counts),
            "seconds_since": age,
            "clock_offset": None if self._offset is None else round(self._offset, 1),
        }

    def __iter__(self) -> Iterator[Reading]:
        """Read a medium that has an end to it, in this thread; of one that goes on, nothing."""
        try:
            while self.is_finite:
                for frame in self.feed.frames(_PATIENCE):
                    yield from self.normaliser.take(self.samples(frame))
        except EOFError:
            return
        except OSError:
            self.rejected["unreadable file"] += 1
        finally:
            self.feed.close()

    def close(self) -> None:
        """Stop listening; a link that is deaf to it is left to the process's end."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(5.0)
            self._thread = None
