"""Point forecasts of buildings and cells: models in closed form, own trees on what they leave, and a blend.

A device blends what it has by what each missed on every fifth week of its record: the fleet's model,
its own drawn towards it, its own alone, trees on the residuals of each, and yesterday's, last week's
and the week's mean value. The blend without anything of the fleet is what it could do alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from edge_sdk.analytic.blend import blocks_held_back, served_weights
from edge_sdk.analytic.features import LoadRecord, columns, standard_names
from edge_sdk.analytic.random_units import RandomUnits
from edge_sdk.analytic.reweighting import QuantileLoss, reweighted
from edge_sdk.analytic.solve import RidgePath, fleet_solution, leave_one_out, predicted
from edge_sdk.analytic.standardise import FeatureSums, Standardiser
from edge_sdk.analytic.statistics import DesignRows, Statistic, gather, payload_bytes, total
from edge_sdk.analytic.trees import TreeForm, boosted
from tools.experiments.marks.tasks import scored

Floats = NDArray[np.float64]
Single = NDArray[np.float32]
Flags = NDArray[np.bool_]

ARMS = ("fleet", "alone", "personal", "served", "centralised")
STRENGTHS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
SIMPLE = ("day:1:0", "day:7:0", "slot:7")
LOSS = QuantileLoss()


@dataclass(frozen=True, slots=True)
class PointForm:
    """What was chosen on the validation parts, once for all sets.

    Attributes:
        units: Number of random units.
        fan_in: Features that a unit reads.
        passes: Re-weighted passes of the fleet.
        trees: Form of the trees; none if their number is 0.
        windows: Most windows of a device that are learnt from.
        pooled: Most rows of all devices that the centralised trees are grown on.
    """

    units: int = 400
    fan_in: int = 2
    passes: int = 3
    trees: TreeForm = field(default_factory=TreeForm)
    windows: int = 15_000
    pooled: int = 40_000


NEW = PointForm(units=200, trees=TreeForm(trees=0), windows=4000)
"""Form for devices with a short history: a week is too short for trees."""


def form_of(task: Any) -> PointForm:  # noqa: ANN401 - the anchors' type
    """Return the form of a task; sizes are bounded by the time that all devices together take.

    Many steps share one set of trees and have no random units, which made them worse;
    quarter-hours have a year of 35,040 rows.
    """
    if task.p > 1:
        return PointForm(units=0, passes=2, trees=TreeForm(trees=80, rate=0.1), windows=6000)
    if task.day > 24:
        return PointForm(passes=2, trees=TreeForm(trees=80, rate=0.1), windows=10_000)
    return PointForm()


@dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """One device's windows for one step; changes from the last value, in deviations."""

    name: str
    scale: float
    learn: Single
    targets: Floats
    judge: Single
    last: Floats


@dataclass(frozen=True, slots=True)
class StepPlace:
    """Where rows come from: names of the features, rows of a day, steps, and the step."""

    names: tuple[str, ...]
    day: int
    steps: int
    step: int


@dataclass(slots=True, eq=False)
class Gathered:
    """What a device has over all steps: forecasts of held-back and judged windows, and residuals.

    Attributes:
        held: Forecasts of held-back windows by candidate.
        told: Forecasts of judged windows by candidate.
        early: Residuals of the windows that are not held back, by the model they are left by.
        all: Residuals of all windows under the final model.
        rows: Features of the early, all, held-back and judged windows.
        truth: Targets of held-back windows.
    """

    held: dict[str, list[Floats]] = field(default_factory=dict)
    told: dict[str, list[Floats]] = field(default_factory=dict)
    early: dict[str, list[Floats]] = field(default_factory=dict)
    all: dict[str, list[Floats]] = field(default_factory=dict)
    rows: tuple[list[Single], ...] = field(default_factory=lambda: ([], [], [], []))
    truth: list[Floats] = field(default_factory=list)

    def add(self, name: str, held: Floats, told: Floats) -> None:
        """Keep one step's forecasts of a candidate."""
        self.held.setdefault(name, []).append(held)
        self.told.setdefault(name, []).append(told)


def names_of(task: Any, outside: Sequence[str]) -> list[str]:  # noqa: ANN401 - the anchors' type
    """Return the named features of a task."""
    weather = [f"exog_change:{x}:{k}" for x in outside for k in (1, task.day)]
    found = standard_names(task.day, lookback=max(12, task.lookback))
    return [*found, *(f"exog:{x}" for x in outside), *weather]


def step_rows(task: Any, step: int, part: str, most: int, history: int = 0) -> Iterator[StepRows]:  # noqa: ANN401
    """Cut every device's rows for one step; ``history`` keeps its newest days of windows only."""
    for series in task.series:
        filled = pd.Series(series.value).ffill().to_numpy()
        values = (np.where(np.isfinite(filled), filled, series.shift) - series.shift) / series.scale
        outside = {f"w{i}": series.exog[:, i] for i in range(series.exog.shape[1])}
        clock = series.tod.astype(np.int64), series.dow.astype(np.int64)
        record = LoadRecord(values, *clock, task.day, outside)
        names = names_of(task, list(outside))
        deep = (7 if series.train_end > 60 * task.day else 1) * task.day
        learn = task.origins(series, "train", deep)
        if part == "val":
            learn = learn[learn + task.p < series.val[0]]
        learn = learn[-history * task.day :] if history else learn[:: 1 + len(learn) // most]
        judge = task.origins(series, part)
        yield StepRows(
            series.name,
            series.scale,
            columns(record, names, learn, step).astype(np.float32),
            (values[learn + step] - values[learn])[:, None],
            columns(record, names, judge, step).astype(np.float32),
            values[judge] * series.scale + series.shift,
        )


def fleet_of(
    rows: Mapping[str, DesignRows], targets: Mapping[str, Floats], passes: int
) -> tuple[Floats, dict[str, Statistic]]:
    """Return the fleet's model, and every device's statistic of the last pass."""
    fleet: Floats | None = None
    sums: dict[str, Statistic] = {}
    for _ in range(1 + passes):
        for name, design in rows.items():
            y = targets[name]
            weights = None if fleet is None else LOSS.weights(y - predicted(design, fleet))
            sums[name] = gather(design, y, weights)
        fleet = fleet_solution(total(sums))
    assert fleet is not None
    return fleet, sums


def own_models(
    design: DesignRows, y: Floats, late: Flags, fleet: Floats
) -> dict[str, tuple[Floats, Floats]]:
    """Return the personal and the lonely model: without the held-back windows, and with all.

    Penalties are those with the least absolute error on the held-back windows.
    """
    rows, goals, zero = design[~late], y[~late], np.zeros_like(fleet)
    weights = LOSS.weights(goals - predicted(rows, fleet))
    paths = [RidgePath.of(gather(rows, goals, one)) for one in (weights, None)]
    found = {}
    for kind, towards in (("personal", fleet), ("alone", zero)):
        tried = [(s, p.solution(s * len(rows), towards)) for p in paths for s in STRENGTHS]
        missed = [np.abs(y[late] - predicted(design[late], model)).mean() for _, model in tried]
        strength, start = tried[int(np.argmin(missed))]
        early = reweighted(
            rows, goals, LOSS, start, penalty=strength * len(rows), towards=towards, passes=2
        )
        final = reweighted(
            design, y, LOSS, early, penalty=strength * len(y), towards=towards, passes=1
        )
        found[kind] = (early, final)
    return found


def forecasts(
    task: Any,  # noqa: ANN401
    form: PointForm,
    *,
    part: str = "test",
    seed: int = 0,
    history: int = 0,
) -> tuple[dict[str, dict[str, Floats]], dict[str, dict[str, float]], int]:
    """Return every arm's forecasts by device, the mean weights of the blends, and the width P.

    With ``history``, a device has its newest days only, and its fleet is all others with all theirs.
    """
    kept: dict[str, Gathered] = {s.name: Gathered() for s in task.series}
    scales: dict[str, tuple[float, Floats]] = {}
    pooled: list[tuple[Single, Floats, list[tuple[str, Single, Floats]]]] = []
    width = 0
    for step in range(1, task.p + 1):
        devices = list(step_rows(task, step, part, form.windows))
        standard = Standardiser.of_fleet(
            {d.name: FeatureSums.of(d.learn.astype(np.float64)) for d in devices}
        )
        units = RandomUnits.draw(
            "experiment", seed, devices[0].learn.shape[1], form.units, form.fan_in
        )

        def design(
            rows: Single, units: RandomUnits = units, standard: Standardiser = standard
        ) -> Single:
            return units.design(standard.apply(rows).astype(np.float32))

        fleet, sums = fleet_of(
            {d.name: design(d.learn) for d in devices},
            {d.name: d.targets for d in devices},
            form.passes,
        )
        others, width = leave_one_out(sums), fleet.shape[1]
        if history:
            devices = list(step_rows(task, step, part, form.windows, history))
        names = names_of(task, [f"w{i}" for i in range(task.series[0].exog.shape[1])])
        for d in devices:
            common = others[d.name] if history else fleet
            place = StepPlace(tuple(names), task.day, task.p, step)
            _one_step(kept[d.name], d, design, (others[d.name], common), place)
            scales[d.name] = d.scale, d.last
        if form.trees.trees:
            pooled.append(_central(devices, design, fleet, step if task.p > 1 else None))
    out: dict[str, dict[str, Floats]] = {arm: {} for arm in ARMS}
    weights: dict[str, list[Floats]] = {"served": [], "alone": []}
    for name, one in kept.items():
        changes = _blends(one, form, seed, weights)
        for arm, change in changes.items():
            out[arm][name] = _told(change, *scales[name], task.p)
    if pooled:
        for name, change in _centralised(pooled, form, seed).items():
            out["centralised"][name] = _told(change, *scales[name], task.p)
    return {a: f for a, f in out.items() if f}, _means(kept, weights), width


def _one_step(
    into: Gathered,
    d: StepRows,
    design: Callable[[Single], Single],
    models: tuple[Floats, Floats],
    place: StepPlace,
) -> None:
    """Keep one device's forecasts and residuals of one step.

    Args:
        into: What is kept of the device.
        d: Its rows.
        design: From rows to design rows.
        models: That of all others, and the one that the fleet's arm forecasts with.
        place: Where the rows come from.
    """
    others, common = models
    number = place.step if place.steps > 1 else None
    late = blocks_held_back(len(d.targets), 7 * place.day)
    rows, judged, y = design(d.learn), design(d.judge), d.targets[:, 0]
    own = own_models(rows, d.targets, late, others)
    for kind, (early, final) in {**own, "fleet": (others, others)}.items():
        ahead = common if kind == "fleet" else final
        into.add(kind, predicted(rows[late], early)[:, 0], predicted(judged, ahead)[:, 0])
        into.early.setdefault(kind, []).append(y[~late] - predicted(rows[~late], early)[:, 0])
        into.all.setdefault(kind, []).append(y - predicted(rows, final)[:, 0])
    into.early.setdefault("raw", []).append(y[~late])
    into.all.setdefault("raw", []).append(y)
    into.add("last", np.zeros(int(late.sum())), np.zeros(len(d.judge)))
    for name in SIMPLE:
        column = place.names.index(name)
        into.add(name, d.learn[late, column].astype(float), d.judge[:, column].astype(float))
    for rows_of, some in zip(
        into.rows, (d.learn[~late], d.learn, d.learn[late], d.judge), strict=True
    ):
        rows_of.append(_stepped(some, number))
    into.truth.append(y[late])


def _stepped(rows: Single, step: int | None) -> Single:
    """Append the step as a feature where trees see several."""
    if step is None:
        return rows
    return np.concatenate([rows, np.full((len(rows), 1), step, np.float32)], axis=1)


def _thinned(count: int, most: int) -> slice:
    return slice(None, None, 1 + count // most)


def _blends(
    one: Gathered, form: PointForm, seed: int, weights: dict[str, list[Floats]]
) -> dict[str, Floats]:
    """Grow trees on what every model leaves, blend everything, and return the arms' changes."""
    join = np.concatenate
    held = {k: join(v) for k, v in one.held.items()}
    told = {k: join(v) for k, v in one.told.items()}
    early, every, late, judge = (join(part) for part in one.rows)
    for kind in one.early if form.trees.trees else ():
        some, more = _thinned(len(early), form.windows), _thinned(len(every), form.windows)
        first = boosted(early[some], join(one.early[kind])[some], form.trees, seed=seed)
        final = boosted(every[more], join(one.all[kind])[more], form.trees, seed=seed)
        held[f"{kind}+trees"] = first.predicted(late) + held.get(kind, 0.0)
        told[f"{kind}+trees"] = final.predicted(judge) + told.get(kind, 0.0)
    truth = join(one.truth)
    out = {"fleet": told["fleet"], "personal": told["personal"]}
    for arm in ("served", "alone"):
        names = [k for k in held if arm == "served" or not k.startswith(("fleet", "personal"))]
        found = served_weights(np.stack([held[k] for k in names], axis=1), truth)
        weights[arm].append(found)
        out[arm] = np.stack([told[k] for k in names], axis=1) @ found
    one.held = {key: [] for key in held}
    return out


def _means(
    kept: Mapping[str, Gathered], weights: Mapping[str, Sequence[Floats]]
) -> dict[str, dict[str, float]]:
    names = list(next(iter(kept.values())).held)
    own = [k for k in names if not k.startswith(("fleet", "personal"))]
    pairs = (("served", names), ("alone", own))
    return {
        a: dict(zip(k, np.mean(weights[a], axis=0).round(3).tolist(), strict=True))
        for a, k in pairs
    }


def _told(change: Floats, scale: float, last: Floats, steps: int) -> Floats:
    """Return forecasts in the set's unit, shape ``(n, steps)``."""
    return np.asarray(last[:, None] + scale * change.reshape(steps, -1).T)


def _central(
    devices: Sequence[StepRows],
    design: Callable[[Single], Single],
    fleet: Floats,
    step: int | None,
) -> tuple[Single, Floats, list[tuple[str, Single, Floats]]]:
    """Return one step's rows and residuals of all devices in one place, and what is to be told."""
    left = [d.targets[:, 0] - predicted(design(d.learn), fleet)[:, 0] for d in devices]
    rows = np.concatenate([_stepped(d.learn, step) for d in devices])
    ahead = [
        (d.name, _stepped(d.judge, step), predicted(design(d.judge), fleet)[:, 0]) for d in devices
    ]
    return rows, np.concatenate(left), ahead


def _centralised(
    pooled: Sequence[tuple[Single, Floats, list[tuple[str, Single, Floats]]]],
    form: PointForm,
    seed: int,
) -> dict[str, Floats]:
    """Return the changes told by one ridge and one set of trees over everybody's readings."""
    rows = np.concatenate([one[0] for one in pooled])
    left = np.concatenate([one[1] for one in pooled])
    some = _thinned(len(rows), form.pooled)
    made = boosted(rows[some], left[some], form.trees, seed=seed)
    found: dict[str, list[Floats]] = {}
    for _, _, ahead in pooled:
        for name, judge, base in ahead:
            found.setdefault(name, []).append(base + made.predicted(judge))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def run(task: Any, form: PointForm, *, seed: int, history: int = 0) -> dict[str, Any]:  # noqa: ANN401
    """Return the scores of every arm on the test part, with what they cost."""
    begin = time.process_time()
    found, weights, width = forecasts(task, form, seed=seed, history=history)
    result: dict[str, Any] = {"seconds": round(time.process_time() - begin, 1)}
    result |= {"devices": len(task.series), "width": width, "weights": weights}
    result["sent"] = (1 + form.passes) * task.p * payload_bytes(width, 1)
    result["received"] = (2 + form.passes) * task.p * 4 * width
    for arm, told in found.items():
        score, by_device = scored(task, told)
        result[arm] = {"score": score, "by device": by_device}
    return result
