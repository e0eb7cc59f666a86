"""Simulated base station that writes performance files at any speed, with faults.

Time is the files' own: ``speed`` seconds of it pass in one real second, or it runs as fast as the
disk allows. A delay of a file is in that time too.
"""

from __future__ import annotations

import csv
import gzip
import heapq
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from edge_sdk.app.settings import SettingsError
from firmware_sim.ports.pm3gpp import MeasurementReport, Standard, written
from firmware_sim.profiles.station import CellSite, Load, load
from firmware_sim.profiles.weather import draw

_SLOWLY = 3.0  # seconds between the halves of a file


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return True


@dataclass(frozen=True, slots=True)
class FileFaultRates:
    """Rates of the faults of files, as fractions of the files; 0 by default."""

    late: float = 0.0  # the file is written one to ten minutes after its period
    twice: float = 0.0  # the same file is written again under another name
    broken: float = 0.0  # the file is truncated, and is written whole a period later
    lost: float = 0.0  # the file is never written: the node was starting
    suspect: float = 0.0  # the manager marks the values of a cell as suspect
    missing: float = 0.0  # a cell has no values
    slow: float = 0.0  # the file is written slowly under its final name instead of renamed

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> FileFaultRates:
        """Read ``--fault`` options.

        Raises:
            SettingsError: An unknown fault, or a rate out of range.

        >>> FileFaultRates.of({"late": 0.1}).late
        0.1
        """
        known = [one.name for one in fields(cls)]
        for name, value in options.items():
            if name not in known:
                raise SettingsError(f"--fault {name}: unknown; known: {', '.join(known)}")
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                raise SettingsError(f"--fault {name}: {value!r} is not a share from 0 to 1")
        return cls(**{name: float(value) for name, value in options.items()})


@dataclass(slots=True)
class FileWriter:
    """Writes the measurements of a station, a period at a time."""

    station: CellSite  # source of the load
    name: str
    folder: Path
    standard: Standard = "32.435"
    seconds: int = 900  # length of a period
    is_packed: bool = True
    faults: FileFaultRates = field(default_factory=FileFaultRates)
    speed: float = 0.0  # seconds of the files' time in one real second; 0 is as fast as possible
    wait: Callable[[float], bool] = _sleep  # waits for real seconds; returns False to stop
    counts: Counter[str] = field(default_factory=Counter)  # numbers of files and faults, by kind
    _due: list[tuple[float, int, Path, bytes, bool]] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)
    _now: float = 0.0

    def run(self, begin: int, periods: int, truth: Path | None = None) -> Counter[str]:
        """Write the files of some periods; return the counts.

        Args:
            begin: Unix seconds of the first period.
            truth: CSV file for the true load, by period, summed over cells.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        rng = draw("files", self.station.seed, begin)
        loads = load(self.station, begin, periods, self.seconds)
        if truth is not None:
            _write_truth(truth, loads, begin, self.seconds)
        self._now = float(begin)
        for i in range(periods):
            start = begin + i * self.seconds
            one = Load(*(array[i : i + 1] for array in loads))
            self._plan(rng, start, one)
            if not self._write_until(start + 2 * self.seconds if i == periods - 1 else start):
                break
        self._write_until(float("inf") if self.speed == 0 else self._now + 600)
        return self.counts

    def _plan(self, rng: np.random.Generator, start: int, one: Load) -> None:
        chance, cells, faults = rng.random(7), self.station.cells, self.faults
        if chance[0] < faults.lost:
            self.counts["lost"] += 1
            return
        suspect = frozenset({int(rng.integers(cells))} if chance[1] < faults.suspect else ())
        missing = frozenset({int(rng.integers(cells))} if chance[2] < faults.missing else ())
        report = MeasurementReport(
            self.name, start, self.seconds, one, self.station.zone, suspect, missing
        )
        data = written(report, self.standard)
        path = self.folder / report.name
        if self.is_packed:
            data, path = gzip.compress(data, mtime=0), path.with_name(path.name + ".gz")
        due = start + self.seconds + 5.0
        self.counts.update(["suspect"] * len(suspect) + ["missing"] * len(missing))
        if chance[3] < faults.late:
            self.counts["late"] += 1
            due += 60 + 540 * rng.random()
        if chance[4] < faults.broken:
            self.counts["broken"] += 1
            self._push(due, path, data[: len(data) // 2], is_slow=False)
            due += self.seconds
        self._push(due, path, data, is_slow=bool(chance[6] < faults.slow))
        if chance[5] < faults.twice:
            self.counts["twice"] += 1
            self._push(due + self.seconds, path.with_name(f"copy_{path.name}"), data, is_slow=False)

    def _push(self, due: float, path: Path, data: bytes, *, is_slow: bool) -> None:
        heapq.heappush(self._due, (due, next(self._order), path, data, is_slow))

    def _write_until(self, moment: float) -> bool:
        while self._due and self._due[0][0] <= moment:
            due, _, path, data, is_slow = heapq.heappop(self._due)
            if not self._wait_until(due):
                return False
            self._write(path, data, is_slow=is_slow)
        return moment == float("inf") or self._wait_until(moment)

    def _wait_until(self, moment: float) -> bool:
        seconds, self._now = moment - self._now, max(self._now, moment)
        return self.speed == 0 or seconds <= 0 or self.wait(seconds / self.speed)

    def _write(self, path: Path, data: bytes, *, is_slow: bool) -> None:
        self.counts["files"] += 1
        if not is_slow:
            part = path.with_name(f"{path.name}.part")
            part.write_bytes(data)
            part.rename(path)
            return
        self.counts["slow"] += 1
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            if self.speed:
                self.wait(min(_SLOWLY, self.seconds / self.speed / 4))
            file.write(data[len(data) // 2 :])


def _write_truth(path: Path, loads: Load, begin: int, seconds: int) -> None:
    with path.open("w", encoding="utf-8", newline="") as text:
        out = csv.writer(text, lineterminator="\n")
        out.writerow(["time", "dl_mbit", "ul_mbit", "dl_blocks_percent", "power_w"])
        for i in range(len(loads.dl)):
            row = (
                loads.dl[i].sum(),
                loads.ul[i].sum(),
                loads.dl_blocks[i].mean(),
                loads.power[i].sum(),
            )
            out.writerow([begin + i * seconds, *(round(float(value), 6) for value in row)])
