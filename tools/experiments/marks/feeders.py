"""Score the forecast of a feeder from sums alone: what its devices drew, and what they expect.

    python -m tools.experiments.marks.feeders --data DATA --anchors ANCHORS --out runs
    python -m tools.experiments.marks.feeders --data DATA --anchors ANCHORS --set building_fontana_ca

Windows, splits and the reference, the weekly naive forecast of the sum, are the anchors'. A device expects what
the fleet's least squares and a part of its own say; in the training part every block of time is forecast by
the blocks before it, as devices do. The aggregator has the sums. Rows of a set:

- ``devices``: the sum of what the devices expect;
- ``history``: the closed form of the sum's own history;
- ``feeder``: the forecast that the aggregator shows;
- ``silent, number``: the same where another tenth of the devices is silent every day, in history and forecast,
  scaled by the number of devices, ``silent, power`` by the devices' highest load, and ``silent, energy`` by
  their mean load, as a label with the energy of a year does.

One JSON per set in --out; an interrupted call continues where it stopped.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import numpy as np

from aggregator.extensions.feeder.feeder_model import (
    BLOCKS,
    PENALTY,
    FeederIssues,
    FeederModel,
    combined,
    fan,
    fitted,
    issues,
    own_forecast,
    recent_errors,
)
from edge_sdk.extensions.analytic.profile_features import ProfileRecord, profile_rows
from edge_sdk.extensions.analytic.profile_form import fleet_scale, next_coefficients, scaled_design
from edge_sdk.extensions.analytic.solve import ridge
from edge_sdk.extensions.analytic.statistics import Statistic, gather
from edge_sdk.forecasting.calendar_features import Floats, Ints
from tools.experiments.marks.first_days import _site
from tools.experiments.marks.tasks import use

MARKS: Mapping[str, tuple[str, float]] = {
    "building_bdg2_fl_az_ca": ("BDG2", 0.482),
    "building_resstock_ca_alameda": ("ResStock", 0.648),
    "building_fontana_ca": ("Fontana", 0.608),
    "building_simbench_15min": ("SimBench, quarter-hours", 0.751),
    "cellular_milan": ("Milan", 0.856),
    "ev_boulder": ("Boulder, charging", 0.786),
}
STRENGTHS = (0.03, 0.1, 1.0, math.inf)
"""Of a device's own part, per row; the one whose sums are best in the training part."""
FIRST = 3
"""Known days before the first origin that is learned from."""
SILENT = 0.1
SCALES = ("number", "power", "energy")
"""By which a sum without the silent devices is scaled to all."""
_ROWS = 12_000


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """The devices of a set on one grid."""

    load: Floats  # gaps filled, shape ``(devices, T)``
    truth: Floats  # NaN where unobserved, same shape
    local: Ints
    step: int
    learn: Ints  # origins of the training part
    test: Ints
    train_end: int

    @property
    def day(self) -> int:
        return 86_400 // self.step

    def targets(self, origins: Ints) -> Ints:
        return np.asarray(origins[:, None] + 1 + np.arange(self.day))

    def blocks(self) -> Ints:
        """Return the block of every origin of the training part."""
        return np.minimum(np.arange(len(self.learn)) * BLOCKS // len(self.learn), BLOCKS - 1)


def read(data: Path, name: str) -> Fleet:
    """Return a set as the anchors read it."""
    task = importlib.import_module("datasets").load(data, f"{name}:1")
    day = task.p = task.day
    starts = np.arange(4) * day // 4

    def origins(series: Any, part: str, first: int) -> set[int]:  # noqa: ANN401 - the anchors' type
        every = task.origins(series, part, first=first * day)
        tod = series.tod[np.minimum(every + 1, len(series.tod) - 1)]
        return set(every[np.isin(tod, starts)].tolist())

    sites = [_site(series, day) for series in task.series]
    return Fleet(
        np.stack([site.load for site in sites]),
        np.stack([series.value for series in task.series]),
        sites[0].local,
        sites[0].step,
        np.array(sorted(set.union(*(origins(s, "train", FIRST) for s in task.series)))),
        np.array(sorted(set.intersection(*(origins(s, "test", 15) for s in task.series)))),
        task.series[0].train_end,
    )


def expected_values(fleet: Fleet) -> tuple[Floats, Floats]:
    """Return what each device expects, shapes ``(devices, origins, H)`` of training and test part.

    The first block of the training part has no blocks before it, and is NaN.
    """
    scale = fleet_scale([_squares(fleet, device) for device in range(len(fleet.load))])
    statistics = [_statistics(fleet, device, scale) for device in range(len(fleet.load))]
    noises = [_noise(fleet, device) for device in range(len(fleet.load))]
    blocks = fleet.blocks()
    before = [_solutions(statistics, noises, block, fleet.day) for block in range(1, BLOCKS)]
    whole = _solutions(statistics, noises, BLOCKS, fleet.day)
    learn = np.full((len(STRENGTHS), len(fleet.load), len(fleet.learn), fleet.day), np.nan)
    test = np.full((len(STRENGTHS), len(fleet.load), len(fleet.test), fleet.day), np.nan)
    for device in range(len(fleet.load)):
        for block in range(1, BLOCKS):
            mine = np.flatnonzero(blocks == block)
            learn[:, device, mine] = _forecast(
                fleet, device, fleet.learn[mine], scale, before[block - 1][device]
            )
        test[:, device] = _forecast(fleet, device, fleet.test, scale, whole[device])
    drawn = fleet.truth[:, fleet.targets(fleet.learn)].sum(axis=0)
    errors = [float(np.nanmean(np.abs(one.sum(axis=0) - drawn))) for one in learn]
    best = int(np.argmin(errors))
    return learn[best], test[best]


def run(data: Path, name: str) -> dict[str, Any]:
    """Return the errors over the weekly naive forecast of the sum, and the interval's coverage."""
    fleet = read(data, name)
    learn, test = expected_values(fleet)
    total = fleet.load.sum(axis=0)
    model = _model(fleet, total, learn.sum(axis=0))
    now = issues(_record(fleet, total), fleet.test, fleet.day, test.sum(axis=0))
    quantiles = _issued(model, now)
    own = own_forecast(now.rows, model.scale, model.coefficients)
    drawn = fleet.truth[:, fleet.targets(fleet.test)].sum(axis=0)
    seen = np.isfinite(drawn)
    naive = np.abs(drawn - total[fleet.targets(fleet.test) - 7 * fleet.day])[seen].mean()

    def error(forecast: Floats) -> float:
        return float(np.abs(drawn - forecast)[seen].mean() / naive)

    known = fleet.load[:, : fleet.train_end]
    covered = (quantiles[..., 1] <= drawn) & (drawn <= quantiles[..., -1])
    return {
        "set": name,
        "devices": len(fleet.load),
        "windows": len(fleet.test),
        "mark": MARKS[name][1],
        "shares": model.shares.tolist(),
        "devices alone": error(test.sum(axis=0)),
        "history": error(own),
        "feeder": error(quantiles[..., 0]),
        "covered": float(covered[seen].mean()),
        "silent, number": error(_silent(fleet, learn, test, np.ones(len(fleet.load)))),
        "silent, power": error(_silent(fleet, learn, test, known.max(axis=1))),
        "silent, energy": error(_silent(fleet, learn, test, known.mean(axis=1))),
    }


def _silent(fleet: Fleet, learn: Floats, test: Floats, power: Floats) -> Floats:
    """Return the forecast with a random share of silent devices each day, scaled by rated power."""
    draw = np.random.default_rng(0)
    days = fleet.load.shape[1] // fleet.day + 2
    count = max(1, round(SILENT * len(power)))
    present = np.ones((days, len(power)))
    for row in present:
        row[draw.choice(len(power), count, replace=False)] = 0.0
    factors = present * (power.sum() / (present @ power))[:, None]  # of each device on each day
    total = (fleet.load * factors[np.arange(fleet.load.shape[1]) // fleet.day].T).sum(axis=0)
    sums = [
        np.einsum("doh,od->oh", values, factors[(origins + 1) // fleet.day])
        for values, origins in ((learn, fleet.learn), (test, fleet.test))
    ]
    model = _model(fleet, total, sums[0])
    now = issues(_record(fleet, total), fleet.test, fleet.day, sums[1])
    return _issued(model, now)[..., 0]


def _issued(model: FeederModel, now: FeederIssues) -> Floats:
    """Return the forecasts in order of issue, each corrected by the residuals known at its time."""
    own = own_forecast(now.rows, model.scale, model.coefficients)
    missed = (now.load - combined(own, now, model.shares)) / now.rows.level[:, None]
    shift, width = recent_errors(model, np.concatenate([model.residuals, missed]))
    mine = slice(len(model.residuals), len(model.residuals) + len(now))
    return fan(model, now, recent=(shift[mine], width[mine]))


def _record(fleet: Fleet, total: Floats) -> ProfileRecord:
    return ProfileRecord(total, fleet.local, fleet.step)


def _model(fleet: Fleet, total: Floats, expected: Floats) -> FeederModel:
    known = np.where(np.arange(len(total)) < fleet.train_end, total, np.nan)
    return fitted(issues(_record(fleet, known), fleet.learn, fleet.day, expected))


# --- the devices ----------------------------------------------------------------------------------


def _parts(
    fleet: Fleet, device: int, origins: Ints, scale: Floats
) -> Iterator[tuple[Ints, Any, Floats, Floats]]:
    """Yield positions of origins, their design, base and level."""
    size = max(1, _ROWS // fleet.day)
    record = ProfileRecord(fleet.load[device], fleet.local, fleet.step)
    for begin in range(0, len(origins), size):
        rows = profile_rows(record, origins[begin : begin + size], fleet.day)
        places = np.arange(begin, begin + len(rows.level))
        yield places, scaled_design(rows, scale), rows.base, rows.level


def _squares(fleet: Fleet, device: int) -> Floats:
    record = ProfileRecord(fleet.load[device], fleet.local, fleet.step)
    few = fleet.learn[:: max(1, len(fleet.learn) // 40)]
    design = profile_rows(record, few, fleet.day).design
    return np.asarray((design.astype(np.float64) ** 2).mean(axis=(0, 1)))


def _noise(fleet: Fleet, device: int) -> float:
    """Return the mean error of the weekly naive forecast over the mean load."""
    load = fleet.load[device, : fleet.train_end]
    week = 7 * fleet.day
    return max(float(np.abs(load[week:] - load[:-week]).mean() / np.abs(load).mean()), 1e-3)


def _statistics(fleet: Fleet, device: int, scale: Floats) -> list[Statistic | None]:
    """Return a device's statistic of every block."""
    found: list[Statistic | None] = [None] * BLOCKS
    blocks = fleet.blocks()
    for places, design, base, level in _parts(fleet, device, fleet.learn, scale):
        truth = fleet.truth[device][fleet.targets(fleet.learn[places])]
        targets = (truth / level[:, None] - base).ravel()
        of = np.repeat(blocks[places], fleet.day)
        for block in np.unique(of):
            mine = np.isfinite(targets) & (of == block)
            one = gather(design[mine], targets[mine, None])
            before = found[block]
            found[block] = one if before is None else before + one
    return found


def _solutions(
    statistics: Sequence[Sequence[Statistic | None]], noises: Sequence[float], end: int, day: int
) -> list[Floats]:
    """Return each device's coefficients from the blocks before ``end``, shape ``(strengths, W)``."""
    own: list[Statistic] = []
    for blocks in statistics:
        known = [one for one in blocks[:end] if one is not None]
        own.append(sum(known[1:], known[0]))
    parts = [one.scaled(1.0 / one.count / noise**2) for one, noise in zip(own, noises, strict=True)]
    penalty = PENALTY * day / max(one.count for one in own)
    fleet = next_coefficients(None, {0: sum(parts[1:], parts[0])}, penalty, stages=1)
    return [
        np.concatenate(
            [
                fleet if math.isinf(strength) else ridge(one, strength * one.count, fleet)
                for strength in STRENGTHS
            ]
        )
        for one in own
    ]


def _forecast(
    fleet: Fleet, device: int, origins: Ints, scale: Floats, coefficients: Floats
) -> Floats:
    """Return the expected values by strength, shape ``(strengths, origins, H)``."""
    found = np.empty((len(coefficients), len(origins), fleet.day))
    lowest = 0.0 if np.nanmin(fleet.truth[device]) >= 0.0 else -np.inf
    for places, design, base, level in _parts(fleet, device, origins, scale):
        told = (design @ coefficients.T.astype(np.float32)).T.reshape(
            len(coefficients), *base.shape
        )
        found[:, places] = np.maximum((told + base) * level[:, None], lowest)
    return found


# --- command --------------------------------------------------------------------------------------


def line(found: Mapping[str, Any]) -> str:
    """Return the row of a set."""
    rows = ("devices alone", "history", "feeder", *(f"silent, {of}" for of in SCALES))
    cells = " | ".join(f"{found[row]:.3f}" for row in rows)
    title = MARKS[found["set"]][0]
    covered = 100.0 * found["covered"]
    return f"| {title} ({found['devices']}) | {found['mark']:.3f} | {cells} | {covered:.0f} % |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--anchors", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--set", nargs="+", choices=MARKS, default=list(MARKS))
    options = parser.parse_args(arguments)
    use(options.anchors)
    options.out.mkdir(parents=True, exist_ok=True)
    print(
        "| set | mark | devices | history | feeder |",
        *(f"silent, {of} |" for of in SCALES),
        "covered |",
    )
    print("| --- " * (6 + len(SCALES)) + "|")
    for name in options.set:
        path = options.out / f"feeder-{name}.json"
        if not path.exists():
            draft = path.with_suffix(".part")
            draft.write_text(json.dumps(run(options.data, name)), "utf-8")
            draft.replace(path)
        print(line(json.loads(path.read_text("utf-8"))), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
