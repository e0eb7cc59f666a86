"""Arms of E1 to E4: stations, bundle, windows, and scores."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.graph import adjacency
from aggregator.extensions.papers.graph.stations import distances
from aggregator.methods.base.types import BoundGraph as LentGraph
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.extensions.evaluation.forecast_metrics import QUANTILES
from edge_sdk.extensions.intervals.conformal import ConformalCalibration, CoverageTarget, rolled
from edge_sdk.forecasting.forecast import fan
from edge_sdk.forecasting.windows import ChannelFrame, Drawable
from edge_sdk.protocol.contract.manifest import AIDED_FORECAST, ENCODE
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.protocol.keys import SigningKey
from edge_sdk.runtime import load_graph
from tools.experiments import ev
from tools.experiments.ev import Floats, Ints, Part, Station

Way = Literal["alone", "checked", "converged", "pooled", "tuned", "federated", "staged", "lonely"]

HASTE = 2e-3
"""Learning rate of the paper's rows. Its 5e-4 (1e-3 for pure LSTMs) has 65,600 iterations; ours
have some hundreds, and 5e-4 leaves every row near where it began."""

SLOW = 5e-4
"""Learning rate of the paper, for the long rows."""

PROX = 0.1
"""Pull towards the mixture: our resolution of the paper's beta, which it does not give."""

LOOK = 7
"""Step between windows of the choosing part in an intermediate evaluation."""


@dataclass(frozen=True, slots=True)
class Row:
    """Training of a row of the tables."""

    bundle: str  # its model, without the horizon
    # ``alone`` for as many steps as the federated ones take; ``checked`` the same, the best of its
    # checkpoints; ``converged`` alone for a fixed number of steps, the best of its checkpoints;
    # ``pooled`` everybody's windows in one place; ``tuned`` that, then alone; ``federated``;
    # ``staged``: federated at falling rates, then tuned alone; or ``lonely``: the same steps at
    # the same rates, alone throughout
    way: Way
    method: str = ""  # a key of ``METHODS``
    graph: str = ""  # the net between the devices, where there is one
    rate: float = HASTE
    is_personal: bool = False  # whether models are mixed by credit
    prox: float = PROX  # pull towards the mixture, where they are
    # settings of the turns through the graph that are not the product's own
    turns: Mapping[str, Any] = field(default_factory=dict)
    final_tuning: bool = False  # whether PFGL's last round is Algorithm 1's tuning
    looks: int = 4  # how often a federated run is looked at on its way


def _pfgl(*, bundle: str = "chargers-paper", **more: Any) -> Row:  # noqa: ANN401 - settings
    """Return a row of PFGL; ``more`` are settings of its turns."""
    return Row(bundle, "federated", "pfgl", "pfgl", is_personal=True, turns=more)


_LSTM, _MIXED = "chargers-paper-lstm", "chargers-paper-lstm-conv"
FIELD: Mapping[str, Row] = {
    "No_FL": Row("chargers-paper", "alone"),
    "LSTM-FedAvg": Row(_LSTM, "federated", "fedavg"),
    "LSTM-CNN-FedAvg": Row(_MIXED, "federated", "lstm_cnn_fedavg", "conv2d"),
    "LSTM-PFL": Row(_LSTM, "federated", "pfl", is_personal=True),
    "LSTM-CNN-PFL": Row(_MIXED, "federated", "lstm_cnn_pfl", "conv2d", is_personal=True),
    "CNFGNN": Row(
        "chargers-paper-gru",
        "federated",
        "cnfgnn",
        "graphnet",
        turns={"schedule": "alternating"},
    ),
    "PFGL": _pfgl(),
    "PFGL, unmasked": _pfgl(mask_excluded=False),
    "PFGL, residual": replace(_pfgl(mask_excluded=False), graph="residual", prox=0.01),
    "PFGL, float16": _pfgl(float16=True),
    "PFGL, alternating": _pfgl(schedule="alternating"),
    "PFGL, LSTM encoder": _pfgl(bundle=_MIXED),
    "No_FL, 5e-4": Row("chargers-paper", "checked", rate=SLOW),
    "LSTM-FedAvg, 1e-3": Row(_LSTM, "federated", "fedavg", rate=1e-3, looks=20),
    "LSTM-PFL, 1e-3": Row(
        _LSTM, "federated", "pfl", "", 1e-3, is_personal=True, final_tuning=True, looks=20
    ),
    "CNFGNN, 5e-4": Row(
        "chargers-paper-gru",
        "federated",
        "cnfgnn",
        "graphnet",
        rate=SLOW,
        turns={"schedule": "alternating"},
        looks=20,
    ),
    "PFGL, 5e-4": replace(_pfgl(), rate=SLOW, final_tuning=True, looks=20),
    "No_FL converged": Row("chargers-paper", "converged", rate=1e-3),
    "pooled": Row("chargers-paper", "pooled", rate=1e-3),
    "pooled, tuned": Row("chargers-paper", "tuned", rate=1e-3),
    "week, alone": Row("chargers-week", "lonely"),
    "week, pooled": Row("chargers-week", "pooled", rate=1e-3),
    "week, federated": Row("chargers-week", "staged", "pfl"),
}
"""The tables' rows: the paper's, its model without a federation, and ours."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One run: the inputs of its numbers."""

    experiment: str  # ``e1`` to ``e4``
    dataset: str  # folder name of the set
    horizon: int  # steps ahead, all in one answer
    name: str  # a key of ``FIELD``
    seed: int  # of vectors, minibatches and who lies
    rounds: int  # of a federated run
    steps: int  # iterations of a round
    attack: str = ""  # what the liars do; empty for none. After ``@`` the signal it is done to.
    liars: int = 0  # how many lie
    credit: float | None = None  # sigma; None is the paper's for this horizon
    stations: int | None = None  # at most so many

    @property
    def file(self) -> str:
        words = [self.experiment, self.dataset, f"h{self.horizon}", self.name.replace(" ", "")]
        if self.attack:
            words.append(f"{self.attack.replace('@', '_').replace(':', '_')}{self.liars}")
        words += [f"c{self.credit:g}"] if self.credit is not None else []
        words += [f"n{self.stations}"] if self.stations is not None else []
        return "-".join((*words, f"k{self.rounds}x{self.steps}", f"s{self.seed}")) + ".json"

    @property
    def row(self) -> Row:
        return FIELD[self.name]

    @property
    def sigma(self) -> float:
        return (0.8 if self.horizon == 1 else 0.9) if self.credit is None else self.credit


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """Data and bundle of an arm. Mappings are by station."""

    bundle: Bundle  # graphs and initial vector
    stations: Mapping[str, Station]  # the clients' series
    frames: Mapping[str, ChannelFrame]
    graph: LentGraph | None  # the net between them, where there is one

    def origins(self, name: str, part: Part, every: int = 1) -> Ints:
        return ev.origins(self.stations[name], self.frames[name], part)[::every]

    def windows(self) -> dict[str, Drawable]:
        return {x: Drawable(cut, self.origins(x, "learn")) for x, cut in self.frames.items()}

    @property
    def sites(self) -> dict[str, tuple[float, float]]:
        places = {x: station.site for x, station in self.stations.items()}
        return {x: (at.latitude, at.longitude) for x, at in places.items() if at is not None}


@dataclass(frozen=True, slots=True, eq=False)
class Learnt:
    """Result of a run."""

    vectors: Mapping[str, Vector]  # each station's own whole vector
    net: NDArray[Any] | None = None  # the graph model's parameters, where there is one
    # mean activations of stations that the server masks: these are seen instead
    stand_ins: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def ground(arm: Arm, folder: Path) -> Ground:
    """Read the set, open the bundle, and place the stations on the graph."""
    bundle = opened(f"{arm.row.bundle}-{arm.horizon}")
    stations = {x.name: x for x in ev.load(folder, arm.dataset, arm.stations)}
    frames = {name: ev.frame(x, bundle.manifest) for name, x in stations.items()}
    graph = None
    if arm.row.graph:
        graph = seated(arm.row.graph, bundle, tuple(stations.values()))
    return Ground(bundle, stations, frames, graph)


@lru_cache(maxsize=8)
def opened(name: str) -> Bundle:
    """Export a model of the catalogue and open it as a device does; shipped ones are opened."""
    from aggregator.extensions.authoring.catalogue import SHIPPED  # noqa: PLC0415 - torch, for papers' models only
    from aggregator.extensions.authoring.export import export, make  # noqa: PLC0415 - as above

    if name in SHIPPED:
        return Bundle.open(name, trust=TrustedKeys())
    key = SigningKey.generate()
    with tempfile.TemporaryDirectory() as folder:
        module, recipe = make(name)
        out = Path(folder) / name
        export(module, recipe, name=name, version=1, signer=key, out=out, engine=load_graph)
        return Bundle.open(out, trust=TrustedKeys((key.public,)))


def seated(kind: str, bundle: Bundle, stations: tuple[Station, ...]) -> LentGraph:
    """Host a net over the stations: neighbours by coordinates, or all where there are none."""
    import torch  # noqa: PLC0415 - the graph models' door

    from aggregator.extensions.papers.graph.nets.baselines import Conv2d, GraphNet  # noqa: PLC0415 - as above
    from aggregator.extensions.papers.graph.nets.spatiotemporal import SpatioTemporal  # noqa: PLC0415 - as above
    from aggregator.extensions.papers.graph.nets.torch_adapter import TorchGraphModel  # noqa: PLC0415 - as above

    torch.set_num_threads(1)
    shape = bundle.manifest.activation
    assert shape is not None
    count, (features, length) = len(stations), shape
    sites = [x.site for x in stations if x.site is not None]
    is_placed = len(sites) == count
    adjacent = adjacency(distances(sites)) if is_placed else 1.0 - np.eye(count)
    nets: Mapping[str, Callable[[], Any]] = {
        "pfgl": partial(SpatioTemporal, count, features, length),
        "residual": partial(SpatioTemporal, count, features, length, residual_ln=True),
        "conv2d": partial(Conv2d, features, 2),
        "graphnet": partial(GraphNet, features, 2),
    }
    model = TorchGraphModel(nets[kind], adjacent, order=3 if kind in {"pfgl", "residual"} else 2)
    return LentGraph(model, shape, {x.name: k for k, x in enumerate(stations)})


def told(base: Ground, learnt: Learnt, part: Part, every: int = 1) -> dict[str, Floats]:
    """Forecast every origin of a part: quantiles as they are served, ``(n, horizon, 3)``.

    With a graph model, each station's newest activations go up and what the graph says comes down.
    """
    rows = {x: base.origins(x, part, every) for x in base.frames}
    if learnt.net is None or base.graph is None:
        graph = base.bundle.forecast
        return {
            x: fan(graph, learnt.vectors[x], cut, rows[x], QUANTILES)
            for x, cut in base.frames.items()
        }
    return _through(base, learnt, rows)


def _through(
    base: Ground, learnt: Learnt, rows: Mapping[str, Ints], size: int = 256
) -> dict[str, Floats]:
    assert base.graph is not None
    names, seats = sorted(rows), base.graph.places
    first = rows[names[0]]
    if any(not np.array_equal(first, rows[x]) for x in names):
        raise ValueError("stations have windows at different times; a graph needs them together")
    parts: dict[str, list[Floats]] = {x: [] for x in names}
    present = np.ones(base.graph.model.capacity, np.bool_)
    for start in range(0, len(first), size):
        some = first[start : start + size]
        h = np.zeros((len(some), len(present), *base.graph.shape), np.float32)
        for x in names:
            if x in learnt.stand_ins:
                h[:, seats[x]] = learnt.stand_ins[x]
                continue
            feed = base.frames[x].inputs(some)
            h[:, seats[x]] = base.bundle.graphs[ENCODE](p=learnt.vectors[x], x=feed)[0]
        z = base.graph.model.forward(learnt.net, h, present)
        for x in names:
            parts[x].append(_aided(base, x, learnt.vectors[x], some, z[:, seats[x]]))
    return {x: np.concatenate(found) for x, found in parts.items()}


def _aided(base: Ground, name: str, p: Vector, rows: Ints, z: NDArray[Any]) -> Floats:
    spoken = iter([z])

    def graph(**feeds: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        return base.bundle.graphs[AIDED_FORECAST](z=next(spoken).astype(np.float32), **feeds)

    return fan(graph, p, base.frames[name], rows, QUANTILES)


def chosen_by(base: Ground, learnt: Learnt) -> dict[str, float]:
    """Return each station's QS on the choosing part, in standard deviations of its training part."""
    found = told(base, learnt, "choose", LOOK)
    out = {}
    for x, f in found.items():
        y = base.frames[x].truth(base.origins(x, "choose", LOOK))
        out[x] = ev.scored(y, f)["QS"] / spread(base.stations[x])
    return out


def spread(station: Station) -> float:
    """Return the standard deviation of a station's training part."""
    return float(np.std(station.demand[: station.rows("learn")[1]])) or 1.0


def judged(base: Ground, forecasts: Mapping[str, Floats]) -> dict[str, dict[str, float]]:
    """Score every station's forecasts of the test part, raw scale."""
    return {
        x: ev.scored(
            base.frames[x].truth(base.origins(x, "test")), f, 0.01 * spread(base.stations[x])
        )
        for x, f in forecasts.items()
    }


def calibrated(
    base: Ground, choose: Mapping[str, Floats], test: Mapping[str, Floats]
) -> dict[str, dict[str, float]]:
    """Score the test part as served by devices that run since the start of ``choose``.

    ``MIL equal`` is the mean length of the uncalibrated intervals, each end moved outwards by one
    multiple of their width that is known in hindsight only: the least at which no more readings
    miss it than miss the calibrated ones.
    """
    out = {}
    for x, cut in base.frames.items():
        before, rows = base.origins(x, "choose"), base.origins(x, "test")
        every = np.concatenate([before, rows])
        fans = np.concatenate([choose[x], test[x]])
        width = 1e-3 * spread(base.stations[x])
        aim = CoverageTarget.of(QUANTILES, least=0.0, narrowest=width)
        _, ends = rolled(
            ConformalCalibration.new(cut.window.horizon), every, cut.raw[every], fans, aim
        )
        ends, y = ends[len(before) :], cut.truth(rows)
        served = np.stack([ends[..., 0], test[x][..., 1], ends[..., 1]], axis=-1)
        score = ev.scored(y, np.sort(served, axis=-1), 0.01 * spread(base.stations[x]))
        out[x] = score | {"MIL equal": stretched(y, test[x], served, width)}
    return out


def stretched(y: Floats, told: Floats, served: Floats, narrowest: float) -> float:
    """Return the length of ``told`` intervals, widened until they miss as few as ``served``.

    >>> y = np.array([[1.0], [2.0], [3.0], [4.0]])
    >>> told = np.tile([0.0, 1.0, 2.0], (4, 1, 1))
    >>> served = np.tile([0.0, 1.0, 3.0], (4, 1, 1))  # one of four lies above
    >>> stretched(y, told, served, 1e-6)
    3.0
    """
    width = np.maximum(told[..., 2] - told[..., 0], narrowest)
    down, up = (told[..., 0] - y) / width, (y - told[..., 2]) / width
    below = float((y < served[..., 0]).mean())
    above = float((y > served[..., 2]).mean())
    a = max(0.0, float(np.quantile(down, 1.0 - below, method="lower")))
    b = max(0.0, float(np.quantile(up, 1.0 - above, method="lower")))
    low = np.maximum(told[..., 0] - a * width, 0.0)
    high = np.maximum(told[..., 2] + b * width, 0.0)
    return float(np.abs(high - low).mean())
