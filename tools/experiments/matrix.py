"""E13: every rule against every attack, with every pre-aggregation.

Eleven clients of the synthetic task learn together by FedAvg; two of them lie. A cell of the table
is the error of the common model on the nine that do not, over that of the same mean with nobody
lying. What a rule cannot do with so few rows is said, not run.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from aggregator.methods import METHODS as SERVER
from aggregator.methods import Rounds, Setup
from aggregator.rules import BoundRule, bind
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.extensions.evaluation.forecast_metrics import rmse
from edge_sdk.forecasting.forecast import rolling
from edge_sdk.forecasting.windows import ChannelFrame, Drawable
from edge_sdk.methods import METHODS as DEVICE
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import TrainingContext, Windows
from edge_sdk.protocol.codec import unpack_tensor
from edge_sdk.protocol.contract.method import CONTRACTS, Task, Update
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.shared_math.optim import adam
from edge_sdk.training.active_run import Residual
from edge_sdk.training.training_transaction import encoding_of
from firmware_sim.attacks import ATTACKS
from tools.experiments import cells as data
from tools.experiments import synthetic
from tools.experiments.byzantine import liars, lied_to
from tools.experiments.cells import Cell
from tools.experiments.joint_loop import key, redrawn
from tools.experiments.rankings import ranked
from tools.experiments.simulated_clock import World, at_once

CLIENTS, LIARS, ROUNDS, STEPS = 11, 2, 40, 4
BATCH = 64
TRUSTED = "cell-00"
"""The device whose readings the operator holds, for the rule that needs one; it never lies."""

RULES = (
    "mean",
    "median",
    "trimmed_mean",
    "krum",
    "multi_krum",
    "bulyan",
    "geometric_median",
    "autogm",
    "centred_clipping",
    "clipped_clustering",
    "fltrust",
)
ATTACKS_RUN = (
    "",
    "flipping",
    "scaling",
    "gaussian",
    "alie",
    "ipm",
    "mimic",
    "label_flip",
    "fdi_scale",
)
BEFORE = ("", "nnm", "bucketing")


@dataclass(frozen=True, slots=True)
class Square:
    """One cell of the matrix before it is run."""

    rule: str  # what combines the answers
    attack: str  # what two of the clients do; empty for nothing
    before: str  # what the answers go through first; empty for nothing
    seed: int  # of everything that is drawn
    rounds: int = ROUNDS  # of FedAvg
    encoding: str = "f4"  # of the honest answers; ``q8`` and ``q4`` with error feedback
    beta: float = 0.0  # of the devices' momentum; 0 for FedAvg without any

    @property
    def file(self) -> str:
        words: tuple[str, ...] = ("e13", self.rule, self.attack or "none", self.before or "bare")
        words = words if self.encoding == "f4" else (*words, self.encoding)
        words = (*words, f"beta{self.beta:g}") if self.beta else words
        return "-".join((*words, f"r{self.rounds}", f"s{self.seed}")) + ".json"


def squares(
    seeds: int,
    rounds: int = ROUNDS,
    rules: Sequence[str] = RULES,
    attacks: Sequence[str] = ATTACKS_RUN,
    before: Sequence[str] = BEFORE,
) -> list[Square]:
    """List the whole matrix, one seed after the other."""
    return [
        Square(rule, attack, first, seed, rounds)
        for seed in range(seeds)
        for first in before
        for rule in rules
        for attack in attacks
    ]


def bound(square: Square) -> BoundRule:
    """Return the rule of a square as configured, with f = 2."""
    values: dict[str, Any] = {"preaggregation": [square.before] if square.before else []}
    if square.rule == "fltrust":
        values["root"] = TRUSTED
    if square.rule != "mean" or square.before == "nnm":
        values["f"] = LIARS
    return bind(square.rule, **values)


def run(square: Square) -> dict[str, Any]:
    """Train under attack and score the common model on the honest cells."""
    began = time.perf_counter()
    rule = bound(square)
    result = {"square": {name: getattr(square, name) for name in Square.__slots__}}
    if rule.least > CLIENTS:
        return {**result, "error": None, "needs": rule.least}
    bundle = Bundle.open("cells-mlp-1", trust=TrustedKeys())
    cells = {x.name: x for x in synthetic.cells(CLIENTS, square.seed)}
    named = _named(square)
    frames = {name: data.frame(x, bundle.manifest) for name, x in cells.items()}
    common = _learnt(square, rule, bundle, cells, named)
    errors = [
        model_error(bundle, common, cells[name], frames[name])
        for name in cells
        if name not in named
    ]
    seconds = round(time.perf_counter() - began, 2)
    return {**result, "error": float(np.mean(errors)), "liars": named, "seconds": seconds}


def _named(square: Square) -> list[str]:
    """Choose the Byzantine clients by seed, never the trusted device."""
    names = [f"cell-{i:02d}" for i in range(CLIENTS)]
    picked = key(square.seed, "_liars", "who", 0).permutation(CLIENTS - 1)[:LIARS] + 1
    return sorted(names[i] for i in picked) if square.attack else []


def _learnt(
    square: Square,
    rule: BoundRule,
    bundle: Bundle,
    cells: Mapping[str, Cell],
    named: Sequence[str],
) -> Vector:
    spec = bundle.manifest.spec(("",))
    first = redrawn(spec, bundle.initial, key(square.seed, "_agg", "initial", 0))
    devices, states = {}, {}
    own = "worker_momentum" if square.beta else "fedavg"
    for name, cell in cells.items():
        cut = _spoilt(square, cell, bundle) if name in named else data.frame(cell, bundle.manifest)
        windows = Drawable(cut, data.origins(cell, cut, "train"))
        keyed = partial(key, square.seed, name)
        lent = TrainingContext(name, spec, bundle.graphs, _given(windows), BATCH, keyed)
        devices[name] = DEVICE[own](lent, LocalSgd(adam, minibatch="fresh"))
        states[name] = devices[name].init(first)
    method = SERVER[own]
    more = {"beta": square.beta} if square.beta else {}
    settings = method.settings(steps=STEPS, rate=1e-3, **more)
    setup = Setup(rule, settings, Rounds(quorum=CLIENTS, limit=square.rounds), spec, square.seed)
    lies = liars(square.attack, named, CLIENTS, CONTRACTS[own], square.seed)
    encoded = {} if square.encoding == "f4" else {x: Quantised(square.encoding) for x in cells}
    world = World(method.half(setup), devices, at_once, lies, encoded, states)
    common = spec.shared(first)
    for moment in world.moments(common):
        common = np.asarray(world.server.model(moment.state)["p"], np.float32)
    return common


@dataclass(slots=True)
class Quantised:
    """Decoded vectors of a client's answers in ``q8`` or ``q4``."""

    enc: str
    residual: Residual | None = None  # rounding error that is added to the next answer

    def __call__(self, update: Update) -> Update:
        """Encode an answer as a device does, and decode it as the aggregator does."""
        size, device = update.vector.size, update.sender
        task = Task(device, update.round, "train", base=update.base)
        encoding = encoding_of(self.enc, update, task, self.residual, device=device, run=1)
        self.residual = encoding.residual(update, run=1)
        sent = encoding.encode(update.vector)
        return replace(update, vector=unpack_tensor(sent, self.enc, size))


def _spoilt(square: Square, cell: Cell, bundle: Bundle) -> ChannelFrame:
    """Return the readings of a Byzantine client: its own, unless its attack changes readings."""
    attack, cut = ATTACKS[square.attack], data.frame(cell, bundle.manifest)
    if attack.kind != "data":
        return cut
    unit = lied_to(square.attack, cell.scale.shrink(cell.traffic), cell.name, square.seed)
    traffic = cell.scale.low + cell.scale.width * unit
    if attack.labels_only:
        return replace(cut, raw=traffic)
    return data.frame(replace(cell, traffic=traffic), bundle.manifest, scale=cell.scale)


def model_error(bundle: Bundle, common: Vector, cell: Cell, cut: ChannelFrame) -> float:
    rows = data.origins(cell, cut, "test")
    with np.errstate(over="ignore", invalid="ignore"):
        forecasts = rolling(bundle.forecast, common, cut, rows)
        error = rmse(cut.truth(rows), forecasts)
    return error / cell.scale.width if np.isfinite(forecasts).all() else float("inf")


def _given(windows: Windows) -> Callable[[], Windows]:
    return lambda: windows


Ratios = Mapping[tuple[str, str, str], list[float]]
"""Rule, attack and what stands before, to the error over the undisturbed mean's, one a seed."""


def ratios(results: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], list[float]]:
    """Divide every error by that of the plain mean without an attack, seed by seed."""
    free = {
        r["square"]["seed"]: r["error"]
        for r in results
        if (r["square"]["rule"], r["square"]["attack"], r["square"]["before"]) == ("mean", "", "")
    }
    out = defaultdict(list)
    for result in sorted(results, key=lambda r: int(r["square"]["seed"])):
        square = result["square"]
        if result["error"] is not None and square["seed"] in free:
            cell = (square["rule"], square["attack"], square["before"])
            out[cell].append(_limited(result["error"] / free[square["seed"]]))
    return dict(out)


def _limited(value: float) -> float:
    return min(value, 1e3) if np.isfinite(value) else 1e3


def rank_table(found: Ratios) -> dict[tuple[str, str], tuple[float, float]]:
    """Rank every rule, with each pre-aggregation, over all attacks.

    Returns:
        ``(rule, before)`` to its average rank over the attacks (no attack among them) and to the
        worst ratio under any attack.
    """
    pairs = sorted({(rule, before) for rule, _, before in found})
    attacks = sorted({attack for _, attack, _ in found})
    complete = [x for x in pairs if all((x[0], a, x[1]) in found for a in attacks)]
    if not complete or not attacks:
        return {}
    columns = [[float(np.mean(found[rule, a, b])) for rule, b in complete] for a in attacks]
    places = np.mean([ranked(x) for x in columns], axis=0)
    worst = np.max(columns, axis=0)
    return {x: (float(places[i]), float(worst[i])) for i, x in enumerate(complete)}
