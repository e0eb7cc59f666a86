"""The simulator's files, read by the SDK and by a second parser that neither knows."""

from __future__ import annotations

from datetime import UTC
from typing import get_args
from xml.etree import ElementTree as ET
from zoneinfo import ZoneInfo

import pytest

from edge_sdk.extensions.sources.base import RawFrame
from edge_sdk.extensions.sources.pm_periods import PmDecoder
from firmware_sim.ports.pm3gpp import COUNTERS, POWER, MeasurementReport, Standard, written
from firmware_sim.profiles.station import CellSite, Load, load

SUMS = {"DRB.PdcpSduVolumeDL", "DRB.PdcpSduVolumeUL"}
READ = {name: name in SUMS for name, _ in COUNTERS} | {POWER: False}
STANDARDS = get_args(Standard)
BEGIN = 1_774_746_000 - 900  # the quarter of an hour before clocks go forward in Amsterdam


def _report(**more: object) -> MeasurementReport:
    return MeasurementReport("site-7", BEGIN, 900, load(CellSite(7), BEGIN, 1), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("standard", STANDARDS)
@pytest.mark.parametrize("zone", [UTC, ZoneInfo("Europe/Amsterdam")])
def test_the_sdk_reads_the_written_values(standard: Standard, zone: ZoneInfo) -> None:
    report = _report(zone=zone)
    truth: Load = report.load

    found = {one.name: one for one in PmDecoder(READ)(RawFrame(written(report, standard), 0))}
    assert {one.time for one in found.values()} == {float(BEGIN)}
    assert {one.seconds for one in found.values()} == {900.0}
    assert found["DRB.PdcpSduVolumeDL"].value == pytest.approx(truth.dl.sum(), abs=1e-9)
    assert found["RRU.PrbTotDl"].value == pytest.approx(truth.dl_blocks.mean(), abs=1e-9)
    assert found[POWER].value == pytest.approx(truth.power.sum(), abs=0.06)


@pytest.mark.parametrize("standard", STANDARDS)
def test_a_suspect_and_a_missing_cell_make_sums_suspect(standard: Standard) -> None:
    for habit in ({"suspect": frozenset({1})}, {"missing": frozenset({1})}):
        found = {
            one.name: one
            for one in PmDecoder(READ)(RawFrame(written(_report(**habit), standard), 0))
        }
        assert found["DRB.PdcpSduVolumeDL"].flags
        assert not found[POWER].flags


def test_the_older_standard_is_well_formed_and_names_every_cell() -> None:
    tree = ET.fromstring(written(_report(), "32.435"))
    space = {"m": "http://www.3gpp.org/ftp/specs/archive/32_series/32.435#measCollec"}

    cells = [one.get("measObjLdn") for one in tree.iterfind(".//m:measValue", space)]
    assert cells == [f"GNBDUFunction=1,NRCellDU={n}" for n in (1, 2, 3)] + [""]
    assert tree.find(".//m:granPeriod", space).get("duration") == "PT900S"  # type: ignore[union-attr]


def test_the_newer_standard_is_written_in_a_vendors_form() -> None:
    data = written(_report(), "28.532")

    assert data.startswith(b"<?gridfed-sim")  # where XML allows nothing
    with pytest.raises(ET.ParseError):
        ET.fromstring(data)


def test_a_file_is_named_by_its_period_in_local_time() -> None:
    report = _report(zone=ZoneInfo("Europe/Amsterdam"))

    assert report.name == "A20260329.0145+0100-0300+0200_site-7.xml"
