"""Evaluate trained devices: rolling forecasts of each, against its own later readings."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firmware_sim.fleet.processes import ProgramDied, RunningProgram, command, run
from firmware_sim.fleet.run_files import Device, Prepared
from firmware_sim.reports.html_page import Panel
from firmware_sim.results import PERSISTENCE, DeviceResult, Series, Traffic, score
from firmware_sim.samples import SampleSet

Times = NDArray[np.int64]
# instants and one-step forecasts by arm and device
Rolled = Mapping[tuple[str, str], tuple[Times, Series]]
AT_ONCE = 2  # forecasting processes side by side


def rolling(device: Device, span: tuple[float, float], out: Path) -> tuple[Times, Series]:
    """Return a device's forecasts of every step of a span.

    Args:
        device: The device; its state is read, and nothing is written to it.
        span: First and last moment, Unix seconds.
        out: CSV file for the forecasts.

    Returns:
        Instants and one-step forecasts, shape ``(n,)`` each.

    Raises:
        ProgramDied: The device could not forecast a single window; the hint is its output.
    """
    first, last = (str(int(moment)) for moment in span)
    options = ("--rolling", first, last, "--beyond", "--out", str(out))
    run(command("gridfed-edge", "forecast", str(device.config), *options))
    with out.open(encoding="utf-8", newline="") as text:
        rows = [
            (int(row["origin"]), float(row["forecast"]))
            for row in csv.DictReader(text)
            if row["step"] == "1"
        ]
    if not rows:
        raise ProgramDied(f"{device.id} has no forecast between {first} and {last}")
    times, values = zip(*rows, strict=True)
    return np.array(times, np.int64), np.array(values, np.float64)


def evaluate(
    fleets: Mapping[str, Prepared],
    samples: SampleSet,
    span: tuple[float, float],
    traffic: Mapping[str, Mapping[str, Traffic]],
    rolled: Rolled | None = None,
) -> tuple[list[DeviceResult], list[Panel]]:
    """Score every device under every arm, and persistence, on the same hours.

    Args:
        fleets: Fleet of each arm; all have the same devices.
        span: The evaluated part, Unix seconds.
        rolled: Forecasts of at least this part, as ``all_rolling`` returns; computed if left out.
    """
    devices = next(iter(fleets.values())).devices
    rolled = all_rolling(fleets, span) if rolled is None else rolled
    rows, panels = [], []
    for device in devices:
        times, truth, last = _truth(device, samples, span)
        forecasts = {PERSISTENCE: last} | {
            arm: _placed(times, *rolled[arm, device.id]) for arm in fleets
        }
        scores = {arm: score(truth, values) for arm, values in forecasts.items()}
        moved = {arm: counts[device.id] for arm, counts in traffic.items() if device.id in counts}
        windows = min(int(np.isfinite(values).sum()) for values in forecasts.values())
        rows.append(DeviceResult(device.id, windows, scores, moved))
        panels.append(Panel(device.id, times, truth, forecasts))
    return rows, panels


def all_rolling(fleets: Mapping[str, Prepared], span: tuple[float, float]) -> Rolled:
    """Return the forecasts of every device under every arm on a span."""
    tasks = {
        (arm, device.id): (device, span, fleet.folder / f"{device.id}.forecast.csv")
        for arm, fleet in fleets.items()
        for device in fleet.devices
    }
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(tasks, pool.map(lambda task: rolling(*task), tasks.values()), strict=True))


def _truth(
    device: Device, samples: SampleSet, span: tuple[float, float]
) -> tuple[Times, Series, Series]:
    times, values = device.sample.column(samples.target)
    before = np.concatenate([[np.nan], values[:-1]])
    part = (times >= span[0]) & (times < span[1])
    return times[part], values[part], before[part]


def _placed(times: Times, known: Times, values: Series) -> Series:
    """Return forecasts at the span's instants; NaN where there is none."""
    out = np.full(len(times), np.nan)
    at = np.searchsorted(times, known)
    fits = (at < len(times)) & (times[np.minimum(at, len(times) - 1)] == known)
    out[at[fits]] = values[fits]
    return out


def last_status(device: RunningProgram) -> dict[str, Any]:
    """Return the status that a device printed when it ended; empty if it did not."""
    for line in reversed(device.tail(50).splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    return {}


def served_by(ended: Iterable[RunningProgram]) -> Counter[str]:
    statuses = [last_status(one) for one in ended]
    return Counter(str(found["forecast"]["served"]) for found in statuses if "forecast" in found)


def traffic_of(devices: Sequence[Device], ended: Iterable[RunningProgram]) -> dict[str, Traffic]:
    """Return each device's bytes, from the counters of its link."""
    statuses = {device.id: last_status(one) for device, one in zip(devices, ended, strict=True)}
    counts = {name: found.get("counts", {}) for name, found in statuses.items()}
    return {
        name: Traffic(int(n.get("bytes_up", 0)), int(n.get("bytes_down", 0)))
        for name, n in counts.items()
    }
