"""Results of arms as numbers to compare: pooled errors, choices by field, ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tools.experiments.cellular_setup import together
from tools.experiments.claims import Results

Task = tuple[str, int]
"""A set and a horizon."""


def score(result: Mapping[str, Any], leave: Iterable[str] = ()) -> dict[str, float]:
    """Return the error over all honest cells that are not in ``leave``."""
    out = {*result["liars"], *leave}
    return together({name: row for name, row in result["cells"].items() if name not in out})


def where(results: Results, **wanted: Any) -> list[Mapping[str, Any]]:  # noqa: ANN401 - any field of an arm
    """Return the results whose arm has these values, in order of seed."""
    kept = [r for r in results if all(r["arm"][k] == v for k, v in wanted.items())]
    return sorted(kept, key=lambda r: int(r["arm"]["seed"]))


def tasks(results: Results) -> list[Task]:
    return sorted({(r["arm"]["dataset"], r["arm"]["horizon"]) for r in results})


def ranks(results: Results, names: Sequence[str]) -> dict[str, float]:
    """Rank methods in every column (set, horizon, RMSE and MAE) by mean over seeds; average.

    Equal values share their ranks. Columns that lack a method are left out.
    """
    columns: list[list[float]] = []
    for dataset, horizon in tasks(results):
        here = where(results, dataset=dataset, horizon=horizon)
        for metric in ("RMSE", "MAE"):
            means = [[score(r)[metric] for r in where(here, name=x)] for x in names]
            if all(means):
                columns.append(ranked([float(np.mean(x)) for x in means]))
    if not columns:
        return {}
    return dict(zip(names, map(float, np.mean(columns, axis=0)), strict=True))


def ranked(values: Sequence[float]) -> list[float]:
    """Give the lowest value rank 1, equal ones the mean of their ranks.

    >>> ranked([3.0, 1.0, 3.0])
    [2.5, 1.0, 2.5]
    """
    some = np.asarray(values)
    return [float((some < x).sum() + ((some == x).sum() + 1) / 2) for x in some]


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's rank correlation.

    >>> round(spearman([1, 2, 3, 4], [9, 7, 8, 1]), 3)
    -0.8
    """
    a, b = np.array(ranked(x)), np.array(ranked(y))
    return float(np.corrcoef(a, b)[0, 1]) if a.std() and b.std() else 0.0
