"""Forecast scored windows with every candidate, for the command that scores a device's own record."""

from __future__ import annotations

from typing import Any

from edge_sdk.extensions.choice.candidates import chosen
from edge_sdk.extensions.choice.combination import (
    BLEND,
    BY_STEP,
    CANDIDATES,
    FLEET_TREES,
    LAST_GOOD,
    MEAN,
)
from edge_sdk.extensions.choice.saved_selection import DeviceCandidates
from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.forecasting.forecast import COMMON, FLEET, TUNED
from edge_sdk.training.model_runtime import ModelRuntime

OF_FLEET = frozenset({FLEET, COMMON, TUNED, LAST_GOOD, FLEET_TREES, BLEND, MEAN, BY_STEP})
"""Names of the candidates that depend on the fleet's training."""


def backtested(
    saved: DeviceCandidates | None,
    learner: ModelRuntime,
    state: Any,  # noqa: ANN401 - the half's own type
    origins: Ints,
) -> tuple[dict[str, Floats], frozenset[str], str]:
    """Forecast from origins with every candidate of a device, and with the served combination of them.

    The device's own models are fitted again, on the windows before the first scored one.

    Args:
        saved: Its candidates; None where the fleet's model is always served.
        origins: Scored windows, oldest first; at least one.

    Returns:
        Quantiles by name, ``(n, horizon, levels)``, NaN for none; ``OF_FLEET``; and the name of the
        served candidate.
    """
    known = DeviceCandidates() if saved is None else saved
    models, choice, frame = known.models(learner, state), known.selection.choice, learner.frame()
    before, p = frame.origins(), learner.vector(state)
    before = before[before + frame.window.horizon < origins[0]]
    fans = models.refitted(p, frame, before).fans(p, frame, origins)
    found = dict(zip(CANDIDATES, fans, strict=True))
    if models.tuned is None:
        del found[TUNED]
    if choice.name in (MEAN, BY_STEP):
        found[choice.name] = chosen(choice, fans)
    return found, OF_FLEET, choice.name
