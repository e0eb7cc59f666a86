"""PFGL and related methods with a graph model between the devices: settings and server halves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aggregator.extensions.papers.averaging.fedgru import require_recurrent
from aggregator.extensions.papers.graph.factory import GraphSection
from aggregator.extensions.papers.personalised.credit import Mixed
from aggregator.extensions.papers.personalised.personalised import Personalising, personal
from aggregator.extensions.papers.personalised.pfl import PFL, by_credit, modules_of_scope
from aggregator.extensions.papers.split.split import split
from aggregator.extensions.papers.split.split_types import SplitBinding, SplitTurns
from aggregator.methods.base.types import BoundGraph, Method, Prox, Rate, Setup, Steps, has_no_use
from aggregator.rules import Rows
from edge_sdk.app.schema import SchemaError
from edge_sdk.protocol.contract.method import Half
from edge_sdk.protocol.messages import CHUNK_LIMIT

# largest size in bytes of four arrays of all stations: activations, results, and gradients
MEMORY = 4 << 30
_CHOICES = {"last": 0.0, "fleet": 2.0}
_OPTIMISERS = {"bundle": 0.0, "sgd": 1.0, "adam": 2.0}


@dataclass(frozen=True, slots=True)
class PFGL(PFL):
    """Personalised federated graph learning: credit attention as in PFL, and split turns.

    ``steps`` are the iterations of a round (or local steps, where they alternate).
    """

    # round whose model a device and whose graph the server forecasts with: the ``last``; or the one
    # with the least mean held-back loss of the ``fleet``, as in the paper, over
    # ``turns.validation_batches`` more batches a round through the graph. Without held-back windows
    # (``training.holdout_fraction``) the last.
    model_selection: Any = "last"
    # the last round has no pull: final tuning, through the graph. Only where ``run.rounds`` sets
    # the last round.
    final_tuning: bool = False
    turns: SplitTurns = field(default_factory=SplitTurns)  # settings of the turns inside a round

    def __post_init__(self) -> None:
        PFL.__post_init__(self)
        if self.model_selection not in _CHOICES:
            expected = "'fleet' or 'last': all devices forecast through one graph"
            raise ValueError(f"model_selection: expected {expected}, got {self.model_selection!r}")

    def numbers(self, client: str) -> dict[str, float]:
        values = {"prox": self.prox_by_device.get(client, self.prox), "rate": self.rate}
        values["optimiser"] = _OPTIMISERS[self.optimiser]
        flags = {"received": self.start == "received", "fresh": self.optimiser_state == "fresh"}
        values |= (
            {"choice": _CHOICES[self.model_selection]} if _CHOICES[self.model_selection] else {}
        )
        return values | {name: 1.0 for name, is_set in flags.items() if is_set}


@dataclass(frozen=True, slots=True)
class SplitAveraging:
    """One averaged model for all devices, and turns through a graph."""

    steps: Steps = 10  # iterations of a round; local steps, where they alternate
    rate: Rate = 5e-4  # the devices' learning rate
    prox: Prox = 0.0  # weight of the pull towards the average
    optimiser: Any = "bundle"  # optimiser of a device's steps: the bundle's, plain steps, or Adam
    turns: SplitTurns = field(default_factory=SplitTurns)  # settings of the turns inside a round

    def __post_init__(self) -> None:
        if self.optimiser not in _OPTIMISERS:
            raise ValueError(f"optimiser: expected bundle, sgd or adam, got {self.optimiser!r}")

    @property
    def max_staleness(self) -> int:
        """Return the largest accepted staleness, one version."""
        return 1

    def numbers(self, _client: str) -> dict[str, float]:
        values = {"prox": self.prox, "rate": self.rate, "received": 1.0}
        return values | {"optimiser": _OPTIMISERS[self.optimiser]}


_WITH_LSTM = "gridfed-aggregator export chargers-paper-lstm-conv-1, or -6"


def lstm_cnn_pfl(setup: Setup) -> Half[Any]:
    """Return the server half of LSTM-CNN-PFL: PFGL's, for a model with LSTM layers.

    Raises:
        SchemaError: As for ``pfgl``, or the model has no LSTM layer.
    """
    half = pfgl(setup)
    require_recurrent(setup, "lstm", _WITH_LSTM)
    return half


def lstm_cnn_fedavg(setup: Setup) -> Half[Any]:
    """Return the server half of LSTM-CNN-FedAvg: CNFGNN's, for a model with LSTM layers.

    Raises:
        SchemaError: As for ``averaged_through``, or the model has no LSTM layer.
    """
    half = averaged_through(setup)
    require_recurrent(setup, "lstm", _WITH_LSTM)
    return half


def pfgl(setup: Setup) -> Half[Any]:
    """Return PFGL's server half: credit attention and turns; raise SchemaError for settings that contradict."""
    has_no_use(setup, "rule", "weighting", "share")
    settings: PFGL = setup.settings
    mixing = by_credit(settings, settings.near(setup.folder), modules_of_scope(setup))
    if settings.final_tuning and setup.rounds.limit is None:
        raise SchemaError("run.settings.final_tuning", "false without run.rounds", "true")
    inner = Personalising(
        mixing,
        setup.rounds,
        settings.numbers,
        settings.stale_after,
        settings.history,
        by_fleet=settings.model_selection == "fleet",
        is_last_alone=settings.final_tuning,
    )
    return _woven(setup, inner)


def averaged_through(setup: Setup) -> Half[Any]:
    """Return the server half of CNFGNN: the mean of the round's updates, and turns through a graph.

    Raises:
        SchemaError: Settings contradict each other, or there is no graph model.
    """
    has_no_use(setup, "rule", "weighting", "share")
    settings: SplitAveraging = setup.settings
    return _woven(setup, Personalising(averaged, setup.rounds, settings.numbers, 0, 0))


def averaged(rows: Rows) -> Mixed:
    """Return the plain mean for every client, with every client in it.

    >>> averaged(Rows.of({"a": np.array([1.0]), "b": np.array([3.0])})).values["b"].tolist()
    [2.0]
    """
    n = len(rows.ids)
    mean = rows.combine(np.full(n, 1.0 / n))
    admitted = np.ones((n, n), np.bool_)
    return Mixed(dict.fromkeys(rows.ids, mean), np.full((n, n), 1.0 / n), admitted)


def _check_sizes(lent: BoundGraph, turns: SplitTurns) -> None:
    features, rows = lent.shape
    if 4 * features * rows > CHUNK_LIMIT:
        expected = f"activations of at most {CHUNK_LIMIT // 4} numbers for each window, the capacity of one message"
        raise SchemaError("run.bundle", expected, f"{features} by {rows}")
    wanted = 4 * 4 * lent.model.capacity * turns.batch * features * rows
    if wanted > MEMORY:
        expected = f"few enough stations for one turn to fit into {MEMORY >> 20} MiB"
        raise SchemaError("run.graph.capacity", expected, f"{wanted >> 20} MiB")


def _woven(setup: Setup, inner: Personalising) -> Half[Any]:
    lent, settings = setup.graph, setup.settings
    if lent is None:
        raise SchemaError("run.graph", "a graph model, which this method requires", "none")
    _check_sizes(lent, settings.turns)
    binding = SplitBinding(
        lent.model,
        settings.turns,
        settings.steps,
        lent.shape,
        setup.rounds.enough,
        setup.rounds.quorum,
        setup.seed,
        by_fleet=inner.by_fleet,
    )
    return split(personal(inner), binding, setup.rounds.deadline, lent.places)


def _method(settings: type[Any], half: Callable[[Setup], Half[Any]], *kinds: str) -> Method:
    """Return a method with a graph model of these kinds; ``diffusion`` needs no torch."""
    return Method(settings, half, own=True, graph=GraphSection, kinds=kinds)


PFGL_METHOD = _method(PFGL, pfgl, "pfgl", "diffusion")
CNFGNN = _method(SplitAveraging, averaged_through, "graphnet", "diffusion")
LSTM_CNN_FEDAVG = _method(SplitAveraging, lstm_cnn_fedavg, "conv2d")
LSTM_CNN_PFL = _method(PFGL, lstm_cnn_pfl, "conv2d")
