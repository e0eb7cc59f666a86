"""Give a device's statistic to a sum, in units of bounds that both ends know."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edge_sdk.extensions.analytic.bundle_section import AnalyticSection, statistic_layout
from edge_sdk.extensions.analytic.half import AnalyticState
from edge_sdk.extensions.analytic.standardise import CLIP
from edge_sdk.extensions.analytic.statistics import Floats
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.training.extension import DeviceParts


def bounds_of(section: AnalyticSection, outputs: int) -> Floats:
    """Return the largest modulus of each number of a device's statistic, in order of its layout.

    Rows are clipped to ``CLIP``, targets to the section's ``clip``, and the weights of the counted
    windows have mean 1.

    >>> section = AnalyticSection(("a",), 0, 1, 2.0, 10, ())
    >>> bounds_of(section, 1).tolist()
    [360.0, 360.0, 360.0, 120.0, 120.0, 40.0, 40.0, 10.0]
    """
    sizes = {
        "gram": CLIP**2,
        "cross": CLIP * section.clip,
        "squares": section.clip**2,
        "residuals": 2.0 * section.clip,
        "count": 1.0,
    }
    layers = statistic_layout(outputs, section.width).layers
    found = [np.full(math.prod(one.shape), sizes[one.name]) for one in layers]
    return np.asarray(section.windows * np.concatenate(found), np.float64)


def terms_of(manifest: Manifest) -> dict[str, Any]:
    """Return the terms that a contract of the statistics of a bundle must have, by their names."""
    size = manifest.analytic.statistic_size(math.prod(manifest.forecast_shape))
    wanted = {"source": "statistic", "stream": manifest.name, "length": size, "cohort": ""}
    return {**wanted, "lowest": -1.0, "highest": 1.0}


def statistic_of(device: DeviceParts, about: str, period: int) -> Floats | None:
    """Return the statistic that a task asked for in the sum of a period, in units of ``bounds_of``.

    None if the last task asked for none in this period, or for a bundle other than ``about``.
    """
    state, manifest = device.active.state, device.active.learner.manifest
    is_asked = isinstance(state, AnalyticState) and period > 0 and state.period == period
    if not is_asked or manifest.name != about or not np.isfinite(state.summed).all():
        return None
    bounds = bounds_of(manifest.analytic, math.prod(manifest.forecast_shape))
    return np.asarray(state.summed / bounds, np.float64)
