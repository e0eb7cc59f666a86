"""Shipped readings: the sets, their licences, and the columns of their devices.

A folder of the user's own CSV files works the same way: one file is one device, with ``time`` and
the columns of the set that it replaces (``SampleSet.of_folder``).
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import USAGE, Failure

SEED = "-seed-"  # between a device's name and the seed of a repeated run
DATA = Path(__file__).parent / "data"


class SampleError(Failure):
    """A set, a file or a column that is missing, or differs from the index."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class DeviceReadings:
    """The readings of one device."""

    device: str
    path: Path
    sha256: str | None = None  # None for a file of your own

    def verify(self) -> None:
        """Raise ``SampleError`` if the file differs from the checksum in the index."""
        if self.sha256 is None:
            return
        if hashlib.sha256(self.path.read_bytes()).hexdigest() != self.sha256:
            raise SampleError(f"{self.path.name} differs from the checksum in index.json")

    def column(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return UTC seconds and values of one column; an empty cell is NaN. Shapes ``(n,)``.

        Many devices of a fleet read one file: the arrays are shared and read-only.
        """
        return _column(self.path, self.path.stat().st_mtime_ns, name)

    def columns(self) -> tuple[str, ...]:
        return _header(self.path, self.path.stat().st_mtime_ns)

    def step(self, name: str) -> int | None:
        """Return the most frequent distance of two rows in seconds; None with fewer than two."""
        times = np.unique(self.column(name)[0])
        if len(times) < 2:
            return None
        steps, counts = np.unique(np.diff(times), return_counts=True)
        return int(steps[np.argmax(counts)])


@dataclass(frozen=True, slots=True)
class SampleSet:
    """Devices of one kind, with the licence of their readings."""

    name: str
    title: str
    kind: str  # "measured" or "simulated"
    licence: str
    attribution: str
    step_seconds: int
    target: str  # the column that is forecast
    unit: str
    columns: Mapping[str, str]  # column -> canonical stream
    samples: tuple[DeviceReadings, ...]

    def present(self, sample: DeviceReadings) -> dict[str, str]:
        """Return the stream of each column that a device's file has."""
        found = sample.columns()
        if self.target not in found:
            raise SampleError(
                f"{sample.path.name} has no column {self.target!r}; it has: {', '.join(found)}",
                hint="rename the column of the readings, or name the set it resembles with --like",
            )
        return {name: stream for name, stream in self.columns.items() if name in found}

    def with_seed(self, seed: int) -> SampleSet:
        """Return the set with devices of other names, which draw other minibatches; 0 is this one.

        >>> [one.device for one in sample_set("homes").with_seed(3).samples][:1]
        ['home-102040-seed-3']
        """
        names = (f"{one.device}{SEED}{seed}" if seed else one.device for one in self.samples)
        renamed = (replace(one, device=name) for one, name in zip(self.samples, names, strict=True))
        return replace(self, samples=tuple(renamed))

    def of_folder(self, folder: Path) -> SampleSet:
        """Return the set with the CSV files of ``folder`` as devices; raise SampleError if there are none."""
        files = sorted(x for x in folder.glob("*.csv*") if x.name.endswith((".csv", ".csv.gz")))
        if not files:
            raise SampleError(f"no *.csv or *.csv.gz file in {folder}")
        samples = tuple(DeviceReadings(x.name.split(".csv")[0], x) for x in files)
        own = {"name": str(folder), "title": f"readings in {folder}", "kind": "measured"}
        terms = {"licence": "yours", "attribution": str(folder), "samples": samples}
        kept = {x: getattr(self, x) for x in SampleSet.__slots__}
        return SampleSet(**(kept | own | terms))


@lru_cache(maxsize=1024)
def _header(path: Path, _changed: int) -> tuple[str, ...]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as text:
        return tuple(next(csv.reader(text), ()))


@lru_cache(maxsize=256)
def _column(path: Path, _changed: int, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as text:
        rows = csv.DictReader(text)
        if name not in (rows.fieldnames or ()):
            raise SampleError(f"{path.name} has no column {name!r}")
        pairs = [(instant(row["time"]), float(row[name] or "nan")) for row in rows]
    seconds, numbers = zip(*pairs, strict=True)
    times, values = np.array(seconds, np.int64), np.array(numbers, np.float64)
    times.flags.writeable = values.flags.writeable = False
    return times, values


def instant(text: str) -> int:
    """Return UTC seconds of an ISO 8601 time; without an offset it is taken as UTC.

    >>> instant("2018-01-01T08:00Z"), instant("2018-01-01T00:00-08:00"), instant("1970-01-01")
    (1514793600, 1514793600, 0)
    """
    time = datetime.fromisoformat(text)
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())


@cache
def sample_sets() -> Mapping[str, SampleSet]:
    """Return every shipped set by name.

    >>> sorted(sample_sets())
    ['cells', 'chargers', 'homes']
    """
    index = json.loads((DATA / "index.json").read_text(encoding="utf-8"))
    return {row["name"]: _set(row) for row in index["sets"]}


def _set(row: Mapping[str, Any]) -> SampleSet:
    samples = tuple(
        DeviceReadings(x["device"], DATA / x["path"], x["sha256"]) for x in row["files"]
    )
    kept = {name: row[name] for name in SampleSet.__slots__ if name != "samples"}
    return SampleSet(**kept, samples=samples)


def sample_set(name: str) -> SampleSet:
    """Return one shipped set; raise SampleError with the names if it does not exist."""
    sets = sample_sets()
    if name not in sets:
        raise SampleError(f"no sample set {name!r}; there are: {', '.join(sorted(sets))}")
    return sets[name]
