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
from edge_sdk.limits.resource_limits import limits_of
from edge_sdk.wire.contract.manifest import Manifest

ROW = 80
"""Maximum bytes of flash per row: name, slot, value, and pages that are half full."""

_DAY = 86_400


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
    limit: str = "training.history_slots"

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
    rows = len(manifest.streams) * (3 if config.privacy.mechanism.point == "input" else 1)
    step, limits = manifest.window.step_seconds, limits_of(config.limits)
    allowed = [
        (
            config.training.history_slots,
            "training.history_slots",
            float(config.training.history_slots),
        )
    ]
    if config.training.history_days is not None:
        days = config.training.history_days
        allowed.append((int(days * _DAY / step), "training.history_days", days))
    if limits.history_bytes is not None:
        fit = int(limits.history_bytes * 64 / 65 / (rows * ROW))
        allowed.append((fit, "limits.history_bytes", float(limits.history_bytes)))
    slots, limit, value = min(allowed)
    found, needed = KeptHistory(max(slots, 1), step, rows, limit), slots_needed(config, manifest)
    if slots < needed:
        least = {
            "training.history_slots": f"{needed}",
            "training.history_days": f"{math.ceil(100 * needed * step / _DAY) / 100:g}",
            "limits.history_bytes": f"{math.ceil(needed * rows * ROW * 65 / 64) + 64}",
        }
        raise ConfigError(
            f"{limit}: {value:.12g} keeps {slots} slots of {step} s, and bundle {manifest.name} "
            f"needs {needed} to learn and forecast",
            hint=f"{limit} = {least[limit]} or more",
        )
    return found


def slots_needed(config: Config, manifest: Manifest) -> int:
    """Return the minimum number of slots for training: window, horizon, lags and one batch."""
    lag = max((f.lag_steps or 0 for f in manifest.features), default=0)
    window = manifest.window
    span = lag + window.lookback + window.horizon + manifest.training.batch
    return math.ceil(span / (1.0 - config.training.holdout_fraction))
