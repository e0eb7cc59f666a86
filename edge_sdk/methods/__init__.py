"""The device halves: given a task, how does this client learn and what does it answer?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from edge_sdk.methods.answers import bounded_difference, bounded_weights, weights
from edge_sdk.methods.bilevel import bilevel
from edge_sdk.methods.centred import centred
from edge_sdk.methods.gossip import dfl_gt, dfl_sgd
from edge_sdk.methods.local import Local
from edge_sdk.methods.personal import personal
from edge_sdk.methods.pulled import pulled
from edge_sdk.methods.station import station
from edge_sdk.methods.steps import Steps, gradient, steps
from edge_sdk.wire.method import Half

Factory = Callable[[Local, Steps], Half[Any]]
"""Binds a half to one device and its settings."""

METHODS: Mapping[str, Factory] = MappingProxyType(
    {
        "fedsgd": gradient,
        "fedavg": steps,
        "fedprox": steps,
        "fedavgm": steps,
        "fedadam": steps,
        "fedasync": weights,
        "fedbuff": steps,
        "afl": steps,
        "fedatt": steps,
        "fedda": steps,
        "fedgru": steps,
        "fedntp": steps,
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
        "rsa": partial(pulled, answer="signs"),
        "rsa_weights": pulled,
        "dp_rsa": partial(pulled, answer="difference"),
    }
)
"""The device half of every method of ``edge_sdk.wire.method.CONTRACTS``, under the same keys."""
