"""Describe the parts of a model runtime: its bundle and form, its role in a run, its history and start."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import field
from typing import Protocol

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.calendar_features import Ints
from edge_sdk.forecasting.forecast import Forecast
from edge_sdk.forecasting.series import Series
from edge_sdk.forecasting.windows import ChannelFrame, Drawable
from edge_sdk.limits import limits_of
from edge_sdk.methods import METHODS, Factory
from edge_sdk.methods.training_context import Graph, TrainingContext, do_nothing, keyed
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.contract.method import Array
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector


class RunnableBundle(Protocol):
    """The interface of a verified bundle (``edge_sdk.bundle`` has the real one)."""

    @property
    def manifest(self) -> Manifest:
        """Its manifest."""

    @property
    def initial(self) -> Vector:
        """Its initial parameter vector."""

    @property
    def graphs(self) -> Mapping[str, Graph]:
        """Its functions by name, loaded."""

    @property
    def digest(self) -> bytes:
        """SHA-256 of its archive; identifies it in announcements."""


@dataclass(frozen=True, slots=True)
class RunRole:
    """The role of this device in a run: run number, method and shared layers."""

    run: int
    method: str
    shared: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunShell:
    """Functions that the program around a run gives to it."""

    # device half of each method, by name
    methods: Mapping[str, Factory] = field(default_factory=lambda: METHODS)
    clock: Callable[[], int] = lambda: 0  # milliseconds since 1970
    # called between two minibatches; may raise to stop the training
    between_batches: Callable[[], None] = do_nothing
    # returns the streams of a bundle that have a source here; None if they are unknown
    streams: Callable[[Manifest], Container[str]] | None = None
    # builds the channels of a series; a simulator shares them between devices
    frames: Callable[..., ChannelFrame] = ChannelFrame.of


class BundleForm:
    """Extension point of the runtime for a bundle without graphs; this base, of a network, adds nothing."""

    why_not_tuned = ""  # reason for which no copy of the model is tuned here

    def framed(self, frame: ChannelFrame) -> ChannelFrame:
        """Return the channels of the readings with those that the configuration adds."""
        return frame

    def forget(self) -> None:
        """Discard values computed from the readings: one of them has changed."""

    def renewal(self, model: Mapping[str, Array]) -> Callable[[Drawable], Vector] | None:  # noqa: ARG002
        """Return the online update of a trained model by new windows; None without one."""
        return None

    def latest(self, trained: Vector) -> Vector:
        """Return the vector of the last forecast, or the trained one without online updates."""
        return trained

    def completed(self, found: Forecast, p: Vector, frame: ChannelFrame) -> Forecast:  # noqa: ARG002
        """Return a forecast with the outputs of the bundle beside its quantiles."""
        return found

    def solved_alone(self, local: TrainingContext, p: Vector) -> Vector | None:  # noqa: ARG002
        """Return the model of all windows of the device alone; None if it takes local steps."""
        return None

    def solved(
        self,
        frame: ChannelFrame,  # noqa: ARG002
        p: Vector,
        common: Vector | None,  # noqa: ARG002
        origins: Ints,  # noqa: ARG002
        *,
        is_alone: bool,  # noqa: ARG002
    ) -> Vector:
        """Return the device's model, fitted to some windows only."""
        return p


def series_for(manifest: Manifest, keep: int) -> Series:
    """Create an empty series on a bundle's grid, with the streams that it reads."""
    return Series(manifest.window.step_seconds, manifest.streams, capacity=keep)


def own_start(initial: Vector, spec: ParamSpec, device: str) -> Vector:
    """Draw new personal layers from the device's id, each with the spread of the bundle's.

    A constant layer (a bias of zero) is unchanged. Shared layers are the bundle's.

    >>> spec = ParamSpec.of([("body", (2,)), ("head", (3,))], shared=["body"])
    >>> start = np.array([1, 2, 0.5, -0.5, 0.1], np.float32)
    >>> a, b = own_start(start, spec, "meter-1"), own_start(start, spec, "meter-2")
    >>> a[:2], bool((a[2:] == b[2:]).any())
    (array([1., 2.], dtype=float32), False)
    """
    p = initial.copy()
    for layer in spec.layers:
        if layer.name in spec.shared_names:
            continue
        part = slice(layer.offset, layer.offset + layer.size)
        centre, reach = initial[part].mean(), initial[part].std() * np.sqrt(3.0)
        rng = keyed(0, device, f"start {layer.name}", 0)
        p[part] = centre + reach * rng.uniform(-1.0, 1.0, layer.size)
    return p


ROW = 80
"""Maximum bytes of flash per row: name, slot, value, and pages that are half full."""

_DAY = 86_400


@dataclass(frozen=True, slots=True)
class KeptHistory:
    """The amount of history kept."""

    slots: int  # number of slots of the bundle's grid
    step: int  # seconds per slot
    rows: int  # maximum rows per slot: a stream's reading, and with input noise two more
    limit: str = "training.history_slots"  # configuration key that sets the minimum

    @property
    def days(self) -> float:
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
