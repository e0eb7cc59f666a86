"""Write bundles of models in closed form: no torch, no graph, numpy alone."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from edge_sdk.analytic.bundle_functions import DAY, AnalyticModel
from edge_sdk.analytic.features import standard_names
from edge_sdk.analytic.reach import reach
from edge_sdk.wire.contract.analytic import AnalyticSection
from edge_sdk.wire.contract.archive import INITIAL, MANIFEST, SIGNATURE, seal
from edge_sdk.wire.contract.manifest import (
    Feature,
    Golden,
    Loss,
    Manifest,
    Target,
    Training,
    Window,
    oldest_sdk,
)
from edge_sdk.wire.keys import Signer

MIN_SDK = "0.1.0"
TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class AnalyticRecipe:
    """A model in closed form, before it has a bundle.

    Attributes:
        stream: Canonical stream that is forecast.
        unit: Unit of its values.
        step_seconds: Seconds from one row to the next; a day is a whole number of them.
        horizon: Values to forecast.
        loss: ``mse``, ``absolute``, or ``pinball`` with levels.
        lookback: Rows whose changes are features.
        days: Days before the target whose values are features.
        units: Number of random units.
        seed: Seed of the random units.
        clip: Bound of a scaled target's modulus.
        windows: Largest number of windows that a statistic counts.
        floor: Residual, on the scale, below which a weight no longer rises.
        exogenous: Further input channels, of kind ``stream`` or ``mask``; each stream is a feature
            at the origin, and one whose ``lead_steps`` are the horizon at the target.
    """

    stream: str = "elec.import.energy"
    unit: str = "kWh"
    step_seconds: int = 3600
    horizon: int = 1
    loss: Loss = field(default_factory=lambda: Loss("pinball", levels=(0.1, 0.5, 0.9)))
    lookback: int = 12
    days: tuple[int, ...] = (1, 2, 7)
    units: int = 60
    seed: int = 2026
    clip: float = 2.0
    windows: int = 20_000
    floor: float = 0.02
    exogenous: tuple[Feature, ...] = ()


_WARM = partial(Feature, kind="stream", unit="°C", low=-20.0, high=45.0)
WEATHER_AHEAD = (
    _WARM("temperature", stream="weather.temperature"),
    Feature("temperature-known", "mask", "1", of="temperature"),
    _WARM("temperature-ahead", stream="weather.temperature", lead_steps=1),
    Feature("temperature-ahead-known", "mask", "1", of="temperature-ahead"),
)
"""Temperature at the origin and at the target an hour later, both optional."""

ANALYTIC: Mapping[str, AnalyticRecipe] = MappingProxyType(
    {
        "load-analytic": AnalyticRecipe(),
        "load-analytic-weather-ahead": AnalyticRecipe(exogenous=WEATHER_AHEAD),
    }
)
"""Models in closed form by name; each is shipped."""


def write(recipe: AnalyticRecipe, out: Path, *, name: str, version: int, signer: Signer) -> Path:
    """Write a signed bundle and return its folder.

    Raises:
        ManifestError: The recipe contradicts itself.
        OSError: The folder cannot be written.
    """
    manifest, initial = made(recipe, name=name, version=version)
    out.mkdir(parents=True, exist_ok=True)
    raw = manifest.canonical()
    for file, content in {
        INITIAL: initial,
        MANIFEST: raw,
        SIGNATURE: seal(signer, raw),
    }.items():
        (out / file).write_bytes(content)
    return out


def made(recipe: AnalyticRecipe, *, name: str, version: int) -> tuple[Manifest, bytes]:
    """Return the manifest of a recipe and its initial vector as bytes."""
    day = DAY // recipe.step_seconds
    features = standard_names(day, lookback=recipe.lookback, days=recipe.days)
    features += [
        f"{'exog' if channel.lead_steps is None else 'known'}:{channel.name}"
        for channel in recipe.exogenous
        if channel.kind == "stream"
    ]
    channels = (
        Feature("load", "target", recipe.unit),
        Feature("slot-of-day", "calendar", "1", 0.0, float(day), what="slot_of_day"),
        Feature("day-of-week", "calendar", "1", 0.0, 7.0, what="day_of_week"),
        *recipe.exogenous,
    )
    window = Window(reach(features, day), recipe.horizon, recipe.step_seconds)
    outputs = recipe.horizon * len(recipe.loss.levels or (0.5,))
    section = AnalyticSection(
        tuple(features),
        recipe.units,
        recipe.seed,
        recipe.clip,
        recipe.windows,
        (0.0,) * (len(features) + recipe.units + 1),
        recipe.floor,
    )
    layers = section.layers(outputs)
    initial = np.zeros(sum(math.prod(dims) for _, dims in layers), "<f4")
    initial[len(features) : 2 * len(features)] = 1.0
    x = _golden_window(window.lookback, len(channels), day)
    quantiles = recipe.loss.levels is not None
    manifest = Manifest(
        name=name,
        version=version,
        min_sdk=oldest_sdk(channels, MIN_SDK),
        layers=layers,
        shared=("",),
        window=window,
        features=channels,
        target=Target(
            recipe.stream, recipe.unit, "change", "device", "quantiles" if quantiles else "point"
        ),
        loss=recipe.loss,
        training=Training(),
        graphs={},
        golden=Golden(tuple(map(tuple, x.tolist())), (0.0,) * outputs, TOLERANCE),
        files={INITIAL: hashlib.sha256(initial.tobytes()).hexdigest()},
        analytic=section,
    )
    (design,) = AnalyticModel(manifest).design(initial, np.asarray(x, np.float32)[None])
    row = tuple(round(float(value), 9) for value in design[0, 0])
    return replace(manifest, analytic=replace(section, design=row)), initial.tobytes()


def _golden_window(
    rows: int, channels: int, day: int
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return a window with a daily wave, whose last row is a Wednesday's last slot but three."""
    number = np.arange(rows) + (3 * day - 4) - (rows - 1)
    x = np.full((rows, channels), 0.25)
    x[:, 0] = np.round(0.5 + 0.3 * np.sin(2.0 * np.pi * number / day) + 0.1 * (number % 5) / 5, 6)
    x[:, 1] = (number % day) / day
    x[:, 2] = (number // day % 7) / 7.0
    return np.round(x, 9)
