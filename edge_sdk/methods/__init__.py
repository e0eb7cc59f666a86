"""Device halves of the learning methods: local training and the update that answers a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from edge_sdk.methods.bilevel import bilevel
from edge_sdk.methods.consensus import pulled
from edge_sdk.methods.fesem import centred
from edge_sdk.methods.gossip import dfl_gt, dfl_sgd
from edge_sdk.methods.local_sgd import LocalSgd, fedavg, fedsgd
from edge_sdk.methods.pfl import personal
from edge_sdk.methods.split import station
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.methods.update_variants import bounded_difference, bounded_weights, weights
from edge_sdk.wire.contract.method import Half

Factory = Callable[[TrainingContext, LocalSgd], Half[Any]]
"""Constructor of a half for one device and its settings."""

METHODS: Mapping[str, Factory] = MappingProxyType(
    {
        "fedsgd": fedsgd,
        "fedavg": fedavg,
        "fedprox": fedavg,
        "fedavgm": fedavg,
        "fedadam": fedavg,
        "fedasync": weights,
        "fedbuff": fedavg,
        "afl": fedavg,
        "fedatt": fedavg,
        "fedda": fedavg,
        "fedgru": fedavg,
        "fedntp": fedavg,
        "nbafl": bounded_weights,
        "udp": bounded_difference,
        "fesem": centred,
        "dfl_sgd": dfl_sgd,
        "dfl_gt": dfl_gt,
        "pfl": personal,
        "bigfl": bilevel,
        "pfgl": station,
        "cnfgnn": station,
        "lstm_cnn_fedavg": station,
        "lstm_cnn_pfl": station,
        "bafdp": pulled,
        "bsfdp": pulled,
        "aspire_ease": pulled,
        "rsa": partial(pulled, content="signs"),
        "rsa_weights": pulled,
        "dp_rsa": partial(pulled, content="difference"),
    }
)
"""The device half of every method of ``edge_sdk.wire.contract.method.CONTRACTS``, under the same keys."""
