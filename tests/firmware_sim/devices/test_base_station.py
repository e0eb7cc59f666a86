"""A station drops files; what the SDK makes of them is what happened, whatever goes wrong."""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from pathlib import Path

import pytest

from edge_sdk.app.settings import SettingsError
from edge_sdk.extensions.sources.base import RawFrame, Rejected
from edge_sdk.extensions.sources.pm_periods import PmDecoder
from firmware_sim.devices.base_station import FileFaultRates, FileWriter
from firmware_sim.profiles.station import CellSite

BEGIN, DAY = 1_767_571_200, 96


def _read(folder: Path) -> tuple[dict[float, float], Counter[str]]:
    found, outcomes, read = {}, Counter[str](), PmDecoder({"DRB.PdcpSduVolumeDL": True})
    for path in sorted(folder.iterdir()):
        try:
            samples = read(RawFrame(path.read_bytes(), 0))
        except Rejected as verdict:
            outcomes[verdict.reason] += 1
            continue
        for one in (x for x in samples if not x.fault):
            outcomes["suspect" if one.flags else "read"] += 1
            if not one.flags:
                found[one.time] = one.value
    return found, outcomes


def _truth(path: Path) -> dict[float, float]:
    with path.open(newline="") as text:
        return {float(row["time"]): float(row["dl_mbit"]) for row in csv.DictReader(text)}


def test_without_faults_the_files_hold_the_true_load(tmp_path: Path) -> None:
    writer = FileWriter(CellSite(1), "a", tmp_path / "pm")
    counts = writer.run(BEGIN, DAY, tmp_path / "truth.csv")

    found, _ = _read(tmp_path / "pm")
    truth = _truth(tmp_path / "truth.csv")
    assert counts == {"files": DAY}
    assert found.keys() == truth.keys()
    assert all(abs(found[time] - truth[time]) < 1e-6 for time in truth)


def test_every_fault_is_counted_and_causes_no_wrong_value(tmp_path: Path) -> None:
    faults = FileFaultRates(0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1)
    writer = FileWriter(CellSite(1), "a", tmp_path / "pm", "28.532", faults=faults)
    counts = writer.run(BEGIN, 7 * DAY, tmp_path / "truth.csv")

    found, outcomes = _read(tmp_path / "pm")
    truth = _truth(tmp_path / "truth.csv")
    assert set(counts) == {
        *("files", "late", "twice", "broken", "lost", "suspect", "missing", "slow")
    }
    assert len(list((tmp_path / "pm").iterdir())) == 7 * DAY - counts["lost"] + counts["twice"]
    assert set(outcomes) == {"read", "suspect"}
    assert all(abs(value - truth[time]) < 1e-6 for time, value in found.items())


def test_a_truncated_file_is_complete_a_period_later(tmp_path: Path) -> None:
    seen: list[Counter[str]] = []

    def look(_seconds: float) -> bool:
        if (tmp_path / "pm").is_dir():
            seen.append(_read(tmp_path / "pm")[1])
        return True

    writer = FileWriter(
        CellSite(1), "a", tmp_path / "pm", faults=FileFaultRates(broken=1.0), speed=1e9, wait=look
    )
    writer.run(BEGIN, 4)

    assert any(outcomes["broken off"] for outcomes in seen)
    assert _read(tmp_path / "pm")[1] == {"read": 4}


def test_late_files_are_written_when_due(tmp_path: Path) -> None:
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return True

    writer = FileWriter(
        CellSite(1),
        "a",
        tmp_path,
        faults=FileFaultRates(late=1.0),
        speed=60.0,
        wait=wait,
    )
    writer.run(BEGIN, 3)

    assert writer.counts["late"] == 3
    assert 3 * 15 <= sum(waited) <= 3 * 15 + 30  # seconds of ours: a minute of theirs each


def test_a_stop_request_ends_the_station(tmp_path: Path) -> None:
    writer = FileWriter(CellSite(1), "a", tmp_path, speed=1.0, wait=lambda _seconds: False)

    assert writer.run(BEGIN, 96) == {}


def test_files_can_be_written_uncompressed(tmp_path: Path) -> None:
    FileWriter(CellSite(1), "a", tmp_path, is_packed=False).run(BEGIN, 1)
    (plain,) = tmp_path.iterdir()
    FileWriter(CellSite(1), "a", tmp_path).run(BEGIN, 1)

    packed = plain.with_name(plain.name + ".gz")
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()


@pytest.mark.parametrize("option", [{"late": 2}, {"late": "often"}, {"lazy": 0.1}])
def test_an_unknown_file_fault_is_refused(option: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="--fault"):
        FileFaultRates.of(option)
