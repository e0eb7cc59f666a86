"""Define the settings of a run in closed form, and refuse statistics that no clipped readings give."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from aggregator.methods.base.parameters import Behind
from edge_sdk.analytic.standardise import CLIP
from edge_sdk.analytic.statistic_vector import from_vector
from edge_sdk.analytic.validation import StatisticBounds, noisy_statistic_fault, statistic_fault
from edge_sdk.wire.contract.analytic import AnalyticSection
from edge_sdk.wire.contract.method import Array
from edge_sdk.wire.schema import Between


@dataclass(frozen=True, slots=True)
class Analytic:
    """Ridge regression in closed form; every device adapts it to itself.

    Attributes:
        passes: Rounds that solve the model; the first weighs all windows equally, each later one by
            the residuals of the model before it. A bundle without constants of its fleet takes one
            round more, before these. ``run.rounds``, where it is set, counts all rounds instead.
        combine: ``sum``: solve the sum of all statistics, exactly. ``votes``: solve every device's
            own statistic and combine the solutions by ``run.rule``.
        max_staleness: Largest accepted number of versions behind.
        noise: Noise that every device of the run adds to its statistic, the ``noise over the bound``
            of their data sheets; 0: none. Then the ridge penalty rises with the noise.
        clip_norm: C, the devices' ``privacy.mechanism.clip_norm``; needed with ``noise``.
    """

    passes: Annotated[int, Between(1, 1000)] = 3
    combine: Literal["sum", "votes"] = "sum"
    max_staleness: Behind = 1000
    noise: Annotated[float, Between(0.0, 1e9)] = 0.0
    clip_norm: Annotated[float, Between(1e-6, 1e6)] | None = None

    def __post_init__(self) -> None:
        """Refuse noise without the bound that it is in units of, and rules that need clean votes."""
        if bool(self.noise) != (self.clip_norm is not None):
            raise ValueError("noise, clip_norm: expected both, or neither")
        if self.noise and self.combine == "votes":
            raise ValueError(
                "combine: expected 'sum' with noise; one device's own solution is mostly noise"
            )

    @property
    def deviation(self) -> float:
        """Return the standard deviation of the noise in every entry of a statistic's matrix."""
        return self.noise * (self.clip_norm or 0.0) ** 2


def fault_of(
    section: AnalyticSection, outputs: int, vector: Array, settings: Analytic | None = None
) -> str:
    """Return what no clipped readings can have produced about a statistic; empty if nothing.

    Args:
        section: The bundle's section.
        outputs: Number of outputs.
        vector: As received, of the layout's size.
        settings: Settings of the run; with noise, what clipped readings and noise can produce.
    """
    width = section.width
    bounds = StatisticBounds(
        width,
        outputs,
        outputs,
        row=float(np.sqrt(CLIP**2 * (width - 1) + 1.0)),
        target=section.clip,
        windows=float(section.windows),
    )
    statistic = from_vector(vector, outputs, width)
    if settings is None or not settings.noise:
        return statistic_fault(statistic, bounds) or ""
    bounds = replace(bounds, row=settings.clip_norm or 0.0)
    return noisy_statistic_fault(statistic, bounds, settings.noise) or ""
