"""Write the runs of a comparison as a tidy table: a row for each seed, run and device."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from firmware_sim.commands.trial import TrialRow
from firmware_sim.samples import SEED

COLUMNS = (
    *("seed", "method", "rule", "encoding", "settings", "attack"),
    *("device", "mae", "rmse", "windows"),
)
"""Columns of the table; ``settings`` are ``key=value`` with semicolons, ``attack`` may be none."""


def write_csv(rows: Mapping[int, Sequence[TrialRow]], path: Path) -> None:
    """Write the table; a device that is not evaluated has no row.

    Args:
        rows: Runs by seed.
        path: File that is replaced.
    """
    with path.open("w", encoding="utf-8", newline="") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(COLUMNS)
        for seed, some in rows.items():
            for row in some:
                run = row.run
                settings = ";".join(f"{key}={value}" for key, value in run.settings.items())
                attack = row.attack_plan.attack if row.attack_plan else "none"
                head = (seed, run.method, run.rule_name, run.encoding, settings, attack)
                for device, error in row.errors.each.items():
                    name = device.removesuffix(f"{SEED}{seed}")
                    table.writerow((*head, name, error.mae, error.rmse, error.windows))


def over_seeds(rows: Mapping[int, Sequence[TrialRow]]) -> str:
    """Return the mean and the standard deviation of each run's errors over the seeds, as text."""
    lines = [f"{'over ' + str(len(rows)) + ' seeds':44}{'MAE':>22}{'RMSE':>22}"]
    for some in zip(*rows.values(), strict=True):
        first = some[0]
        attack = first.attack_plan.attack if first.attack_plan else "none"
        run = first.run
        name = f"{run.method} {run.rule_name} {run.encoding}, attack {attack}"
        spread = [
            _spread([row.errors.mae for row in some]),
            _spread([row.errors.rmse for row in some]),
        ]
        lines.append(f"{name:44}{spread[0]:>22}{spread[1]:>22}")
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation as text.

    >>> _spread([1.0, 3.0]), _spread([1.0, float("nan")])
    ('2 +- 1.4', 'not evaluated')
    """
    if not all(map(math.isfinite, values)):
        return "not evaluated"
    return f"{fmean(values):.4g} +- {stdev(values):.2g}"
