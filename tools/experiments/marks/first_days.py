"""Score a device's first days: the next 24 hours, by what a device knows after 1 to 28 days.

    python -m tools.experiments.marks.first_days --data DATA --anchors ANCHORS --out runs
    python -m tools.experiments.marks.first_days --data DATA --anchors ANCHORS --set building_fontana_ca

Devices, folds, test windows and the reference are the anchors' (``first_days.py`` beside them): the
error is that of the mean profile of the known days. Rows of a set:

- ``nearest``: the mean of the days after the 5 known days most like the last one (EMHASS);
- ``bundle``: the shipped bundle, without any fleet;
- ``own``: the same with the own part and the share of the known days, as an agent has them after a
  night (``--own``; slow);
- ``fleet``: two thirds of the set's devices, with their training parts, teach the bundle as a fleet
  does, by the server and the devices in memory; the other third is new and has the published model
  and, with ``--own``, a part of its own (``--fleets``; slow).

All forecasts are those of the bundle's functions. One JSON per set in
--out; an interrupted call continues where it stopped.
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
from rich.progress import Progress

from edge_sdk.extensions.analytic.bundle_functions import NumpyFunction
from edge_sdk.extensions.analytic.profile_half import IssuedWindows, with_own_part
from edge_sdk.extensions.analytic.profile_sums import functions_of_profiles
from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.forecasting.series import Series, SeriesRow
from edge_sdk.forecasting.windows import ChannelFrame, Drawable
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.contract.method import Array
from edge_sdk.protocol.contract.parameter_layout import Vector
from tools.day_prior import Site, windows
from tools.experiments.marks.days import SETS, SetOfDevices
from tools.experiments.marks.tasks import use

KNOWN = (1, 3, 7, 14, 28)
NEAREST = 5
MOST = 60
"""Test windows of a device, as the anchors draw them."""


NAMES: Mapping[str, tuple[str, str]] = {
    "profile": ("mean of the known days", "#666666"),
    "nearest": ("5 nearest days", "#d9822b"),
    "bundle": ("shipped bundle", "#0b6e4f"),
}
"""Lines of the picture, with their colours."""


@dataclass(frozen=True, slots=True, eq=False)
class NewDevice:
    """What a new device forecasts with: a bundle's functions and a vector, as an agent has them."""

    manifest: Manifest
    functions: Mapping[str, NumpyFunction]
    p: Vector
    has_own_part: bool = True

    @classmethod
    def of(cls, manifest: Manifest, p: Vector, *, has_own_part: bool = True) -> NewDevice:
        return cls(manifest, functions_of_profiles(manifest), p, has_own_part)

    def run(self, name: str, **given: Array) -> tuple[Array, ...]:
        return self.functions[name](**given)

    def forecast(self, site: Site, origin: int, days: int) -> Floats:
        """Return the median of the day after ``origin`` if only ``days`` days are known."""
        known = site.load[origin + 1 - days * site.day : origin + 1]
        first = int(site.local[origin]) // site.step - len(known) + 1
        stream = self.manifest.target.stream
        series = Series(site.step, [stream], capacity=len(known))
        series.load(SeriesRow(stream, first + i, x) for i, x in enumerate(known))
        frame = ChannelFrame.of(series, self.manifest)
        p = self.p
        if self.has_own_part:
            learned = IssuedWindows.of(self.run, Drawable(frame, frame.origins()))
            if len(learned):
                p = with_own_part(self.run, learned, p, self.manifest.spec())
        newest = np.array([len(frame) - 1])
        (told,) = self.run("forecast", p=p, x=frame.inputs(newest))
        return np.asarray(frame.restore(told, newest)[0, :, 1])


def nearest(values: Floats, origin: int, days: int, day: int) -> Floats:
    """Return the mean of the days after the known days that are most like the last one."""
    last = values[origin - day + 1 : origin + 1]
    ends = [origin - back * day for back in range(1, days - 1)]
    ends = [e for e in ends if e - day + 1 >= origin + 1 - days * day]
    if not ends:
        return np.asarray(last)
    away = [float(np.abs(values[e - day + 1 : e + 1] - last).sum()) for e in ends]
    chosen = [ends[i] for i in np.argsort(away, kind="stable")[:NEAREST]]
    return np.asarray(np.mean([values[e + 1 : e + 1 + day] for e in chosen], axis=0))


def run(
    data: Path, name: str, console: Console, *, most: int, own: bool, fleets: bool
) -> dict[str, Any]:
    """Return the errors of a set by known days, method and device."""
    devices = SetOfDevices.of(data, name)
    task, day = devices.task, devices.day
    draw = np.random.default_rng(0)
    fold = draw.permutation(len(task.series)) % 3
    tests = [draw.permutation(devices.tests(s, first=29))[:MOST][:most] for s in task.series]
    whole = [_site(s, day) for s in task.series]
    errors: dict[str, dict[str, list[float]]] = {}
    for number in range(3):
        methods = {"own": NewDevice.of(devices.manifest, devices.initial)} if own else {}
        if fleets:
            names = [task.series[i].name for i in np.flatnonzero(fold != number)]
            published, _ = devices.fleet(names, console, is_final=False)
            methods["fleet"] = NewDevice.of(devices.manifest, published, has_own_part=own)
        with Progress(console=console, transient=True) as bar:
            for i in bar.track(np.flatnonzero(fold == number), description=name):
                case = whole[i], task.series[i], tests[i]
                _judge(devices, case, methods, errors)
    return {"set": name, "devices": len(task.series), "errors": errors}


def _judge(
    devices: SetOfDevices,
    case: tuple[Site, Any, Ints],
    methods: Mapping[str, NewDevice],
    errors: dict[str, Any],
) -> None:
    site, series, tests = case
    truth = series.value[tests[:, None] + 1 + np.arange(site.day)]
    lowest = 0.0 if np.nanmin(series.value) >= 0.0 else -np.inf
    for days in KNOWN:
        one = windows(site, tests, np.full(len(tests), days))
        told = {
            "profile": one.profile * one.rows.level[:, None],
            "nearest": np.stack([nearest(site.load, int(o), days, site.day) for o in tests]),
            "bundle": devices.first_days(series, tests, days),
        }
        for method, model in methods.items():
            told[method] = np.stack([model.forecast(site, int(o), days) for o in tests])
        for method, found in told.items():
            error = float(np.nanmean(np.abs(truth - np.maximum(found, lowest))))
            errors.setdefault(str(days), {}).setdefault(method, []).append(error)


def _site(series: Any, day: int) -> Site:  # noqa: ANN401
    values = series.filled.copy()
    mean = np.nanmean(values)
    for i in np.flatnonzero(~np.isfinite(values)):
        values[i] = values[i - day] if i >= day and np.isfinite(values[i - day]) else mean
    step = 86_400 // day
    dated = not np.issubdtype(series.times.dtype, np.integer)
    first = int(series.times[:1].astype("datetime64[s]").astype(np.int64)[0]) if dated else 0
    # an hour that clocks repeat is no new day
    days = np.cumsum(np.append(0, np.diff(series.tod) < -day // 2))
    local = (first // 86_400 + days) * 86_400 + series.tod * step
    return Site(series.name, series.name, values, np.asarray(local, np.int64), step)


def summary(result: Mapping[str, Any]) -> str:
    """Return the table of one set: error over the profile, and how often worse by over 1 %.

    Of a fleet also, how often worse by over 1 % than ``own``, the device without it.
    """
    methods = [name for name in next(iter(result["errors"].values())) if name != "profile"]
    lines = [f"| known days | {' | '.join(methods)} |"]
    lines.append("| --- |" + " --- |" * (lines[0].count("|") - 2))
    for days, own in result["errors"].items():
        base = np.array(own["profile"])
        good = base > 1e-9
        cells = []
        for method, found in own.items():
            if method != "profile":
                ratio = np.array(found)[good] / base[good]
                cell = f"{ratio.mean():.3f} ({100.0 * np.mean(ratio > 1.01):.0f} %"
                if method == "fleet" and "own" in own:
                    alone = np.array(own["own"])[good]
                    worse = np.mean(np.array(found)[good] > 1.01 * alone)
                    cell += f"; than own {100.0 * worse:.0f} %"
                cells.append(f"{cell})")
        lines.append(f"| {days} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def picture(result: Mapping[str, Any], title: str) -> str:
    """Return the errors of a set over the mean profile's, by known days, as an SVG."""
    days = list(result["errors"])
    across = {day: 60.0 + 130.0 * i for i, day in enumerate(days)}
    lines: dict[str, list[tuple[float, float]]] = {}
    for day, own in result["errors"].items():
        base = np.array(own["profile"])
        good = base > 1e-9
        for method in NAMES:
            ratio = float((np.array(own[method])[good] / base[good]).mean())
            lines.setdefault(method, []).append((across[day], 330.0 - 500.0 * (ratio - 0.6)))
    made = [
        (
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 380" font-family="sans-serif"'
            ' font-size="14">'
        ),
        '<rect width="800" height="380" fill="white"/>',
        f'<text x="60" y="26" font-size="16">{title}</text>',
    ]
    for level in (0.6, 0.7, 0.8, 0.9, 1.0):
        up = 330.0 - 500.0 * (level - 0.6)
        made.append(f'<path d="M60 {up:.0f}H580" stroke="#dddddd"/>')
        made.append(f'<text x="52" y="{up + 5.0:.0f}" text-anchor="end">{level:.1f}</text>')
    made += [
        f'<text x="{x:.0f}" y="352" text-anchor="middle">{day}</text>' for day, x in across.items()
    ]
    made.append('<text x="320" y="374" text-anchor="middle">days of history</text>')
    for method, (name, colour) in NAMES.items():
        points = " ".join(f"{x:.0f},{y:.1f}" for x, y in lines[method])
        made.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
        )
        x, y = lines[method][-1]
        made.append(f'<text x="{x + 10.0:.0f}" y="{y + 5.0:.0f}" fill="{colour}">{name}</text>')
    return "\n".join([*made, "</svg>", ""])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--anchors", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--set", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--most", type=int, default=MOST, help="test windows of a device")
    parser.add_argument("--own", action="store_true", help="also with an own part")
    parser.add_argument("--fleets", action="store_true", help="also train a fleet of each set")
    parser.add_argument("--picture", type=Path, help="SVG of the first set, to be written")
    options = parser.parse_args(arguments)
    use(options.anchors)
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    for name in options.set:
        path = options.out / f"first-days-{name}.json"
        if not path.exists():
            chosen = {"most": options.most, "own": options.own, "fleets": options.fleets}
            found = run(options.data, name, console, **chosen)
            draft = path.with_suffix(".part")
            draft.write_text(json.dumps(found), "utf-8")
            draft.replace(path)
        result = json.loads(path.read_text("utf-8"))
        print(f"{SETS[name][0]}\n\n{summary(result)}\n")
        if options.picture and name == options.set[0]:
            title = f"Tomorrow, error over the mean profile: {SETS[name][0]}"
            options.picture.write_text(picture(result, title), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
