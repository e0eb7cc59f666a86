"""Write bundles that forecast the profile of a day, with a prior trained on open data: numpy alone.

A prior's numbers are a file of ``priors``, which ``tools/day_prior.py`` writes. Only this module reads
them: in a bundle they are its initial vector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from aggregator.extensions.authoring.closed_form import golden_window, sign
from edge_sdk.extensions.analytic.bundle_functions import DAY
from edge_sdk.extensions.analytic.profile_features import DAYS, HOUR
from edge_sdk.extensions.analytic.profile_form import STAGES
from edge_sdk.extensions.analytic.profile_kinds import SIGNS
from edge_sdk.extensions.analytic.profile_model import ProfileModel
from edge_sdk.extensions.analytic.profile_section import WIDTH, ProfileSection
from edge_sdk.protocol.contract.archive import INITIAL
from edge_sdk.protocol.contract.manifest import (
    Feature,
    Golden,
    Loss,
    Manifest,
    Target,
    Training,
    Window,
)
from edge_sdk.protocol.keys import Signer

MIN_SDK = "0.1.3"  # first version with profiles
TOLERANCE = 1e-3
PRIORS = Path(__file__).with_name("priors")


@dataclass(frozen=True, slots=True)
class DayRecipe:
    """A model of tomorrow's profile, before it has a bundle."""

    prior: str  # file of ``priors``, without its ending
    stream: str = "elec.import.energy"  # canonical stream that is forecast
    unit: str = "kWh"
    step_seconds: int = 3600  # seconds from one row to the next; an hour is a multiple
    # numbers of the stages of known days that a fleet learns: 3, 10 and 28
    stages: tuple[int, ...] = (2, 5, len(STAGES) - 1)
    levels: tuple[float, ...] = (0.1, 0.5, 0.9)


# models of a day by name; each is shipped
DAY_PROFILES: Mapping[str, DayRecipe] = MappingProxyType(
    {
        "load-day-1": DayRecipe("load-day-1"),
        "load-day-quarter-1": DayRecipe("load-day-1", step_seconds=900),
        "chargers-day": DayRecipe("chargers-day", "ev.demand.energy", step_seconds=1800),
        "cells-day": DayRecipe("load-day-1", "cell.internet.activity", "1"),
    }
)


def write(recipe: DayRecipe, out: Path, *, name: str, version: int, signer: Signer) -> Path:
    """Write a signed bundle and return its folder.

    Args:
        signer: The root's key.

    Raises:
        ManifestError: The recipe contradicts itself.
    """
    manifest, initial = made(recipe, name=name, version=version)
    return sign(manifest, {INITIAL: initial}, out, signer)


def made(recipe: DayRecipe, *, name: str, version: int) -> tuple[Manifest, bytes]:
    """Return the manifest of a recipe and its initial vector as bytes."""
    step, day = recipe.step_seconds, DAY // recipe.step_seconds
    prior = prior_layers(recipe.prior, day)
    section = ProfileSection(
        "profile-1", (0.0,) * WIDTH, len(prior["residuals"]), stages=recipe.stages
    )
    layers = section.layers(day)
    initial = np.concatenate([prior[layer].ravel() for layer, _ in layers]).astype("<f4")
    slot = Feature("slot-of-day", "calendar", "1", 0.0, float(day), what="slot_of_day")
    channels = (
        Feature("load", "target", recipe.unit),
        slot,
        Feature("day-of-week", "calendar", "1", 0.0, 7.0, what="day_of_week"),
        replace(slot, name="slot-ahead", lead_steps=day),
    )
    window = Window((DAYS * DAY + HOUR) // step, day, step, least_known=day)
    x = golden_window(window.lookback, len(channels), day)
    x[:, 3] = x[:, 1]  # a day later it is the same slot
    outputs = day * len(recipe.levels)
    manifest = Manifest(
        name=name,
        version=version,
        min_sdk=MIN_SDK,
        layers=layers,
        shared=("",),
        window=window,
        features=channels,
        target=Target(recipe.stream, recipe.unit, "level", "fixed", "quantiles", 0.0, 1.0),
        loss=Loss("pinball", levels=recipe.levels),
        training=Training(),
        graphs={},
        golden=Golden(tuple(map(tuple, x.tolist())), (0.0,) * outputs, TOLERANCE),
        files={INITIAL: hashlib.sha256(initial.tobytes()).hexdigest()},
        analytic=section,
    )
    model, seen = ProfileModel(manifest), np.asarray(x, np.float32)[None]
    (design,), (told,) = (run(initial, seen) for run in (model.design, model.forecast))
    row, yhat = (tuple(np.round(v.ravel().astype(float), 5)) for v in (design[0, 0], told))
    golden = replace(manifest.golden, yhat=tuple(map(float, yhat)))
    section = replace(section, design=tuple(map(float, row)))
    return replace(manifest, analytic=section, golden=golden), initial.tobytes()


def prior_layers(
    name: str, day: int
) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """Return every layer of a bundle from a file of ``priors``.

    Args:
        day: Rows of a day. Residual days of another step are read as a curve over the day.
    """
    with np.load(PRIORS / f"{name}.npz") as file:
        found = {layer: file[layer].astype(np.float64) for layer in file.files}
    days = found["residuals"]
    places = (np.arange(day) + 0.5) / day * days.shape[1] - 0.5
    found["residuals"] = np.stack(
        [np.interp(places, np.arange(days.shape[1]), one) for one in days]
    )
    nothing = {"own": (2, WIDTH), "homes": (len(STAGES), WIDTH), "home": (len(STAGES), SIGNS)}
    return {layer: np.zeros(shape) for layer, shape in nothing.items()} | found
