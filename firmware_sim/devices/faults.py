"""Faults of devices in the field, as configuration: every fault has a rate, and is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from edge_sdk.app.settings import SettingsError
from firmware_sim.profiles.weather import draw

_DAY = 86_400
_DOWN, _WRONG_CLOCK = 60, 300  # seconds of a reboot, and that a clock stands at 1970 after it
_NOT_FRACTIONS = ("drift", "reboots", "brownouts")

# faults of telegrams on a line
LINE = ("duplicate", "reorder", "gap", "noise", "flip", "cut", "flap")
CLOCK = ("drift", "reboots", "brownouts", "lost_clock")  # faults of a device's power and clock


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Rates of faults; 0 by default."""

    duplicate: float = 0.0  # fraction of messages that are sent twice
    reorder: float = 0.0  # fraction that are swapped with the next one
    gap: float = 0.0  # fraction that are never sent
    noise: float = 0.0  # fraction with up to 80 random bytes before them
    flip: float = 0.0  # fraction with one bit flipped
    cut: float = 0.0  # fraction that are truncated
    flap: float = 0.0  # fraction of messages after which the link breaks, and reconnects
    drift: float = 0.0  # parts per million that the device's clock runs fast
    reboots: float = 0.0  # number a day, at random; each one loses a minute of messages
    # number a day, at random; the present message is truncated, and a reboot follows
    brownouts: float = 0.0
    lost_clock: float = 0.0  # fraction of both after which the clock is at 1970 for five minutes

    @classmethod
    def of(cls, options: dict[str, Any], known: Sequence[str] = ()) -> FaultRates:
        """Read ``--fault`` options.

        Args:
            known: Faults that this device can have; all if empty.

        Raises:
            SettingsError: An unknown fault, or a rate out of range.
        """
        known = known or [f.name for f in fields(cls)]
        for name, value in options.items():
            if name not in known:
                raise SettingsError(f"--fault {name}: unknown; known: {', '.join(known)}")
            is_rate = name not in _NOT_FRACTIONS
            if not isinstance(value, int | float) or value < 0 or (is_rate and value > 1):
                raise SettingsError(f"--fault {name}: {value!r} is not a rate")
        return cls(**{name: float(value) for name, value in options.items()})


@dataclass(slots=True)
class FaultSequence:
    """Random sequence of one device's faults, from a seed.

    >>> line = FaultSequence(FaultRates(duplicate=1.0), seed=1)
    >>> list(line.sent(b"hello")), dict(line.counts)
    ([b'hello', b'hello'], {'duplicate': 1})
    """

    faults: FaultRates
    seed: int = 0  # the same seed gives the same faults
    counts: Counter[str] = field(default_factory=Counter)  # number of faults, by name
    _held: bytes | None = None
    _down_until: float = 0.0
    _no_clock_until: float = 0.0
    _last_time: float | None = None
    _is_failing: bool = False
    _chance: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._chance = draw("faults", self.seed)

    def clock(self, time: float, start: float) -> float | None:
        """Return the time of the device's clock at a true time; None while it reboots."""
        before, self._last_time = self._last_time, time
        days = 0.0 if before is None else (time - before) / _DAY
        for name in ("reboots", "brownouts"):
            if self._hits(getattr(self.faults, name) * days, name):
                self._is_failing |= name == "brownouts"
                self._down_until = time + _DOWN
                if self._hits(self.faults.lost_clock, "lost_clock"):
                    self._no_clock_until = time + _DOWN + _WRONG_CLOCK
        if time < self._down_until and not self._is_failing:
            return None
        if self._is_failing:
            return time
        if time < self._no_clock_until:
            return time - self._down_until
        return time + (time - start) * self.faults.drift * 1e-6

    def power_fails(self) -> bool:
        """Return True if the power fails now; a call with True consumes the failure."""
        failed, self._is_failing = self._is_failing, False
        return failed

    def happens(self, name: str) -> bool:
        return self._hits(getattr(self.faults, name), name)

    def sent(self, message: bytes) -> Iterator[bytes]:
        """Yield the bytes that are sent instead of a message."""
        if self.power_fails():
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
        has_hit = bool(self._chance.random() < rate)
        if has_hit:
            self.counts[name] += 1
        return has_hit
