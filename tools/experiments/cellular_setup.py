"""Set-up of the arms of E9 to E12: cells, channels, windows, and their scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.forecasting.forecast import rolling
from edge_sdk.forecasting.windows import ChannelFrame, Drawable
from edge_sdk.protocol.contract.parameter_layout import Vector
from tools.experiments import cells as data
from tools.experiments.cells import Cell, Split
from tools.experiments.noise import noised


@dataclass(frozen=True, slots=True)
class Arm:
    """One run: the inputs of its numbers."""

    experiment: str  # ``e9`` to ``e12``
    dataset: str  # folder name of the set
    horizon: int  # steps ahead, all in one answer
    name: str  # row of the table
    net: str  # ``mlp``, ``gru`` or ``lstm``
    # epsilon of the noise on every reading that is learnt from; None is no noise
    budget: float | None
    work: int  # gradient steps that an average device takes
    seed: int  # of vectors, minibatches, noise, latencies and who lies
    attack: str = ""  # what the liars do; empty for none
    ratio: float = 0.0  # share of the devices that lie
    # ``even``, or ``straggler``: log-normal answers and one device ten times slower
    clock: str = "even"
    clients: int | None = None  # at most so many cells
    part: Split = "test"  # what is scored: ``test``, or ``choose`` while settings are sought

    @property
    def file(self) -> str:
        noise = "clean" if self.budget is None else f"a{self.budget:g}"
        liars = f"{self.attack}{self.ratio:g}" if self.attack else "honest"
        many = "all" if self.clients is None else f"n{self.clients}"
        words = (self.experiment, self.dataset, f"h{self.horizon}", self.name.replace(" ", ""))
        more = (self.net, noise, liars, self.clock, many, self.part, f"w{self.work}")
        return "-".join((*words, *more, f"s{self.seed}")) + ".json"


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """Data and bundle of an arm."""

    bundle: Bundle  # graphs and initial vector
    cells: Mapping[str, Cell]  # the clients' series
    served: Mapping[str, ChannelFrame]  # channels that forecasts are made from: what was read
    # channels that are learnt from: with noise, where the arm has some
    learnt: Mapping[str, ChannelFrame]
    part: Split  # what is scored

    def windows(self, part: Split | None = None) -> dict[str, Drawable]:
        """Return the training windows of each device; none is scored."""
        kept: Split = part or ("train" if self.part == "test" else "learn")
        return {
            name: Drawable(cut, data.origins(self.cells[name], cut, kept))
            for name, cut in self.learnt.items()
        }


def ground(arm: Arm, folder: Path) -> Ground:
    """Read the set and cut it, with noise where the arm has some."""
    bundle = Bundle.open(f"cells-{arm.net}-{arm.horizon}", trust=TrustedKeys())
    cells = {x.name: x for x in data.load(folder, arm.dataset, arm.clients)}
    served = {name: data.frame(x, bundle.manifest) for name, x in cells.items()}
    learnt = served
    if arm.budget is not None:
        noisy = {
            name: noised(x, arm.budget, arm.seed, bundle.manifest) for name, x in cells.items()
        }
        learnt = {
            name: data.frame(x, bundle.manifest, scale=cells[name].scale)
            for name, x in noisy.items()
        }
    return Ground(bundle, cells, served, learnt, arm.part)


def judged(base: Ground, vectors: Mapping[str, Vector]) -> dict[str, dict[str, float]]:
    """Score every cell's vector on its own part of the truth, raw scale."""
    return {name: scored(base, base.served[name], name, p) for name, p in vectors.items()}


def scored(base: Ground, cut: ChannelFrame, name: str, p: Vector) -> dict[str, float]:
    """Score one cell; a non-finite forecast has infinite error."""
    rows = data.origins(base.cells[name], cut, base.part)
    truth = cut.truth(rows)
    with np.errstate(over="ignore", invalid="ignore"):
        forecasts = rolling(base.bundle.forecast, p, cut, rows)
        scores = data.scored({name: forecasts}, {name: truth})
    errors = scores if np.isfinite(forecasts).all() else dict.fromkeys(scores, math.inf)
    return {"RMSE": errors["RMSE"], "MAE": errors["MAE"], "n": float(np.isfinite(truth).sum())}


def together(rows: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Pool the cells' scores over all errors.

    >>> some = {"a": {"RMSE": 3.0, "MAE": 3.0, "n": 1.0}, "b": {"RMSE": 1.0, "MAE": 1.0, "n": 3.0}}
    >>> {k: round(v, 4) for k, v in together(some).items()}
    {'RMSE': 1.7321, 'MAE': 1.5}
    """
    n = np.array([row["n"] for row in rows.values()])
    squares = np.array([row["RMSE"] for row in rows.values()]) ** 2
    errors = np.array([row["MAE"] for row in rows.values()])
    return {
        "RMSE": float(np.sqrt((n * squares).sum() / n.sum())),
        "MAE": float((n * errors).sum() / n.sum()),
    }


def plain(arm: Arm, base: Ground) -> dict[str, dict[str, float]]:
    """Score the untrained forecasts on the arm's windows."""
    values: dict[str, dict[str, NDArray[np.float64]]] = {}
    truth = {}
    for name, cell in base.cells.items():
        cut = base.served[name]
        rows = data.origins(cell, cut, arm.part)
        truth[name] = cut.truth(rows)
        values.setdefault("persistence", {})[name] = data.repeated(cut, rows, 1)
        values.setdefault("same hour yesterday", {})[name] = data.repeated(cut, rows, cell.day)
        values.setdefault("same hour last week", {})[name] = data.repeated(cut, rows, 7 * cell.day)
        values.setdefault("median of the hour", {})[name] = data.by_hour(cell, cut, rows)
    return {name: data.scored(some, truth) for name, some in values.items()}
