"""Serve many links with one epoll: readable and writable sockets, and timers.

A poller is independent of MQTT. It replaces a client library's own loop, which uses ``select`` and
fails for every descriptor from 1,024 on, and avoids a thread per link, which does not scale to
1,000 links.
"""

from __future__ import annotations

import heapq
import itertools
import selectors
import time
from collections.abc import Callable
from typing import Protocol

Clock = Callable[[], float]


class Served(Protocol):
    """One link that a poller serves: a descriptor, and work due at given times."""

    def ready(self, *, readable: bool, writable: bool) -> None:
        """Read or write as the descriptor allows, without blocking."""

    def tick(self, now: float) -> None:
        """Do the work due at ``now`` (seconds on the poller's clock)."""


class Poller:
    """Serve any number of links in one thread.

    Attributes:
        connecting_limit: Links that may be between SYN and CONNACK at once. More simultaneous
            connections overflow a broker's accept backlog and complete later.
        close: Frees the epoll descriptor. Close the links first.
    """

    def __init__(self, *, clock: Clock = time.monotonic, connecting_limit: int = 100) -> None:
        self.clock = clock
        self.connecting_limit = connecting_limit
        self._connecting: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self.close = self._selector.close
        self._due: dict[Served, float] = {}
        self._heap: list[tuple[float, int, Served]] = []
        self._order = itertools.count()

    def watch(self, descriptor: int, served: Served, *, write: bool = False) -> None:
        """Call ``served.ready`` when the descriptor is readable and, if asked, writable."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        if descriptor in self._selector.get_map():
            self._selector.modify(descriptor, events, served)
        else:
            self._selector.register(descriptor, events, served)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor. Must come before it is closed."""
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def at(self, when: float | None, served: Served) -> None:
        """Call ``served.tick`` once at ``when``; replaces its earlier timer. None cancels it."""
        if when is None:
            self._due.pop(served, None)
            return
        self._due[served] = when
        heapq.heappush(self._heap, (when, next(self._order), served))

    def admits(self, served: Served) -> bool:
        """Return whether one more link may start connecting; if so, count it until ``settled``."""
        if len(self._connecting) >= self.connecting_limit:
            return False
        self._connecting.add(id(served))
        return True

    def settled(self, served: Served) -> None:
        self._connecting.discard(id(served))

    def serve(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for something to happen and let the links handle it."""
        for key, events in self._selector.select(self._patience(timeout)):
            key.data.ready(
                readable=bool(events & selectors.EVENT_READ),
                writable=bool(events & selectors.EVENT_WRITE),
            )
        now = self.clock()
        while self._heap and self._heap[0][0] <= now:
            when, _, served = heapq.heappop(self._heap)
            if self._due.get(served) == when:
                del self._due[served]
                served.tick(now)

    def _patience(self, timeout: float) -> float:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        if not self._heap:
            return max(0.0, timeout)
        return max(0.0, min(timeout, self._heap[0][0] - self.clock()))
