"""Compute how much history a device keeps, in slots: the minimum over slots, days and bytes.

Pure functions. Readings form a ring: memory and flash hold the same newest slots, and older ones
are dropped from both. A configuration that keeps less than the model needs is refused; the message
gives the number needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.limits.resource_limits import means_of
from edge_sdk.wire.contract.manifest import Manifest

ROW = 80
"""Maximum bytes of flash per row: name, slot, value, and pages that are half full."""

_DAY = 86_400
_TRAINED_ON = 0.8  # share of the history that ``learn.part = "train"`` trains on


@dataclass(frozen=True, slots=True)
class KeptHistory:
    """The amount of history kept.

    Attributes:
        slots: Number of slots of the bundle's grid.
        step: Seconds per slot.
        rows: Maximum rows per slot: a stream's reading, and with input noise two more.
        limit: Configuration key that sets the minimum.
    """

    slots: int
    step: int
    rows: int
    limit: str = "learn.keep"

    @property
    def days(self) -> float:
        """Length of the history in days."""
        return self.slots * self.step / _DAY

    @property
    def bytes(self) -> int:
        """Maximum bytes of flash that it occupies."""
        return (self.slots + self.batch) * self.rows * ROW

    @property
    def batch(self) -> int:
        """Slots that are dropped together: a day, or a sixty-fourth of the history."""
        return max(1, min(_DAY // self.step, self.slots // 64))


def history_of(config: Config, manifest: Manifest) -> KeptHistory:
    """Return the history that a configuration keeps for a bundle.

    Raises:
        ConfigError: Less than the model needs; the message names the key and the number needed.
    """
    streams = {manifest.target.stream} | {f.stream for f in manifest.features if f.stream}
    rows = len(streams) * (3 if config.privacy.mechanism.point == "input" else 1)
    step, means = manifest.window.step_seconds, means_of(config.means)
    allowed = [(config.learn.keep, "learn.keep", float(config.learn.keep))]
    if config.learn.keep_days is not None:
        days = config.learn.keep_days
        allowed.append((int(days * _DAY / step), "learn.keep_days", days))
    if means.readings is not None:
        fit = int(means.readings * 64 / 65 / (rows * ROW))
        allowed.append((fit, "means.readings", float(means.readings)))
    slots, limit, said = min(allowed)
    found, needed = KeptHistory(max(slots, 1), step, rows, limit), slots_needed(config, manifest)
    if slots < needed:
        least = {
            "learn.keep": f"{needed}",
            "learn.keep_days": f"{math.ceil(100 * needed * step / _DAY) / 100:g}",
            "means.readings": f"{math.ceil(needed * rows * ROW * 65 / 64) + 64}",
        }
        raise ConfigError(
            f"{limit}: {said:.12g} keeps {slots} slots of {step} s, and bundle {manifest.name} "
            f"needs {needed} to learn and forecast",
            hint=f"{limit} = {least[limit]} or more",
        )
    return found


def slots_needed(config: Config, manifest: Manifest) -> int:
    """Return the minimum number of slots for training: window, horizon, lags and one batch."""
    lag = max((f.lag_steps or 0 for f in manifest.features), default=0)
    window = manifest.window
    span = lag + window.lookback + window.horizon + manifest.training.batch
    return span if config.learn.part == "all" else math.ceil(span / _TRAINED_ON)
