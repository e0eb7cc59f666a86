"""Score tomorrow's profile after a year, as an agent with a shipped bundle serves it.

    python tools/reproduce.py days --data DATA --anchors ANCHORS --out runs
    python tools/reproduce.py days --data DATA --anchors ANCHORS --days building_fontana_ca --arms bundle own

Windows, splits and scores are those of the anchors' ``day.py``: the next 24 hours, issued at 00, 06, 12
and 18 local time, on the test part; the error over that of last week's same slot. Arms:

- ``bundle``: the shipped bundle, which has learned nothing from these devices;
- ``own``: with a part of its own, solved of the device's training part;
- ``fleet``: after the passes of a fleet of all devices, by the server and the devices in memory.

One JSON per set and arm in --out; an interrupted call continues where it stopped.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import UTC, datetime, tzinfo
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from rich.console import Console
from rich.progress import Progress

from aggregator.methods import METHODS as SERVERS
from aggregator.methods import OPEN, Rounds, Setup
from aggregator.rules import bind
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.extensions.analytic.half import analytic
from edge_sdk.extensions.analytic.profile_half import IssuedWindows, with_own_part
from edge_sdk.extensions.analytic.profile_holidays import days_of, with_holidays
from edge_sdk.extensions.analytic.profile_sums import functions_of_profiles
from edge_sdk.forecasting.calendar_features import DAY, Floats, Ints
from edge_sdk.forecasting.series import Series, SeriesRow
from edge_sdk.forecasting.windows import ChannelFrame, Drawable
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import TrainingContext, keyed
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.contract.method import END, Member, Task, Update
from edge_sdk.protocol.contract.parameter_layout import Vector
from tools.experiments.marks.day_spread import joined, served, spread_scores
from tools.experiments.marks.tasks import use

EXPERIMENT = "days"
ARMS = ("bundle", "own", "fleet")
QUANTILES = (0.1, 0.5, 0.9)
CHUNK = 64

SETS: Mapping[str, tuple[str, str, str]] = {
    "building_bdg2_fl_az_ca": ("BDG2", "load-day-1", "UTC"),
    "building_resstock_ca_alameda": ("ResStock (seen by the prior)", "load-day-1", "UTC"),
    "building_fontana_ca": ("Fontana", "load-day-1", "UTC"),
    "building_simbench_15min": ("SimBench, quarter-hours", "load-day-quarter-1", "Europe/Berlin"),
    "cellular_milan": ("Milan", "cells-day", "UTC"),
    "ev_boulder": ("Boulder, charging (seen by the prior)", "chargers-day", "America/Denver"),
    "ev_acn_caltech": ("Caltech, charging", "chargers-day", "America/Los_Angeles"),
    "ev_palo_alto_2011_2013": ("Palo Alto, charging", "chargers-day", "America/Los_Angeles"),
}
"""Title, bundle and time zone of each set; in UTC, times are local already."""

HOLIDAYS: Mapping[str, tuple[str, ...]] = {
    "building_bdg2_fl_az_ca": (
        "2017-01-02", "2017-01-16", "2017-02-20", "2017-05-29", "2017-07-04", "2017-09-04",
        "2017-10-09", "2017-11-10", "2017-11-23", "2017-11-24", "2017-12-25", "2017-12-26",
    ),
    "building_simbench_15min": (
        "2016-01-01", "2016-03-25", "2016-03-28", "2016-05-01", "2016-05-05", "2016-05-16",
        "2016-10-03", "2016-12-25", "2016-12-26",
    ),
}  # fmt: skip
"""Public holidays of the sets with most of them, with the days beside them on which offices are closed."""

THEIRS = ("snaive_day", "median5", "ridge_local", "lgbm_local", "lgbm_pooled")
"""Rows of the anchors' results."""


class SetOfDevices:
    """Devices with a shipped bundle, and frames of their whole record and of its training part.

    Args:
        task: A set, of the anchors' type; the forecasts of devices need its ``series`` and ``day`` alone.
        bundle: Name of a shipped bundle of profiles.
        zone: Time zone of the devices; in UTC, the times of the record are local already.
        holidays: Dates on which the load is that of a weekend.
    """

    def __init__(
        self,
        task: Any,  # noqa: ANN401 - the anchors' type
        bundle: str,
        zone: str = "UTC",
        holidays: Sequence[str] = (),
    ) -> None:
        found = Bundle.open(bundle, trust=TrustedKeys())
        self.manifest, self.initial = found.manifest, found.initial
        self.functions = functions_of_profiles(self.manifest)
        self.task = task
        self.day = task.p = task.day
        self._zone: tzinfo = UTC if zone == "UTC" else ZoneInfo(zone)
        self._free = days_of(holidays)
        self.whole = {s.name: self._frame(s, len(s.value)) for s in task.series}
        self.trained = {s.name: self._frame(s, s.train_end) for s in task.series}

    def _frame(self, series: Any, rows: int) -> ChannelFrame:  # noqa: ANN401 - the anchors' type
        made = _frame(self.manifest, series, rows, self._zone)
        return with_holidays(made, self.manifest, self._free, self._zone)

    @classmethod
    def of(
        cls, data: Path, name: str, most: int | None = None, holidays: Sequence[str] = ()
    ) -> SetOfDevices:
        """Read the first devices of a set below a folder, or all of them."""
        task = importlib.import_module("datasets").load(data, f"{name}:1")
        task.series = task.series[:most]
        return cls(task, *SETS[name][1:], holidays)

    def until(self, rows: int) -> SetOfDevices:
        """Return the same devices, of which at most the first rows are known to learn from."""
        found = copy(self)
        found.trained = {s.name: self._frame(s, min(rows, s.train_end)) for s in self.task.series}
        return found

    def run(self, name: str, **given: Any) -> Any:  # noqa: ANN401 - arrays in, arrays out
        return self.functions[name](**given)

    def vectors(self, arm: str, out: Path, console: Console) -> dict[str, Vector]:
        """Return the vector that each device forecasts with after an arm."""
        if arm == "fleet":
            return self.fleet(list(self.trained), console)[1]
        found = dict.fromkeys(self.whole, self.initial)
        if arm == "own":
            start = f"days-{self.task.name.partition(':')[0]}-own"
            with Progress(console=console, transient=True) as bar:
                for name in bar.track(found, description="own parts"):
                    found[name] = self._own(name, out / f"{start}-{name}.f32")
        return found

    def _own(self, name: str, path: Path) -> Vector:
        """Return the vector of a device with its own part; a file keeps it."""
        if path.exists():
            return np.fromfile(path, "<f4")
        found = self.with_own_part(name)
        found.astype("<f4").tofile(path)
        return found

    def with_own_part(self, name: str) -> Vector:
        """Return the bundle's vector with the own part of what a device has to learn from."""
        frame = self.trained[name]
        learned = IssuedWindows.of(self.run, Drawable(frame, frame.origins()))
        if not len(learned):
            return self.initial
        return with_own_part(self.run, learned, self.initial, self.manifest.spec())

    def fleet(
        self, names: Sequence[str], console: Console, *, is_final: bool = True
    ) -> tuple[Vector, dict[str, Vector]]:
        """Let some devices teach the bundle, by both real halves in memory.

        Args:
            names: Devices, which learn from their training parts.
            is_final: Whether each also solves its own part after the final model.

        Returns:
            The published vector, and that of each device.
        """
        row, spec = SERVERS["analytic"], self.manifest.spec()
        rounds = Rounds(quorum=len(names), deadline=60.0)
        server = row.half(
            Setup(bind("mean"), row.settings(), rounds, spec, analytic=self.manifest.analytic)
        )
        halves = {n: analytic(self._context(n, self.trained[n]), LocalSgd()) for n in names}
        states = {name: half.init(self.initial) for name, half in halves.items()}
        state, _ = server.apply(server.init(self.initial), OPEN)
        waiting: list[Any] = []
        for name in halves:
            state, effects = server.apply(state, Member(name, present=True))
            waiting += effects
        with Progress(console=console, transient=True) as bar:
            line = bar.add_task("passes", total=None)
            while state.is_open:
                task = waiting.pop(0)
                states[task.to], (sent,) = halves[task.to].apply(states[task.to], task)
                assert isinstance(sent, Update)
                update = Update(task.to, state.round, task.base, sent.vector)
                state, effects = server.apply(state, update)
                waiting += [one for one in effects if isinstance(one, Task)]
                bar.advance(line)
            final = {"w": server.model(state)["p"]}
            for name, half in halves.items() if is_final else ():
                end = Task(name, state.round, END, base=state.version, arrays=final)
                states[name], _ = half.apply(states[name], end)
                bar.advance(line)
        own = {n: np.asarray(halves[n].model(states[n])["p"], np.float32) for n in halves}
        return np.asarray(final["w"], np.float32), own

    def _context(self, name: str, frame: ChannelFrame) -> TrainingContext:
        return TrainingContext(
            client=name,
            spec=self.manifest.spec(),
            graphs=self.functions,
            windows=lambda: Drawable(frame, frame.origins()),
            size=1,
            key=partial(keyed, 1, name),
        )

    def scores(self, vectors: Mapping[str, Vector]) -> dict[str, Any]:
        """Return error, pinball loss and coverage of [.1, .9], means over devices, as ``day.py``.

        ``by device`` has the errors of the devices, by name; ``spread`` the scores of the intervals
        as an agent serves them, and of its paths (``day_spread``).
        """
        errors: dict[str, float] = {}
        losses, covered, spreads = [], [], []
        for series in self.task.series:
            origins = self.tests(series)
            told = self.forecasts(series.name, vectors[series.name], origins)
            rows = origins[:, None] + 1 + np.arange(self.day)
            truth = series.value[rows]
            seen = np.isfinite(truth)
            naive = np.abs(truth - _filled(series, self.day)[rows - 7 * self.day])[seen].mean()
            if naive < 1e-12:
                continue
            told = np.maximum(told, 0.0) if np.nanmin(series.value) >= 0.0 else told
            missed = np.abs(truth - told[:, :, 1])[seen].mean()
            errors[series.name] = round(float(missed / naive), 5)
            pinball = [
                np.maximum(q * (truth - told[:, :, i]), (q - 1.0) * (truth - told[:, :, i]))[seen]
                for i, q in enumerate(QUANTILES)
            ]
            losses.append(np.mean([one.mean() for one in pinball]) / (0.5 * naive))
            inside = (told[:, :, 0] <= truth) & (truth <= told[:, :, 2])
            covered.append(inside[seen].mean())
            spreads.append(self._spread(series, vectors[series.name], origins, told, truth))
        means = (float(np.mean(one)) for one in (list(errors.values()), losses, covered))
        found = dict(zip(("error", "pinball", "coverage"), means, strict=True))
        return {**found, "by device": errors, "spread": joined(spreads)}

    def _spread(
        self,
        series: Any,  # noqa: ANN401 - the anchors' type
        p: Vector,
        origins: Ints,
        told: Floats,
        truth: Floats,
    ) -> Mapping[str, Any]:
        frame, paths = self.whole[series.name], []
        ends = served(
            frame, origins, told, lambda some: self.forecasts(series.name, p, some), self.day
        )
        for start in range(0, len(origins), CHUNK):
            some = origins[start : start + CHUNK]
            _, made = self.run("day", p=p, x=frame.inputs(some))
            paths.append(frame.restore(made.reshape(len(some), -1), some).reshape(made.shape))
        return spread_scores(np.concatenate(paths), told[:, :, 1], ends, truth)

    def first_days(self, series: Any, origins: Ints, days: int) -> Floats:  # noqa: ANN401
        """Return the bundle's medians of some windows in which the newest days alone are known."""
        frame, load = self.whole[series.name], 0
        x = np.array(frame.inputs(origins))
        x[:, : x.shape[1] - days * self.day, load] = np.nan
        (told,) = self.run("forecast", p=self.initial, x=x)
        return np.asarray(frame.restore(told, origins)[:, :, 1])

    def tests(self, series: Any, first: int = 15) -> Ints:  # noqa: ANN401 - the anchors' type
        """Return the origins of the test part at 00, 06, 12 and 18, ``first`` days or more behind."""
        every = self.task.origins(series, "test", first=first * self.day)
        slots = series.tod[np.minimum(every + 1, len(series.tod) - 1)]
        return np.asarray(every[np.isin(slots, np.arange(4) * self.day // 4)])

    def forecasts(self, name: str, p: Vector, origins: Ints) -> Floats:
        """Return the quantiles of the days after some rows of a device's record, ``(n, H, levels)``."""
        frame, found = self.whole[name], []
        for start in range(0, len(origins), CHUNK):
            some = origins[start : start + CHUNK]
            (told,) = self.run("forecast", p=p, x=frame.inputs(some))
            found.append(frame.restore(told, some))
        return np.concatenate(found)


def _frame(
    manifest: Manifest,
    series: Any,  # noqa: ANN401 - the anchors' type
    rows: int,
    zone: tzinfo,
) -> ChannelFrame:
    step, stream = manifest.window.step_seconds, manifest.target.stream
    first = int(np.asarray(series.times[:1]).astype("datetime64[s]").astype(np.int64)[0])
    clock = int(series.tod[0]) * step  # of the wall; the times are local, or UTC already
    if zone is not UTC and first % DAY == clock:
        moved = datetime.fromtimestamp(first, zone).utcoffset()
        first -= int(moved.total_seconds()) if moved is not None else 0
    made = Series(step, [stream], capacity=rows)
    made.load(
        SeriesRow(stream, first // step + i, float(x))
        for i, x in enumerate(series.value[:rows])
        if np.isfinite(x)
    )
    return ChannelFrame.of(made, manifest, zone=zone)


def _filled(series: Any, day: int) -> Floats:  # noqa: ANN401
    """Return the record with gaps filled from the day before, as the anchors' naive forecast reads it."""
    values = np.array(series.filled, np.float64)
    mean = np.nanmean(values)
    for i in np.flatnonzero(~np.isfinite(values)):
        values[i] = values[i - day] if i >= day and np.isfinite(values[i - day]) else mean
    return values


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this experiment that no other one has."""
    some = parser.add_argument_group("days")
    some.add_argument("--days", nargs="+", choices=SETS, default=list(SETS), help="some sets only")
    some.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    some.add_argument("--devices", type=int, help="the first devices of each set only")
    some.add_argument("--holidays", action="store_true", help="tell devices the public holidays")


def main(options: argparse.Namespace) -> int:
    """Run, print, write."""
    use(options.anchors)
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    for name in options.days:
        todo = [arm for arm in options.arms if not _file(options.out, name, arm).exists()]
        if todo and not options.kept and (options.data / name).is_dir():
            free = HOLIDAYS.get(name, ()) if options.holidays else ()
            devices = SetOfDevices.of(options.data, name, options.devices, free)
            for arm in todo:
                found = devices.scores(devices.vectors(arm, options.out, console))
                _file(options.out, name, arm).write_text(json.dumps(found), "utf-8")
    page = table(options.out, options.anchors, options.days, options.arms)
    (options.out / "DAYS.md").write_text(page, "utf-8")
    print(page)
    return 0


def _file(out: Path, name: str, arm: str) -> Path:
    return out / f"days-{name}-{arm}.json"


WORSE = "alone with the fleet"
"""Head of the share of devices whose error is above that without a fleet by more than 1 %."""


def _worse(found: Mapping[str, Any]) -> str:
    alone, fleet = ((found.get(arm) or {}).get("by device") for arm in ("own", "fleet"))
    if not alone or not fleet:
        return ""
    return f"{np.mean([fleet[name] > 1.01 * alone[name] for name in alone]):.0%}"


def table(out: Path, anchors: Path, names: Sequence[str], arms: Sequence[str]) -> str:
    """Return the table of all results in a folder beside the anchors'; empty without any."""
    heads = [f"ours: {arm}" for arm in arms]
    heads.append("of the last: pinball / coverage; served (by lead), of sums; energy score")
    heads.append(f"worse than {WORSE}")
    lines = [
        f"| set | {' | '.join([*heads, *THEIRS])} |",
        "|" + " --- |" * (1 + len(heads) + len(THEIRS)),
    ]
    for name in names:
        kept = [_file(out, name, arm) for arm in arms]
        ours = [json.loads(path.read_text("utf-8")) if path.exists() else None for path in kept]
        done = [one for one in ours if one]
        if not done:
            continue
        cells = [f"{one['error']:.3f}" if one else "" for one in ours]
        last = f"{done[-1]['pinball']:.3f} / {done[-1]['coverage']:.0%}"
        if spread := done[-1].get("spread"):
            text = "; {served:.0%} ({least:.0%} to {most:.0%}), {sums:.0%}; {energy:.3f}"
            last += text.format_map(spread)
        cells.append(last)
        cells.append(_worse(dict(zip(arms, ours, strict=True))))
        path = anchors / "day" / "results" / f"{name}.json"
        known = json.loads(path.read_text("utf-8"))["methods"] if path.exists() else {}
        cells += [f"{known[m]['mae_rel']:.3f}" if m in known else "" for m in THEIRS]
        lines.append(f"| {SETS[name][0]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""
