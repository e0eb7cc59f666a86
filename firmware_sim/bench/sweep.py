"""Run every cell of a sweep, with a record of each; a killed sweep continues.

Each record is written whole after its run. A cell whose record is there is not run again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from edge_sdk.errors import USAGE, Failure
from firmware_sim.bench.cells import SweepCell, SweepDefinition, cells_of, record_of
from firmware_sim.bench.results import write_whole
from firmware_sim.bench.run_record import definition, digest_of
from firmware_sim.reports.progress_display import Display
from firmware_sim.samples import SampleSet
from firmware_sim.scenario import Scenario


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
