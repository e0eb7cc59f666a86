"""Analytic federation on the fixed windows of the accuracy anchors: fleet, personal and alone.

    python -m tools.experiments.analytic --data DATA --anchors ANCHORS --out runs/analytic
    python -m tools.experiments.analytic --data DATA --anchors ANCHORS --tasks cellular_milan:1

One process, one thread. The form of a task (features, random units, prior, seeds) is chosen on its
validation part, change by change, by models that have seen only what lies before it. The chosen form
is then solved on the whole training part and scored on the test part by the anchors' own scorer.
Every result is one JSON in --out; an interrupted call continues where it stopped. The tables are
printed and written to RESULTS.md there; --docs writes them into docs/analytic.md.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.tseries.holiday import USFederalHolidayCalendar
from rich.console import Console
from rich.progress import Progress

from edge_sdk.extensions.analytic.features import LoadRecord, columns, standard_names
from edge_sdk.extensions.analytic.personal import fit_personal, own_variance, relative_penalty
from edge_sdk.extensions.analytic.random_units import RandomUnits
from edge_sdk.extensions.analytic.reweighting import QuantileLoss
from edge_sdk.extensions.analytic.solve import fleet_solution, leave_one_out, predicted, ridge
from edge_sdk.extensions.analytic.standardise import FeatureSums, Standardiser
from edge_sdk.extensions.analytic.statistics import (
    DesignRows,
    Statistic,
    gather,
    payload_bytes,
    total,
)
from tools.experiments.marked_block import replace_block

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Scores = dict[str, Any]

ARMS = ("fleet", "personal", "alone")
MOST_WINDOWS, DEVICES_TO_CHOOSE = 15_000, 8
STEPS_TO_CHOOSE = (1, 24)
LARGE = 200_000
"""Number of windows above which several draws of random units cost too much to be tried."""

PAGE = Path(__file__).resolve().parents[2] / "docs" / "analytic.md"
MARKER = "<!-- results -->"

MARKS: Mapping[str, tuple[str, float, float, float]] = {
    "building_bdg2_fl_az_ca:1": ("BDG2", 0.768, 0.737, 0.697),
    "building_resstock_ca_alameda:1": ("ResStock", 0.800, 0.783, 0.761),
    "building_fontana_ca:1": ("Fontana", 0.871, 0.838, 0.796),
    "cellular_milan:1": ("Milan, 1 hour", 113.0, 106.0, 100.7),
    "cellular_milan:24": ("Milan, 24 hours", 153.0, 148.0, 140.6),
    "cellular_barcelona_lte:1": ("Barcelona LTE", 160.0, 155.0, 147.3),
    "building_simbench_15min:1": ("SimBench", 0.774, 0.653, 0.649),
}
"""Title, local net trained to convergence, best with the same window, best with a week of lags."""


@dataclass(frozen=True, slots=True)
class AnalyticForm:
    """Settings of a task that are chosen on its validation part."""

    units: int = 0
    fan_in: int | None = None  # features that a unit reads; all if None
    lookback: int = 12  # rows of the window
    days: tuple[int, ...] = (1, 2, 7)  # days whose lags are read
    known: bool = False  # Holidays, season and height of the sun
    prior: bool = False  # Empirical Bayes prior instead of the same penalty for every coefficient
    seeds: int = 1  # draws of random units whose forecasts are averaged
    passes: int = 3  # re-weighted passes of the fleet
    # days of windows that a new device has: its newest ones, and a fleet that its statistic has
    # been subtracted from. 0: all devices have all of theirs
    history: int = 0


CHANGES: Mapping[str, Mapping[str, Any]] = {
    "200 random units": {"units": 200},
    "each of 4 features": {"fan_in": 4},
    "400 units": {"units": 400},
    "longer window, 3 days": {"lookback": 32, "days": (1, 2, 3, 7)},
    "holidays, season, sun": {"known": True},
    "prior between devices": {"prior": True},
    "mean of 3 draws": {"seeds": 3},
}
"""Changes of the form in the order in which they are tried."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRows:
    """One device's windows for one step of the horizon; features before standardisation."""

    name: str
    scale: float
    days: float
    learn: NDArray[np.float32]
    learn_targets: Floats
    judge: NDArray[np.float32]
    judge_last: Floats
    judge_targets: Floats


def known_columns(task: Any, series: Any) -> dict[str, Floats]:  # noqa: ANN401 - the anchors' types
    """Return holidays (United States), the season, and the height of the sun at every row."""
    if not np.issubdtype(series.times.dtype, np.datetime64):
        return {}
    dates = pd.DatetimeIndex(series.times)
    year = 2.0 * np.pi * dates.day_of_year.to_numpy() / 365.25
    hour = dates.hour.to_numpy() + dates.minute.to_numpy() / 60.0
    latitude = np.deg2rad(45.0 if task.domain == "cell" else 36.0)
    tilt = -0.4093 * np.cos(year + 2.0 * np.pi * 10.0 / 365.25)
    noon = np.cos(2.0 * np.pi * hour / 24.0)
    height = np.sin(latitude) * np.sin(tilt) - np.cos(latitude) * np.cos(tilt) * noon
    found = {"year_sin": np.sin(year), "year_cos": np.cos(year), "sun": np.maximum(height, 0.0)}
    if task.domain == "building" and "simbench" not in task.name:
        days = USFederalHolidayCalendar().holidays(dates.min().normalize(), dates.max())
        found["holiday"] = dates.normalize().isin(days).astype(float)
    return found


def device_rows(task: Any, form: AnalyticForm, step: int, part: str) -> Iterator[DeviceRows]:  # noqa: ANN401
    """Cut the rows of every device for one step of the horizon."""
    for series in task.series:
        filled = pd.Series(series.value).ffill().to_numpy()
        values = (np.where(np.isfinite(filled), filled, series.shift) - series.shift) / series.scale
        known = known_columns(task, series) if form.known else {}
        outside = {f"w{i}": series.exog[:, i] for i in range(series.exog.shape[1])}
        clock = series.tod.astype(np.int64), series.dow.astype(np.int64)
        record = LoadRecord(values, *clock, task.day, outside, known)
        names = [
            *standard_names(task.day, lookback=form.lookback, days=form.days),
            *(f"exog:{x}" for x in outside),
            *(f"exog_change:{x}:{k}" for x in outside for k in (1, task.day)),
            *(f"known:{x}" for x in known),
        ]
        deep = (7 if series.train_end > 60 * task.day else 1) * task.day
        learn = task.origins(series, "train", deep)
        if part == "val":
            learn = learn[learn + task.p < series.val[0]]
        learn = learn[:: 1 + len(learn) // MOST_WINDOWS]
        judge = task.origins(series, part)
        learnt, judged = (values[o + step] - values[o] for o in (learn, judge))
        yield DeviceRows(
            series.name,
            series.scale,
            (learn[-1] - learn[0]) / task.day,
            columns(record, names, learn, step).astype(np.float32),
            learnt[:, None],
            columns(record, names, judge, step).astype(np.float32),
            values[judge] * series.scale + series.shift,
            judged[:, None],
        )


def forecasts(
    devices: Sequence[DeviceRows], form: AnalyticForm, day: int = 24
) -> tuple[dict[str, dict[str, Floats]], int]:
    """Return every arm's scaled changes by device, averaged over draws; and the width P."""
    standard = Standardiser.of_fleet(
        {d.name: FeatureSums.of(d.learn.astype(np.float64)) for d in devices}
    )
    loss, width = QuantileLoss(), devices[0].learn.shape[1]
    out: dict[str, dict[str, Floats]] = {arm: {} for arm in ARMS}
    for seed in range(form.seeds):
        units = RandomUnits.draw("experiment", seed, width, form.units, form.fan_in)

        def design(rows: NDArray[np.float32], units: RandomUnits = units) -> DesignRows:
            return units.design(standard.apply(rows).astype(np.float32))

        sums: dict[str, Statistic] = {}
        fleet: Floats | None = None
        for _ in range(1 + form.passes):
            for d in devices:
                rows, weights = design(d.learn), None
                if fleet is not None:
                    weights = loss.weights(d.learn_targets - predicted(rows, fleet))
                sums[d.name] = gather(rows, d.learn_targets, weights)
            fleet = fleet_solution(total(sums))
        assert fleet is not None
        shape = _prior(sums) if form.prior else None
        others = leave_one_out(sums)
        for d in devices:
            newest = slice(-form.history * day, None) if form.history else slice(None)
            rows, judged, targets = (
                design(d.learn[newest]),
                design(d.judge),
                d.learn_targets[newest],
            )
            common = others[d.name] if form.history else fleet
            long = d.days * len(rows) / len(d.learn)
            mine = fit_personal(rows, targets, others[d.name], loss, shape=shape, days=long)
            own = fit_personal(rows, targets, 0.0 * fleet, loss, strengths=(), days=long)
            for arm, model in zip(ARMS, (common, mine.coefficients, own.coefficients), strict=True):
                one = predicted(judged, model)[:, 0] / form.seeds
                out[arm][d.name] = out[arm].get(d.name, 0.0) + one
    return out, units.design(np.zeros((1, width))).shape[1]


def _prior(sums: Mapping[str, Statistic]) -> Floats:
    kappas = {name: 1e-3 * own.count for name, own in sums.items()}
    models = np.stack([ridge(own, kappas[name]) for name, own in sums.items()])
    sampling = np.stack([own_variance(own, kappas[name]) for name, own in sums.items()])
    return relative_penalty(models, sampling)


def scored(task: Any, form: AnalyticForm, part: str, evaluate: Any, steps: Sequence[int]) -> Scores:  # noqa: ANN401
    """Return the scores of every arm on a part, with bytes and seconds."""
    begin, width = time.perf_counter(), 0
    told: dict[str, dict[str, list[Floats]]] = {a: {s.name: [] for s in task.series} for a in ARMS}
    misses: dict[str, dict[str, list[float]]] = {a: {s.name: [] for s in task.series} for a in ARMS}
    for step in steps:
        devices = list(device_rows(task, form, step, part))
        found, width = forecasts(devices, form, task.day)
        for arm in ARMS:
            for d in devices:
                change = found[arm][d.name]
                told[arm][d.name].append(d.judge_last + d.scale * change)
                missed = np.abs(d.judge_targets[:, 0] - change)
                misses[arm][d.name].append(float(d.scale * missed.mean()))
    result: Scores = {"seconds": time.perf_counter() - begin, "width": width}
    result["bytes"] = payload_bytes(width, 1) * len(steps) * form.seeds
    for arm in ARMS:
        if part == "test":
            points = {name: np.stack(steps_, 1) for name, steps_ in told[arm].items()}
            found_ = evaluate(task, points)
            result[arm] = found_["mean"]["MASE" if task.domain == "building" else "MAE"]
            result[f"{arm} by device"] = {n: v["MAE"] for n, v in found_["per_station"].items()}
        else:
            naive = {s.name: _naive(s) if task.domain == "building" else 1.0 for s in task.series}
            result[arm] = float(np.mean([np.mean(m) / naive[n] for n, m in misses[arm].items()]))
    return result


def _naive(series: Any) -> float:  # noqa: ANN401
    return float(np.nanmean(np.abs(np.diff(series.value[series.val[0] : series.val[1]]))))


def run(name: str, options: argparse.Namespace, bar: Progress) -> dict[str, Any]:
    """Choose the form of a task, then score it beside the first form and the prototype's form."""
    load = importlib.import_module("datasets").load  # the anchors' own, found by --anchors
    evaluate = importlib.import_module("metrics").evaluate
    task = load(options.data, name)
    if task.domain == "building":  # a profile without a reading has no scale
        task.series = [s for s in task.series if np.isfinite(s.value[: s.train_end]).any()]
    few = load(options.data, name)
    few.series = task.series[:: 1 + (len(task.series) - 1) // DEVICES_TO_CHOOSE]
    steps = [h for h in STEPS_TO_CHOOSE if h <= task.p] if task.p > 1 else [1]
    job = bar.add_task(name, total=len(CHANGES) + 3 + len(options.history))

    def once(form: AnalyticForm, part: str) -> Scores:
        path = options.out / f"{name.replace(':', '_')}-{part}-{_key(form)}.json"
        if not path.exists():
            some, ahead = (few, steps) if part == "val" else (task, range(1, task.p + 1))
            found = scored(some, form, part, evaluate, list(ahead))
            draft = path.with_suffix(".part")
            draft.write_text(json.dumps({"form": asdict(form), **found}))
            draft.replace(path)
        bar.advance(job)
        return dict(json.loads(path.read_text()))

    plain = AnalyticForm(lookback=max(12, task.lookback))
    chosen, best = plain, once(plain, "val")
    ladder = [("named features", best["personal"], best["fleet"], True)]
    windows = sum(s.train_end for s in task.series)
    for title, change in CHANGES.items():
        is_idle = not chosen.units and title in ("each of 4 features", "400 units")
        if is_idle or ("seeds" in change and windows * task.p > LARGE):
            continue
        tried = replace(chosen, **change)
        found = once(tried, "val")
        is_kept = found["personal"] < best["personal"]
        ladder.append((title, found["personal"], found["fleet"], is_kept))
        if is_kept:
            chosen, best = tried, found
    return {
        "task": name,
        "devices": len(task.series),
        "ladder": ladder,
        "plain": once(plain, "test"),
        "chosen": once(chosen, "test"),
        "histories": {
            days: once(replace(chosen, seeds=1, history=days), "test")
            for days in options.history
            if days * task.day < min(s.train_end for s in task.series)
            and task.p == 1
            and task.day == 24
        },
    }


def _key(form: AnalyticForm) -> str:
    days = "".join(str(d) for d in form.days)
    flags = ("k" if form.known else "") + ("p" if form.prior else "")
    flags += f"-h{form.history}" if form.history else ""
    return f"r{form.units}-f{form.fan_in}-w{form.lookback}-d{days}-s{form.seeds}{flags}"


def tables(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables as Markdown: scores on the test part, and the effect of each change."""
    head = ["set", "devices", "fleet", "alone", "**personal**", "must", "mark", "stretch"]
    head += ["worse than alone", "kB a pass", "seconds"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for r in results:
        title, *marks = MARKS[r["task"]]
        found = r["chosen"]
        mine, own = found["personal by device"], found["alone by device"]
        worse = sum(mine[n] > 1.01 * own[n] for n in mine)
        cells = [title, str(r["devices"]), *(_number(found[a]) for a in ("fleet", "alone"))]
        cells += [f"**{_number(found['personal'])}**"]
        cells += [f"{_number(m)} {'✓' if found['personal'] <= m else ''}".strip() for m in marks]
        cells += [str(worse), f"{found['bytes'] / 1000:.0f}", f"{found['seconds']:.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    titles = ["named features", *CHANGES]
    lines += ["", "### Which change helped?", ""]
    lines += ["| change | " + " | ".join(MARKS[r["task"]][0] for r in results) + " |"]
    lines += ["|" + "---|" * (len(results) + 1)]
    for title in titles:
        cells = []
        for r in results:
            at = next((i for i, x in enumerate(r["ladder"]) if x[0] == title), None)
            if at is None:
                cells.append("not tried")
                continue
            before = min([x[1] for x in r["ladder"][:at] if x[3]], default=None)
            _, value, _, is_kept = r["ladder"][at]
            cells.append(
                _number(value)
                if before is None
                else f"{100 * (value / before - 1):+.1f} %{'' if is_kept else ' (left out)'}"
            )
        lines.append("| " + " | ".join([title, *cells]) + " |")
    cells = [_number(min(x[1] for x in r["ladder"])) for r in results]
    lines.append("| **chosen, on the validation part** | " + " | ".join(cells) + " |")
    cells = [
        f"{_number(r['plain']['personal'])} → {_number(r['chosen']['personal'])}" for r in results
    ]
    lines.append("| named features → chosen, on the test part | " + " | ".join(cells) + " |")
    histories = sorted({days for r in results for days in r["histories"]})
    if not histories:
        return "\n".join(lines)
    lines += ["", "### What does the fleet do for a new device?", ""]
    arms = ["fleet", "alone", "**personal**"]
    lines += ["| set | " + " | ".join(f"{d} days: {a}" for d in histories for a in arms) + " |"]
    lines += ["|" + "---|" * (1 + 3 * len(histories))]
    for r in results:
        cells = []
        for days in histories:
            found = r["histories"].get(days)
            three = (
                [_number(found[a]) for a in ("fleet", "alone", "personal")] if found else [""] * 3
            )
            cells += [*three[:2], f"**{three[2]}**" if three[2] else ""]
        if any(cells):
            lines.append("| " + " | ".join([MARKS[r["task"]][0], *cells]) + " |")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 10.0 else f"{value:.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tasks that were asked for; print and write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of data sets")
    parser.add_argument("--anchors", type=Path, required=True, help="folder with datasets.py")
    parser.add_argument("--out", type=Path, default=Path("runs/analytic"))
    parser.add_argument("--tasks", nargs="+", choices=MARKS, default=list(MARKS))
    parser.add_argument(
        "--history", nargs="*", type=int, default=[], help="days of windows of a new device"
    )
    parser.add_argument("--docs", action="store_true", help=f"write the tables into {PAGE.name}")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(options.anchors.resolve()))
    options.out.mkdir(parents=True, exist_ok=True)
    with Progress(console=Console(stderr=True)) as bar:
        results = [run(name, options, bar) for name in options.tasks]
    text = tables(results)
    (options.out / "RESULTS.md").write_text(text + "\n", "utf-8")
    if options.docs:
        replace_block(PAGE, MARKER, text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
