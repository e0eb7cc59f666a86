"""E5 and E6: the server algorithms and the personalisation layers of PL-FL, on real buildings.

Paper values are printed beside ours and never asserted: other data, other scale, other length. A
claim is judged over seeds; one that does not hold here is printed as "not reproduced".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.extensions.evaluation.forecast_metrics import mae, naive_lag1
from edge_sdk.forecasting.forecast import rolling
from edge_sdk.forecasting.windows import ChannelFrame, Drawable, filled
from edge_sdk.methods.training_context import Windows
from edge_sdk.protocol.contract.parameter_layout import Vector
from tools.experiments import buildings as data
from tools.experiments.joint_loop import Fleet, Plan, Pooled, gather, rounds
from tools.experiments.resumable import Checkpoint

CONFIGURATIONS: Mapping[str, tuple[str, ...]] = {
    "FL": ("",),
    "cfg 1": ("lstm.",),
    "cfg 2": ("lstm.weight_ih_l0", "lstm.weight_hh_l0", "lstm.bias_ih_l0", "lstm.bias_hh_l0"),
    "cfg 3": (),
}
SERVERS: Mapping[str, Mapping[str, float]] = {
    "fedavg": {},
    "fedavgm": {"beta": 0.99},
    "fedadam": {"server_rate": 0.01, "beta1": 0.99, "beta2": 0.999},
}
METHOD = {"paper": "fedadam", "week": "fedavg"}
"""E6's server algorithm: the paper's choice, and the plain one for the named option."""

LOOKED_AT = (20, 50, 100, 200, 300, 500, 700, 1000, 1300, 1600, 2000)
"""Rounds after which a run of the paper's form is scored on the test part, for its learning curve;
nothing is chosen by it."""

LONG = 1000
"""Steps of training alone "to convergence"; the best of the checkpoints, 50 steps apart, counts."""

PAPER_E5 = {  # [PLFL] Table III: MAE / MASE
    "CA": {"fedavg": (0.3302, 2.2622), "fedavgm": (0.3181, 2.1246), "fedadam": (0.2861, 1.9540)},
    "IL": {"fedavg": (1.7534, 2.6551), "fedavgm": (2.9235, 4.3619), "fedadam": (1.9070, 2.8521)},
    "NY": {"fedavg": (9.8462, 3.0918), "fedavgm": (10.4671, 4.3502), "fedadam": (8.3716, 2.6585)},
}
PAPER_E6 = {  # [PLFL] Table IV: MAE / MASE
    "CA": {
        "No-FL": (21.3557, 23.5128),
        "FL": (22.5103, 29.3381),
        "cfg 1": (20.7145, 0.8443),
        "cfg 2": (20.7486, 0.9201),
        "cfg 3": (20.7406, 1.2528),
    },
    "IL": {
        "No-FL": (18.3858, 5.3659),
        "FL": (22.8306, 22.3734),
        "cfg 1": (18.0419, 0.7152),
        "cfg 2": (18.0878, 0.6928),
        "cfg 3": (18.0989, 0.6984),
    },
    "NY": {
        "No-FL": (25.7914, 28.4246),
        "FL": (26.7211, 32.3417),
        "cfg 1": (24.8082, 0.8449),
        "cfg 2": (24.8322, 0.8340),
        "cfg 3": (24.8119, 0.7571),
    },
}


NO_FL = "No-FL"
"""The paper's training without federation: one model, all windows, a new minibatch every step, and
one Adam throughout."""

POOLED = (NO_FL, "pooled")
"""Rows trained on all windows in one place. ``pooled`` trains as a device of FL does: in every round it
begins a new Adam and draws one minibatch."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One cell of a table before it is run: the inputs of its numbers."""

    experiment: str  # ``e5`` or ``e6``
    dataset: str  # folder name of the set
    name: str  # row of the table
    # ``paper`` (level, squared error, common scale) or ``week`` (change, Huber, own scale)
    form: Literal["paper", "week"]
    seed: int  # of initial vectors and minibatches
    rounds: int  # server rounds (K)
    steps: int  # local steps a round (K')
    clients: int  # how many buildings

    @property
    def file(self) -> str:
        words = (self.experiment, self.dataset, self.form, self.name.replace(" ", ""))
        return "-".join((*words, f"k{self.rounds}x{self.steps}", f"s{self.seed}")) + ".json"


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """Data and bundle of all arms of a set."""

    bundle: Bundle  # graphs and initial vector
    frames: Mapping[str, ChannelFrame]  # channels and splits by building
    windows: Mapping[str, Drawable]  # what each building learns from


def run(
    arm: Arm,
    folder: Path,
    progress: Callable[[int], None] = lambda _: None,
    resume: Path | None = None,
) -> list[dict[str, Any]]:
    """Train one arm and score every building on its test part.

    A federated arm of the named option gives two results: as the fleet left it, and tuned alone.

    Args:
        folder: Folder of the data sets.
        progress: Told the number of each finished round.
        resume: File that the arm writes every minute and continues from; removed at the end. Only
            rounds are saved, not the tuning after them. Seconds are those of the last call.
    """
    began, kept = time.perf_counter(), Checkpoint(resume)
    houses = data.load(folder, arm.dataset, arm.clients)
    shipped = "load-lstm" if arm.form == "paper" else "load-lstm-week"
    bundle = Bundle.open(shipped, trust=TrustedKeys())
    shape = data.paper_form if arm.form == "paper" else data.week_form
    frames = data.frames(houses, shape(bundle.manifest, houses))
    windows = {
        x: Drawable(frame, frame.origins(data.PARTS["train"])) for x, frame in frames.items()
    }
    ground = Ground(bundle, frames, windows)
    vectors, path = _trained(arm, ground, progress, kept)
    results = [{**_result(arm, ground, vectors, time.perf_counter() - began), "path": path}]
    if arm.form == "week" and arm.name in CONFIGURATIONS:
        vectors = _converged(arm, ground, progress, vectors)
        tuned = replace(arm, name=f"{arm.name} tuned")
        results.append(_result(tuned, ground, vectors, time.perf_counter() - began))
    kept.drop()
    return results


def _result(
    arm: Arm, ground: Ground, vectors: Mapping[str, Vector], seconds: float
) -> dict[str, Any]:
    bundle, frames = ground.bundle, ground.frames
    rows = _scores(ground, vectors)
    return {
        "arm": {name: getattr(arm, name) for name in Arm.__slots__},
        "seconds": round(seconds, 1),
        "stations": rows,
        "mean": _mean(rows),
        "forecasts": {x: _told(bundle, vectors[x], frame) for x, frame in frames.items()},
    }


def _trained(
    arm: Arm, ground: Ground, progress: Callable[[int], None], kept: Checkpoint
) -> tuple[Mapping[str, Vector], list[dict[str, float]]]:
    if arm.name == "local long":
        return _converged(arm, ground, progress), []
    path: list[dict[str, float]] = []
    fleet, plan = _fleet(arm, ground)
    if (before := kept.load()) is not None:
        fleet, path = fleet.restored(before["fleet"]), before["path"]
    for number, after in rounds(plan, fleet):
        fleet = after
        if arm.form == "paper" and number in LOOKED_AT:
            path.append({"round": number, **_mean(_scores(ground, _vectors(arm, ground, fleet)))})
        progress(number)
        kept.save({"fleet": fleet.saved(), "path": path})
    return _vectors(arm, ground, fleet), path


def _vectors(arm: Arm, ground: Ground, fleet: Fleet) -> Mapping[str, Vector]:
    vectors = fleet.vectors()
    return dict.fromkeys(ground.frames, vectors["_"]) if arm.name in POOLED else vectors


def _fleet(arm: Arm, ground: Ground) -> tuple[Fleet, Plan]:
    windows: Mapping[str, Windows] = ground.windows
    if arm.name in POOLED:
        windows = {"_": Pooled(tuple(ground.windows[x] for x in sorted(ground.windows)))}
    method = arm.name if arm.experiment == "e5" else METHOD[arm.form]
    shared = () if arm.name in POOLED else CONFIGURATIONS.get(arm.name, ("",))
    settings = {"steps": arm.steps, "rate": 1e-3, **(SERVERS[method] if shared else {})}
    is_steady = arm.name == NO_FL
    is_fixed = arm.form == "paper" and not is_steady
    minibatch: Literal["fixed", "fresh"] = "fixed" if is_fixed else "fresh"
    plan = Plan(method, settings, shared, arm.rounds, 64, minibatch, arm.seed)
    return gather(plan, **_parts(ground.bundle), windows=windows, keep_moments=is_steady), plan


def _converged(
    arm: Arm,
    ground: Ground,
    progress: Callable[[int], None],
    starts: Mapping[str, Vector] | None = None,
) -> dict[str, Vector]:
    """Train every building alone, with fresh minibatches, and keep its best vector.

    The last tenth of the training part is held back to choose by, as the anchors do; the test part
    is not looked at. Step 0 counts, so tuning can only help on what is held back.
    """
    bundle, frames = ground.bundle, ground.frames
    often = LONG // 50
    plan = Plan("fedavg", {"steps": 50, "rate": 1e-3}, (), often, 64, "fresh", arm.seed + 1000)
    learn, choose = {}, {}
    for name, some in ground.windows.items():
        cut = int(0.9 * data.PARTS["train"][1] * len(frames[name]))
        learn[name] = replace(some, origins=some.origins[some.origins < cut - 1])
        choose[name] = some.origins[some.origins >= cut]
    fleet = gather(plan, **_parts(bundle), windows=learn, starts=starts)
    best = {x: (_error(bundle, v, frames[x], choose[x]), v) for x, v in fleet.vectors().items()}
    for number, after in rounds(plan, fleet):
        progress(number)
        for name, vector in after.vectors().items():
            error = _error(bundle, vector, frames[name], choose[name])
            if error < best[name][0]:
                best[name] = (error, vector)
    return {name: vector for name, (_, vector) in best.items()}


def _parts(bundle: Bundle) -> dict[str, Any]:
    return {
        "layout": bundle.manifest.spec(("",)),
        "initial": bundle.initial,
        "gradient": bundle.gradient,
    }


def _error(bundle: Bundle, p: Vector, frame: ChannelFrame, origins: NDArray[np.int64]) -> float:
    return mae(frame.truth(origins), rolling(bundle.forecast, p, frame, origins))


Scores = Mapping[str, Mapping[str, float | None]]


def _scores(ground: Ground, vectors: Mapping[str, Vector]) -> Scores:
    return {x: _scored(ground.bundle, vectors[x], frame) for x, frame in ground.frames.items()}


def _mean(rows: Scores) -> dict[str, float]:
    found = {k: [row[k] for row in rows.values()] for k in ("MAE", "MASE")}
    return {k: float(np.mean([x for x in some if x is not None])) for k, some in found.items()}


def _scored(bundle: Bundle, p: Vector, frame: ChannelFrame) -> dict[str, float | None]:
    origins = frame.origins(data.PARTS["test"], observed=False)
    start, stop = (int(len(frame) * share) for share in data.PARTS["test"])
    naive = naive_lag1(frame.raw[start:stop])
    error = _error(bundle, p, frame, origins)
    return {"MAE": error, "MASE": error / naive if naive > 1e-12 else None}


def _told(bundle: Bundle, p: Vector, frame: ChannelFrame) -> dict[str, list[float]]:
    origins = frame.origins(data.PARTS["test"], observed=False)
    forecasts = rolling(bundle.forecast, p, frame, origins)[:, 0]
    return {"target_index": (origins + 1).tolist(), "point": np.round(forecasts, 6).tolist()}


def completed(told: Mapping[str, list[float]], house: data.Building) -> dict[int, float]:
    """Complete a forecast to all rows of the test part by the device's fallback, yesterday's slot.

    Args:
        told: Rows and values of the model's forecast.
        house: Source of the fallback; the last reading replaces an unmeasured one of yesterday.
    """
    values = filled(house.columns[data.LOAD])
    start, stop = (int(len(values) * share) for share in data.PARTS["test"])
    day = 86_400 // house.step
    rows = {int(row): value for row, value in zip(told["target_index"], told["point"], strict=True)}
    for row in range(start, stop):
        usual = values[row - day] if np.isfinite(values[row - day]) else values[row - 1]
        if row not in rows and np.isfinite(usual):
            rows[row] = float(usual)
    return rows
