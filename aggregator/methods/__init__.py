"""PluginRegistry of the methods' server halves, each with the settings that a run may choose."""

from __future__ import annotations

from typing import Any

from aggregator.methods.analytic.analytic import analytic
from aggregator.methods.analytic.settings import Analytic
from aggregator.methods.asynchronous.fedasync import FedAsync, FedBuff, fedasync, fedbuff
from aggregator.methods.averaging.afl import AFL, afl
from aggregator.methods.averaging.dp_averaging import UDP, NbAFL, nbafl, udp
from aggregator.methods.averaging.fedatt import FedAtt, fedatt
from aggregator.methods.averaging.fedavg import FedAdam, FedAvg, FedAvgM, FedProx, FedSgd, fedavg
from aggregator.methods.averaging.fedgru import Recurrent, fedgru, fedntp
from aggregator.methods.base.averaging import Averaged
from aggregator.methods.base.round_machine import ABANDON, OPEN, Rounds
from aggregator.methods.base.types import Clustered, Course, Credited, Linked, Method, Setup
from aggregator.methods.bilevel.bigfl import BiGFL, bigfl
from aggregator.methods.clustered.fedda import FedDA, fedda
from aggregator.methods.clustered.fesem import FeSEM, fesem
from aggregator.methods.consensus.aspire import AspireEase, aspire_ease
from aggregator.methods.consensus.rsa_bafdp import Bafdp, DpRsa, Rsa, bafdp, bsfdp, rsa, rsa_weights
from aggregator.methods.peers.peer_topology import DflGt, DflSgd, hosting
from aggregator.methods.personalised.pfl import PFL, pfl
from aggregator.methods.split.pfgl import (
    PFGL,
    SplitAveraging,
    averaged_through,
    lstm_cnn_fedavg,
    lstm_cnn_pfl,
    pfgl,
)
from aggregator.methods.split.split import AGAIN
from edge_sdk.wire.contract.method import METHODS_GROUP
from edge_sdk.wire.contract.plugin import server_half
from edge_sdk.wire.plugin_registry import PluginRegistry, instance_of

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


METHODS: PluginRegistry[Method] = PluginRegistry(
    {
        "fedsgd": Method(FedSgd, fedavg, is_stepped=True),
        "fedavg": Method(FedAvg, fedavg, is_stepped=True),
        "fedprox": Method(FedProx, fedavg, is_stepped=True),
        "fedavgm": Method(FedAvgM, fedavg, is_stepped=True),
        "fedadam": Method(FedAdam, fedavg, is_stepped=True),
        "fedasync": Method(FedAsync, fedasync, own=True),
        "fedbuff": Method(FedBuff, fedbuff),
        "afl": Method(AFL, afl, own=True, is_stepped=True),
        "fedatt": Method(FedAtt, fedatt, own=True, is_stepped=True),
        "fedda": Method(FedDA, fedda, own=True, is_stepped=True),
        "fedgru": Method(Recurrent, fedgru, is_stepped=True),
        "fedntp": Method(Recurrent, fedntp, is_stepped=True),
        "nbafl": Method(NbAFL, nbafl, is_stepped=True),
        "udp": Method(UDP, udp, is_stepped=True),
        "fesem": Method(FeSEM, fesem),
        "dfl_sgd": Method(DflSgd, hosting, own=True),
        "dfl_gt": Method(DflGt, hosting, own=True),
        "pfl": Method(PFL, pfl, own=True),
        "bigfl": Method(BiGFL, bigfl, own=True),
        "pfgl": Method(PFGL, pfgl, own=True),
        "cnfgnn": Method(SplitAveraging, averaged_through, own=True),
        "lstm_cnn_fedavg": Method(SplitAveraging, lstm_cnn_fedavg, own=True),
        "lstm_cnn_pfl": Method(PFGL, lstm_cnn_pfl, own=True),
        "analytic": Method(Analytic, analytic),
        "bafdp": Method(Bafdp, bafdp, own=True),
        "bsfdp": Method(Bafdp, bsfdp, own=True),
        "aspire_ease": Method(AspireEase, aspire_ease, own=True),
        "rsa": Method(Rsa, rsa, own=True),
        "rsa_weights": Method(Rsa, rsa_weights, own=True),
        "dp_rsa": Method(DpRsa, rsa, own=True),
    },
    METHODS_GROUP,
    _server_half,
)
"""Server half of each method of ``edge_sdk.wire.contract.method.CONTRACTS``, by the same keys."""
