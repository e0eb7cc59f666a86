"""A researcher: a rule and a method of one's own as packages, against 20 % attackers, several seeds.

    python tests/journeys/researcher.py [--dist dist]

The packages are those of examples/plugins; the result is a tidy table, a line a run.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

from journey import ROOT, Journey, journey

PLUGINS = ("gridfed-fednova", "gridfed-scaffold", "gridfed-meamed")
SEEDS = (0, 1)


def rows(document: Any, seed: int, labels: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Return a row for every run of a comparison: its scalar fields, and the seed."""
    if isinstance(document, list):
        return [row for one in document for row in rows(one, seed, labels)]
    if not isinstance(document, dict):
        return []
    if {"method", "rule", "attack"} <= set(document):
        scalars = {k: v for k, v in document.items() if isinstance(v, str | int | float | bool)}
        return [{"seed": seed, **scalars}]
    return [row for one in document.values() for row in rows(one, seed, labels)]


def compare(one: Journey, programs: Path, seed: int) -> list[dict[str, Any]]:
    """Run a method and two rules of two packages, each without and with the attackers."""
    told = one.run(
        *(programs / "gridfed-sim", "fleet", "--in-process", "--devices", "5", "--days", "14"),
        *("--rounds", "2", "--method", "fednova", "--rule", "mean,meamed", "--byzantine", "0.2"),
        *("--attack", "random_direction", "--kind", "embedded", "--seed", seed, "--json"),
    )
    found = rows(json.loads(told[told.index("{") :]), seed)
    one.expect("meamed", json.dumps(found))
    return found


def main() -> None:
    """Run the journey."""
    with journey("a researcher") as one:
        programs = one.environment("research", "gridfed[sim]")
        one.step("the simulator's wheels are installed")
        sources = [one.folder / name for name in PLUGINS]
        for source in sources:  # a copy: building leaves files beside the source
            shutil.copytree(ROOT / "examples" / "plugins" / source.name, source)
        one.run(
            *(programs / "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"),
            *sources,
        )
        table = compare(one, programs, SEEDS[0])
        one.succeed(f"{len(table)} runs of packages of one's own", minutes=5)
        for seed in SEEDS[1:]:
            table += compare(one, programs, seed)
        columns = list(dict.fromkeys(key for row in table for key in row))
        with (one.folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(table)
        one.step(f"{len(table)} lines, {len(SEEDS)} seeds, in a tidy table")
        print((one.folder / "table.csv").read_text("utf-8"))


if __name__ == "__main__":
    main()
