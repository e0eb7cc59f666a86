"""Run every run with every attack and every seed, with a record of each; a killed sweep continues.

Each record is written whole after its run. A cell whose record is there is not run again.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from edge_sdk.errors import USAGE, Failure
from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.bench.results import FORMAT, definition, digest_of, machine, versions, write_whole
from firmware_sim.direct.run import DirectRun
from firmware_sim.fleet.run_files import assigned
from firmware_sim.reports.progress_display import Display
from firmware_sim.samples import SampleSet
from firmware_sim.scenario import RunSettings, Scenario


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One run of a sweep."""

    run: RunSettings
    attack_plan: AttackPlan | None  # attack on it; None without one
    # seed of the aggregator's draws, the attack, the minibatches and the order of arrival
    seed: int

    @property
    def attack(self) -> str:
        """Return the name of the attack, or ``none``."""
        return self.attack_plan.attack if self.attack_plan else "none"

    @property
    def name(self) -> str:
        """Return a name that is a file name too; other settings have another name.

        >>> one, other = (SweepCell(RunSettings(rounds=n), None, 3).name for n in (1, 2))
        >>> one.rpartition("-")[0], one == other
        ('fedavg-mean-none-seed-3', False)
        """
        rule = self.run.rule_name.replace(" ", "-")
        settings = json.dumps([asdict(self.run), self.plan], sort_keys=True, default=str)
        mark = hashlib.sha256(settings.encode()).hexdigest()[:6]
        return f"{self.run.method}-{rule}-{self.attack}-seed-{self.seed}-{mark}"

    @property
    def plan(self) -> dict[str, Any] | None:
        """Return the attack's settings as plain values; None without one."""
        return None if self.attack_plan is None else asdict(self.attack_plan)


def cells_of(chosen: Scenario, seeds: list[int]) -> list[SweepCell]:
    """Return the cells of a scenario with its comparisons and attacks, seed by seed.

    >>> chosen = Scenario("a", comparisons=(RunSettings("fedprox"),), attacks=(AttackPlan("alie"),))
    >>> [(cell.run.method, cell.attack, cell.seed) for cell in cells_of(chosen, [0, 1])][1:5]
    [('fedavg', 'alie', 0), ('fedprox', 'none', 0), ('fedprox', 'alie', 0), ('fedavg', 'none', 1)]
    """
    return [
        SweepCell(run, attack_plan, seed)
        for seed in seeds
        for seeded in (chosen.with_seed(seed),)
        for run in (seeded.run, *seeded.comparisons)
        for attack_plan in (None, *seeded.attacks)
    ]


def evaluated(chosen: Scenario, samples: SampleSet) -> tuple[str, ...]:
    """Return the ids of the devices that are honest under all attacks, in their order."""
    ids = [name for name, _ in assigned(samples.samples, chosen.devices)]
    byzantine = {name for one in chosen.attacks for name in one.malicious(ids)}
    return tuple(name for name in ids if name not in byzantine)


def scenario_of(chosen: Scenario, cell: SweepCell) -> Scenario:
    quorum = cell.run.awaits(chosen.devices)
    return replace(chosen, run=replace(cell.run, quorum=quorum), comparisons=(), attacks=())


@dataclass(frozen=True, slots=True)
class SweepDefinition:
    """Settings and readings that the runs of a sweep have in common."""

    scenario: Scenario  # scenario with its runs and attacks
    samples: SampleSet
    seeds: tuple[int, ...]
    mark: str  # digest of the sweep's definition
    limit: float  # time limit of one run in seconds


def record_of(sweep: SweepDefinition, cell: SweepCell, shown: Display) -> dict[str, Any]:
    """Run a cell in this process, and return its record as JSON values; raise TooSlow at its time limit."""
    samples = sweep.samples.with_seed(cell.seed)
    seeded = sweep.scenario.with_seed(cell.seed)
    name, began = f"{cell.run.method} {cell.run.rule_name}, {cell.attack}", time.time()
    run = DirectRun(
        scenario_of(seeded, cell),
        samples,
        shown,
        limit=sweep.limit,
        seed=cell.seed,
        name=f"{name}, seed {cell.seed}",
        attack_plan=cell.attack_plan,
        evaluated=evaluated(seeded, samples),
    )
    run.run()
    assert run.result is not None
    assert run.errors is not None
    result = run.result
    return {
        "format": FORMAT,
        "name": cell.name,
        "definition": sweep.mark,
        "began": began,
        "cell": {
            "method": cell.run.method,
            "rule": cell.run.rule_name,
            "encoding": cell.run.encoding,
            "attack": cell.attack,
            "seed": cell.seed,
            "settings": dict(cell.run.settings),
            "attack_settings": cell.plan,
        },
        "versions": versions(),
        "machine": machine(),
        "result": {
            "rounds": result.version,
            "updates": result.updates,
            "bytes_up": result.up,
            "bytes_down": result.down,
            "seconds": result.seconds,
            "processor_seconds": result.processor,
            "setup_seconds": result.setup,
            "virtual_seconds": result.virtual,
            "refused": result.refused,
            "state": result.digest,
            "model": result.model,
        },
        "rounds": [asdict(replace(one, cohort=())) for one in result.rounds],
        "errors": {
            device: {
                "mae": _number(error.mae),
                "rmse": _number(error.rmse),
                "windows": error.windows,
            }
            for device, error in run.errors.each.items()
        },
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


class OtherSweepError(Failure):
    """The folder holds the runs of another sweep."""

    exit_code = USAGE


class CellExecutor(Protocol):
    """Runs cells, in this process or elsewhere."""

    def records(
        self, sweep: SweepDefinition, cells: Iterable[SweepCell]
    ) -> Iterator[tuple[SweepCell, dict[str, Any]]]:
        """Return each cell with its record, as the runs end."""


@dataclass(frozen=True)
class LocalExecutor:
    """Runs one cell after another in this process."""

    shown: Display  # display of the progress of each run

    def records(
        self, sweep: SweepDefinition, cells: Iterable[SweepCell]
    ) -> Iterator[tuple[SweepCell, dict[str, Any]]]:
        for cell in cells:
            yield cell, record_of(sweep, cell, self.shown)


@dataclass
class Sweep:
    """All runs of a scenario, its comparisons and attacks, over seeds."""

    scenario: Scenario  # scenario with its runs and attacks
    samples: SampleSet
    seeds: list[int]
    folder: Path  # folder of records and tables; an interrupted sweep is continued in it
    shown: Display
    limit: float = 600.0  # time limit of one run in seconds
    executor: CellExecutor | None = None  # runs the cells; None for this process
    resumed: int = 0  # number of cells whose record was there

    def run(self) -> list[dict[str, Any]]:
        """Run the missing cells, and return the records of all cells in order.

        Raises:
            OtherSweepError: The folder's definition is another one.
            TooSlow: A run did not end within its time limit; the records before it stay.
        """
        mark = self._begin()
        cells = cells_of(self.scenario, self.seeds)
        records = {cell.name: self._recorded(cell, mark) for cell in cells}
        missing = list({cell.name: cell for cell in cells if records[cell.name] is None}.values())
        done = self.resumed = len(cells) - len(missing)
        self.shown.advance("sweep", done, len(cells))
        sweep = SweepDefinition(self.scenario, self.samples, tuple(self.seeds), mark, self.limit)
        executor = LocalExecutor(self.shown) if self.executor is None else self.executor
        for cell, record in executor.records(sweep, missing) if missing else ():
            write_whole(self._path(cell), json.dumps(record, indent=1).encode())
            records[cell.name] = record
            done += 1
            self.shown.advance("sweep", done, len(cells))
        ended = [records[cell.name] for cell in cells]
        return [record for record in ended if record is not None]

    def _begin(self) -> str:
        """Write the definition, or compare it with that of the folder; return its digest."""
        wanted = definition(self.scenario, self.samples, self.seeds)
        path, mark = self.folder / "sweep.json", digest_of(wanted)
        if not path.is_file():
            write_whole(path, json.dumps(wanted, indent=1).encode())
            return mark
        found = json.loads(path.read_text(encoding="utf-8"))
        if digest_of(found) != mark:
            keys = sorted(key for key in wanted if found.get(key) != wanted[key])
            raise OtherSweepError(
                f"{path}: of another sweep; different: {', '.join(keys)}",
                hint="name another folder, or give the options of that sweep",
            )
        return mark

    def _path(self, cell: SweepCell) -> Path:
        return self.folder / "runs" / f"{cell.name}.json"

    def _recorded(self, cell: SweepCell, mark: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self._path(cell).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if found.get("definition") == mark else None
