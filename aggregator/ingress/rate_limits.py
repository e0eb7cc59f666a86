"""Rate limits per device: token buckets, and limits on replies against amplification."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol.messages import CHUNK_LIMIT


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Rate limits of one device."""

    control: int = 60  # messages per minute, without chunks and signal fragments
    volume: int = 8 * 1024 * 1024  # bytes per hour
    failures: int = 5  # invalid signatures per minute under its name before it is ignored
    ignore: float = 600.0  # time for which it is then ignored, seconds
    pulls: float = 1.0  # answered content requests per second; bursts up to as many chunks
    download: int = 16 * 1024 * 1024  # burst of content sent to one device, bytes
    refill: float = 8 * 1024 * 1024 / 3600  # refill rate of that burst, bytes per second
    downlink: float = 5_000_000.0  # content sent to all devices together, bytes per second


FLEET = "_all"  # key of the bucket shared by all devices
BURST = 4.0  # s of the fleet's downlink that may burst

# kinds of which one reply has many: their bytes are limited, their number is not
_BULKY = frozenset(("chunk", "signal"))


class TokenBuckets:
    """Token buckets by key. An unused bucket is full; the oldest ones are evicted.

    >>> two_a_minute = TokenBuckets(capacity=2, rate=2 / 60)
    >>> [two_a_minute.consume("meter-1", now=0.0) for _ in range(3)]
    [True, True, False]
    >>> two_a_minute.consume("meter-1", now=30.0)
    True
    """

    def __init__(self, capacity: float, rate: float, most: int = 65_536) -> None:
        """Start with all buckets full.

        Args:
            rate: Refill rate, tokens per second.
            most: Largest number of buckets in memory; an evicted one counts as full.
        """
        self._capacity = capacity
        self._rate = rate
        self._most = most
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def resize(self, capacity: float, rate: float) -> None:
        """Change capacity and rate; each bucket keeps its tokens up to the new capacity.

        >>> bucket = TokenBuckets(capacity=5, rate=1)
        >>> bucket.resize(capacity=1, rate=1)
        >>> [bucket.consume("meter-1", now=0.0) for _ in range(2)]
        [True, False]
        """
        self._capacity, self._rate = capacity, rate

    def consume(self, key: Hashable, now: float, tokens: float = 1.0) -> bool:
        """Remove tokens if the bucket has them; return False and leave it unchanged otherwise."""
        level, at = self._levels.get(key, (self._capacity, now))
        level = min(self._capacity, level + max(0.0, now - at) * self._rate)
        is_enough = level >= tokens
        self._levels[key] = (level - tokens if is_enough else level, now)
        self._levels.move_to_end(key)
        while len(self._levels) > self._most:
            self._levels.popitem(last=False)
        return is_enough

    def level(self, key: Hashable, now: float) -> float:
        """Return the tokens of a bucket; negative after overspending."""
        level, at = self._levels.get(key, (self._capacity, now))
        return min(self._capacity, level + max(0.0, now - at) * self._rate)

    def spend(self, key: Hashable, now: float, tokens: float) -> None:
        """Remove tokens even if the bucket has fewer; the deficit is refilled later.

        >>> bucket = TokenBuckets(capacity=10, rate=1)
        >>> bucket.spend("meter-1", now=0.0, tokens=12)
        >>> bucket.level("meter-1", now=0.0), bucket.level("meter-1", now=5.0)
        (-2.0, 3.0)
        """
        level = self.level(key, now)
        self.consume(key, now, 0.0)
        self._levels[key] = (level - tokens, max(now, self._levels[key][1]))


class RateLimiter:
    """Rate limiter of one message ingress: usage and replies by device."""

    def __init__(self, quotas: RateLimits) -> None:
        self._control = TokenBuckets(quotas.control, quotas.control / 60)
        self._volume = TokenBuckets(quotas.volume, quotas.volume / 3600)
        self._failures = TokenBuckets(quotas.failures, quotas.failures / 60)
        self._pulls = TokenBuckets(8.0, quotas.pulls)
        self._downloads = TokenBuckets(quotas.download, quotas.refill)
        self._downlink = TokenBuckets(BURST * quotas.downlink, quotas.downlink)
        self._minutely = TokenBuckets(1.0, 1 / 60)
        self._hourly = TokenBuckets(1.0, 1 / 3600)
        self._each_second = TokenBuckets(1.0, 1.0)
        self._ignore = quotas.ignore
        self._ignored: dict[str, float] = {}

    def follow(self, quotas: RateLimits) -> None:
        """Apply other limits from now on; ignored devices stay ignored."""
        self._control.resize(quotas.control, quotas.control / 60)
        self._volume.resize(quotas.volume, quotas.volume / 3600)
        self._downloads.resize(quotas.download, quotas.refill)
        self._downlink.resize(BURST * quotas.downlink, quotas.downlink)

    def is_ignored(self, device: str, now: float) -> bool:
        """Return whether messages of this name are ignored after too many invalid signatures."""
        until = self._ignored.get(device)
        if until is not None and now >= until:
            del self._ignored[device]
        return device in self._ignored

    def charge(self, device: str, kind: str, size: int, now: float) -> None:
        """Charge one message to its device; raise Refused, QUOTA, if it has none left."""
        if kind not in _BULKY and not self._control.consume(device, now):
            raise Refused(Reason.QUOTA, f"{device}: too many messages")
        if not self._volume.consume(device, now, size):
            raise Refused(Reason.QUOTA, f"{device}: too many bytes")

    def failed(self, device: str, now: float) -> None:
        """Count an invalid signature; ignore the name for a while after too many."""
        if not self._failures.consume(device, now):
            self._ignored[device] = now + self._ignore

    def may_pull(self, device: str, now: float) -> bool:
        return self._pulls.consume(device, now)

    def room_for_download(self, device: str, now: float) -> int:
        """Return the content bytes that may be sent to a device; raise Refused: QUOTA for its limit, BUSY for all."""
        own = self._downloads.level(device, now)
        if own < CHUNK_LIMIT:
            raise Refused(Reason.QUOTA, f"{device}: too many bytes fetched")
        shared = self._downlink.level(FLEET, now)
        if shared <= 0:
            raise Refused(Reason.BUSY, "the fleet's downlink is used up")
        return int(max(CHUNK_LIMIT, min(own, shared)))

    def downloaded(self, device: str, size: int, now: float) -> None:
        """Charge content bytes sent to a device."""
        self._downloads.spend(device, now, size)
        self._downlink.spend(FLEET, now, size)

    def may_answer(self, device: str, reason: Reason, now: float) -> bool:
        """Return whether a refusal is sent; replies must not amplify traffic.

        Codes 1 to 6, QUOTA and INTERNAL are sent once a minute per device, REVOKED once an hour,
        refusals of late chunks once a second, all others always.
        """
        if reason is Reason.REVOKED:
            return self._hourly.consume(device, now)
        if reason in (Reason.QUOTA, Reason.INTERNAL):
            return self._minutely.consume((device, reason), now)
        if reason <= Reason.BAD_SIGNATURE:
            return self._minutely.consume((device, None), now)
        if reason in (Reason.EXPIRED, Reason.BAD_CHUNK):
            return self._each_second.consume(device, now)
        return True
