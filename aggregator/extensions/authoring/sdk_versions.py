"""Name the oldest SDK that can load a bundle."""

from __future__ import annotations

from collections.abc import Sequence

from edge_sdk.protocol.contract.manifest import Feature

MIN_SDK = "0.1.0"
OPTIONAL_SDK = "0.1.1"  # first version that knows optional channels
LEAD_SDK = "0.1.2"  # first version that knows channels with a lead


def oldest_sdk(features: Sequence[Feature]) -> str:
    """Return the oldest SDK that knows every channel: ``min_sdk`` of the manifest.

    >>> warm = Feature("next", "stream", "°C", stream="weather.temperature", lead_steps=1)
    >>> oldest_sdk([warm]), oldest_sdk([])
    ('0.1.2', '0.1.0')
    """
    if any(feature.lead_steps is not None for feature in features):
        return LEAD_SDK
    return OPTIONAL_SDK if any(feature.of is not None for feature in features) else MIN_SDK
