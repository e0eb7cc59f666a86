"""Device halves of the learning methods: local training and the update that answers a task."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pkgutil import resolve_name
from typing import Any

from edge_sdk.methods.analytic import analytic
from edge_sdk.methods.local_sgd import LocalSgd, fedavg, fedsgd
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.methods.update_variants import bounded_difference, bounded_weights, whole_weights
from edge_sdk.wire.contract.method import METHODS_GROUP, Half
from edge_sdk.wire.contract.plugin import device_half
from edge_sdk.wire.plugin_registry import PluginRegistry

Factory = Callable[[TrainingContext, LocalSgd], Half[Any]]
"""Constructor of a half for one device and its settings."""


def _imported(
    reference: str, context: TrainingContext, settings: LocalSgd, **options: str
) -> Half[Any]:
    """Import a constructor and call it: a device has memory for the method that it works with."""
    made: Half[Any] = resolve_name(f"edge_sdk.methods.{reference}")(context, settings, **options)
    return made


fedda = partial(_imported, "averaged_week:fedda")
bilevel_half = partial(_imported, "bilevel:bilevel_half")
consensus_half = partial(_imported, "consensus:consensus_half")
split_half = partial(_imported, "split:split_half")

METHODS: PluginRegistry[Factory] = PluginRegistry(
    {
        "fedsgd": fedsgd,
        "fedavg": fedavg,
        "fedprox": fedavg,
        "fedavgm": fedavg,
        "fedadam": fedavg,
        "fedasync": whole_weights,
        "fedbuff": fedavg,
        "afl": fedavg,
        "fedatt": fedavg,
        "fedda": fedda,
        "fedgru": fedavg,
        "fedntp": fedavg,
        "nbafl": bounded_weights,
        "udp": bounded_difference,
        "fesem": partial(_imported, "fesem:fesem_half"),
        "dfl_sgd": partial(_imported, "gossip:dfl_sgd"),
        "dfl_gt": partial(_imported, "gossip:dfl_gt"),
        "pfl": partial(_imported, "pfl:pfl_half"),
        "bigfl": bilevel_half,
        "pfgl": split_half,
        "cnfgnn": split_half,
        "lstm_cnn_fedavg": split_half,
        "lstm_cnn_pfl": split_half,
        "analytic": analytic,
        "bafdp": consensus_half,
        "bsfdp": consensus_half,
        "aspire_ease": consensus_half,
        "rsa": partial(consensus_half, content="signs"),
        "rsa_weights": consensus_half,
        "dp_rsa": partial(consensus_half, content="difference"),
    },
    METHODS_GROUP,
    device_half,
)
"""The device half of every method of ``edge_sdk.wire.contract.method.CONTRACTS``, under the same keys."""
