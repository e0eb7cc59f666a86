"""Count the alarms of the model monitor on real loads, without and with a planted break.

Each building forecasts alone: its own model is fitted again every week on the readings before, as a
device fits it, and is scored day by day against the seasonal naive forecast. A break multiplies the
errors from a random day on. The first 60 days train only.

  python -m tools.experiments.monitor_alarms --data DATA --docs docs
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.progress import track

from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.forecasting.calendar_features import DAY
from edge_sdk.forecasting.candidates import target_days
from edge_sdk.forecasting.daily_scores import DailyScores
from edge_sdk.forecasting.model_monitor import SPANS, ModelMonitor
from edge_sdk.forecasting.own_model import fit
from edge_sdk.forecasting.seasonal_naive import WEEK, rows_of, seasonal_naive
from edge_sdk.forecasting.windows import ChannelFrame
from tools.experiments.buildings import LOAD, load
from tools.experiments.marked_block import replace_block

SETS = {
    "building_bdg2_fl_az_ca": "load-week-1",
    "building_resstock_ca_alameda": "load-week-1",
    "building_simbench_15min": "load-quarter-hour-1",
}
"""Set to the shipped bundle whose channels and horizon its windows have."""
TRAINING_DAYS = 60
FACTORS = (1.5, 2.0, 3.0)
WITHIN = 14
"""Days after a break within which an alarm counts as having found it."""


@dataclass(frozen=True, slots=True)
class Alarms:
    """Alarms of one set of buildings.

    Attributes:
        name: Name of the set.
        years: Scored device-years.
        slow: Alarms of the sequential test, without a break.
        fast: Alarms of two gross days, without a break.
        worse: Devices whose error over the whole year is above the naive one.
        found: Share of planted breaks that were found, by factor.
    """

    name: str
    years: float
    slow: int
    fast: int
    worse: int
    found: dict[float, float]


def scores(frame: ChannelFrame, *, refit_days: int = 7) -> DailyScores:
    """Score a building's own model day by day, fitted again every so many days.

    Args:
        frame: Channels and readings of the building.
        refit_days: Days between two fits.
    """
    origins = frame.origins()
    step, horizon = frame.window.step_seconds, frame.window.horizon
    day = (frame.times[origins] - frame.times[0]) // DAY
    parts = []
    for first in range(TRAINING_DAYS, int(day[-1]) + 1 if len(day) else 0, refit_days):
        later = origins[(day >= first) & (day < first + refit_days)]
        model = fit(frame, origins[day < first])
        if model is None or not len(later):
            continue
        fan = model.forecast(frame, later)[:, :, None]
        week = seasonal_naive(frame.last, later, horizon, rows_of(WEEK, step))
        days = target_days(frame, later)
        parts.append(DailyScores.empty().extended(fan, fan, week, frame.truth(later), days))
    return joined(parts)


def joined(parts: Iterable[DailyScores]) -> DailyScores:
    """Return parts of a record as one; a day that two parts share is added up."""
    rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for part in parts:
        for day, sums, counts in zip(part.days.tolist(), part.sums, part.counts, strict=True):
            before = rows.get(day, (np.zeros(3), np.zeros(3, np.int64)))
            rows[day] = before[0] + sums, before[1] + counts
    days = sorted(rows)
    if not days:
        return DailyScores.empty()
    return DailyScores(
        np.array(days, np.int64),
        np.stack([rows[day][0] for day in days]),
        np.stack([rows[day][1] for day in days]),
    )


def alarms(scored: DailyScores) -> list[tuple[int, bool]]:
    """Return the day of each alarm, and whether it was a slow one.

    Args:
        scored: Scores of all days, oldest first.
    """
    monitor, found = ModelMonitor(scored), []
    for row, day in enumerate(scored.days.tolist()):
        before, monitor = monitor.alarms, monitor.judged(day + 1, row)
        if monitor.alarms > before:
            found.append((day, day - monitor.since == SPANS[1] - 1))
    return found


def broken(scored: DailyScores, day: int, factor: float) -> DailyScores:
    """Return scores whose served errors are multiplied from a day on."""
    sums = scored.sums.copy()
    sums[scored.days >= day, 0] *= factor
    return DailyScores(scored.days, sums, scored.counts)


def summary(name: str, scored: Sequence[DailyScores], seed: int = 0) -> Alarms:
    """Count the alarms of the devices of a set.

    Args:
        name: Name of the set.
        scored: Scores of each device.
        seed: Seed of the days of the breaks.
    """
    rng, kinds, worse = np.random.default_rng(seed), [], 0
    hits: dict[float, list[bool]] = {factor: [] for factor in FACTORS}
    for one in scored:
        kinds += [is_slow for _, is_slow in alarms(one)]
        served, _, naive = one.sums.sum(axis=0)
        worse += bool(served > naive)
        day = int(rng.choice(one.days[WITHIN:-WITHIN]))
        for factor, seen in hits.items():
            after = [at for at, _ in alarms(broken(one, day, factor)) if at >= day]
            seen.append(bool(after) and after[0] < day + WITHIN)
    years = sum(len(one.days) for one in scored) / 365.25
    shares = {factor: float(np.mean(seen)) for factor, seen in hits.items()}
    return Alarms(name, years, sum(kinds), len(kinds) - sum(kinds), worse, shares)


def table(rows: Sequence[Alarms]) -> str:
    """Return the results as a table in Markdown."""
    heads = [f"found within {WITHIN} days, error x {factor:g}" for factor in FACTORS]
    titles = [
        "set",
        "device-years",
        "slow alarms",
        "fast alarms",
        "worse than naive over all",
        *heads,
    ]
    lines = ["| " + " | ".join(titles) + " |", "| --- |" + " ---: |" * (len(titles) - 1)]
    for row in rows:
        shares = [f"{100 * share:.0f} %" for share in row.found.values()]
        cells = [
            row.name,
            f"{row.years:.1f}",
            str(row.slow),
            str(row.fast),
            str(row.worse),
            *shares,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the sets")
    parser.add_argument("--docs", type=Path, help="folder of the pages, to write the table")
    parser.add_argument("--clients", type=int, default=42, help="buildings of a set (42)")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), help="sets (all)")
    args = parser.parse_args()
    rows = []
    for name in args.sets:
        manifest = Bundle.open(SETS[name], trust=TrustedKeys()).manifest
        buildings, scored = load(args.data, name, args.clients), []
        for building in track(buildings, description=name):
            series = replace(building, columns={LOAD: building.columns[LOAD]}).series()
            frame = ChannelFrame.of(series, manifest, site=building.site)
            found = scores(frame)
            if len(found.days) > 2 * WITHIN:
                scored.append(found)
        rows.append(summary(name, scored))
        print(table(rows), flush=True)
    if args.docs:
        replace_block(args.docs / "measurements.md", "<!-- monitor alarms -->", table(rows))


if __name__ == "__main__":
    main()
