"""One table: a model for everybody, personal layers, own models and training alone, on three sets.

Both halves of every method are the product's own, in one loop; the net (``cells-mlp-1``: the last three
readings and those of three days ago) is the same for all sets. Of every row each device keeps, of the models
every ``EVERY`` rounds, the one with the least error on the part that chooses; the test part is only
scored. The last row is the gate: each device takes what is best on that part, naive forecasts included.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.extensions.evaluation.forecast_metrics import mae, naive_lag1
from edge_sdk.forecasting.forecast import rolling
from edge_sdk.forecasting.windows import ChannelFrame, Drawable
from edge_sdk.protocol.contract.parameter_layout import Vector
from tools.experiments import buildings, cells, ev
from tools.experiments.cells import Cell, Floats
from tools.experiments.joint_loop import Fleet, Plan, gather, rounds
from tools.experiments.marked_block import replace_block
from tools.experiments.pages import table

EXPERIMENT = "personalisation"
MARKER = "<!-- personalisation -->"
RECORD = Path(__file__).parents[1] / "papers" / "personalisation.json"
SETS = (buildings.SETS[0], ev.BOULDER, cells.MILAN)
TITLES = dict(zip(SETS, ("buildings (BDG2)", "chargers (Boulder)", "cells (Milan)"), strict=True))
CLIENTS, ROUNDS, EVERY, STEPS, RATE, BATCH = 10, 60, 10, 4, 1e-3, 64
ALONE, TUNED = "alone (cfg 3)", "FedAvg, tuned alone"
GATE = (ALONE, TUNED, "FedAvg", "same slot yesterday", "same slot last week")
"""Candidates of the gate: what a device of FedAvg has, and forecasts without a model."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a method, and the layers that it shares."""

    method: str
    shared: tuple[str, ...] = ("",)
    settings: Mapping[str, float] = field(default_factory=dict)
    has_own: bool = (
        False  # whether a device forecasts with its own model, not with the common layers
    )
    own_heads: bool = True  # whether personal layers differ between devices at first


ROWS: Mapping[str, Row] = {
    "FedAvg": Row("fedavg"),
    "PL-FL cfg 1": Row("fedavg", ("body.",)),
    "PL-FL cfg 2": Row("fedavg", ("body.0.",)),
    ALONE: Row("fedavg", ()),
    "FedRep": Row("fedrep", ("body.",), {"head_steps": 4}),
    "FedBABU": Row("fedbabu", ("body.",), {"tune_steps": 8}, has_own=True, own_heads=False),
    "Ditto": Row("ditto", settings={"pull": 0.1, "own_steps": 4}, has_own=True),
    "APFL": Row("apfl", settings={"share": 0.5, "share_rate": 0.01}, has_own=True),
}


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """A set, cut for one bundle."""

    bundle: Bundle
    clients: Mapping[str, Cell]
    frames: Mapping[str, ChannelFrame]

    @classmethod
    def of(cls, folder: Path, dataset: str, count: int) -> Ground:
        bundle = Bundle.open("cells-mlp-1", trust=TrustedKeys())
        clients = {x.name: x for x in series(folder, dataset, count)}
        frames = {name: cells.frame(x, bundle.manifest) for name, x in clients.items()}
        return cls(bundle, clients, frames)

    def told(self, name: str, p: Vector, part: cells.Split) -> tuple[Floats, Floats]:
        """Return truth and forecasts of one device on a part."""
        cut = self.frames[name]
        rows = cells.origins(self.clients[name], cut, part)
        return cut.truth(rows), rolling(self.bundle.forecast, p, cut, rows)

    def error(self, name: str, p: Vector, part: cells.Split) -> float:
        """Return the mean absolute error, over that of the last value on the test part."""
        start, stop = self.clients[name].rows("test")
        return mae(*self.told(name, p, part)) / naive_lag1(self.frames[name].raw[start:stop])

    def repeated(self, name: str, days: int, part: cells.Split) -> float:
        """Return the error of the same slot so many days before."""
        cell, cut = self.clients[name], self.frames[name]
        rows, (start, stop) = cells.origins(cell, cut, part), cell.rows("test")
        found = cells.repeated(cut, rows, days * cell.day)
        return mae(cut.truth(rows), found) / naive_lag1(cut.raw[start:stop])


def series(folder: Path, dataset: str, count: int) -> Iterator[Cell]:
    """Yield a set's clients; the last tenth is the test, the tenth before it chooses (Milan: a week each)."""
    if dataset == cells.MILAN:
        yield from cells.load(folder, dataset, count)
    elif dataset == ev.BOULDER:
        for x in ev.load(folder, dataset, count):
            yield Cell(x.name, ev.STEP, x.start, x.demand, len(x.demand) // 10)
    else:
        for house in buildings.load(folder, dataset, count):
            load = house.columns[buildings.LOAD]
            yield Cell(house.name, house.step, house.start, load, len(load) // 10)


def run(
    base: Ground, name: str, seed: int, length: int = ROUNDS
) -> dict[str, dict[str, list[float]]]:
    """Train one row; return each device's errors on the choosing and on the test part, by row.

    FedAvg gives a second row, tuned alone from its best common model for as many steps.
    """
    row, found = ROWS[name], {}
    found[name], best = _trained(base, row, seed, length, None)
    if name == "FedAvg":
        found[TUNED], _ = _trained(base, ROWS[ALONE], seed + 1000, length, best)
    return found


def naive(base: Ground) -> dict[str, dict[str, list[float]]]:
    """Return the errors of forecasts without a model."""
    return {
        title: {
            x: [base.repeated(x, days, part) for part in ("choose", "test")] for x in base.clients
        }
        for title, days in (("same slot yesterday", 1), ("same slot last week", 7))
    }


def _trained(
    base: Ground, row: Row, seed: int, length: int, starts: Mapping[str, Vector] | None
) -> tuple[dict[str, list[float]], dict[str, Vector]]:
    manifest = base.bundle.manifest
    settings = {"steps": STEPS, "rate": RATE, **row.settings}
    plan = Plan(row.method, settings, row.shared, length, BATCH, "fresh", seed, row.own_heads)
    windows = {
        name: Drawable(cut, cells.origins(base.clients[name], cut, "learn"))
        for name, cut in base.frames.items()
    }
    fleet = gather(
        plan,
        layout=manifest.spec(("",)),
        initial=base.bundle.initial,
        gradient=base.bundle.gradient,
        windows=windows,
        starts=starts,
    )
    best: dict[str, tuple[float, Vector]] = {}
    if starts is not None:
        best = {x: (base.error(x, p, "choose"), p) for x, p in starts.items()}
    for number, after in rounds(plan, fleet):
        if number % EVERY and number != length:
            continue
        for name, p in vectors(row, after).items():
            error = base.error(name, p, "choose")
            if name not in best or error < best[name][0]:
                best[name] = (error, p)
    errors = {name: [error, base.error(name, p, "test")] for name, (error, p) in best.items()}
    return errors, {name: p for name, (_, p) in best.items()}


def vectors(row: Row, fleet: Fleet) -> dict[str, Vector]:
    """Return what each device forecasts with."""
    if not row.has_own:
        return fleet.vectors()
    return {
        name: np.asarray(half.model(fleet.states[name])["p"]) for name, half in fleet.halves.items()
    }


def lines(record: Mapping[str, Any]) -> list[str]:
    """Return the table of a record: ``sets`` by name, ``rows`` by name, errors by seed and device."""
    names = [*ROWS, TUNED, "same slot yesterday", "same slot last week", "the gate"]
    body = [[name] for name in names]
    for errors in record["sets"].values():
        with_gate = {**errors, "the gate": gated(errors)}
        alone = _test(with_gate[ALONE])
        for line in body:
            found = _test(with_gate[line[0]])
            better = int((found.mean(axis=0) < alone.mean(axis=0)).sum())
            spread = f" ± {found.mean(axis=1).std():.3f}" if len(found) > 1 else ""
            count = "" if line[0] == ALONE else f", {better} of {alone.shape[1]}"
            line.append(f"{found.mean():.3f}{spread}{count}")
    return table(("row", *(TITLES[x] for x in record["sets"])), body)


def gated(errors: Mapping[str, Sequence[Mapping[str, Sequence[float]]]]) -> list[dict[str, Any]]:
    """Return, for each seed, every device's errors of the candidate that is best on the choosing part.

    >>> rows = {name: [{"a": [0.5, 0.7]}] for name in GATE} | {"FedAvg": [{"a": [0.4, 0.9]}]}
    >>> gated(rows)
    [{'a': [0.4, 0.9]}]
    """
    seeds = range(len(errors["FedAvg"]))
    candidates = [errors[name] for name in GATE]
    return [
        {
            device: min((one[seed % len(one)][device] for one in candidates), key=lambda x: x[0])
            for device in errors["FedAvg"][seed]
        }
        for seed in seeds
    ]


def _test(errors: Sequence[Mapping[str, Sequence[float]]]) -> Floats:
    return np.array([[pair[1] for _, pair in sorted(one.items())] for one in errors])


def main(options: argparse.Namespace) -> int:
    """Run what is not in ``--out`` yet, print the table, and write page and record with ``--docs``."""
    folder = options.out / EXPERIMENT
    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {
        "clients": CLIENTS,
        "rounds": ROUNDS,
        "steps": STEPS,
        "rate": RATE,
        "sets": {},
    }
    for dataset in SETS:
        base = Ground.of(options.data, dataset, CLIENTS)
        errors: dict[str, list[Any]] = {}
        for seed in range(options.seeds):
            for name in ROWS:
                path = folder / f"{dataset}-{name.replace(' ', '')}-s{seed}.json"
                if not path.exists():
                    draft = path.with_suffix(".part")
                    draft.write_text(json.dumps(run(base, name, seed)))
                    draft.replace(path)
                for row, found in json.loads(path.read_text()).items():
                    errors.setdefault(row, []).append(found)
        errors |= {row: [found] for row, found in naive(base).items()}
        record["sets"][dataset] = errors
    text = "\n".join(lines(record))
    print(text)
    if options.docs:
        replace_block(options.docs / "experiments.md", MARKER, text)
        RECORD.write_text(json.dumps(_rounded(record), separators=(",", ":")) + "\n", "utf-8")
    return 0


def _rounded(value: Any) -> Any:  # noqa: ANN401 - a JSON document
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return round(value, 4) if isinstance(value, float) else value
