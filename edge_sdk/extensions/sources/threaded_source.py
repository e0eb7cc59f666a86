"""Run a live source: a reader thread waits for the interface, so that the agent never does.

The thread uses only a feed and a bounded queue of frames. Decoding and normalising, with their
state, happen in ``poll``, in the agent's own thread. While the agent trains, frames wait; when the
queue is full the thread stops reading, and cumulative registers lose nothing.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import field
from queue import Empty, Full, Queue
from typing import Any

from edge_sdk.app.clock import Clock, SystemClock
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.sources.base import (
    UNDECODABLE,
    Decoder,
    FramedLink,
    RawFrame,
    Rejected,
    SourceSample,
    tally,
)
from edge_sdk.extensions.sources.normaliser import Normaliser
from edge_sdk.forecasting.series import Reading

_PATIENCE = 0.2  # longest wait of a feed in seconds; bounds the time to stop
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0  # seconds before a lost link is tried again


@dataclass(slots=True)
class ThreadedSource:
    """One configured live source."""

    kind: str  # type in the configuration
    feed: FramedLink
    decode: Decoder
    normaliser: Normaliser  # Converter of samples, with its state
    is_finite: bool = False  # true if the medium has an end: then ``__iter__`` reads to it
    # true if the medium delivers everything again after a restart: then no state is restored
    is_retold: bool = False
    clock: Clock = field(default_factory=SystemClock)  # clock of ``health``
    ahead: int = 512  # largest number of frames that wait for the agent
    # called with every frame, in the reader's thread
    record: Callable[[RawFrame], object] | None = None
    rejected: Counter[str] = field(default_factory=Counter)  # frames and values dropped, by reason
    accepted: int = 0  # number of frames decoded
    lost: int = 0  # number of times that the link was lost, or could not be opened
    is_linked: bool = False
    why: str = ""  # reason for which the link was lost or could not be opened, the last time
    _heard: float | None = None
    _offset: float | None = None
    streams: frozenset[str] = field(init=False)  # streams that its readings may belong to
    _queue: Queue[RawFrame] = field(init=False)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._queue, self.streams = Queue(self.ahead), self.normaliser.streams

    def on_grid(self, step: float) -> None:
        """Set the grid of the registers, unless the configuration set one."""
        self.normaliser.settle(step)

    def record_frames(self, record: Callable[[RawFrame], object]) -> None:
        """Call a function with every frame from now on, in the reader's thread."""
        self.record = record

    def start(self, saved: bytes | None = None) -> None:
        """Start the reader thread, with the state from ``saved``."""
        if saved and not self.is_retold:
            self.normaliser.restore(saved)
        name = f"source {self.kind}"
        self._thread = threading.Thread(target=self._listen, name=name, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        """Read frames, and reopen a lost link; runs in the thread."""
        wait = _FIRST_WAIT
        while not self._stopping.is_set():
            try:
                frames = self.feed.frames(_PATIENCE)
            except EOFError:
                break
            except OSError as error:
                self.is_linked, self.why = False, str(error)
                self.lost += 1
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
        """Yield the readings of the frames since the last call; never waits."""
        for _, readings in self.turn():
            yield from readings

    def turn(self) -> Iterator[tuple[list[SourceSample], Iterator[Reading]]]:
        """Yield the new samples and readings, frame by frame."""
        for _ in range(self.ahead):
            try:
                frame = self._queue.get_nowait()
            except Empty:
                return
            samples = self.samples(frame)
            yield samples, self.normaliser.normalise(samples)

    def samples(self, frame: RawFrame) -> list[SourceSample]:
        """Decode one frame; a rejected one is counted by its reason."""
        try:
            samples = self.decode(frame)
        except Rejected as verdict:
            return self._refuse(frame, verdict.reason)
        except UNDECODABLE:
            return self._refuse(frame, "undecodable")
        self.accepted += 1
        self._heard = self.clock.monotonic()
        if samples:
            self._offset = samples[0].time - frame.at
        return samples

    def _refuse(self, frame: RawFrame, reason: str) -> list[SourceSample]:
        self.rejected[reason] += 1
        if frame.origin:
            tally(self.normaliser.unused, frame.origin, reason)
        return []

    def saved_unused(self, saved: bytes | None) -> list[str]:
        """Return the names of ``unused`` in a result of ``saved``; none if it is damaged."""
        try:
            return [str(name) for name in json.loads(saved or b"{}")["unused"]]
        except (ValueError, LookupError, TypeError):
            return []

    @property
    def unused(self) -> Counter[str]:
        """Input that is not used, by name and reason, as ``tally`` counts it."""
        both = (Counter(dict(getattr(one, "unused", {}))) for one in (self.feed, self.decode))
        return sum(both, Counter(self.normaliser.unused))

    def survey(self) -> Counter[str]:
        """Decode a part of a file or folder; return the names of its unused parts.

        A link is not opened: then the result is empty. A source that is started needs another object.
        """
        sample: Callable[[], list[RawFrame]] = getattr(self.feed, "sample", list)
        with suppress(OSError):
            for frame in sample():
                for _ in self.normaliser.normalise(self.samples(frame)):
                    pass
        return self.unused

    def saved(self) -> bytes:
        """Return the state that ``start`` needs after a restart, and the names of ``unused``."""
        if not self.is_retold:
            return self.normaliser.saved()
        return json.dumps({"unused": sorted(self.unused)}).encode()

    def report(self) -> dict[str, Any]:
        """Return the state of the interface, which a test shows besides the readings."""
        return self.health()

    def health(self) -> dict[str, Any]:
        """Return the state of the interface, without any measured value."""
        age = None if self._heard is None else round(self.clock.monotonic() - self._heard, 1)
        return {
            "type": self.kind,
            "linked": self.is_linked,
            "lost": self.lost,
            "why": self.why,
            "accepted": self.accepted,
            "rejected": dict(self.rejected + Counter(dict(self.feed.rejected))),
            "noticed": dict(self.normaliser.counts),
            "unused": dict(self.unused),
            "seconds_since": age,
            "clock_offset": None if self._offset is None else round(self._offset, 1),
        }

    def __iter__(self) -> Iterator[Reading]:
        """Yield all readings of a finite medium, in this thread; none of a continuous one."""
        try:
            while self.is_finite:
                for frame in self.feed.frames(_PATIENCE):
                    yield from self.normaliser.normalise(self.samples(frame))
        except EOFError:
            return
        except OSError:
            self.rejected["unreadable file"] += 1
        finally:
            self.feed.close()

    def close(self) -> None:
        """Stop the thread; one blocked in its link is left to the end of the process."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(5.0)
            self._thread = None
