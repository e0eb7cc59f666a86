"""Write bundles of models in closed form: no torch; numpy alone, but for a network's hidden layer."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from aggregator.extensions.authoring.sdk_versions import oldest_sdk
from edge_sdk.extensions.analytic.bundle_functions import DAY, AnalyticModel
from edge_sdk.extensions.analytic.bundle_section import AnalyticSection
from edge_sdk.extensions.analytic.features import reach, standard_names
from edge_sdk.protocol.contract.archive import INITIAL, MANIFEST, SIGNATURE, seal
from edge_sdk.protocol.contract.manifest import (
    HIDDEN,
    SIGNATURES,
    Feature,
    Golden,
    GraphFile,
    Loss,
    Manifest,
    ManifestError,
    Target,
    Training,
    Window,
)
from edge_sdk.protocol.keys import Signer

if TYPE_CHECKING:
    from aggregator.extensions.authoring.hidden_layer import TrainedNet

HIDDEN_SDK = "0.1.1"  # first version that computes features ``hidden:k``
TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class AnalyticRecipe:
    """A model in closed form, before it has a bundle."""

    stream: str = "elec.import.energy"  # canonical stream that is forecast
    unit: str = "kWh"
    step_seconds: int = 3600  # seconds from one row to the next; a day is a whole number of them
    horizon: int = 1
    # ``mse``, ``absolute``, or ``pinball`` with levels
    loss: Loss = field(default_factory=lambda: Loss("pinball", levels=(0.1, 0.5, 0.9)))
    lookback: int = 12  # rows whose changes are features
    days: tuple[int, ...] = (1, 2, 7)  # days before the target whose values are features
    units: int = 60
    seed: int = 2026  # seed of the random units
    clip: float = 2.0  # bound of a scaled target's modulus
    windows: int = 20_000  # largest number of windows that a statistic counts
    floor: float = 0.02  # residual, on the scale, below which a weight no longer rises
    # further input channels, of kind ``stream`` or ``mask``; each stream is a feature at the
    # origin, and one whose ``lead_steps`` are the horizon at the target
    exogenous: tuple[Feature, ...] = ()


_WARM = partial(Feature, kind="stream", unit="°C", low=-20.0, high=45.0)
# temperature at the origin and at the target an hour later, both optional
WEATHER_AHEAD = (
    _WARM("temperature", stream="weather.temperature"),
    Feature("temperature-known", "mask", "1", of="temperature"),
    _WARM("temperature-ahead", stream="weather.temperature", lead_steps=1),
    Feature("temperature-ahead-known", "mask", "1", of="temperature-ahead"),
)

# models in closed form by name; each is shipped
ANALYTIC: Mapping[str, AnalyticRecipe] = MappingProxyType(
    {
        "load-analytic": AnalyticRecipe(),
        "load-analytic-weather-ahead": AnalyticRecipe(exogenous=WEATHER_AHEAD),
    }
)


def write(
    recipe: AnalyticRecipe,
    out: Path,
    *,
    name: str,
    version: int,
    signer: Signer,
    net: TrainedNet | None = None,
) -> Path:
    """Write a signed bundle and return its folder.

    Args:
        signer: The root's key.
        net: A network whose last hidden layer becomes features; the bundle forecasts its stream.

    Raises:
        ManifestError: The recipe contradicts itself, or does not fit the network.
    """
    if net is None:
        manifest, initial = made(recipe, name=name, version=version)
        files = {INITIAL: initial}
    else:
        manifest, files = made_on_net(recipe, net, name=name, version=version)
    return sign(manifest, files, out, signer)


def sign(manifest: Manifest, files: Mapping[str, bytes], out: Path, signer: Signer) -> Path:
    """Write a manifest, its files and its signature, and return the folder."""
    out.mkdir(parents=True, exist_ok=True)
    raw = manifest.canonical()
    for file, content in {**files, MANIFEST: raw, SIGNATURE: seal(signer, raw)}.items():
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
    x = golden_window(window.lookback, len(channels), day)
    quantiles = recipe.loss.levels is not None
    manifest = Manifest(
        name=name,
        version=version,
        min_sdk=oldest_sdk(channels),
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


def made_on_net(
    recipe: AnalyticRecipe, net: TrainedNet, *, name: str, version: int
) -> tuple[Manifest, dict[str, bytes]]:
    """Return the manifest of a recipe with a network's last hidden layer, and the bundle's files.

    Stream, unit, step, horizon, loss and channels are the network's.

    Raises:
        ManifestError: The network forecasts no change on the device's scale, under a loss that has a
            closed form, or has no single last hidden layer.
    """
    from aggregator.extensions.authoring.hidden_layer import hidden_graph  # noqa: PLC0415 - needs onnx

    theirs = net.manifest
    loss = (
        replace(theirs.loss, name="absolute", delta=None)
        if theirs.loss.name == "huber"
        else theirs.loss
    )
    if theirs.target.scale != "device" or theirs.analytic is not None:
        raise ManifestError(
            f"network {theirs.name}: needs a network with a target on the device's scale"
        )
    recipe = replace(
        recipe,
        stream=theirs.target.stream,
        unit=theirs.target.unit,
        step_seconds=theirs.window.step_seconds,
        horizon=theirs.window.horizon,
        loss=loss,
        exogenous=(),
    )
    plain, _ = made(recipe, name=name, version=version)
    assert plain.analytic is not None
    own = [feature for feature in theirs.features if feature.kind == "target"]
    others = [one for one in theirs.features if one.kind != "target" and one not in plain.features]
    channels = (*own, *plain.features[1:], *others)
    rows = max(plain.window.lookback, theirs.window.lookback)
    x = golden_window(rows, len(channels), DAY // recipe.step_seconds)
    places = [channels.index(feature) for feature in theirs.features]
    graph = hidden_graph(net, rows, places, x)
    file = f"{HIDDEN}.onnx"
    features = (*plain.analytic.features, *(f"hidden:{k}" for k in range(graph.width)))
    section = replace(plain.analytic, features=features)
    section = replace(section, design=(0.0,) * section.width)
    layers = section.layers(math.prod(plain.forecast_shape))
    initial = np.zeros(sum(math.prod(dims) for _, dims in layers), "<f4")
    initial[len(features) : 2 * len(features)] = 1.0
    files = {INITIAL: initial.tobytes(), file: graph.data}
    manifest = replace(
        plain,
        min_sdk=HIDDEN_SDK,
        layers=layers,
        window=replace(plain.window, lookback=rows),
        features=channels,
        graphs={HIDDEN: GraphFile(file, *SIGNATURES[HIDDEN])},
        golden=replace(plain.golden, x=tuple(map(tuple, x.tolist()))),
        files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        analytic=section,
    )
    model = AnalyticModel(manifest, graph.run)
    (design,) = model.design(initial, np.asarray(x, np.float32)[None])
    row = tuple(round(float(value), 9) for value in design[0, 0])
    return replace(manifest, analytic=replace(section, design=row)), files


def golden_window(
    rows: int, channels: int, day: int
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return a window of made-up values: a target, slot of the day, day of the week, then 0.25."""
    number = np.arange(rows) + (3 * day - 4) - (rows - 1)
    x = np.full((rows, channels), 0.25)
    x[:, 0] = np.round(0.5 + 0.3 * np.sin(2.0 * np.pi * number / day) + 0.1 * (number % 5) / 5, 6)
    x[:, 1] = (number % day) / day
    x[:, 2] = (number // day % 7) / 7.0
    return np.round(x, 9)
