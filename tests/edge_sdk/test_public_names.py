"""The public names of the SDK, sorted, and each of them can be loaded."""

from __future__ import annotations

import edge_sdk

NAMES = [
    "Bundle",
    "Client",
    "Config",
    "ConfigError",
    "EdgeError",
    "Forecast",
    "METHODS",
    "Reading",
    "StoreError",
    "Transport",
]


def test_the_public_names_are_these_ten():
    assert sorted(edge_sdk.__all__) == NAMES
    assert all(getattr(edge_sdk, name) is not None for name in NAMES)
