"""Point forecasts of buildings and cells: models in closed form, own trees on their residuals, and a blend.

A device blends what it has by what each missed on every fifth week of its record: the fleet's model,
its own drawn towards it, its own alone, trees on the residuals of each, and yesterday's, last week's
and the week's mean value. The blend without anything of the fleet is what it could do alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from edge_sdk.extensions.analytic.blend import (
    parts_held_back,
    served_weights,
    weights_of_a_new_device,
)
from edge_sdk.extensions.analytic.features import LoadRecord, columns, standard_names
from edge_sdk.extensions.analytic.random_units import RandomUnits
from edge_sdk.extensions.analytic.reweighting import QuantileLoss, reweighted
from edge_sdk.extensions.analytic.solve import RidgePath, fleet_solution, leave_one_out, predicted
from edge_sdk.extensions.analytic.standardise import FeatureSums, Standardiser
from edge_sdk.extensions.analytic.statistics import (
    DesignRows,
    Statistic,
    gather,
    payload_bytes,
    total,
)
from edge_sdk.extensions.analytic.trees import TreeForm, boosted
from tools.experiments.marks import cell_nets
from tools.experiments.marks.tasks import scored

Floats = NDArray[np.float64]
Single = NDArray[np.float32]
Flags = NDArray[np.bool_]

ARMS = ("fleet", "alone", "personal", "net", "served", "centralised")
STRENGTHS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
SIMPLE = ("day:1:0", "day:7:0", "slot:7")
LOSS = QuantileLoss()
KINDS = ("personal", "alone", "fleet", "raw")
"""Models whose residuals the trees are grown on; ``raw``: the targets themselves."""


@dataclass(frozen=True, slots=True)
class PointForm:
    """Settings that were chosen on the validation parts, once for all sets."""

    units: int = 400
    fan_in: int = 2  # features that a unit reads
    passes: int = 3  # re-weighted passes of the fleet
    # form of the trees; none if their number is 0
    trees: TreeForm = field(default_factory=TreeForm)
    windows: int = 15_000  # most windows of a device that are learnt from
    pooled: int = 40_000  # most rows of all devices that the centralised trees are grown on
    has_net: bool = False  # whether the mean of the blend and a federated net is served
    is_new: bool = False  # whether the devices have a short history


NEW = PointForm(units=200, trees=TreeForm(trees=0), windows=4000, is_new=True)
"""Form for devices with a short history: a week is too short for trees."""


def new_form_of(task: Any) -> PointForm:  # noqa: ANN401 - the anchors' type
    """Return the form of a task's devices with a short history: many steps have no random units."""
    return NEW if task.p == 1 else replace(NEW, units=0, passes=2)


def form_of(task: Any) -> PointForm:  # noqa: ANN401 - the anchors' type
    """Return the form of a task; sizes are bounded by the time that all devices together take.

    Many steps share one set of trees and have no random units, which made them worse;
    quarter-hours have a year of 35,040 rows.
    """
    hourly_cells = task.domain == "cell" and task.day == 24
    if task.p > 1:
        few = TreeForm(trees=80, rate=0.1)
        return PointForm(units=0, passes=2, trees=few, windows=6000, has_net=hourly_cells)
    if task.day > 24:
        return PointForm(passes=2, trees=TreeForm(trees=80, rate=0.1), windows=10_000)
    return PointForm(has_net=hourly_cells)


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
    """Origin of rows: names of the features, rows of a day, steps, and the step."""

    names: tuple[str, ...]
    day: int
    steps: int
    step: int


@dataclass(slots=True, eq=False)
class HeldPart:
    """One part of a device's windows, held back, over all steps."""

    forecasts: dict[str, list[Floats]] = field(default_factory=dict)  # of the part, by candidate
    # of the other windows, by the model that leaves them
    residuals: dict[str, list[Floats]] = field(default_factory=dict)
    late: list[Flags] = field(default_factory=list)  # which windows are held back
    truth: list[Floats] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Gathered:
    """Forecasts, residuals and features of a device over all steps."""

    parts: list[HeldPart] = field(default_factory=list)
    # forecasts of judged windows by candidate
    told: dict[str, list[Floats]] = field(default_factory=dict)
    # of all windows under the final models
    residuals: dict[str, list[Floats]] = field(default_factory=dict)
    every: list[Single] = field(default_factory=list)  # features of all windows
    judged: list[Single] = field(default_factory=list)  # features of judged windows


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Forecasts that a device may blend."""

    # forecasts of held-back windows by candidate, each of shape ``(n,)``
    held: Mapping[str, Floats]
    told: Mapping[str, Floats]  # forecasts of judged windows by candidate
    truth: Floats  # targets of held-back windows
    is_short: bool  # whether the record is so short that each of its parts is held back once


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
    design: DesignRows, y: Floats, parts: Sequence[Flags], fleet: Floats
) -> dict[str, tuple[list[Floats], Floats]]:
    """Return the personal and the lonely model: without each held-back part, and with all windows.

    Penalties are those with the least absolute error on the held-back parts.
    """
    zero = np.zeros_like(fleet)
    weights = LOSS.weights(y - predicted(design, fleet))
    paths = [
        [RidgePath.of(gather(design[~late], y[~late], w)) for w in (weights[~late], None)]
        for late in parts
    ]
    found = {}
    for kind, towards in (("personal", fleet), ("alone", zero)):
        tried, missed = [], []
        for late, two in zip(parts, paths, strict=True):
            count = int((~late).sum())
            models = [(s, p.solution(s * count, towards)) for p in two for s in STRENGTHS]
            tried.append(models)
            missed.append([np.abs(y[late] - predicted(design[late], m)).sum() for _, m in models])
        best = int(np.argmin(np.sum(missed, axis=0)))
        early = []
        for late, models in zip(parts, tried, strict=True):
            strength, start = models[best]
            rows, goals = design[~late], y[~late]
            early.append(
                reweighted(
                    rows,
                    goals,
                    LOSS,
                    start,
                    penalty=strength * len(rows),
                    towards=towards,
                    passes=2,
                )
            )
        strength = tried[0][best][0]
        final = reweighted(
            design,
            y,
            LOSS,
            np.mean(early, axis=0),
            penalty=strength * len(y),
            towards=towards,
            passes=1,
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
    data: Path | None = None,
) -> tuple[dict[str, dict[str, Floats]], dict[str, dict[str, float]], int]:
    """Return every arm's forecasts by device, the mean weights of the blends, and the width P.

    With ``data``, the folder of the sets, a form's net is trained. With ``history``, a device has its
    newest days only, and its fleet is all others with all theirs.
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
    kinds: list[str] = []
    nets = _nets(task, form, part, seed, data)
    for name, one in kept.items():
        found = candidates(one, form, seed)
        kinds = list(found.held)
        changes = blends(found, form, weights, nets.get(name))
        for arm, change in changes.items():
            out[arm][name] = _told(change, *scales[name], task.p)
    if pooled:
        for name, change in _centralised(pooled, form, seed).items():
            out["centralised"][name] = _told(change, *scales[name], task.p)
    return {a: f for a, f in out.items() if f}, _means(kinds, weights), width


def _one_step(
    into: Gathered,
    d: StepRows,
    design: Callable[[Single], Single],
    models: tuple[Floats, Floats],
    place: StepPlace,
) -> None:
    others, common = models
    number = place.step if place.steps > 1 else None
    held_back = parts_held_back(len(d.targets), 7 * place.day)
    rows, judged, y = design(d.learn), design(d.judge), d.targets[:, 0]
    own = own_models(rows, d.targets, held_back, others)
    models_of = {**own, "fleet": (len(held_back) * [others], others)}
    into.parts = into.parts or [HeldPart() for _ in held_back]
    columns_of = {name: place.names.index(name) for name in SIMPLE}
    for place_of, (late, part) in enumerate(zip(held_back, into.parts, strict=True)):
        told = {k: predicted(rows, early[place_of])[:, 0] for k, (early, _) in models_of.items()}
        told |= {k: d.learn[:, c].astype(float) for k, c in columns_of.items()}
        for kind, forecast in (told | {"last": np.zeros(len(y))}).items():
            part.forecasts.setdefault(kind, []).append(forecast[late])
        for kind in KINDS:
            left = y[~late] - (told[kind][~late] if kind in told else 0.0)
            part.residuals.setdefault(kind, []).append(left)
        part.late.append(late)
        part.truth.append(y[late])
    for kind, (_, final) in models_of.items():
        ahead = common if kind == "fleet" else final
        into.told.setdefault(kind, []).append(predicted(judged, ahead)[:, 0])
        into.residuals.setdefault(kind, []).append(y - predicted(rows, final)[:, 0])
    into.residuals.setdefault("raw", []).append(y)
    into.told.setdefault("last", []).append(np.zeros(len(d.judge)))
    for name, column in columns_of.items():
        into.told.setdefault(name, []).append(d.judge[:, column].astype(float))
    into.every.append(_stepped(d.learn, number))
    into.judged.append(_stepped(d.judge, number))


def _stepped(rows: Single, step: int | None) -> Single:
    if step is None:
        return rows
    return np.concatenate([rows, np.full((len(rows), 1), step, np.float32)], axis=1)


def _thinned(count: int, most: int) -> slice:
    return slice(None, None, 1 + count // most)


def candidates(one: Gathered, form: PointForm, seed: int) -> Candidates:
    """Grow trees on the residuals of every model, and return all candidates of a device."""
    join = np.concatenate
    told = {kind: join(steps) for kind, steps in one.told.items()}
    every, judged = join(one.every), join(one.judged)
    held: dict[str, list[Floats]] = {}
    for part in one.parts:
        forecasts = {kind: join(steps) for kind, steps in part.forecasts.items()}
        late = join(part.late)
        early = every[~late]
        some = _thinned(len(early), form.windows)
        for kind in KINDS if form.trees.trees else ():
            made = boosted(early[some], join(part.residuals[kind])[some], form.trees, seed=seed)
            forecasts[f"{kind}+trees"] = made.predicted(every[late]) + forecasts.get(kind, 0.0)
        for kind, forecast in forecasts.items():
            held.setdefault(kind, []).append(forecast)
    some = _thinned(len(every), form.windows)
    for kind in KINDS if form.trees.trees else ():
        made = boosted(every[some], join(one.residuals[kind])[some], form.trees, seed=seed)
        told[f"{kind}+trees"] = made.predicted(judged) + told.get(kind, 0.0)
    truth = [join(part.truth) for part in one.parts]
    return Candidates(
        {kind: join(parts) for kind, parts in held.items()}, told, join(truth), len(one.parts) > 1
    )


def _nets(
    task: Any,  # noqa: ANN401
    form: PointForm,
    part: str,
    seed: int,
    data: Path | None,
) -> dict[str, Floats]:
    """Return the changes that a form's net forecasts, by device, in the order of the candidates."""
    if data is None or not form.has_net:
        return {}
    made = cell_nets.tuned(data, task.name, "choose" if part == "val" else "test", seed)
    out = {}
    for series in task.series:
        origins = task.origins(series, part)
        last = pd.Series(series.value).ffill().to_numpy()[origins]
        change = (made[series.name].at(origins) - last[:, None]) / series.scale
        out[series.name] = change.T.ravel()
    return out


def blends(
    one: Candidates,
    form: PointForm,
    weights: dict[str, list[Floats]],
    net: Floats | None = None,
) -> dict[str, Floats]:
    """Return the arms' changes; the weights of the blends are appended to ``weights``.

    The fleet's models have seen the held-back hours of the other devices, so held-back windows of a
    short record flatter them: half of what such a device serves is its blend alone.

    Args:
        net: A net's changes, whose mean with the blend is served; what it lacks is not a number.
    """
    names = list(one.held)
    held = np.stack([one.held[k] for k in names], axis=1)
    told = np.stack([one.told[k] for k in names], axis=1)
    arms = {"fleet": one.told["fleet"], "personal": one.told["personal"]}
    for arm in ("served", "alone"):
        some = [arm == "served" or not k.startswith(("fleet", "personal")) for k in names]
        found = np.zeros(len(names))
        found[some] = served_weights(held[:, some], one.truth)
        if form.is_new and arm == "served":
            begun = np.array([k in {"fleet", "personal"} for k in names]) / 2.0
            found = weights_of_a_new_device(found, begun, len(one.truth))
        weights[arm].append(found)
        arms[arm] = told @ found
    if one.is_short and not form.is_new:
        arms["served"] = (arms["served"] + arms["alone"]) / 2.0
    if net is not None:
        arms["net"] = np.where(np.isfinite(net), net, arms["served"])
        arms["served"] = (arms["net"] + arms["served"]) / 2.0
    return arms


def _means(names: Sequence[str], weights: Mapping[str, Sequence[Floats]]) -> dict[str, Any]:
    return {
        arm: dict(zip(names, np.mean(found, axis=0).round(3).tolist(), strict=True))
        for arm, found in weights.items()
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
    rows = np.concatenate([one[0] for one in pooled])
    left = np.concatenate([one[1] for one in pooled])
    some = _thinned(len(rows), form.pooled)
    made = boosted(rows[some], left[some], form.trees, seed=seed)
    found: dict[str, list[Floats]] = {}
    for _, _, ahead in pooled:
        for name, judge, base in ahead:
            found.setdefault(name, []).append(base + made.predicted(judge))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def run(
    task: Any,  # noqa: ANN401
    form: PointForm,
    *,
    seed: int,
    history: int = 0,
    data: Path | None = None,
) -> dict[str, Any]:
    """Return the scores and costs of every arm on the test part."""
    begin = time.process_time()
    found, weights, width = forecasts(task, form, seed=seed, history=history, data=data)
    result: dict[str, Any] = {"seconds": round(time.process_time() - begin, 1)}
    result |= {"devices": len(task.series), "width": width, "weights": weights}
    result["sent"] = (1 + form.passes) * task.p * payload_bytes(width, 1)
    result["received"] = (2 + form.passes) * task.p * 4 * width
    if form.has_net and data is not None:
        result["sent"] += cell_nets.payload_bytes(task.name)
        result["received"] += cell_nets.payload_bytes(task.name)
    for arm, told in found.items():
        score, by_device = scored(task, told)
        result[arm] = {"score": score, "by device": by_device}
    return result
