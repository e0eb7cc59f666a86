"""Judge a paper's claims over seeds, and compare our results with its numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Results = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Claim:
    """One qualitative statement, and the result of our runs."""

    text: str
    holds: bool
    detail: str  # the numbers it was judged by

    @property
    def verdict(self) -> str:
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
            _said(above),
        ),
    ]


LAYERS = ("cfg 1", "cfg 2", "cfg 3")


def of_e6(results: Results) -> list[Claim]:
    """Judge the claims of E6 as the paper states them, on averages over seeds.

    Its tables have one number a cell. Where the paper's No-FL was not run, ``pooled`` is compared.
    """
    errors, scaled = _averages(cells(results, "MAE")), _averages(cells(results, "MASE"))
    first = {name: min(LAYERS, key=lambda x, row=row: row[x]) for name, row in errors.items()}  # type: ignore[misc]
    best = {name: min(LAYERS, key=lambda x, row=row: row[x]) for name, row in scaled.items()}  # type: ignore[misc]
    cells_below = sum(row[x] < 1.0 for row in scaled.values() for x in LAYERS)
    count = len(LAYERS) * len(scaled)
    return [
        _below("No-FL", errors),
        _below("FL", errors),
        Claim(
            "configuration 1 has the lowest MAE of the three on every set",
            set(first.values()) == {"cfg 1"},
            _named(first),
        ),
        Claim(
            "in MASE each configuration is the best on one set",
            sorted(best.values()) == sorted(LAYERS),
            _named(best),
        ),
        Claim(
            "MASE is below 1 for every configuration on every set, in all cells but one",
            cells_below >= count - 1,
            f"{cells_below} of {count}",
        ),
    ]


def _averages(table: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, dict[str, float]]:
    out: dict[str, dict[str, float]] = defaultdict(dict)
    for (dataset, arm), values in table.items():
        out[dataset][arm] = float(np.mean(values))
    return {name: row for name, row in out.items() if row.keys() >= {*LAYERS, "FL"}}


def _below(other: str, errors: Mapping[str, Mapping[str, float]]) -> Claim:
    parts, holds = [], True
    for name, row in errors.items():
        arm = "pooled" if other == "No-FL" and other not in row else other
        fewer = [x for x in LAYERS if row[x] < row[arm]]
        holds = holds and len(fewer) == len(LAYERS)
        parts.append(f"{name}: {len(fewer)} of 3 below {row[arm]:.4g} ({arm})")
    text = f"every configuration has a lower MAE than {other} on every set"
    return Claim(text, holds, ", ".join(parts))


def _named(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {arm}" for name, arm in found.items())


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
