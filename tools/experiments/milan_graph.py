"""The five methods of the graph chapter on real cells that border on each other, and three marks.

Milan's 25 squares, hourly traffic one hour ahead, links between squares with a common side. The
last week is the test; the week before it chooses each method's step. Marks are learning alone,
FedAvg, and FedAvg with a personal head (PL-FL).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from edge_sdk.bundle import Bundle, Trust
from edge_sdk.forecast import rolling
from edge_sdk.methods.optim import adam, sgd
from edge_sdk.windows import Drawable
from edge_sdk.wire.spec import Vector
from tools.experiments import cells as data
from tools.experiments.cells import MILAN, Cell, Split
from tools.experiments.kin import AMONG, Course, Field, Links, course
from tools.experiments.together import key, redrawn

NET = "cells-mlp-1"
STEPS, ROUNDS = 10, 40
PERSONAL = ("head.",)


@dataclass(frozen=True, slots=True)
class Kind:
    """One method as it is run here.

    Attributes:
        method: A key of ``METHODS``, or ``local``.
        rates: Steps to choose from.
        settings: More of its settings.
        head: Whether the last layer stays on the device.
    """

    method: str
    rates: tuple[float, ...]
    settings: Mapping[str, Any]
    head: bool = False


ADAM: Final = (3e-4, 1e-3, 3e-3)
PLAIN: Final = (0.1, 0.3, 1.0)
LEANING: Final = {"optimiser": "bundle", "smooth": 0.1}
KINDS: Final[Mapping[str, Kind]] = {
    "local": Kind("local", ADAM, {}),
    "FedAvg": Kind("fedavg", ADAM, {}),
    "PL-FL": Kind("fedavg", ADAM, {}, head=True),
    "DFL-SGD": Kind("dfl_sgd", PLAIN, {}),
    "DFL-GT": Kind("dfl_gt", PLAIN, {}),
    "FeSEM": Kind("fesem", ADAM, {"centres": 3}),
    "BiG-FL": Kind("bigfl", ADAM, {"map": "diagonal", **LEANING}),
    "BiG-FL, phi = I": Kind("bigfl", ADAM, {"map_rate": 0.0, **LEANING}),
}


def squares(folder: Path) -> tuple[dict[str, Cell], Links]:
    """Read the squares, and which have a common side.

    >>> beside("cell_4142", "cell_4143"), beside("cell_4142", "cell_4242")
    (True, True)
    >>> beside("cell_4142", "cell_4243")
    False
    """
    found = {x.name: x for x in data.load(folder, MILAN)}
    names = sorted(found)
    pairs = ((a, b) for i, a in enumerate(names) for b in names[i + 1 :] if beside(a, b))
    return found, frozenset(pairs)


def beside(one: str, other: str) -> bool:
    """Whether two squares of the grid, a hundred to a row, have a common side."""
    (up, right), (down, left) = (divmod(int(x.removeprefix("cell_")), 100) for x in (one, other))
    return abs(up - down) + abs(right - left) == 1


def file(name: str, seed: int, rounds: int) -> str:
    """Return where a run is kept, below the output folder."""
    return f"milan-{name.replace(' ', '')}-r{rounds}-s{seed}.json"


def run(name: str, seed: int, folder: Path, out: Path, *, rounds: int = ROUNDS) -> dict[str, Any]:
    """Choose the step on one week, learn again, judge on the next; unless the result is there.

    Steps are tried for a third of the rounds; seeds after the first take the first one's.
    """
    path = out / file(name, seed, rounds)
    if not path.exists():
        kind, ground = KINDS[name], squares(folder)
        tried: dict[float, float] = {}
        if seed:
            best = float(run(name, 0, folder, out, rounds=rounds)["rate"])
        else:
            for rate in kind.rates:
                some = max(1, rounds // 3)
                found = _learned(kind, rate, seed, ground, judge="choose", rounds=some)
                tried[rate] = found[-1]["RMSE"]
            best = min(tried, key=lambda rate: tried[rate])
        shown = _learned(kind, best, seed, ground, judge="test", rounds=rounds)
        told = {"name": name, "seed": seed, "rate": best, "tried": list(tried.items())}
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps({**told, "shown": shown}))
        draft.replace(path)
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def _learned(
    kind: Kind,
    rate: float,
    seed: int,
    ground: tuple[Mapping[str, Cell], Links],
    *,
    judge: Split,
    rounds: int,
) -> list[dict[str, float]]:
    """Learn from all before the part that judges; the errors now and then and at the end."""
    squared, links = ground
    before: Split = "train" if judge == "test" else "learn"
    bundle = Bundle.open(NET, trust=Trust())
    frames = {x: data.frame(cell, bundle.manifest) for x, cell in squared.items()}
    windows = {x: Drawable(f, data.origins(squared[x], f, before)) for x, f in frames.items()}
    layout = bundle.manifest.spec(())
    layers = [layer.name for layer in layout.layers]
    shared = tuple(x for x in layers if not (kind.head and x.startswith(PERSONAL)))
    first = redrawn(layout, bundle.initial, key(seed, "_agg", "initial", 0))
    optimiser = sgd if kind.method in AMONG else adam
    field = Field(layout.with_shared(shared), first, bundle.graphs, windows, links, 64, optimiser)
    plan = Course(kind.method, rounds, STEPS, rate, kind.settings, seed=seed)

    def judged(vectors: Mapping[str, Vector]) -> dict[str, float]:
        told, truth = {}, {}
        for name, frame in frames.items():
            rows = data.origins(squared[name], frame, judge)
            with np.errstate(over="ignore", invalid="ignore"):
                told[name] = rolling(bundle.forecast, vectors[name], frame, rows)
            truth[name] = frame.truth(rows)
        if not all(np.isfinite(x).all() for x in told.values()):
            return {"RMSE": math.inf, "MAE": math.inf}
        return data.scored(told, truth)

    kept = []
    for shown in course(plan, field):
        if shown.round in {1, 2, 5} or shown.round % 10 == 0 or shown.round == rounds:
            scores = judged(shown.vectors)
            kept.append({"round": shown.round, "said": shown.said, **scores})
    return kept
