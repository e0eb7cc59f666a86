"""FedGRU and Fed-NTP: FedAvg with a recurrent model and a random fraction of clients a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from aggregator.methods.averaging import Averaged, FedAvg, averaging
from aggregator.methods.base.types import Method, Setup
from edge_sdk.app.schema import SchemaError
from edge_sdk.protocol.contract.method import Half
from edge_sdk.protocol.contract.parameter_layout import Layer

LEAST_SHARE = 0.1
# gate blocks in the weights of a recurrent layer; the shipped models name the layer ``body``
GATES: Mapping[str, int] = MappingProxyType({"gru": 3, "lstm": 4})


@dataclass(frozen=True, slots=True)
class Recurrent(FedAvg):
    """FedAvg on a random fraction of the clients: ``run.client_fraction``, from 0.1 to 1.

    Attributes:
        steps: Local steps a round.
        rate: Their learning rate.
        server_rate: Fraction of the average difference that the server applies.
    """


def fedgru(setup: Setup) -> Half[Averaged]:
    """Return FedGRU's server half: the model has GRU layers.

    Raises:
        SchemaError: The model has none, or the share is below 0.1.

    Reference:
        Liu et al., Privacy-Preserving Traffic Flow Prediction: A Federated Learning Approach, IEEE
        Internet of Things Journal 2020.
    """
    return _averaging(setup, "gru")


def fedntp(setup: Setup) -> Half[Averaged]:
    """Return Fed-NTP's server half: the model has LSTM layers (two of 64 in the paper).

    Raises:
        SchemaError: The model has none, or the share is below 0.1.

    Reference:
        Sepasgozar and Pierre, Fed-NTP: A Federated Learning Algorithm for Network Traffic
        Prediction in VANET, IEEE Access 2022.
    """
    return _averaging(setup, "lstm")


def require_recurrent(setup: Setup, layer: str, fitting: str) -> None:
    """Refuse a model without such a recurrent layer (``gru`` or ``lstm``); ``fitting`` names bundles with one."""
    layers = () if setup.spec is None else setup.spec.layers
    if layers and not any(_is(layer, one) for one in layers):
        names = tuple(one.name for one in layers)
        expected = f"a model with a layer {layer!r} ({fitting})"
        raise SchemaError("run.bundle", expected, ", ".join(names)[:60])


def _averaging(setup: Setup, layer: str) -> Half[Averaged]:
    require_recurrent(setup, layer, f"shipped: load-{layer}, cells-{layer}-1, cells-{layer}-24")
    if setup.share < LEAST_SHARE:
        raise SchemaError("run.client_fraction", f"from {LEAST_SHARE} to 1", str(setup.share))
    return averaging(setup.rule, setup.settings.bound(setup.rounds), setup.add_row)


def _is(layer: str, one: Layer) -> bool:
    """Return True if the layer has such a name, or the gates of such a layer.

    >>> _is("gru", Layer("body.weight_hh_l0", (192, 64), 0))
    True
    >>> _is("lstm", Layer("body.weight_hh_l0", (192, 64), 0))
    False
    """
    if layer in one.name.split("."):
        return True
    is_square = len(one.shape) == 2 and one.shape[0] == GATES[layer] * one.shape[1]
    return ".weight_hh_l" in one.name and is_square


FEDGRU = Method(Recurrent, fedgru, is_stepped=True)
FEDNTP = Method(Recurrent, fedntp, is_stepped=True)
