"""Define the settings of a run in closed form, and refuse statistics that clipped readings cannot produce."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from aggregator.methods.base.types import Behind
from edge_sdk.app.schema import Between
from edge_sdk.extensions.analytic.profile_features import HINGED, KNOTS
from edge_sdk.extensions.analytic.profile_form import LARGEST
from edge_sdk.extensions.analytic.profile_section import COLUMNS, ProfileSection
from edge_sdk.extensions.analytic.standardise import CLIP
from edge_sdk.extensions.analytic.statistics import from_vector
from edge_sdk.extensions.analytic.validation import (
    StatisticBounds,
    noisy_statistic_fault,
    statistic_fault,
)
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.contract.method import Array


@dataclass(frozen=True, slots=True)
class Analytic:
    """Ridge regression in closed form; every device adapts it to itself."""

    # rounds that solve the model, 3 where left out; the first weighs all windows equally, each later
    # one, and the first of a bundle of profiles, by the residuals of the model before it. A bundle
    # without constants of its fleet takes one round more, before these. ``run.rounds``, where it is
    # set, counts all rounds instead.
    passes: Annotated[int, Between(1, 1000)] | None = None
    # ``sum``: solve the sum of all statistics, exactly. ``votes``: solve every device's own
    # statistic and combine the solutions by ``run.rule``
    combine: Literal["sum", "votes"] = "sum"
    max_staleness: Behind = 1000  # largest accepted number of versions behind
    # noise that every device of the run adds to its statistic, the ``noise over the bound`` of
    # their data sheets; 0: none. Then the ridge penalty rises with the noise.
    noise: Annotated[float, Between(0.0, 1e9)] = 0.0
    # C, the devices' ``privacy.mechanism.clip_norm``; needed with ``noise``
    clip_norm: Annotated[float, Between(1e-6, 1e6)] | None = None
    # name of the contract in ``[sums]`` by which devices give their statistics to a sum that a
    # witness opens, a sum a pass; unset: each sends its own
    contract: str | None = None

    def __post_init__(self) -> None:
        """Refuse noise without ``clip_norm``, which is its unit, and votes with noise."""
        if bool(self.noise) != (self.clip_norm is not None):
            raise ValueError("noise, clip_norm: expected both, or neither")
        if self.noise and self.combine == "votes":
            raise ValueError(
                "combine: expected 'sum' with noise; one device's own solution is mostly noise"
            )
        if self.contract and (self.combine == "votes" or self.noise):
            raise ValueError(
                "contract: a sum shows no device's own solution, and its noise is that of the contract; "
                "expected combine = 'sum', and neither noise nor clip_norm"
            )

    @property
    def deviation(self) -> float:
        return self.noise * (self.clip_norm or 0.0) ** 2


def fault_of(manifest: Manifest, settings: Analytic, vector: Array) -> str:
    """Return the property of a statistic that clipped readings cannot produce; empty if there is none.

    Args:
        settings: Settings of the run; with noise, what clipped readings and noise can produce.
        vector: As received, of the layout's size.
    """
    section = manifest.analytic
    if section is None:
        return ""
    if isinstance(section, ProfileSection):
        return _profile_fault(section, vector)
    outputs, width = math.prod(manifest.forecast_shape), section.width
    bounds = StatisticBounds(
        width,
        outputs,
        outputs,
        row=float(np.sqrt(CLIP**2 * (width - 1) + 1.0)),
        target=section.clip,
        windows=float(section.windows),
    )
    statistic = from_vector(vector, outputs, width)
    if not settings.noise:
        return statistic_fault(statistic, bounds) or ""
    bounds = replace(bounds, row=settings.clip_norm or 0.0)
    return noisy_statistic_fault(statistic, bounds, settings.noise) or ""


LEAST_NOISE = 1e-3
"""Least error of a naive forecast, in levels, by which a device divides its sums."""


def _profile_fault(section: ProfileSection, vector: Array) -> str:
    """Return the property of the sums of profiles that no record can produce.

    A row's largest weight is that of a residual below the floor on a device of the least noise; the
    sums of a stage are means over its rows.
    """
    outputs = len(section.stages)
    weight = 1.0 / (section.floor * LEAST_NOISE**2)
    hinges = len(HINGED) * sum((CLIP - knot) ** 2 for knot in KNOTS)
    bounds = StatisticBounds(
        section.width,
        outputs,
        outputs,
        row=math.sqrt(weight * (COLUMNS * CLIP**2 + hinges)),
        target=math.sqrt(weight) * LARGEST,
        windows=1.0,
    )
    statistic = from_vector(vector, outputs, section.width)
    if not 0.0 < statistic.count < math.inf:
        return f"count {statistic.count:g} is not in (0, inf)"
    return statistic_fault(replace(statistic, count=1.0), bounds) or ""
