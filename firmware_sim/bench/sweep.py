"""Run every cell of a sweep directly, with a record of each; a killed sweep continues.

Each record is written whole after its run. A cell whose record is there is not run again.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edge_sdk.app.cli import USAGE, Failure
from firmware_sim.bench.cells import SweepCell, cells_of, evaluated, scenario_of
from firmware_sim.bench.files import write_whole
from firmware_sim.bench.run_record import FORMAT, definition, digest_of, machine, versions
from firmware_sim.direct.run import DirectRun
from firmware_sim.reports.progress_display import Display
from firmware_sim.samples import SampleSet
from firmware_sim.scenario import Scenario


class OtherSweepError(Failure):
    """The folder holds the runs of another sweep."""

    exit_code = USAGE


@dataclass
class Sweep:
    """All runs of a scenario, its comparisons and attacks, over seeds.

    Attributes:
        scenario: Scenario with its runs and attacks.
        samples: Set of readings.
        seeds: Seeds of the runs.
        folder: Folder of records and tables; an interrupted sweep is continued in it.
        shown: Display of the progress.
        limit: Time limit of one run in seconds.
        resumed: Number of cells whose record was there.
    """

    scenario: Scenario
    samples: SampleSet
    seeds: list[int]
    folder: Path
    shown: Display
    limit: float = 600.0
    resumed: int = 0

    def run(self) -> list[dict[str, Any]]:
        """Run what is missing, and return the records of all cells in order.

        Raises:
            OtherSweepError: The folder's definition is another one.
            TooSlow: A run did not end within its time limit; the records before it stay.
        """
        mark = self._begin()
        cells, records = cells_of(self.scenario, self.seeds), []
        for number, cell in enumerate(cells):
            self.shown.advance("sweep", number, len(cells))
            found = self._recorded(cell, mark)
            if found is None:
                found = self._execute(cell, mark)
                write_whole(self._path(cell), json.dumps(found, indent=1).encode())
            else:
                self.resumed += 1
            records.append(found)
        self.shown.advance("sweep", len(cells), len(cells))
        return records

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
        """Return the record of a cell; None if it is missing, damaged or of another definition."""
        try:
            found: dict[str, Any] = json.loads(self._path(cell).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if found.get("definition") == mark else None

    def _execute(self, cell: SweepCell, mark: str) -> dict[str, Any]:
        samples = self.samples.with_seed(cell.seed)
        seeded = self.scenario.with_seed(cell.seed)
        name, began = f"{cell.run.method} {cell.run.rule_name}, {cell.attack}", time.time()
        run = DirectRun(
            scenario_of(seeded, cell),
            samples,
            self.shown,
            limit=self.limit,
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
            "definition": mark,
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
    """Return a number for JSON, which has no infinity."""
    return value if math.isfinite(value) else None
