"""Flood control: measure the rate of each client, drop the excess, exclude persistent senders.

The rate is checked before anything is decoded, by the client id in the topic. The aggregator
unsubscribes for a while from a client that continues: the broker then queues none of its messages,
and those of other clients do not wait behind them. Mosquitto has no rate limit of its own. What the
broker had queued before is discarded with the session if it cannot be read within ``DRAINED``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aggregator.ingress.rate_limits import TokenBuckets
from edge_sdk.app.cli import fields
from edge_sdk.link.transport import Transport
from edge_sdk.protocol import topics

logger = logging.getLogger(__name__)

REMEMBERED: Final = 4_096  # clients measured at a time, and past floods
MOST_NAMED: Final = 20_000  # devices with a subscription of their own
DRAINED: Final = 2.0  # s after an exclusion in which what the broker had queued may still arrive


@dataclass(frozen=True, slots=True)
class FloodLimits:
    """Rate above which a client's messages are dropped unread.

    A device that follows the protocol has at most 256 chunks of 32 kB on their way (PROTOCOL.md,
    section 13), and sends a burst of that size only to upload a whole body.
    """

    burst: int = 1_024  # burst size, messages
    rate: float = 256.0  # Sustained rate, messages per second
    burst_bytes: int = 32 * 1024 * 1024  # burst size, bytes: four whole bodies
    rate_bytes: float = 4.0 * 1024 * 1024  # Sustained rate, bytes per second
    tolerated: int = 256  # messages dropped within one flood before the client is excluded
    exclusion: float = 60.0  # first exclusion, seconds; each further one is twice as long
    longest: float = 3_600.0  # longest exclusion, seconds


@dataclass(slots=True)
class Flood:
    """Flood record of one client."""

    # last measured rate of arrival, messages per second; the sent rate may be higher
    rate: float = 0.0
    volume: float = 0.0  # last measured rate of arrival, bytes per second
    dropped: int = 0  # messages dropped unread since the daemon started
    until: float = 0.0  # end of the exclusion, monotonic seconds; 0 before the first one
    strikes: int = 0  # number of exclusions so far
    # time from which a message shows that the broker's queue is too long to be read, monotonic
    # seconds; infinite if that is known already
    drained: float = math.inf

    def status(self, device: str, now: float) -> str:
        """Return the status line of this client, with the remedy."""
        state = f", excluded for {self.until - now:.0f} s" if self.until > now else ""
        return (
            f"{self.rate:.0f} messages/s and {self.volume / 1e6:.1f} MB/s arrived, {self.dropped} "
            f"dropped unread{state}; revoke with: gridfed-aggregator revoke {device}"
        )


@dataclass(slots=True)
class _Count:
    since: float
    messages: int = 0
    size: int = 0
    dropped: int = 0


class FloodControl:
    """Rate filter of messages, by client id.

    >>> control = FloodControl(FloodLimits(burst=2, rate=1.0, tolerated=1))
    >>> [control.admits("meter-1", 100, now=0.0) for _ in range(4)]
    [True, True, False, False]
    >>> control.excluded(now=0.0)
    frozenset({'meter-1'})
    >>> control.excluded(now=60.0)
    frozenset()
    """

    def __init__(self, limits: FloodLimits | None = None) -> None:
        self.dropped = 0  # messages dropped unread, of all clients together
        self._is_queue_long = False
        self._limits = limits or FloodLimits()
        self._messages = TokenBuckets(self._limits.burst, self._limits.rate)
        self._bytes = TokenBuckets(self._limits.burst_bytes, self._limits.rate_bytes)
        self._counts: OrderedDict[str, _Count] = OrderedDict()
        self._floods: OrderedDict[str, Flood] = OrderedDict()

    def admits(self, device: str, size: int, now: float) -> bool:
        """Count one message; return False if it must be dropped unread."""
        count = self._counts.get(device)
        if count is None:
            count = self._counts[device] = _Count(now)
            if len(self._counts) > REMEMBERED:
                self._counts.popitem(last=False)
        count.messages += 1
        count.size += size
        flood = self._floods.get(device)
        is_out = flood is not None and flood.until > now  # queued in the broker before
        if (
            not is_out
            and self._messages.consume(device, now)
            and self._bytes.consume(device, now, size)
        ):
            return True
        self.dropped += 1
        count.dropped += 1
        if flood is None:
            flood = self._floods[device] = Flood()
            if len(self._floods) > REMEMBERED:
                self._floods.popitem(last=False)
        flood.dropped += 1
        if is_out and now >= flood.drained:
            self._is_queue_long, flood.drained = True, math.inf
        if not is_out and count.dropped >= self._limits.tolerated:
            self._exclude(device, flood, count, now)
        return False

    def _exclude(self, device: str, flood: Flood, count: _Count, now: float) -> None:
        seconds = max(now - count.since, 1e-3)
        flood.rate, flood.volume = count.messages / seconds, count.size / seconds
        longest = self._limits.longest
        flood.until = now + min(longest, self._limits.exclusion * 2.0 ** min(flood.strikes, 32))
        flood.strikes += 1
        flood.drained = now + DRAINED
        self._floods.move_to_end(device)
        logger.error("flood detected %s", fields(device=device, what=flood.status(device, now)))

    def exclude(self, devices: Iterable[str], now: float) -> None:
        """Exclude clients that flooded before a restart."""
        for device in devices:
            self._floods[device] = Flood(
                until=now + self._limits.exclusion, strikes=1, drained=now + DRAINED
            )

    def consume_backlog(self) -> bool:
        """Return once for each exclusion whether messages of that client still arrive after it."""
        found, self._is_queue_long = self._is_queue_long, False
        return found

    def measure(self, now: float) -> None:
        """Start a new counting second; record the rates of clients over the limit in the last."""
        for device, count in self._counts.items():
            flood = self._floods.get(device)
            if flood is not None and count.dropped and now > count.since:
                seconds = max(now - count.since, 1.0)
                rate = count.messages / seconds
                if rate >= flood.rate:
                    flood.rate, flood.volume = rate, count.size / seconds
        self._counts.clear()

    def excluded(self, now: float) -> frozenset[str]:
        return frozenset(name for name, flood in self._floods.items() if flood.until > now)

    def status(self, now: float) -> dict[str, str]:
        return {name: self._floods[name].status(name, now) for name in sorted(self.excluded(now))}


UPLINK = (
    "hello",
    "offer",
    "have",
    "update",
    "signal",
    "metrics",
    "chunk",
    "receipt",
    "refusal",
    "forecast",
    "trial",
    "sum",
    "sumopened",
)
"""Kinds that a device writes under ``up``."""


def aggregator_filters(
    fleet: str, device: str = "+", *, has_workers: bool = False
) -> tuple[str, ...]:
    """Return the aggregator's filters, for all devices or for one.

    With admission workers they leave out ``update``, which ``updates_filter`` shares among the workers.
    Status is never shared: retained messages do not reach shared subscriptions.

    >>> aggregator_filters("north")
    ('gf/1/north/+/up/+', 'gf/1/north/+/status')
    >>> shared = aggregator_filters("north", "m1", has_workers=True)
    >>> [f"gf/1/north/m1/up/{kind}" in shared for kind in ("offer", "update")], len(shared)
    ([True, False], 13)
    """
    kinds = [kind for kind in UPLINK if kind != "update"] if has_workers else ["+"]
    return *(topics.up(fleet, device, kind) for kind in kinds), topics.status(fleet, device)


def updates_filter(fleet: str) -> str:
    """Return the subscription to all updates that are sent whole, shared by the admission workers.

    >>> updates_filter("north")
    '$share/admission/gf/1/north/+/up/update'
    """
    return f"$share/admission/{topics.up(fleet, '+', 'update')}"


class Subscriptions:
    """Subscriptions to devices: one wildcard, or one per device that is not excluded.

    The excluded devices are written to a file, so that the next process neither subscribes to them
    at once nor leaves stale subscriptions in the broker's session.
    """

    def __init__(self, transport: Transport, fleet: str, file: Path) -> None:
        """Start with the exclusions of the previous process, a file that is missing if there are none."""
        self._transport = transport
        self._fleet = fleet
        self._file = file
        self._is_shared = self._was_shared = False
        self._is_alone = False
        self._named: frozenset[str] | None = frozenset() if file.exists() else None
        self.excluded: frozenset[str] = frozenset()

    def remembered(self) -> list[str]:
        """Return the devices excluded at the end of the previous process."""
        try:
            names = json.loads(self._file.read_text("utf-8"))
        except (OSError, ValueError):
            return []
        found = names if isinstance(names, list) else []
        return [n for n in found[:REMEMBERED] if isinstance(n, str) and topics.is_device_id(n)]

    @property
    def is_partial(self) -> bool:
        return self._named is not None

    def renew(self, devices: Collection[str]) -> None:
        """Subscribe again after a ``LinkUp``, whatever the broker's session has kept."""
        if self._named is None:
            self._transport.subscribe(*self._wildcards)
        else:
            self._named = frozenset(devices) - self.excluded
            self._transport.subscribe(*self._filters(self._named))
            self._transport.unsubscribe(*self._wildcards)
            self._transport.unsubscribe(*self._filters(self.excluded))
        self._renew_updates()

    def share_updates(self, *, is_shared: bool) -> None:
        """Leave updates that are sent whole to a shared subscription of other processes, or stop doing so.

        An earlier process may have had the other setting; the broker may keep its subscriptions.
        """
        self._is_shared, self._was_shared = is_shared, True

    def receive_updates(self, *, is_alone: bool) -> None:
        """Receive the shared updates from now on, or leave them to the other processes."""
        self._is_alone = is_alone
        if self._transport.is_up:
            self._renew_updates()

    def _renew_updates(self) -> None:
        """Subscribe to shared updates if no other process does; drop messages queued for the other setting."""
        if not self._was_shared:
            return
        shared = updates_filter(self._fleet)
        other = aggregator_filters(self._fleet, has_workers=not self._is_shared)
        if self._is_shared and self._is_alone:
            self._transport.subscribe(shared)
        else:
            self._transport.unsubscribe(shared)
        self._transport.unsubscribe(*(one for one in other if one not in self._wildcards))

    def follow(self, devices: Collection[str], excluded: frozenset[str]) -> None:
        """Subscribe to all devices except the excluded ones; above ``MOST_NAMED`` devices none is excluded."""
        subscribed = frozenset(devices) - excluded
        wanted = subscribed if excluded and len(subscribed) <= MOST_NAMED else None
        before = self._named
        if wanted == before and (wanted is None or excluded == self.excluded):
            return
        wildcards = self._wildcards
        if wanted is None:
            self._transport.subscribe(*wildcards)
            self._transport.unsubscribe(*self._filters({*devices, *(before or ())}))
        else:
            known = before or frozenset()
            self._transport.subscribe(*self._filters(wanted - known))
            self._transport.unsubscribe(*(wildcards if before is None else ()))
            self._transport.unsubscribe(*self._filters((known - wanted) | excluded))
        self._named = wanted
        self.excluded = excluded if wanted is not None else frozenset()
        self._save()

    @property
    def _wildcards(self) -> tuple[str, ...]:
        return aggregator_filters(self._fleet, has_workers=self._is_shared)

    def _filters(self, devices: Iterable[str]) -> list[str]:
        return [
            pattern
            for name in sorted(devices)
            for pattern in aggregator_filters(self._fleet, name, has_workers=self._is_shared)
        ]

    def _save(self) -> None:
        """Write the exclusions; if the disk is full, the next process must measure them again."""
        with contextlib.suppress(OSError):
            if self.excluded:
                self._file.write_text(json.dumps(sorted(self.excluded)), "utf-8")
            else:
                self._file.unlink(missing_ok=True)
