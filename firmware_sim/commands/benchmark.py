"""Score forecasts of 48 hours on the public task M4 Hourly, beside published rows of other models.

gridfed-sim benchmark --data m4_hourly
gridfed-sim benchmark --data m4_hourly --json

FOLDER contains Hourly-train.csv and Hourly-test.csv of github.com/Mcompetitions/M4-methods
(Dataset/Train and Dataset/Test, also packed with gzip), and if you like published.csv: task, model,
mase, mean_weighted_quantile_loss, rows of GIFT-Eval's results. Without it eight rows are known.

MASE: the mean absolute error of the median over that of repeating the day before, in the known part.
Quantile loss: of the levels .1 to .9, over the sum of all readings. Lower is better in both.

The seasonal naive (repeat the last day) is computed first. If it is not the published row to three
decimals of the MASE and four of the loss, the command ends with an error and prints no other row.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from edge_sdk.app.cli import CommandResult
from edge_sdk.app.settings import SettingsError
from firmware_sim.evaluation.m4_forecast import LEAST, forecast
from firmware_sim.evaluation.m4_hourly import (
    KNOWN_ROWS,
    NAIVE,
    TASK,
    HourlySeries,
    Score,
    published,
    read_series,
    require_naive,
    score,
    seasonal_naive,
)
from firmware_sim.reports.progress_display import display

OURS = "gridfed, each series alone"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="FOLDER", help="folder of the task's files")
    add("--all", action="store_true", help="print every published row (a selection)")


def run(args: Namespace) -> CommandResult:
    """Check the naive row, forecast every series, and return the table."""
    rows, series = published(args.data), read_series(args.data)
    naive = score(series, [seasonal_naive(one.known) for one in series])
    require_naive(naive, rows)
    began = time.monotonic()
    found = _scored(series, is_quiet=args.json)
    took = time.monotonic() - began
    better = sum(row.mase > found.mase for row in rows.values())
    data = {
        "task": TASK,
        "series": len(series),
        "seconds": round(took, 1),
        "rows": [
            {"model": name, "source": source, "mase": row.mase, "quantile_loss": row.quantile_loss}
            for name, source, row in _table(rows, naive, found)
        ],
    }
    shown = KNOWN_ROWS if not args.all else rows
    lines = [f"{TASK}: {len(series)} series, 48 hours ahead; lower is better", ""]
    lines.append(f"{'':34} {'MASE':>7} {'quantile loss':>14}")
    lines += [
        f"{f'{name} ({source})':34} {row.mase:7.3f} {row.quantile_loss:14.4f}"
        for name, source, row in _table(rows, naive, found)
        if source == "here" or name in shown
    ]
    place = f"By its MASE {OURS}, is better than {better} of {len(rows)} published rows."
    lines += ["", f"The published row of the seasonal naive is reproduced. {place}"]
    lines.append(f"{took:.0f} seconds")
    return CommandResult(data, "\n".join(lines))


def _scored(series: list[HourlySeries], *, is_quiet: bool) -> Score:
    if shortest := [one for one in series if len(one.known) < LEAST]:
        raise SettingsError(
            f"{shortest[0].name}: {len(shortest[0].known)} hours are known; at least {LEAST} are needed"
        )
    forecasts = []
    with display(is_quiet=is_quiet) as shown:
        for done, one in enumerate(series, 1):
            forecasts.append(forecast(one.known))
            shown.advance("series", done, len(series))
    return score(series, forecasts)


def _table(rows: dict[str, Score], naive: Score, found: Score) -> list[tuple[str, str, Score]]:
    """Return model, source and errors of all rows, the smallest MASE first."""
    lines = [(name, "published", row) for name, row in rows.items()]
    lines += [(NAIVE, "here", naive), (OURS, "here", found)]
    return sorted(lines, key=lambda line: line[2].mase)
