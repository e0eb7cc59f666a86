"""Quantiles of charging demand: the federated net, a hurdle model of each site, and their blend.

The net is the experiment's own (``chargers``: three runs at falling rates, tuned on the site). The
hurdle model's trees see the same week of lags. Weights of the blend and the widths of the intervals are learnt on the
choosing part, which neither model learnt from.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.analytic.blend import served_weights
from edge_sdk.extensions.analytic.hurdle import HurdleForm, hurdle
from edge_sdk.extensions.evaluation.forecast_metrics import QUANTILES
from tools.experiments import chargers
from tools.experiments import charging as grounds
from tools.experiments.ev import Part
from tools.experiments.marks.tasks import scored

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Single = NDArray[np.float32]
Fans = dict[str, Floats]

ARMS = ("fleet", "alone", "served")
ROUNDS = sum(rounds for rounds, _ in chargers.STAGES)
PARTS: tuple[Part, ...] = ("choose", "test")


@dataclass(frozen=True, slots=True)
class ChargingForm:
    """Settings that were chosen on the choosing parts."""

    hurdle: HurdleForm = field(default_factory=HurdleForm)  # form of a site's hurdle model
    rows: int = 24_000  # most rows that it is fitted on


def nets(name: str, way: str, seed: int, data: Path, out: Path) -> Mapping[str, Any]:
    """Return a net's forecasts of both parts by station; trained unless its file is there.

    Args:
        name: Task of the anchors.
        way: A row of ``charging.FIELD``.
        data: Folder of the sets.
    """
    dataset, _, horizon = name.partition(":")
    kind = "net" if "federated" in way else "net-alone"
    path = out / f"{dataset}_{horizon}-{kind}-s{seed}.npz"
    if not path.exists():
        arm = grounds.Arm("e1", dataset, int(horizon), way, seed, 1, 1)
        base = grounds.ground(arm, data)
        begin = time.process_time()
        learnt, _ = chargers.TRAINERS[arm.row.way](arm, base)
        found: dict[str, Any] = {"seconds": time.process_time() - begin}
        found["size"] = len(base.bundle.initial)
        for part in PARTS:
            for station, fan in grounds.told(base, learnt, part).items():
                found[f"{part}|{station}|rows"] = base.origins(station, part)
                found[f"{part}|{station}|fan"] = fan.astype(np.float32)
        draft = path.with_suffix(".part.npz")
        np.savez_compressed(draft, **found)
        draft.replace(path)
    with np.load(path) as kept:
        return dict(kept)


def table(task: Any, series: Any, origins: Ints) -> Single:  # noqa: ANN401 - the anchors' types
    """Return the trees' features, one row for every origin and step, steps fastest."""
    known = np.nan_to_num(series.filled / series.scale)
    window = known[origins[:, None] - np.arange(task.lookback)]
    is_on = window > 0.0
    for_how_long = np.where(is_on.all(1), task.lookback, np.argmin(is_on, axis=1))
    since = np.where((~is_on).all(1), task.lookback, np.argmax(is_on, axis=1))
    total = np.concatenate([[0.0], np.cumsum(known)])
    week = np.maximum(origins + 1 - 7 * task.day, 0)
    own = [
        window[:, :12],
        window[:, 15::4],
        np.stack([window[:, :4].mean(1), window.mean(1), window.max(1), window.std(1)], axis=1),
        np.stack([is_on.mean(1), for_how_long, since], axis=1),
        ((total[origins + 1] - total[week]) / (origins + 1 - week))[:, None],
    ]
    base = np.concatenate(own, axis=1)
    parts = []
    for step in range(1, task.p + 1):
        at = origins + step
        lags = [d * task.day + j for d in (1, 2, 7) for j in (-1, 0, 1)]
        before = [known[np.clip(at - k, 0, origins)] for k in lags]
        usual = np.mean(
            [known[np.clip(at - d * task.day, 0, origins)] for d in range(1, 8)], axis=0
        )
        clock = [series.tod[at], series.dow[at], np.full(len(at), step)]
        parts.append(np.concatenate([base, np.stack([*before, usual, *clock], axis=1)], axis=1))
    return np.stack(parts, axis=1).reshape(len(origins) * task.p, -1).astype(np.float32)


def own_hurdle(
    task: Any,  # noqa: ANN401 - the anchors' types
    series: Any,  # noqa: ANN401 - as above
    form: ChargingForm,
    seed: int,
    wanted: Mapping[str, Ints],
) -> Fans:
    """Return the quantiles of one site's own hurdle model for the origins of every part."""
    learn = task.origins(series, "train", 8 * task.day)
    learn = learn[:: 1 + len(learn) * task.p // form.rows]
    y = series.value[learn[:, None] + 1 + np.arange(task.p)].ravel() / series.scale
    made = hurdle(table(task, series, learn), y, form.hurdle, seed=seed)
    found = {}
    for part, origins in wanted.items():
        fan = made.quantiles(table(task, series, origins), QUANTILES)
        found[part] = ordered(fan.reshape(-1, task.p, len(QUANTILES)) * series.scale)
    return found


def ordered(fan: Floats) -> Floats:
    """Return quantiles as they are served: not negative, and in order."""
    return np.sort(np.maximum(fan, 0.0), axis=-1)


def _of_net(net: Mapping[str, Any], station: str, part: str, origins: Ints) -> Floats | None:
    places = {int(row): i for i, row in enumerate(net[f"{part}|{station}|rows"])}
    if any(int(row) not in places for row in origins):
        return None
    return np.asarray(net[f"{part}|{station}|fan"], np.float64)[[places[int(o)] for o in origins]]


def blend(candidates: Mapping[str, Mapping[str, Floats]], truth: Floats) -> Floats:
    """Return the test part's fan of a blend whose weights, one set a level, the choosing part gives."""
    names = list(candidates)
    levels = []
    for place, level in enumerate(QUANTILES):
        held = np.stack([candidates[n]["choose"][..., place].ravel() for n in names], axis=1)
        weights = served_weights(held, truth.ravel(), level=level)
        told = np.stack([candidates[n]["test"][..., place] for n in names], axis=-1)
        levels.append(told @ weights)
    return ordered(np.stack(levels, axis=-1))


def run(task: Any, form: ChargingForm, data: Path, out: Path, *, seed: int) -> dict[str, Any]:  # noqa: ANN401
    """Return the scores and costs of every arm on the test part."""
    begin = time.process_time()
    together = nets(task.name, "week, federated", seed, data, out)
    lonely = nets(task.name, "week, alone", seed, data, out)
    arms: dict[str, Fans] = {arm: {} for arm in ARMS}
    middle = time.process_time()
    for series in task.series:
        wanted = {"choose": task.origins(series, "val"), "test": task.origins(series, "test")}
        truth = task.truth(series, wanted["choose"])
        mine = own_hurdle(task, series, form, seed, wanted)
        candidates: dict[str, Mapping[str, Floats]] = {"hurdle": mine}
        own = dict(candidates)
        for title, net, into in (
            ("net", together, (candidates,)),
            ("own net", lonely, (candidates, own)),
        ):
            found = {p: _of_net(net, series.name, p, o) for p, o in wanted.items()}
            whole = {p: f for p, f in found.items() if f is not None}
            for some in into if len(whole) == len(wanted) else ():
                some[title] = whole
        arms["fleet"][series.name] = candidates.get("net", mine)["test"]
        arms["served"][series.name] = blend(candidates, truth)
        arms["alone"][series.name] = blend(own, truth)
    trained = float(together["seconds"])
    result: dict[str, Any] = {"seconds": round(trained + time.process_time() - middle, 1)}
    result |= {"devices": len(task.series), "elapsed": round(time.process_time() - begin, 1)}
    result["sent"] = result["received"] = 4 * int(together["size"]) * ROUNDS
    for arm, told in arms.items():
        score, by_device = scored(task, told)
        result[arm] = {"score": score, "by device": by_device}
    return result
