"""Score the forecast of a feeder from sums alone: what its devices drew, and what they expect.

    python -m tools.experiments.marks.feeders --data DATA --anchors ANCHORS --out runs
    python -m tools.experiments.marks.feeders --data DATA --anchors ANCHORS --set building_fontana_ca

Windows, splits and the reference, the weekly naive forecast of the sum, are the anchors'. A device expects what
an agent with the shipped bundle sends: the means of its paths, with a part of its own; with ``--fleet`` all devices
of the set have taught the bundle before. In the newer half of the training part it has learned from the time
before, twice; in the test part from the whole training part. The aggregator has the sums. Rows of a set:

- ``devices``: the sum of what the devices expect;
- ``history``: the closed form of the sum's own history;
- ``feeder``: the forecast that the aggregator shows;
- ``silent, number``: the same where another tenth of the devices is silent every day, in history and forecast,
  scaled by the number of devices, ``silent, power`` by the devices' highest load, and ``silent, energy`` by
  their mean load, as a label with the energy of a year does.

One JSON per set in --out, and files with what its devices expect; an interrupted call continues where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import numpy as np
from rich.console import Console

from aggregator.extensions.feeder.feeder_model import (
    BLOCKS,
    FeederIssues,
    FeederModel,
    combined,
    fan,
    fitted,
    issues,
    own_forecast,
    recent_errors,
)
from edge_sdk.extensions.analytic.profile_features import ProfileRecord
from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.protocol.contract.parameter_layout import Vector
from tools.experiments.marks.days import CHUNK, SetOfDevices
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
SOLVED = (BLOCKS // 2, 3 * BLOCKS // 4, BLOCKS)
"""Blocks of the training part at whose begin the own parts are solved; the last is the test part."""
FIRST = 3
"""Known days before the first origin that is learned from."""
SILENT = 0.1
SCALES = ("number", "power", "energy")
"""By which a sum without the silent devices is scaled to all."""


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """The devices of a set on one grid."""

    devices: SetOfDevices
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
    devices = SetOfDevices.of(data, name)
    task, day = devices.task, devices.day
    starts = np.arange(4) * day // 4

    def origins(series: Any, part: str, first: int) -> set[int]:  # noqa: ANN401 - the anchors' type
        every = task.origins(series, part, first=first * day)
        tod = series.tod[np.minimum(every + 1, len(series.tod) - 1)]
        return set(every[np.isin(tod, starts)].tolist())

    sites = [_site(series, day) for series in task.series]
    return Fleet(
        devices,
        np.stack([site.load for site in sites]),
        np.stack([series.value for series in task.series]),
        sites[0].local,
        sites[0].step,
        np.array(sorted(set.union(*(origins(s, "train", FIRST) for s in task.series)))),
        np.array(sorted(set.intersection(*(origins(s, "test", 15) for s in task.series)))),
        task.series[0].train_end,
    )


def expected_values(
    fleet: Fleet, kept: Path | None = None, *, is_alone: bool = True
) -> tuple[Floats, Floats]:
    """Return what each device expects, shapes ``(devices, origins, H)`` of training and test part.

    The older half of the training part is NaN: a device would have seen little or nothing of it.

    Args:
        kept: Start of the names of files that keep what the devices expect.
        is_alone: Whether the bundle has learned nothing from these devices but own parts.
    """
    origins = np.concatenate([fleet.learn, fleet.test])
    blocks = np.concatenate([fleet.blocks(), np.full(len(fleet.test), BLOCKS)])
    found = np.full((len(fleet.load), len(origins), fleet.day), np.nan)
    for block, after in zip(SOLVED, (*SOLVED[1:], BLOCKS + 1), strict=True):
        mine = (blocks >= block) & (blocks < after)
        path = None if kept is None else kept.with_name(f"{kept.name}-{block}.npy")
        if path is not None and path.exists():
            found[:, mine] = np.load(path)
            continue
        known = fleet.devices.until(int(origins[mine][0]) + 1)
        names = list(known.trained)
        vectors = (
            {name: known.with_own_part(name) for name in names}
            if is_alone
            else known.fleet(names, Console(stderr=True))[1]
        )
        for device, name in enumerate(names):
            found[device, mine] = _expected(fleet, device, vectors[name], origins[mine])
        if path is not None:
            np.save(path, found[:, mine])
    return found[:, : len(fleet.learn)], found[:, len(fleet.learn) :]


def _expected(fleet: Fleet, device: int, p: Vector, origins: Ints) -> Floats:
    """Return what a device expects of the days after some origins, shape ``(n, H)``."""
    devices, found = fleet.devices, np.empty((len(origins), fleet.day))
    frame = devices.whole[devices.task.series[device].name]
    lowest = 0.0 if np.nanmin(fleet.truth[device, : fleet.train_end]) >= 0.0 else -np.inf
    for start in range(0, len(origins), CHUNK):
        some = origins[start : start + CHUNK]
        _, made = devices.run("day", p=p, x=frame.inputs(some))
        paths = frame.restore(made.reshape(len(some), -1), some).reshape(made.shape)
        found[start : start + CHUNK] = np.maximum(paths, lowest).mean(axis=1)
    return found


def run(data: Path, name: str, out: Path, *, is_alone: bool = True) -> dict[str, Any]:
    """Return the errors over the weekly naive forecast of the sum, and the interval's coverage."""
    fleet = read(data, name)
    learn, test = expected_values(fleet, out / _title(name, is_alone), is_alone=is_alone)
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


def _title(name: str, is_alone: bool) -> str:  # noqa: FBT001 - one question
    return f"feeder-{name}" if is_alone else f"feeder-{name}-fleet"


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
    parser.add_argument(
        "--fleet", action="store_true", help="let the devices teach the bundle (slow)"
    )
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
        path = options.out / f"{_title(name, not options.fleet)}.json"
        if not path.exists():
            draft = path.with_suffix(".part")
            draft.write_text(
                json.dumps(run(options.data, name, options.out, is_alone=not options.fleet)),
                "utf-8",
            )
            draft.replace(path)
        print(line(json.loads(path.read_text("utf-8"))), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
