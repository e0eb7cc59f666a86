"""Judging a paper's claims over seeds, and setting ours beside theirs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Results = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Claim:
    """One qualitative statement, and the result of our runs.

    Attributes:
        text: The statement.
        holds: Whether it holds in every seed.
        detail: The numbers it was judged by.
    """

    text: str
    holds: bool
    detail: str

    @property
    def verdict(self) -> str:
        """Return the verdict for the table."""
        return "reproduced" if self.holds else "NOT reproduced"


def cells(results: Results, metric: str) -> dict[tuple[str, str], list[float]]:
    """Group a mean metric by (set, arm), one value a seed in seed order."""
    out: dict[tuple[str, str], list[float]] = defaultdict(list)
    for result in sorted(results, key=lambda r: int(r["arm"]["seed"])):
        arm = result["arm"]
        out[arm["dataset"], arm["name"]].append(float(result["mean"][metric]))
    return dict(out)


def every_seed(
    table: Mapping[tuple[str, str], Sequence[float]],
    test: Callable[[Mapping[str, float]], bool],
) -> dict[str, bool]:
    """Apply a test to every set that has all arms: does it hold in each of its seeds?

    >>> table = {("a", "x"): [1.0, 2.0], ("a", "y"): [3.0, 1.0]}
    >>> every_seed(table, lambda row: row["x"] < row["y"])
    {'a': False}
    """
    verdicts, every = {}, {arm for _, arm in table}
    for dataset in sorted({name for name, _ in table}):
        rows = {arm: values for (name, arm), values in table.items() if name == dataset}
        if rows.keys() != every:
            continue
        seeds = min(len(values) for values in rows.values())
        verdicts[dataset] = all(test({a: v[i] for a, v in rows.items()}) for i in range(seeds))
    return verdicts


def of_e5(results: Results) -> list[Claim]:
    """Judge the claims of E5."""
    errors, scaled = cells(results, "MAE"), cells(results, "MASE")
    beaten = every_seed(errors, lambda r: max(r["fedavg"], r["fedadam"]) < r["fedavgm"])
    adaptive = every_seed(errors, lambda r: r["fedadam"] < r["fedavg"])
    above = every_seed(scaled, lambda r: min(r.values()) > 1.0)
    return [
        Claim(
            "FedAvg and FedAdam are both below FedAvgM in MAE on every set",
            all(beaten.values()),
            _said(beaten),
        ),
        Claim(
            "FedAdam is below FedAvg in MAE on at least 2 of 3 sets",
            sum(adaptive.values()) >= min(2, len(adaptive)),
            _said(adaptive),
        ),
        Claim(
            "every MASE > 1 without personalisation (magnitudes differ)",
            all(above.values()),
            _said(above) + "; " + _means(scaled),
        ),
    ]


def of_e6(results: Results) -> list[Claim]:
    """Judge the claims of E6."""
    errors, scaled = cells(results, "MAE"), cells(results, "MASE")
    names = ("cfg 1", "cfg 2", "cfg 3")
    halves = every_seed(scaled, lambda r: 2 * max(r[x] for x in names) <= min(_central(r), r["FL"]))
    first = every_seed(errors, lambda r: r["cfg 1"] <= 1.01 * min(r[x] for x in names))
    below = [float(np.mean(v)) < 1 for (_, arm), v in scaled.items() if arm in names]
    return [
        Claim(
            "MASE of every configuration is at most half of No-FL and of FL",
            all(halves.values()),
            _said(halves),
        ),
        Claim(
            "configuration 1 has the lowest MAE of 1 to 3, or is within 1 %",
            all(first.values()),
            _said(first),
        ),
        Claim(
            "MASE < 1 in at least 8 of 9 configuration cells",
            sum(below) >= round(8 / 9 * len(below)),
            f"{sum(below)} of {len(below)}",
        ),
    ]


def _central(row: Mapping[str, float]) -> float:
    """Return the score of the paper's No-FL, or of ``pooled`` in runs from before it was there."""
    return row["No-FL"] if "No-FL" in row else row["pooled"]


def gains(results: Results) -> list[Claim]:
    """Return the claims on federated gains, against local training to convergence."""
    scaled = cells(results, "MASE")
    claims = []
    for arm in ("FL", "cfg 1", "cfg 2", "FL tuned", "cfg 1 tuned"):
        if any(name == arm for _, name in scaled):
            better = every_seed(scaled, lambda r, arm=arm: r[arm] < r["local long"])  # type: ignore[misc]
            claims.append(
                Claim(
                    f"{arm} beats local training to convergence",
                    all(better.values()),
                    _said(better),
                )
            )
    return claims


def _said(verdicts: Mapping[str, bool]) -> str:
    return ", ".join(f"{name}: {'yes' if ok else 'no'}" for name, ok in verdicts.items())


def _means(table: Mapping[tuple[str, str], Sequence[float]]) -> str:
    return ", ".join(f"{a} {s} {np.mean(v):.3g}" for (a, s), v in sorted(table.items()))
