"""Summaries of a sweep's records, as rows of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors of one configuration over its seeds."""

    method: str  # method of the run, with its encoding where that is not float32
    rule: str
    attack: str  # attack; ``none`` without one
    # RMSE of each seed, the mean over devices; None where it is not finite
    rmse: tuple[float | None, ...]
    # RMSE of each seed of the same configuration without an attack, if known
    clean: tuple[float | None, ...] = ()
    updates: float = 0.0  # updates a second, as a mean

    @property
    def mean(self) -> float | None:
        """Return the mean over the seeds; None if one is not finite."""
        return _mean(self.rmse)

    @property
    def rise(self) -> float | None:
        """Return the relative rise over the runs without an attack; None where it is unknown."""
        mean, clean = self.mean, _mean(self.clean)
        return None if self.attack == "none" or mean is None or not clean else mean / clean - 1

    @property
    def spread(self) -> float | None:
        """Return the standard deviations over the seeds of both sides, combined, relative to the clean mean.

        None with one seed.
        """
        sides = [[value for value in side if value is not None] for side in (self.rmse, self.clean)]
        clean = _mean(self.clean)
        if not clean or min(map(len, sides)) < 2:
            return None
        return math.hypot(*map(stdev, sides)) / clean

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the row of the table as text.

        >>> Summary("fedavg", "mean", "alie", (1.0, 3.0), (1.0, 1.1), 900.4).cells
        ('fedavg', 'mean', 'alie', '2 ± 1.4', '+90.5 %, within the spread', '900')
        >>> Summary("fedavg", "mean", "alie", (3.0, 3.1), (1.0, 1.1)).cells[4]
        '+190.5 %'
        >>> Summary("fedavg", "mean", "ipm", (None,)).cells
        ('fedavg', 'mean', 'ipm', 'not finite', '', '0')
        """
        mean, rise = self.mean, ""
        if mean is None:
            error = "not finite"
        else:
            known = [value for value in self.rmse if value is not None]
            error = f"{mean:.4g}" + (f" ± {stdev(known):.2g}" if len(known) > 1 else "")
            if self.rise is not None:
                rise = f"{self.rise:+.1%}".replace("%", " %")
                is_within = self.spread is not None and abs(self.rise) <= self.spread
                rise += ", within the spread" if is_within else ""
        return self.method, self.rule, self.attack, error, rise, f"{self.updates:.0f}"


HEAD = ("method", "rule", "attack", "RMSE", "rise", "updates a second")


def summaries(records: Sequence[Mapping[str, Any]]) -> list[Summary]:
    """Return a summary of each configuration, in the order of the records."""
    grouped: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        cell = record["cell"]
        is_plain = cell["encoding"] == "f4"
        method = cell["method"] if is_plain else f"{cell['method']} {cell['encoding']}"
        grouped.setdefault((method, cell["rule"], cell["attack"]), []).append(record)
    found = [
        Summary(*key, tuple(map(_rmse, some)), updates=fmean(map(_rate, some)))
        for key, some in grouped.items()
    ]
    clean = {(one.method, one.rule): one.rmse for one in found if one.attack == "none"}
    return [replace(one, clean=clean.get((one.method, one.rule), ())) for one in found]


def on_rises(rows: Sequence[Summary]) -> str:
    """Return the remark on the spread of a table's rises over the seeds; empty without a rise.

    >>> on_rises([Summary("fedavg", "mean", "alie", (1.0,), (1.0,))])
    'The rises are of one seed: what another seed would give is not known (--seeds 0 1 2).'
    """
    rises = [row for row in rows if row.rise is not None]
    if not rises:
        return ""
    if all(row.spread is None for row in rises):
        return (
            "The rises are of one seed: what another seed would give is not known (--seeds 0 1 2)."
        )
    within = sum(row.spread is not None and abs(row.rise or 0.0) <= row.spread for row in rises)
    return (
        f"{within} of {len(rises)} rises are within the spread: not larger than the standard "
        "deviations over the seeds with and without the attack together."
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _rmse(record: Mapping[str, Any]) -> float | None:
    values = [error["rmse"] for error in record["errors"].values()]
    return None if not values or None in values else fmean(values)


def _rate(record: Mapping[str, Any]) -> float:
    seconds = record["result"]["seconds"]
    return float(record["result"]["updates"] / seconds) if seconds else 0.0
