"""What goes wrong in the field, as configuration: every fault has a rate, and is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from edge_sdk.app.settings import SettingsError
from firmware_sim.profiles.weather import draw

_DAY = 86_400
_DOWN, _ASTRAY = 60, 300  # seconds of a reboot, and that a clock stands at 1970 after it
_NO_SHARES = ("drift", "reboots", "brownouts")

LINE = ("duplicate", "reorder", "gap", "noise", "flip", "cut", "flap")
"""What happens to telegrams on a line."""

CLOCK = ("drift", "reboots", "brownouts", "lost_clock")
"""What happens to a device's power and clock."""


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Rates of faults; nothing goes wrong by default.

    Attributes:
        duplicate: Share of messages sent twice.
        reorder: Share that change places with the one that follows.
        gap: Share that are never sent.
        noise: Share with up to 80 random bytes before them.
        flip: Share with one bit turned over.
        cut: Share that end in the middle.
        flap: Share of messages after which the link breaks, and comes back.
        drift: Parts per million that the device's clock runs fast.
        reboots: A day, at random; each one loses a minute of messages.
        brownouts: A day, at random; the message at hand ends in the middle, and a reboot follows.
        lost_clock: Share of both after which the clock stands at 1970 for five minutes.
    """

    duplicate: float = 0.0
    reorder: float = 0.0
    gap: float = 0.0
    noise: float = 0.0
    flip: float = 0.0
    cut: float = 0.0
    flap: float = 0.0
    drift: float = 0.0
    reboots: float = 0.0
    brownouts: float = 0.0
    lost_clock: float = 0.0

    @classmethod
    def of(cls, options: dict[str, Any], known: Sequence[str] = ()) -> FaultRates:
        """Read ``--fault`` options.

        Args:
            options: Rates by name.
            known: What can happen to this device; everything if empty.

        Raises:
            SettingsError: An unknown fault, or a rate that is none.
        """
        known = known or [f.name for f in fields(cls)]
        for name, value in options.items():
            if name not in known:
                raise SettingsError(f"--fault {name}: unknown; known: {', '.join(known)}")
            is_rate = name not in _NO_SHARES
            if not isinstance(value, int | float) or value < 0 or (is_rate and value > 1):
                raise SettingsError(f"--fault {name}: {value!r} is no rate")
        return cls(**{name: float(value) for name, value in options.items()})


@dataclass(slots=True)
class FaultSequence:
    """One device's bad luck, from a seed.

    Attributes:
        faults: How often.
        seed: The same seed brings the same trouble.
        counts: What happened, by fault.

    Example:
        >>> line = FaultSequence(FaultRates(duplicate=1.0), seed=1)
        >>> list(line.sent(b"hello")), dict(line.counts)
        ([b'hello', b'hello'], {'duplicate': 1})
    """

    faults: FaultRates
    seed: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    _held: bytes | None = None
    _down_until: float = 0.0
    _no_clock_until: float = 0.0
    _told: float | None = None
    _is_browning: bool = False
    _chance: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        """Begin the seed's sequence."""
        self._chance = draw("faults", self.seed)

    def clock(self, time: float, start: float) -> float | None:
        """Return what the device's clock shows at a true time; None while it reboots."""
        before, self._told = self._told, time
        days = 0.0 if before is None else (time - before) / _DAY
        for name in ("reboots", "brownouts"):
            if self._hits(getattr(self.faults, name) * days, name):
                self._is_browning |= name == "brownouts"
                self._down_until = time + _DOWN
                if self._hits(self.faults.lost_clock, "lost_clock"):
                    self._no_clock_until = time + _DOWN + _ASTRAY
        if time < self._down_until and not self._is_browning:
            return None
        if self._is_browning:
            return time
        if time < self._no_clock_until:
            return time - self._down_until
        return time + (time - start) * self.faults.drift * 1e-6

    def browns(self) -> bool:
        """Whether the power fails just now; asking takes it as having failed."""
        failed, self._is_browning = self._is_browning, False
        return failed

    def happens(self, name: str) -> bool:
        """Throw the dice for one fault by its name."""
        return self._hits(getattr(self.faults, name), name)

    def sent(self, message: bytes) -> Iterator[bytes]:
        """Yield what goes over the line instead of a message."""
        if self.browns():
            self._held = None
            yield message[: int(self._chance.integers(len(message)))]
            return
        if self._hits(self.faults.gap, "gap"):
            return
        if self._held is not None:
            yield self._damaged(message)
            yield self._held
            self._held = None
            return
        if self._hits(self.faults.reorder, "reorder"):
            self._held = message
            return
        yield self._damaged(message)
        if self._hits(self.faults.duplicate, "duplicate"):
            yield message

    def _damaged(self, message: bytes) -> bytes:
        if self._hits(self.faults.flip, "flip"):
            at = int(self._chance.integers(len(message)))
            turned = message[at] ^ (1 << int(self._chance.integers(8)))
            message = message[:at] + bytes([turned]) + message[at + 1 :]
        if self._hits(self.faults.cut, "cut"):
            message = message[: int(self._chance.integers(len(message)))]
        if self._hits(self.faults.noise, "noise"):
            message = self._chance.bytes(int(self._chance.integers(1, 81))) + message
        return message

    def _hits(self, rate: float, name: str) -> bool:
        """Throw the dice, also where the rate is zero: one fault does not change the others."""
        has_hit = bool(self._chance.random() < rate)
        if has_hit:
            self.counts[name] += 1
        return has_hit
