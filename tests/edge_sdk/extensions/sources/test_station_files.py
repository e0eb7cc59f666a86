"""A simulated station's files through the configured source, as the agent reads them."""

from __future__ import annotations

import csv
import time
from collections import Counter
from pathlib import Path

import pytest

from edge_sdk.errors import ConfigError
from edge_sdk.extensions.sources.threaded_source import ThreadedSource
from edge_sdk.forecasting.series import STREAMS, Flag, Reading
from edge_sdk.sources import open_source
from firmware_sim.devices.base_station import FileFaultRates, FileWriter
from firmware_sim.profiles.station import CellSite

BEGIN = 1_767_571_200


def _source(folder: Path, **more: object) -> ThreadedSource:
    section = {
        "type": "pm3gpp",
        "folder": str(folder),
        "poll_interval": "0.02s",
        "max_age": "9999d",
    }
    source = open_source(section | more, "source[0]")
    assert isinstance(source, ThreadedSource)
    return source


def _listen(source: ThreadedSource, count: int) -> list[Reading]:
    """Poll as the agent does until so many readings of volume have come."""
    found: list[Reading] = []
    begun = time.monotonic()
    while sum(one.stream == "cell.traffic.dl.volume" for one in found) < count:
        found += source.poll()
        assert time.monotonic() - begun < 600
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("standard", ["32.435", "28.532"])
def test_readings_of_dropped_files_equal_the_true_load(tmp_path: Path, standard: str) -> None:
    faults = FileFaultRates(late=0.2, twice=0.1, suspect=0.1, missing=0.1)
    writer = FileWriter(CellSite(2), "a", tmp_path / "pm", standard, faults=faults)  # type: ignore[arg-type]
    counts = writer.run(BEGIN, 96, tmp_path / "truth.csv")
    with (tmp_path / "truth.csv").open(newline="") as text:
        truth = {float(row["time"]): float(row["dl_mbit"]) for row in csv.DictReader(text)}

    source = _source(tmp_path / "pm")
    source.start()
    found = _listen(source, counts["files"])
    source.close()

    volumes = [one for one in found if one.stream == "cell.traffic.dl.volume"]
    certain = {one.time: one.value for one in volumes if not one.flags & Flag.SUSPECT}
    assert all(one.seconds == 900 for one in volumes)
    assert all(abs(value - truth[time]) < 1e-6 for time, value in certain.items())
    assert len(certain) >= 96 - counts["suspect"] - counts["missing"]
    assert source.health()["accepted"] == counts["files"]
    watts = [one.value for one in found if one.stream == "site.power"]
    assert 0.1 < min(watts) <= max(watts) < 1.5  # kW of three cells, told in W


def test_a_truncated_file_is_counted_and_read_once_complete(tmp_path: Path) -> None:
    writer = FileWriter(CellSite(2), "a", tmp_path / "pm")
    writer.run(BEGIN, 1)
    (path,) = (tmp_path / "pm").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    source = _source(tmp_path / "pm")
    source.start()
    while not source.rejected:
        assert not list(source.poll())
        time.sleep(0.01)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(whole)
    part.replace(path)  # a file that is written in place is empty for a moment

    assert _listen(source, 1)
    source.close()
    assert source.rejected == Counter({"broken off": 1})


def test_every_shipped_counter_has_a_stream_with_a_unit() -> None:
    assert _source(Path("nowhere")).streams <= STREAMS.keys()


def test_a_source_without_a_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match="'folder' is missing"):
        open_source({"type": "pm3gpp"}, "source[0]")
