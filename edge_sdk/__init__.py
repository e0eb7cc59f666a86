"""Train on the device, forecast locally, share only selected layers.

The names below are loaded on first use, so that a program that needs only ``edge_sdk.protocol`` imports
nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_sdk.bundle import Bundle
    from edge_sdk.client import Client
    from edge_sdk.config import Config
    from edge_sdk.errors import ConfigError, EdgeError, StoreError
    from edge_sdk.forecasting.forecast import Forecast
    from edge_sdk.forecasting.series import Reading
    from edge_sdk.link.transport import Transport
    from edge_sdk.methods import METHODS

__all__ = [
    "METHODS",
    "Bundle",
    "Client",
    "Config",
    "ConfigError",
    "EdgeError",
    "Forecast",
    "Reading",
    "StoreError",
    "Transport",
]

_HOMES = {
    "Bundle": "edge_sdk.bundle",
    "Client": "edge_sdk.client",
    "Config": "edge_sdk.config",
    "ConfigError": "edge_sdk.errors",
    "EdgeError": "edge_sdk.errors",
    "Forecast": "edge_sdk.forecasting.forecast",
    "METHODS": "edge_sdk.methods",
    "Reading": "edge_sdk.forecasting.series",
    "StoreError": "edge_sdk.errors",
    "Transport": "edge_sdk.link.transport",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attribute
    """Load a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'edge_sdk' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names without loading them."""
    return sorted({*globals(), *__all__})
