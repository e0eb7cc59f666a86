"""Performance files: both standards, what vendors make of them, and what nobody should."""

from __future__ import annotations

import gzip
import math
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable

import pytest

from edge_sdk.extensions.sources import pm3gpp, pm_periods
from edge_sdk.extensions.sources.base import RawFrame, Rejected
from edge_sdk.extensions.sources.pm3gpp import measured, moment, period
from edge_sdk.extensions.sources.pm_periods import PmDecoder
from edge_sdk.forecasting.series import Flag

COUNTERS = {"DRB.PdcpSduVolumeDL": True, "RRU.PrbTotDl": False}
HEAD_32435 = """<?xml version="1.0" encoding="UTF-8"?>
<?xml-stylesheet type="text/xsl" href="MeasDataCollection.xsl"?>
<measCollecFile xmlns="http://www.3gpp.org/ftp/specs/archive/32_series/32.435#measCollec">
<fileHeader fileFormatVersion="32.435 V10.0" vendorName="Made up">
<fileSender localDn="SubNetwork=1" elementType="gNB"/>
<measCollec beginTime="2026-03-29T01:45:00+01:00"/></fileHeader>
<measData><managedElement localDn="ManagedElement=site-7" swVersion="1"/>
"""
TAIL_32435 = """</measData>
<fileFooter><measCollec endTime="2026-03-29T03:00:00+02:00"/></fileFooter></measCollecFile>
"""
LISTS = """<measInfo measInfoId="volumes"><job jobId="1"/>
<granPeriod duration="PT900S" endTime="2026-03-29T03:00:00+02:00"/><repPeriod duration="PT900S"/>
<measTypes>DRB.PdcpSduVolumeDL DRB.PdcpSduVolumeDL.01 RRU.PrbTotDl</measTypes>
<measValue measObjLdn="NRCellDU=1"><measResults>120.5 7 40</measResults></measValue>
<measValue measObjLdn="NRCellDU=2"><measResults>79.5 NIL 20</measResults>
<suspect>false</suspect></measValue></measInfo>
"""
VENDOR_28532 = """<?vendor tool="x"?>
<?xml version="1.0" encoding="UTF-8"?>
<measDataFile xmlns="http://www.3gpp.org/ftp/specs/archive/28_series/28.532#measData">
<fileHeader fileFormatVersion="28.532 V16" vendorName="Made up">
<fileSender senderName="DN=1" senderType="gNBDU"/><measData beginTime="2026-01-01T00:00:00+0000"/>
</fileHeader><measData><measEntity localDn="ManagedElement=9" userLabel=""/>
<measInfo><granPeriod duration="PT60S" endTime="2026-01-01T01:01:00+0100"/>
<repPeriod duration="PT120S"/>
<measType p="5">RRU.PrbTotDl</measType><measType p="2">DRB.PdcpSduVolumeDL</measType>
<measValue measObjLdn=""><r p="2">11</r><r p="5">55.5</r></measValue></measInfo></measData>
<fileFooter><measData endTime="2026-01-01T00:02:00+0000"/></fileFooter></measDataFile>
"""
FILE = (HEAD_32435 + LISTS + TAIL_32435).encode()


def _by_name(*files: bytes) -> dict[str, tuple[float, float, float | None, int]]:
    read = PmDecoder(COUNTERS)
    samples = [one for data in files for one in read(RawFrame(data, 0)) if not one.fault]
    return {one.name: (one.time, one.value, one.seconds, one.flags) for one in samples}


def test_counters_of_all_cells_are_summed_for_a_station() -> None:
    begin = moment("2026-03-29T00:45:00Z")  # the offset changes within the period; UTC does not

    assert _by_name(FILE) == {
        "DRB.PdcpSduVolumeDL": (begin, 200.0, 900.0, 0),
        "RRU.PrbTotDl": (begin, 30.0, 900.0, 0),
    }


def test_a_vendor_file_of_ts_28_532_is_read() -> None:
    assert _by_name(VENDOR_28532.encode()) == {
        "RRU.PrbTotDl": (moment("2026-01-01T00:00:00Z"), 55.5, 60.0, 0),
        "DRB.PdcpSduVolumeDL": (moment("2026-01-01T00:00:00Z"), 11.0, 60.0, 0),
    }


@pytest.mark.parametrize("split", [0, 10, 900])
def test_a_gzip_file_of_any_number_of_members_is_read_as_a_plain_one(split: int) -> None:
    packed = gzip.compress(FILE[:split]) + gzip.compress(FILE[split:]) + bytes(512)
    assert _by_name(packed) == _by_name(FILE)


def test_a_suspect_cell_makes_the_sum_suspect() -> None:
    doubted = FILE.replace(b"<suspect>false", b"<suspect>true")

    assert all(flags == Flag.SUSPECT for *_, flags in _by_name(doubted).values())


@pytest.mark.parametrize("nothing", ["NIL", "", "-", "nan", "inf", "bananas", "1e999"])
def test_a_sum_without_a_cell_is_suspect_and_a_mean_uses_the_others(nothing: str) -> None:
    one_by_one = VENDOR_28532.replace(
        "</measValue>",
        f"""</measValue><measValue measObjLdn="b"><r p="2">{nothing}</r><r p="5">{nothing}</r>
        </measValue>""",
    )

    found = _by_name(one_by_one.encode())
    assert found["DRB.PdcpSduVolumeDL"][1::2] == (11.0, Flag.SUSPECT)
    assert found["RRU.PrbTotDl"][1::2] == (55.5, Flag.NONE)


def test_a_missing_value_is_nan() -> None:
    empty = VENDOR_28532.replace(">55.5<", "><").encode()

    assert math.isnan(_by_name(empty)["RRU.PrbTotDl"][1])


def test_only_the_selected_subjects_count() -> None:
    one = PmDecoder(COUNTERS, "*CellDU=2")(RawFrame(FILE, 0))

    assert {sample.name: sample.value for sample in one if not sample.fault} == {
        "DRB.PdcpSduVolumeDL": 79.5,
        "RRU.PrbTotDl": 20.0,
    }


def test_an_object_written_twice_counts_once() -> None:
    twice = (HEAD_32435 + LISTS + LISTS + TAIL_32435).encode()

    assert _by_name(twice) == _by_name(FILE)


def _file(
    *objects: tuple[str, str, str],
    end: str = "00:15",
    sender: str = "SubNetwork=1",
    prefix: str = "",
) -> bytes:
    """Return a file of objects: element, object and its volume, in the order of the standard."""
    data = "".join(
        f"""<measData><managedElement localDn="{element}"/><measInfo>
        <granPeriod duration="PT900S" endTime="2026-01-01T{end}:00Z"/>
        <measTypes>DRB.PdcpSduVolumeDL RRU.PrbTotDl</measTypes>
        <measValue measObjLdn="{subject}"><measResults>{text}</measResults></measValue>
        </measInfo></measData>"""
        for element, subject, text in objects
    )
    head = f"""<measCollecFile><fileHeader dnPrefix="{prefix}"><fileSender localDn="{sender}"/></fileHeader>"""
    return (head + data + "</measCollecFile>").encode()


A1, A2, B1 = ("A", "Cell=1", "1000 40"), ("A", "Cell=2", "500 20"), ("B", "Cell=1", "300 30")


@pytest.mark.parametrize(
    ("files", "volume", "load", "flags"),
    [
        ([_file(A1, A2)], 1500, 30, 0),
        ([_file(A1, B1)], 1300, 35, 0),
        ([_file(A1), _file(A2)], 1500, 30, 0),
        ([_file(A1), _file(B1), _file(A2)], 1800, 30, 0),
        ([gzip.compress(_file(A1)), _file(B1)], 1300, 35, 0),
        ([_file(A1), _file(A1)], 1000, 40, 0),  # the same file again
        ([_file(A1), _file(("A", "Cell=1", "900 30"))], 900, 30, 0),  # and corrected
        ([_file(A1), _file(("A", "Cell=1", "NIL 40"))], 1000, 40, 0),
        ([_file(A1, ("A", "Cell=1", "900 40"))], math.nan, 40, Flag.SUSPECT),  # two values in one
        ([_file(A1), _file(A1, sender="SubNetwork=2")], 2000, 40, 0),
        ([_file(A1, prefix="P"), _file(A1, prefix="P", sender="SubNetwork=2")], 1000, 40, 0),
        ([_file(A1, prefix="P"), _file(A1, prefix="Q")], 2000, 40, 0),
        # a period that lacks a cell of the one before, until its file arrives
        ([_file(A1), _file(A2), _file(A1, end="00:30")], 1000, 40, Flag.SUSPECT),
        ([_file(A1), _file(A2), _file(A1, end="00:30"), _file(A2, end="00:30")], 1500, 30, 0),
        ([_file(A1), _file(A2), _file(A1, end="00:45")], 1000, 40, 0),
    ],
)
def test_the_objects_of_a_period_are_added_whatever_file_or_element_they_are_in(
    files: list[bytes], volume: float, load: float, flags: int
) -> None:
    found = _by_name(*files)
    assert found["DRB.PdcpSduVolumeDL"][1::2] == pytest.approx((volume, int(flags)), nan_ok=True)
    assert found["RRU.PrbTotDl"][1] == load


def test_what_is_in_a_file_and_not_used_is_named_once() -> None:
    read = PmDecoder({"DRB.PdcpSduVolumeDL": True}, "*Cell=1")
    found = [(one.name, one.fault) for one in read(RawFrame(_file(A1, A2, A2), 0)) if one.fault]
    assert sorted(found) == [
        ("RRU.PrbTotDl", "not mapped"),
        ("object 'Cell=2' outside 'objects'", "not mapped"),
    ]
    again = read(RawFrame(_file(("A", "Cell=1", "7 1")), 0))
    assert ("DRB.PdcpSduVolumeDL", "sent again by a later file") in {
        (x.name, x.fault) for x in again
    }


def test_a_file_of_a_period_that_is_not_kept_any_more_replaces_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pm_periods, "_KEPT", 4)
    read = PmDecoder(COUNTERS)
    for minute in (15, 30, 45):
        assert len(read(RawFrame(_file(A1, end=f"00:{minute}"), 0))) == 2
    late = read(RawFrame(_file(A2), 0))
    assert {one.fault for one in late} == {"later than the periods kept"}
    assert [one.value for one in read(RawFrame(_file(A2, end="00:30"), 0))] == [1500, 30]
    old = _file(A1, end="00:16")  # kept for no further file, and a period of its own
    assert [one.value for one in read(RawFrame(old, 0))] == [1000, 40]


def test_every_group_has_its_own_period() -> None:
    hour = LISTS.replace("PT900S", "PT1H")
    both = PmDecoder(COUNTERS)(RawFrame((HEAD_32435 + LISTS + hour + TAIL_32435).encode(), 0))

    assert sorted({sample.seconds for sample in both if sample.seconds}) == [900.0, 3600.0]


BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;">]>'
    b"<measDataFile>&b;</measDataFile>"
)
OUTSIDE = (
    b'<?xml version="1.0"?><!DOCTYPE a SYSTEM "file:///etc/passwd"><measDataFile></measDataFile>'
)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "broken off"),
        (FILE[: len(FILE) // 2], "broken off"),
        (gzip.compress(FILE, mtime=0)[:-40], "broken off"),
        (gzip.compress(FILE, mtime=0)[:10] + b"\xff" * 40, "not gzip"),
        (b"\x00\x01\x02", "not xml"),
        (FILE.replace(b"UTF-8", b"F-8"), "unknown encoding"),
        (b"<html><body/></html>", "not a file of measurements"),
        (BOMB, "document type"),
        (OUTSIDE, "document type"),
        (FILE.replace(b'"PT900S" endTime', b'"PT0S" endTime'), "no period"),
        (FILE.replace(b"03:00:00+02:00", b"03:00:00"), "no period"),
        (FILE.replace(b"<granPeriod", b"<granularity"), "no period"),
        (gzip.compress(FILE) + b"more", "not gzip"),
        (b"<measDataFile>" + b"<a>" * 100, "nested too deep"),
        (b"<measDataFile>" + b"a" * (2 << 20), "text too long"),
        (b"<measDataFile><![CDATA[" + b"a" * (2 << 20), "text too long"),
        (b'<measDataFile a="' + b"a" * (1 << 18) + b'"/>', "tag too long"),
        (b'<measDataFile a="' + b"a" * 40_000 + b'" b="' + b"a" * 40_000 + b'"/>', "tag too long"),
        (b"<measDataFile " + b"a" * (1 << 18) + b"/>", "tag too long"),
        (b"<measDataFile><!--" + b"a" * (1 << 18) + b"-->", "tag too long"),
        (b"<measDataFile><?a " + b"a" * (1 << 18) + b"?>", "tag too long"),
        (("<a b='" + "\u3e3e" * (1 << 17) + "'/>").encode("utf-16"), "tag too long"),
        (b"<?a?>" * 64, "broken off"),  # read in linear time, without a declaration after it
    ],
)
def test_an_unreadable_file_is_rejected_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(Rejected) as caught:
        measured(data, COUNTERS)

    assert caught.value.reason == reason


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_oversized_gzip_file_is_not_unpacked_entirely(
    pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pm3gpp, "LARGEST", 1 << 18)
    with pytest.raises(Rejected, match="too large"):
        measured(pack(b"<measDataFile>" + b" <a/>" * (1 << 17)), COUNTERS)


def test_the_number_of_elements_and_values_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pm3gpp, "_ELEMENTS", 100)
    with pytest.raises(Rejected, match="too many elements"):
        measured(b"<measDataFile>" + b"<a/>" * 100, COUNTERS)
    monkeypatch.setattr(pm3gpp, "_VALUES", 2)
    with pytest.raises(Rejected, match="too many values"):
        measured(FILE, COUNTERS)


@pytest.mark.parametrize("text", ["", "P", "PT", "900", "PT-5S", "PT0S", "P1Y"])
def test_an_invalid_period_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        period(text)


def test_two_thousand_damaged_files_are_read_or_rejected() -> None:
    rng, outcomes, read = random.Random(32435), Counter[str](), PmDecoder(COUNTERS)
    tracemalloc.start()
    try:
        for number in range(2000):
            data = bytearray(FILE if number % 2 else VENDOR_28532.encode())
            for _ in range(rng.randrange(1, 6)):
                at = rng.randrange(len(data))
                kind = rng.randrange(3)
                if kind == 0:
                    data[at] = rng.randrange(256)
                elif kind == 1:
                    del data[at : at + rng.randrange(1, 40)]
                else:
                    data[at:at] = data[at : at + rng.randrange(1, 40)]
            packed = gzip.compress(bytes(data)) if number % 5 == 0 else bytes(data)
            try:
                samples = read(RawFrame(packed, 0))
            except Rejected as verdict:
                outcomes[verdict.reason] += 1
            else:
                outcomes["read"] += 1
                assert all(one.name in COUNTERS for one in samples if not one.fault)
            if number == 200:
                settled = tracemalloc.get_traced_memory()[0]
        grown = tracemalloc.get_traced_memory()[0] - settled
    finally:
        tracemalloc.stop()

    assert sum(outcomes.values()) == 2000
    assert outcomes["read"] > 100
    assert outcomes["not xml"] > 100
    assert grown < 1 << 20
