"""Device halves of the learning methods: local training and the update that answers a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge_sdk.app.extensions import ExtensionIndex, PluginRegistry
from edge_sdk.methods.local_sgd import LocalSgd, fedavg, fedsgd
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.protocol.contract.method import METHODS_GROUP, Half
from edge_sdk.protocol.contract.plugin import device_half

Factory = Callable[[TrainingContext, LocalSgd], Half[Any]]
"""Constructor of a half for one device and its settings."""

METHODS: PluginRegistry[Factory] = PluginRegistry(
    {
        "fedsgd": fedsgd,
        "fedavg": fedavg,
        "fedprox": fedavg,
        "fedavgm": fedavg,
        "fedadam": fedavg,
        "fedbuff": fedavg,
    },
    METHODS_GROUP,
    device_half,
    ExtensionIndex("edge_sdk").loaders("methods"),
)
"""The device half of every method of ``edge_sdk.protocol.contract.method.CONTRACTS``, under the same keys."""
