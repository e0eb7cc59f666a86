"""The aggregator: a daemon that admits updates from untrusted devices and publishes models.

Names are loaded when they are first used: ``from aggregator import Daemon, Config, bind``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aggregator.config import AggregatorConfig, BoundRun, bind
    from aggregator.daemon import Daemon

__all__ = ["AggregatorConfig", "BoundRun", "Daemon", "bind"]

_HOMES = {
    "AggregatorConfig": "aggregator.config",
    "Daemon": "aggregator.daemon",
    "BoundRun": "aggregator.config",
    "bind": "aggregator.config",
}


def __getattr__(name: str) -> object:
    """Load a public name from its module, once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'aggregator' has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
