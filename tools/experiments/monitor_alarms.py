"""Count the alarms of the model monitor on real loads, without and with a planted break.

Each building forecasts alone: its own model is fitted again every week on the readings before, as a
device fits it, and is scored day by day against the seasonal naive forecast. A break multiplies the
errors from a random day on. The first 60 days train only. An alarm is false if, in the days that it is
about, the error was neither above the naive one nor 1.25 times as large a multiple of it as before.

The same scores with their weeks in random order have no drift: what one week has, any other may have. Every
alarm of a sequential test on them is false, unless the device loses more than half of all its days to naive.

  python -m tools.experiments.monitor_alarms --data DATA --scores FOLDER --docs docs
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.progress import track

from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.extensions.choice.model_monitor import (
    MARGIN,
    SPANS,
    DailyScores,
    ModelMonitor,
    SequentialTest,
    usual_bound,
)
from edge_sdk.extensions.choice.own_model import fit
from edge_sdk.forecasting.calendar_features import DAY
from edge_sdk.forecasting.forecast import WEEK, rows_of, seasonal_naive
from edge_sdk.forecasting.windows import ChannelFrame, target_days
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
WITHIN = (14, 28)
"""Days after a break within which an alarm counts as having found it."""
WORSE = 1.25
"""Least factor of the ratio to the naive error that is a worsening."""
PARTS = ("days", "sums", "counts")
SETTINGS = (
    (0.9, 0.2, 56),
    (0.9, 0.25, 56),
    (0.9, 0.3, 56),
    (0.95, 0.15, 56),
    (0.95, 0.2, 56),
    (0.9, 0.25, 92),
    (0.9, 0.3, 92),
    (0.95, 0.15, 92),
    (0.95, 0.2, 92),
    (0.95, 0.25, 92),
)
"""Quantile, allowed share of unusual days, and largest number of earlier days that are compared."""
BEFORE = 56
"""Days before an alarm with which its days are compared."""
PLANTED = (1.5, 2.0)
"""Factors of the breaks with which settings are compared."""
ORDERS = 4
"""Random orders of the weeks of each device."""


@dataclass(frozen=True, slots=True)
class Alarms:
    """Alarms of one set of buildings."""

    name: str
    years: float  # scored device-years
    slow: int  # alarms of the sequential tests, without a break
    fast: int  # alarms of two gross days, without a break
    false: int  # those of both kinds in whose days nothing had become worse
    worse: int  # devices whose error over the whole year is above the naive one
    # shares of planted breaks that were found within each of ``WITHIN``, by factor
    found: dict[float, tuple[float, ...]]
    shuffled: float  # device-years with the weeks in random order
    # alarms of the sequential tests in these, on devices that lose at most half of all days to
    # naive
    drift: int
    losing: int


def scores(frame: ChannelFrame, *, refit_days: int = 7) -> DailyScores:
    """Score a building's own model day by day, fitted again every so many days.

    Args:
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


def shuffled_weeks(scored: DailyScores, rng: np.random.Generator) -> DailyScores:
    """Return the scores of whole weeks in random order; the days keep their numbers.

    >>> days = np.arange(14)
    >>> sums = np.stack([days, days, days], axis=1).astype(float)
    >>> found = shuffled_weeks(DailyScores(days, sums, np.ones((14, 3), np.int64)), np.random.default_rng(1))
    >>> found.sums[[0, 7], 0].tolist() in ([0.0, 7.0], [7.0, 0.0])
    True
    """
    weeks = len(scored.days) // 7
    order = (7 * rng.permutation(weeks)[:, None] + np.arange(7)).ravel()
    return DailyScores(scored.days[: 7 * weeks], scored.sums[order], scored.counts[order])


def loses_most_days(scored: DailyScores) -> bool:
    """Return whether more than half of all days are lost to the naive forecast."""
    served, _, naive = scored.sums.T
    return bool(np.mean(served > (1.0 + MARGIN) * naive) > 0.5)


def unusual_bounds(scored: DailyScores, quantile: float, most: int) -> list[float | None]:
    """Return the bound above which each day is unusual, with other settings than the monitor's."""
    return [usual_bound(scored, at, quantile, most) for at in range(len(scored.days))]


def unusual_alarms(scored: DailyScores, bounds: Sequence[float | None], share: float) -> list[int]:
    """Return the days of the alarms of the test of unusual days alone.

    Args:
        bounds: Bound of each day, as ``unusual_bounds`` returns them.
    """
    test, found = SequentialTest(), []
    for day, bound, (served, _, naive) in zip(
        scored.days.tolist(), bounds, scored.sums.tolist(), strict=True
    ):
        if bound is None:
            continue
        test = test.after(is_lost=served > bound * naive, null=share)
        if test.evidence >= 1.0:
            test = SequentialTest()
            found.append(day)
    return found


def is_false(scored: DailyScores, day: int, span: int) -> bool:
    """Return whether nothing had become worse in the days of an alarm."""
    here = (scored.days <= day) & (scored.days > day - span)
    before = (scored.days <= day - span) & (scored.days > day - span - BEFORE)
    now, _, naive = scored.sums[here].sum(axis=0)
    then, _, naive_then = scored.sums[before].sum(axis=0)
    return bool(now <= naive and now * naive_then < WORSE * then * naive)


def broken(scored: DailyScores, day: int, factor: float) -> DailyScores:
    """Return scores whose served errors are multiplied from a day on."""
    sums = scored.sums.copy()
    sums[scored.days >= day, 0] *= factor
    return DailyScores(scored.days, sums, scored.counts)


def hits(after: Iterable[int], day: int) -> tuple[bool, ...]:
    """Return whether the first alarm from a day on came within each of ``WITHIN``."""
    first = next((at for at in after if at >= day), None)
    return tuple(first is not None and first < day + days for days in WITHIN)


def summary(name: str, scored: Sequence[DailyScores], seed: int = 0) -> Alarms:
    """Count the alarms of the devices of a set.

    Args:
        seed: Seed of the days of the breaks.
    """
    rng, kinds, worse, false = np.random.default_rng(seed), [], 0, 0
    mixer, shuffled, drift = np.random.default_rng((seed, 1)), 0, [0, 0]
    seen: dict[float, list[tuple[bool, ...]]] = {factor: [] for factor in FACTORS}
    for one in scored:
        its = alarms(one)
        kinds += [is_slow for _, is_slow in its]
        false += sum(is_false(one, day, SPANS[is_slow]) for day, is_slow in its)
        served, _, naive = one.sums.sum(axis=0)
        worse += bool(served > naive)
        day = int(rng.choice(one.days[WITHIN[0] : -WITHIN[-1]]))
        for factor, found in seen.items():
            found.append(hits((at for at, _ in alarms(broken(one, day, factor))), day))
        for _ in range(ORDERS):
            mixed = shuffled_weeks(one, mixer)
            shuffled += len(mixed.days)
            drift[loses_most_days(one)] += sum(is_slow for _, is_slow in alarms(mixed))
    years = sum(len(one.days) for one in scored) / 365.25
    shares = {factor: tuple(np.mean(found, axis=0).tolist()) for factor, found in seen.items()}
    fast = len(kinds) - sum(kinds)
    return Alarms(
        name, years, sum(kinds), fast, false, worse, shares, shuffled / 365.25, drift[0], drift[1]
    )


def table(rows: Sequence[Alarms]) -> str:
    """Return the results as a table in Markdown."""
    within = " / ".join(str(days) for days in WITHIN)
    heads = [f"error x {factor:g}: found in {within} days" for factor in FACTORS]
    titles = ["set", "device-years", "slow", "fast", "false", "worse than naive over all", *heads]
    lines = ["| " + " | ".join(titles) + " |", "| --- |" + " ---: |" * (len(titles) - 1)]
    for row in rows:
        cells = [
            row.name,
            f"{row.years:.1f}",
            *(str(number) for number in (row.slow, row.fast, row.false, row.worse)),
            *(percent(shares) for shares in row.found.values()),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def shuffled_table(rows: Sequence[Alarms]) -> str:
    """Return the alarms with the weeks in random order as a table in Markdown.

    The rate has its exact upper bound at 95 % for independent device-years.
    """
    titles = ["set", "device-years, weeks in random order", "drift alarms"]
    titles += ["on devices that lose most days to naive"]
    lines = ["| " + " | ".join(titles) + " |", "| --- |" + " ---: |" * (len(titles) - 1)]
    lines += [f"| {row.name} | {row.shuffled:.0f} | {row.drift} | {row.losing} |" for row in rows]
    years, drift = sum(row.shuffled for row in rows), sum(row.drift for row in rows)
    rate, bound = (100 * one / years for one in (drift, most_events(drift)))
    what = f"all: {rate:.2f} in 100 device-years, at most {bound:.2f}"
    lines.append(f"| {what} | {years:.0f} | {drift} | {sum(row.losing for row in rows)} |")
    return "\n".join(lines)


def most_events(seen: int, confidence: float = 0.95) -> float:
    """Return the largest mean of a Poisson number of which so few were seen, by bisection.

    >>> round(most_events(0), 3), round(most_events(3), 3)
    (2.996, 7.754)
    """
    low, high = 0.0, seen + 10.0 * math.sqrt(seen + 1.0)
    while high - low > 1e-9:
        mean = (low + high) / 2
        terms = (mean**k / math.factorial(k) for k in range(seen + 1))
        is_likely = math.exp(-mean) * sum(terms) > 1.0 - confidence
        low, high = (mean, high) if is_likely else (low, mean)
    return high


def percent(shares: Iterable[float]) -> str:
    """Return shares as text.

    >>> percent([0.125, 1.0])
    '12 / 100 %'
    """
    return " / ".join(f"{100 * share:.0f}" for share in shares) + " %"


def trade_off(scored: Sequence[DailyScores], seed: int = 0) -> str:
    """Return the results of other settings of the test of unusual days, as a table in Markdown.

    Args:
        scored: Scores of the devices of all sets. Those of even index are the half to choose by,
            those of odd index the half to confirm with.
    """
    within = " / ".join(str(days) for days in WITHIN)
    titles = ["quantile", "allowed share", "earlier days"]
    for role in ("choice", "confirmation"):
        titles += [f"{role}: alarms in 100 years", "in random order"]
        titles += [f"x 1.5 in {within} days", "x 2"]
    lines = ["| " + " | ".join(titles) + " |", "|" + " ---: |" * len(titles)]
    rows = {
        setting: [f"{setting[0]:g}", f"{setting[1]:g}", str(setting[2])] for setting in SETTINGS
    }
    for half in (scored[::2], scored[1::2]):
        years = sum(len(one.days) for one in half) / 365.25
        for setting, found in half_results(half, seed).items():
            rates = (found.alarms / years, found.drift / years / ORDERS)
            rows[setting] += [f"{100 * rate:.1f}" for rate in rates]
            rows[setting] += [percent(np.mean(its, axis=0).tolist()) for its in found.hits.values()]
    return "\n".join(lines + ["| " + " | ".join(cells) + " |" for cells in rows.values()])


@dataclass(slots=True)
class SettingResult:
    """Result of one setting of the test of unusual days on some devices."""

    alarms: int = 0  # alarms without a break
    drift: int = 0  # alarms with the weeks in ``ORDERS`` random orders
    # whether the break of each device was found within each of ``WITHIN``, by factor
    hits: dict[float, list[tuple[bool, ...]]] = field(
        default_factory=lambda: {factor: [] for factor in PLANTED}
    )


def half_results(
    devices: Sequence[DailyScores], seed: int
) -> dict[tuple[float, float, int], SettingResult]:
    """Return the results of every setting on some devices, with the same breaks and orders."""
    rng, mixer = np.random.default_rng(seed), np.random.default_rng((seed, 2))
    found = {setting: SettingResult() for setting in SETTINGS}
    for one in devices:
        day = int(rng.choice(one.days[WITHIN[0] : -WITHIN[-1]]))
        mixed = [shuffled_weeks(one, mixer) for _ in range(ORDERS)]
        records = [one, *mixed, *(broken(one, day, factor) for factor in PLANTED)]
        for quantile, most in sorted({(quantile, most) for quantile, _, most in SETTINGS}):
            bounds = [unusual_bounds(record, quantile, most) for record in records]
            for setting in (at for at in SETTINGS if (at[0], at[2]) == (quantile, most)):
                days = [
                    unusual_alarms(record, its, setting[1])
                    for record, its in zip(records, bounds, strict=True)
                ]
                found[setting].alarms += len(days[0])
                found[setting].drift += sum(map(len, days[1 : 1 + ORDERS]))
                for factor, after in zip(PLANTED, days[1 + ORDERS :], strict=True):
                    found[setting].hits[factor].append(hits(after, day))
    return found


def scored_set(data: Path, name: str, clients: int, folder: Path | None) -> list[DailyScores]:
    """Return the daily scores of a set's buildings; those in ``folder`` are not computed again."""
    kept = None if folder is None else folder / f"{name}-{clients}.npz"
    if kept is not None and kept.exists():
        with np.load(kept) as file:
            arrays = dict(file)
        count = len(arrays) // 3
        return [DailyScores(*(arrays[f"{part}{i}"] for part in PARTS)) for i in range(count)]
    manifest = Bundle.open(SETS[name], trust=TrustedKeys()).manifest
    buildings, scored = load(data, name, clients), []
    for building in track(buildings, description=name):
        series = replace(building, columns={LOAD: building.columns[LOAD]}).series()
        found = scores(ChannelFrame.of(series, manifest, site=building.site))
        if len(found.days) > 2 * WITHIN[-1]:
            scored.append(found)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        arrays = {
            f"{part}{i}": getattr(one, part) for i, one in enumerate(scored) for part in PARTS
        }
        np.savez_compressed(kept, **arrays)
    return scored


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the sets")
    parser.add_argument("--scores", type=Path, help="folder that keeps the daily scores")
    parser.add_argument("--docs", type=Path, help="folder of the pages, to write the table")
    parser.add_argument("--clients", type=int, default=42, help="buildings of a set (42)")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), help="sets (all)")
    args = parser.parse_args()
    rows, scored = [], []
    for name in args.sets:
        its = scored_set(args.data, name, args.clients, args.scores)
        scored += its
        rows.append(summary(name, its))
        print(table(rows), flush=True)
    mixed = shuffled_table(rows)
    print(mixed, flush=True)
    print(trade_off(scored))
    if args.docs:
        replace_block(args.docs / "measurements.md", "<!-- monitor weeks -->", mixed)
        replace_block(args.docs / "measurements.md", "<!-- monitor alarms -->", table(rows))


if __name__ == "__main__":
    main()
