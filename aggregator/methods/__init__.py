"""Registry of the server halves of methods, each with the settings that a run may choose."""

from __future__ import annotations

from typing import Any

from aggregator.methods.asynchronous import FEDBUFF
from aggregator.methods.averaging import Averaged, FedAdam, FedAvg, FedAvgM, FedProx, FedSgd, fedavg
from aggregator.methods.base.round_machine import ABANDON, AGAIN, OPEN, Rounds
from aggregator.methods.base.types import Clustered, Course, Credited, Linked, Method, Setup
from edge_sdk.app.extensions import ExtensionIndex, PluginRegistry, instance_of
from edge_sdk.protocol.contract.method import METHODS_GROUP
from edge_sdk.protocol.contract.plugin import server_half

__all__ = [
    "ABANDON",
    "AGAIN",
    "METHODS",
    "OPEN",
    "Averaged",
    "Clustered",
    "Course",
    "Credited",
    "Linked",
    "Method",
    "Rounds",
    "Setup",
]


def _server_half(_name: str, plugin: Any) -> Method:  # noqa: ANN401 - a foreign object
    return instance_of(Method)("", server_half(plugin))


# server half of each method of ``edge_sdk.protocol.contract.method.CONTRACTS``, by the same keys
METHODS: PluginRegistry[Method] = PluginRegistry(
    {
        "fedsgd": Method(FedSgd, fedavg, is_stepped=True),
        "fedavg": Method(FedAvg, fedavg, is_stepped=True),
        "fedprox": Method(FedProx, fedavg, is_stepped=True),
        "fedavgm": Method(FedAvgM, fedavg, is_stepped=True),
        "fedadam": Method(FedAdam, fedavg, is_stepped=True),
        "fedbuff": FEDBUFF,
    },
    METHODS_GROUP,
    _server_half,
    ExtensionIndex("edge_sdk").loaders("methods"),
)
