"""Quantiles of a new charging site's demand: a net trained by other sites, and its own tuning.

The sites of a set are dealt into groups. The net that a site starts with is trained by the other
groups only, with all their readings. The site has the newest days before the test part and nothing
older but the week that the features read; even the range that scales its readings is theirs.
The newest fifth of its windows chooses checkpoints and the weights of the blend.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.analytic.blend import served_weights, weights_of_a_new_device
from edge_sdk.extensions.analytic.trees import TreeForm, boosted
from edge_sdk.extensions.evaluation.forecast_metrics import QUANTILES
from edge_sdk.forecasting.windows import ChannelFrame, Scale
from edge_sdk.protocol.contract.parameter_layout import Vector
from tools.experiments import chargers, ev
from tools.experiments import charging as grounds
from tools.experiments.marks.charging import Fans, ordered, table
from tools.experiments.marks.tasks import scored

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ARMS = ("fleet", "alone", "served")
GROUPS = 2
"""Groups of a set with at least six sites; with fewer, every site is a group."""

HELD = 5
"""Number of parts of a new site's windows, of which the newest is held back."""

OWN, TUNING = (600, 50), (100, 25)
"""Steps of training alone and of tuning, each with the steps between two checkpoints."""

TREES = TreeForm(trees=60, depth=3, features=0.6, ballast=2.0)
"""A week has 336 windows: fewer and smaller trees than with years."""


class NewGround(grounds.Ground):
    """Sites whose training uses only the newest windows before the test part."""

    history: int = 7

    def origins(self, name: str, part: ev.Part, every: int = 1) -> Ints:
        """List a site's origins of a part; a fifth of its history is the choosing part."""
        found = super().origins(name, part)
        if part != "test":
            before = [super(NewGround, self).origins(name, p) for p in ("learn", "choose")]
            newest = np.concatenate(before)[-self.history * ev.DAY :]
            cut = len(newest) - len(newest) // HELD
            horizon = self.frames[name].window.horizon
            found = newest[: cut - horizon] if part == "learn" else newest[cut:]
        return found[::every]


@dataclass(frozen=True, slots=True)
class NewSite:
    """Candidates of one site: fans of its held-back windows and of the test part, by name."""

    held: Mapping[str, Floats]
    told: Mapping[str, Floats]


def groups(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Deal sites into the groups whose net the others train.

    >>> groups("abc"), groups("abcdef")
    ([('a',), ('b',), ('c',)], [('a', 'c', 'e'), ('b', 'd', 'f')])
    """
    count = GROUPS if len(names) >= 3 * GROUPS else len(names)
    return [tuple(names[i::count]) for i in range(count)]


def nets_of_others(name: str, seed: int, data: Path, out: Path) -> Mapping[str, Vector]:
    """Return the net that each site starts with; trained unless its file is there."""
    dataset, _, horizon = name.partition(":")
    path = out / f"{dataset}_{horizon}-others-s{seed}.npz"
    if not path.exists():
        arm = grounds.Arm("e1", dataset, int(horizon), "week, federated", seed, 1, 1)
        base = grounds.ground(arm, data)
        found: dict[str, Vector] = {}
        for group in groups(list(base.frames)):
            rest = [x for x in base.frames if x not in group]
            stations = {x: base.stations[x] for x in rest}
            fleet = grounds.Ground(base.bundle, stations, {x: base.frames[x] for x in rest}, None)
            mixed = chargers.mixtures(arm, fleet)
            found |= dict.fromkeys(group, np.mean([mixed[x] for x in rest], 0, np.float32))
        draft = path.with_suffix(".part.npz")
        np.savez_compressed(draft, **found)  # type: ignore[arg-type]  # names are sites
        draft.replace(path)
    with np.load(path) as kept:
        return dict(kept)


def new_ground(arm: grounds.Arm, data: Path, history: int) -> NewGround:
    """Return all sites of a set, each with its newest days and their range only."""
    bundle = grounds.opened(f"{arm.row.bundle}-{arm.horizon}")
    manifest = ev.form(bundle.manifest)
    stations = {x.name: x for x in ev.load(data, arm.dataset)}
    frames = {}
    for name, x in stations.items():
        stop = x.rows("choose")[1]
        scale = Scale.of(x.demand[max(0, stop - history * ev.DAY) : stop])
        series = x.series(manifest.target.stream)
        frames[name] = ChannelFrame.of(series, manifest, zone=ZoneInfo(x.zone), scale=scale)
    kind = type("Ground", (NewGround,), {"history": history})
    found: NewGround = kind(bundle, stations, frames, None)
    return found


def _best(base: NewGround, course: Iterator[Mapping[str, Vector]]) -> dict[str, Vector]:
    best: dict[str, tuple[float, Vector]] = {}
    for vectors in course:
        told = grounds.told(base, grounds.Learnt(vectors), "choose")
        for x, fan in told.items():
            score = ev.scored(base.frames[x].truth(base.origins(x, "choose")), fan)["QS"]
            if x not in best or score < best[x][0]:
                best[x] = (score, np.array(vectors[x]))
    return {x: vector for x, (_, vector) in best.items()}


def trained(arm: grounds.Arm, base: NewGround, others: Mapping[str, Vector]) -> dict[str, Any]:
    """Return every site's nets: that of the others, the same tuned, and its own."""
    courses = {
        "tuned": (TUNING, chargers.GENTLE, others),
        "own net": (OWN, grounds.HASTE, None),
    }
    found: dict[str, Any] = {"net": others}
    for name, ((steps, every), rate, starts) in courses.items():
        course = chargers.alone(
            arm,
            base,
            base.windows(),
            steps,
            rate=rate,
            batch=chargers.WIDE,
            every=every,
            starts=starts,
        )
        found[name] = _best(base, course)
    return found


def own_trees(task: Any, series: Any, learn: Ints, judged: Ints, seed: int) -> Floats:  # noqa: ANN401
    """Return the fan of trees that a site grows on a few windows."""
    rows, some = table(task, series, learn), table(task, series, judged)
    y = series.value[learn[:, None] + 1 + np.arange(task.p)].ravel()
    fan = [boosted(rows, y, TREES, level=q, seed=seed).predicted(some) for q in QUANTILES]
    return ordered(np.stack(fan, axis=-1).reshape(len(judged), task.p, len(QUANTILES)))


def candidates(
    task: Any,  # noqa: ANN401 - the anchors' type
    base: NewGround,
    models: Mapping[str, Mapping[str, Vector]],
    seed: int,
) -> dict[str, NewSite]:
    """Return each site's blend candidates, on its held-back windows and on the test part."""
    fans = {
        (name, part): grounds.told(base, grounds.Learnt(vectors), part)
        for name, vectors in models.items()
        for part in ("choose", "test")
    }
    out = {}
    for series in task.series:
        x, test = series.name, task.origins(series, "test")
        early, late = base.origins(x, "learn"), base.origins(x, "choose")
        every = np.concatenate([early, late])
        held = {"trees": own_trees(task, series, early, late, seed)}
        told = {"trees": own_trees(task, series, every, test, seed)}
        for name in models:
            held[name] = fans[name, "choose"][x]
            told[name] = _at(fans[name, "test"][x], base.origins(x, "test"), test)
        out[x] = NewSite(held, told)
    return out


def _at(fan: Floats, origins: Ints, wanted: Ints) -> Floats:
    return fan[np.maximum(np.searchsorted(origins, wanted, side="right") - 1, 0)]


def blend(one: NewSite, truth: Floats, *, is_alone: bool) -> Floats:
    """Return the test part's fan; a site in a fleet begins with an equal mean of the fleet's nets."""
    names = [n for n in one.held if not is_alone or n not in {"net", "tuned"}]
    begun = np.array([n in {"net", "tuned"} for n in names]) / 2.0
    levels = []
    for place, level in enumerate(QUANTILES):
        held = np.stack([one.held[n][..., place].ravel() for n in names], axis=1)
        weights = served_weights(held, truth.ravel(), level=level)
        if not is_alone:
            weights = weights_of_a_new_device(weights, begun, len(truth))
        levels.append(np.stack([one.told[n][..., place] for n in names], axis=-1) @ weights)
    return ordered(np.stack(levels, axis=-1))


def run(task: Any, data: Path, out: Path, *, seed: int, history: int) -> dict[str, Any]:  # noqa: ANN401
    """Return the scores of every arm on the test part."""
    begin = time.process_time()
    dataset, _, horizon = task.name.partition(":")
    arm = grounds.Arm("e1", dataset, int(horizon), "week, federated", seed, 1, 1)
    others = nets_of_others(task.name, seed, data, out)
    base = new_ground(arm, data, history)
    found = candidates(task, base, trained(arm, base, others), seed)
    arms: dict[str, Fans] = {arm: {} for arm in ARMS}
    for x, one in found.items():
        truth = base.frames[x].truth(base.origins(x, "choose"))
        arms["fleet"][x] = one.told["net"]
        arms["alone"][x] = blend(one, truth, is_alone=True)
        arms["served"][x] = blend(one, truth, is_alone=False)
    result: dict[str, Any] = {"seconds": round(time.process_time() - begin, 1)}
    result |= {"devices": len(task.series), "sent": 0, "received": 4 * len(others[x])}
    for name, told in arms.items():
        score, by_device = scored(task, told)
        result[name] = {"score": score, "by device": by_device}
    members = {
        n: {x: one.told[n] for x, one in found.items()} for n in ("tuned", "own net", "trees")
    }
    result["members"] = {name: scored(task, told)[0] for name, told in members.items()}
    return result
