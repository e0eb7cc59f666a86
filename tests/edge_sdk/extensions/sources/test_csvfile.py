"""CSV files as people have them."""

from __future__ import annotations

import gzip
import itertools
from datetime import UTC, date, datetime

import numpy as np
import pytest

from edge_sdk.errors import ConfigError
from edge_sdk.extensions.sources.csv_columns import proposed_columns
from edge_sdk.extensions.sources.file_bounds import LONGEST_LINE, refused
from edge_sdk.sources import SOURCES

LOAD = "elec.import.energy"


@pytest.fixture
def source(tmp_path):
    def build(text, name="load.csv", **section):
        path = tmp_path / name
        raw = text if isinstance(text, bytes) else text.encode()
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") and text else raw)
        section.setdefault("columns", {"kwh": LOAD})
        return SOURCES["csv"]({"type": "csv", "path": str(path), **section})

    return build


def pairs(source):
    return [(reading.time, reading.value) for reading in source]


@pytest.mark.parametrize("name", ["load.csv", "load.csv.gz"])
def test_times_with_an_offset_ignore_the_zone(source, name):
    csv = source("time,kwh\n2024-01-01T00:00:00Z,1.5\n2024-01-01T02:00:00+01:00,2\n", name)
    assert pairs(csv) == [(1_704_067_200, 1.5), (1_704_070_800, 2.0)]
    assert not csv.rejected


def test_times_without_one_are_utc_unless_a_zone_is_named(source):
    text = "time,kwh\n2024-07-01 00:00,1\n"
    assert pairs(source(text))[0][0] == 1_719_792_000
    assert pairs(source(text, time_zone="Europe/Amsterdam"))[0][0] == 1_719_792_000 - 7200


def test_the_repeated_hour_of_a_clock_change_becomes_two_hours(source):
    rows = "".join(f"2024-10-27 {h:02d}:00,{i}\n" for i, h in enumerate([1, 2, 2, 3]))
    times = [t for t, _ in pairs(source("time,kwh\n" + rows, time_zone="Europe/Amsterdam"))]
    assert [b - a for a, b in itertools.pairwise(times)] == [3600] * 3


def test_unix_seconds_are_read(source):
    assert pairs(source("t,kwh\n3600,1\nx,2\nnan,3\n", time_column="t", time_format="epoch")) == [
        (3600.0, 1.0)
    ]


def test_several_columns_and_only_the_rows_of_one_device(source):
    csv = source(
        "id;time;kwh;temp\na;2024-01-01;1;20\nb;2024-01-01;9;9\n",
        delimiter=";",
        filter={"id": "a"},
        columns={"kwh": LOAD, "temp": "weather.temperature"},
        interval_seconds=900,
    )
    readings = list(csv)
    assert [(r.stream, r.value) for r in readings] == [(LOAD, 1.0), ("weather.temperature", 20.0)]
    assert readings[0].seconds == 900


def test_a_single_column_may_be_given_as_text(tmp_path):
    (tmp_path / "x.csv").write_text("time,v\n2024-01-01,1\n")
    section = {"type": "csv", "path": tmp_path / "x.csv", "column": "v", "stream": LOAD}
    assert [r.stream for r in SOURCES["csv"](section)] == [LOAD]


@pytest.mark.parametrize(
    ("start", "until"),
    [
        ("2024-01-02", "2024-01-04"),
        (date(2024, 1, 2), datetime(2024, 1, 4, tzinfo=UTC)),
        (1_704_153_600, 1_704_326_400.0),
    ],
)
def test_from_is_inclusive_and_until_is_exclusive(source, start, until):
    text = "time,kwh\n" + "".join(f"2024-01-0{day},{day}\n" for day in range(1, 6))
    csv = source(text, **{"from": start, "until": until})
    assert [value for _, value in pairs(csv)] == [2.0, 3.0]


def test_bad_rows_are_counted_by_reason_and_good_ones_are_read(source):
    csv = source(
        "time,kwh\n2024-01-01,1\nbananas,2\n2024-01-02,\n2024-01-03,NaN\n2024-01-04,lots\n"
        "2024-01-05,inf\n2024-01-06\n2024-01-07,1e400\n2024-01-08,3,extra\n2024-01-09,4,\n"
    )
    assert [value for _, value in pairs(csv)] == [1.0, 4.0]
    rejected = {"bad time": 1, "no value": 3, "bad value": 3, "more fields than the header": 1}
    assert csv.rejected == rejected


@pytest.mark.parametrize(
    ("content", "name", "reason"),
    [
        ("", "a.csv", "no column kwh"),
        ("zeit,kwh\n1,2\n", "a.csv", "no column time"),
        (b"not gzip at all" * 9, "raw.gz", "unreadable file"),
    ],
)
def test_a_file_of_another_format_raises_nothing(tmp_path, content, name, reason):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    csv = SOURCES["csv"]({"path": path, "columns": {"kwh": LOAD}})
    assert list(csv) == []
    assert csv.rejected == {reason: 1}


def test_a_truncated_gzip_file_yields_its_readable_part(tmp_path):
    rows = "".join(f"{t},{t % 97}\n" for t in range(0, 3600 * 20000, 3600))
    path = tmp_path / "torn.csv.gz"
    path.write_bytes(gzip.compress(f"time,kwh\n{rows}".encode())[:30_000])
    csv = SOURCES["csv"]({"path": path, "columns": {"kwh": LOAD}, "time_format": "epoch"})
    assert len(list(csv)) > 1000
    assert csv.rejected["unreadable file"] == 1


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_file_with_a_line_beyond_the_limit_is_refused_before_it_is_parsed(tmp_path, pack):
    path = tmp_path / "a.csv"
    path.write_bytes(pack(b"time,kwh\n2024-01-01,1\n" + b"9" * (2 * LONGEST_LINE)))
    csv = SOURCES["csv"]({"path": path, "columns": {"kwh": LOAD}})
    assert list(csv) == []
    assert csv.rejected == {"line too long": 1}
    assert csv.offending == {"line too long": "a.csv"}
    with pytest.raises(ConfigError, match=r"a\.csv: line too long"):
        csv.lacks()


def test_a_packed_file_is_unpacked_up_to_its_limit(tmp_path):
    text = b"time,kwh\n" + b"2024-01-01,1\n" * 50_000
    for name, content in (("a.csv", text), ("a.csv.gz", gzip.compress(text))):
        (tmp_path / name).write_bytes(content)
    assert refused(tmp_path / "a.csv.gz", largest=len(text)) == ""
    assert refused(tmp_path / "a.csv.gz", largest=len(text) - 1) == "too large"
    assert refused(tmp_path / "a.csv", largest=1) == ""
    assert refused(tmp_path / "a.csv.gz", longest=13) == ""
    assert refused(tmp_path / "a.csv.gz", longest=11) == "line too long"


def test_columns_and_rows_that_are_left_out_are_counted(source):
    text = "id,time,kwh,temp\na,2024-01-01,1,20\nb,2024-01-01,9,9\na,2024-01-03,2,20\n"
    csv = source(text, filter={"id": "a"}, until="2024-01-02")
    assert [value for _, value in pairs(csv)] == [1.0]
    assert csv.unused == {
        "column 'temp': not mapped": 1,
        "rows outside 'filter'": 1,
        "rows outside 'from' and 'until'": 1,
    }


def test_columns_are_followed_over_later_header_lines(source):
    csv = source(
        "time,kwh\n2024-01-01,1\ntime,kwh\n2024-01-02,2\n"
        "time,id,kwh\n2024-01-03,9,3\ntime,id\n2024-01-04,4\ntime,kwh,note\n2024-01-05,5,time\n"
    )
    assert [value for _, value in pairs(csv)] == [1.0, 2.0, 3.0, 5.0]
    assert csv.unused == {"header lines after the first": 4}
    assert csv.offending == {"no column kwh": "line 8: 2024-01-04,4"}


def test_invalid_encoding_and_a_byte_order_mark_are_tolerated(source):
    csv = source(b"\xef\xbb\xbftime,kwh\n2024-01-01,1\n\xff\xfe,\x00\n2024-01-02,2\n")
    assert [value for _, value in pairs(csv)] == [1.0, 2.0]
    assert csv.rejected["bad time"] == 1


@pytest.mark.parametrize("packed", ["load.csv", "load.csv.gz"])
@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.encode("utf-16"),
        lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
        lambda text: text.encode("cp1252"),
        lambda text: text.encode("utf-8-sig"),
        lambda text: text.encode() + b"\xff",
    ],
    ids=["UTF-16", "UTF-16, big end first", "Windows-1252", "UTF-8 with a mark", "a damaged byte"],
)
def test_a_file_is_read_in_its_encoding(source, encode, packed):
    text = "Z\u00e4hlzeit;Verbrauch in \u20ac\r\n" + "".join(
        f"0{day}.02.2024 00:00;{day},5\r\n" for day in range(1, 9)
    )
    columns = {"Verbrauch in \u20ac": LOAD}
    csv = source(encode(text), packed, time_column="Z\u00e4hlzeit", columns=columns)
    assert [value for _, value in pairs(csv)] == [day + 0.5 for day in range(1, 9)]
    assert csv.lacks()[0] == set()
    proposed = proposed_columns(csv.path, LOAD)
    assert (proposed.times, proposed.columns) == (("Z\u00e4hlzeit",), columns)


@pytest.mark.parametrize(
    ("section", "word"),
    [
        ({"colums": {}}, "colums"),
        ({"columns": {}}, "columns"),
        ({"time_format": "excel"}, "excel"),
        ({"time_zone": "Mars/Olympus"}, "Mars"),
        ({"from": "yesterday"}, "yesterday"),
        ({"until": [1]}, "neither"),
        ({"path": "/nowhere/at/all.csv"}, "no such file"),
    ],
)
def test_an_invalid_section_is_refused_with_a_reason(tmp_path, section, word):
    (tmp_path / "x.csv").write_text("time,kwh\n")
    base = {"path": tmp_path / "x.csv", "columns": {"kwh": LOAD}}
    with pytest.raises(ConfigError, match=word):
        SOURCES["csv"]({**base, **section})


def test_a_file_can_be_read_again_from_the_start(source):
    csv = source("time,kwh\n2024-01-01,1\n")
    assert pairs(csv) == pairs(csv)


def test_a_short_row_under_a_repeated_header_name_has_no_value(source):
    csv = source("note,note,time,kwh\na,b,0,1\nc,d,3600\n", time_format="epoch")
    assert pairs(csv) == [(0.0, 1.0)]
    assert csv.rejected == {"no value": 1}


GERMAN = "Zeit;kWh\n31.12.2026 23:00;1,5\n31.12.2026 23:15;2\n01.01.2027 00:00;0,25\n"


def test_a_spreadsheet_of_another_country_is_read_as_it_is(source):
    csv = source(GERMAN, time_column="Zeit", columns={"kWh": LOAD})
    assert pairs(csv) == [(1_798_758_000, 1.5), (1_798_758_900, 2.0), (1_798_761_600, 0.25)]
    assert csv.detect() == {
        "separator": ";",
        "decimal mark": ",",
        "times": "%d.%m.%Y %H:%M",
    }


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("time\tkwh\n2024-01-01T00:00Z\t1.5\n", (1_704_067_200, 1.5)),
        ("time|kwh\n2024/01/01 00:00|1.5\n", (1_704_067_200, 1.5)),
        ("time,kwh\n01/13/2024 00:00,1.5\n", (1_705_104_000, 1.5)),
        ("time,kwh\n13/01/2024,1.5\n", (1_705_104_000, 1.5)),
        ("time,kwh\n1704067200,1.5\n", (1_704_067_200, 1.5)),
        ('time,kwh\n"1704067200",1.5\n', (1_704_067_200, 1.5)),
        ("time,kwh\n1704067200000,1.5\n", (1_704_067_200, 1.5)),
        ("time,kwh\n20240101,1.5\n", (1_704_067_200, 1.5)),
        ("time,kwh\n202401010000,1.5\n", (1_704_067_200, 1.5)),
        ("time,kwh\n20240101 00:00 - 20240101 01:00,1.5\n", (1_704_067_200, 1.5)),
        ('time,kwh\n2024-01-01T00:00Z,"1,5"\n', (1_704_067_200, 1.5)),
        ("time;kwh\n2024-01-01T00:00Z;1.234,5\n", (1_704_067_200, 1234.5)),
        ('time,kwh\n2024-01-01T00:00Z,"1,234.5"\n', (1_704_067_200, 1234.5)),
        ('time,kwh\n2024-01-01T00:00Z,"1,234"\n', None),
    ],
)
def test_forms_are_detected_and_never_guessed(source, text, first):
    found = pairs(source(text))
    assert found == ([] if first is None else [first])


def test_days_and_months_that_could_be_exchanged_are_told_apart_by_their_steps(source):
    rows = "".join(f"{day:02d}/02/2024,{day}\n" for day in range(1, 9))
    assert pairs(source("time,kwh\n" + rows))[0][0] == 1_706_745_600  # 1 February
    rows = "".join(f"02/{day:02d}/2024,{day}\n" for day in range(1, 9))
    assert pairs(source("time,kwh\n" + rows))[0][0] == 1_706_745_600


def test_dates_that_nothing_decides_are_refused_and_may_be_named(source):
    csv = source("time,kwh\n01/02/2024,1\n")
    assert pairs(csv) == []
    assert csv.offending == {"ambiguous dates": "line 2: 01/02/2024,1"}
    assert pairs(source("time,kwh\n01/02/2024,1\n", time_format="%m/%d/%Y")) == [
        (1_704_153_600, 1.0)
    ]


def test_a_line_of_a_total_costs_itself_alone(source):
    csv = source(
        GERMAN + "01.01.2027 00:15;1\nSumme;4,75\n", time_column="Zeit", columns={"kWh": LOAD}
    )
    assert [value for _, value in pairs(csv)] == [1.5, 2.0, 0.25, 1.0]
    assert csv.offending == {"bad time": "line 6: Summe;4,75"}


def test_the_first_offending_line_of_each_reason_is_kept(source):
    csv = source(
        "time,kwh\n2024-01-01,1\nbananas,2\npears,2\n2024-01-03,lots\n2024-01-04," + "x" * 500
    )
    list(csv)
    assert csv.offending["bad time"] == "line 3: bananas,2"
    assert csv.offending["bad value"] == "line 5: 2024-01-03,lots"
    assert len(csv.offending) == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("time_format", "german"),
        ("decimal", ";"),
        ("delimiter", "::"),
        ("kind", "counter"),
        ("times", "middle"),
        ("time_column", ["date"]),
    ],
)
def test_a_key_of_another_form_is_refused(source, key, value):
    with pytest.raises(ConfigError, match=key):
        source("time,kwh\n", **{key: value})


HOURS = [datetime(2024, 2, 1, tzinfo=UTC).timestamp() + 3600 * n for n in range(96)]
VALUES = [round(0.25 + n % 24 / 8 + n % 7 / 1000, 3) for n in range(96)]
COMMAS = [f"{value:.3f}".replace(".", ",") for value in VALUES]
DATES = [f"{datetime.fromtimestamp(at, UTC):%d/%m/%Y}" for at in HOURS]


def rows(header, *columns, separator=";"):
    body = (separator.join(row) for row in zip(*columns, strict=True))
    return "\n".join([header, *body]) + "\n"


FORMS = {
    "a preamble and a separator at the end": (
        "Account;1\n\n" + rows("time;kwh", DATES_AND_HOURS := [
            f"{date} {n % 24:02d}:00" for n, date in enumerate(DATES)
        ], [f"{text};" for text in COMMAS]),
        {},
        {"header": "line 3"},
    ),
    "date and hour from 1 to 24": (
        rows("date;hour;kwh", DATES, [str(n % 24 + 1) for n in range(96)], COMMAS),
        {"time_column": ["date", "hour"]},
        {"a time is": "the end of its interval"},
    ),
    "date and hour to 24:00": (
        rows("date;hour;kwh", DATES, [f"{n % 24 + 1:02d}:00" for n in range(96)], COMMAS),
        {"time_column": ["date", "hour"]},
        {"a time is": "the end of its interval"},
    ),
    "24:00 at the end of a day": (
        rows("time;kwh", [f"{d} {n % 24 + 1:02d}:00" for n, d in enumerate(DATES)], COMMAS),
        {},
        {"a time is": "the end of its interval"},
    ),
    "one tariff by day and one by night": (
        rows(
            "time;register;kwh",
            DATES_AND_HOURS,
            ["Afname Dag" if 7 <= n % 24 < 22 else "Afname Nacht" for n in range(96)],
            COMMAS,
        )
        + rows("", DATES_AND_HOURS, ["Injectie Dag"] * 96, ["9,0"] * 96),
        {"filter": {"register": ["Afname Dag", "Afname Nacht"]}},
        {},
    ),
    "a register": (
        rows("time;kwh", DATES_AND_HOURS, [
            f"{500 + sum(VALUES[:n]):.3f}".replace(".", ",") for n in range(96)
        ]),
        {},
        {"column kwh": "a register, read as differences"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_portals_form_is_read_and_said(source, form):
    text, section, said = FORMS[form]
    csv = source(text, **section)
    found = pairs(csv)
    whole = 95 if form == "a register" else 96
    assert [at for at, _ in found] == HOURS[:whole]
    assert [value for _, value in found] == pytest.approx(VALUES[:whole])
    assert csv.detect().items() >= said.items()
    assert not csv.rejected
    assert csv.lacks()[0] == set()


def test_a_register_that_was_exchanged_loses_one_difference_and_kind_overrides(source):
    register = [5000 + sum(VALUES[:n]) if n < 50 else sum(VALUES[50:n]) for n in range(96)]
    text = rows("time;kwh", DATES_AND_HOURS, [f"{value:.3f}" for value in register])
    csv = source(text)
    found = dict(pairs(csv))
    assert set(HOURS[:95]) - set(found) == {HOURS[49]}
    assert max(found.values()) == pytest.approx(max(VALUES), abs=0.002)
    assert "1 fall, as at an exchange: the difference is missing" in csv.detect()["column kwh"]
    assert len(pairs(source(text, kind="interval"))) == 96
    short = rows("time;kwh", [f"2024-02-01 0{n}:00" for n in range(3)], ["1.0", "2.5", "3.0"])
    assert pairs(source(short, kind="register")) == [(HOURS[0], 1.5), (HOURS[1], 0.5)]


def test_a_register_that_rests_in_the_first_rows_is_recognised(source):
    values = [26_789.4] * 700 + [26_789.4 + n // 3 for n in range(60)]
    minutes = "".join(f"{1_704_067_200 + 60 * n},{value}\n" for n, value in enumerate(values))
    csv = source("time,kwh\n" + minutes)
    found = [value for _, value in pairs(csv)]
    assert (sum(found), max(found)) == (19.0, 1.0)
    assert csv.detect()["column kwh"] == "a register, read as differences"
    assert pairs(source("time,kwh\n" + minutes, kind="interval"))[0][1] == 26_789.4


def test_a_register_beside_a_level_changes_nothing_in_the_level(source):
    register = [f"{500 + sum(VALUES[:n]):.3f}" for n in range(96)]
    levels = [f"{value:.3f}" for value in VALUES]
    text = rows("time;kwh;other", DATES_AND_HOURS, register, levels)
    csv = source(text, columns={"kwh": LOAD, "other": "elec.export.energy"})
    found = [r for r in csv if r.stream == "elec.export.energy"]
    assert [r.value for r in found] == VALUES
    assert {r.seconds for r in csv if r.stream == LOAD} == {3600.0}


def test_the_separator_is_said_although_a_column_is_missing(source):
    csv = source(rows("time;kWh", DATES_AND_HOURS, COMMAS))
    assert not pairs(csv)
    assert csv.rejected == {"no column kwh": 1}
    assert csv.detect()["separator"] == ";"
    assert csv.lacks() == ({"kwh"}, ["time", "kWh"])


def test_the_edge_of_the_interval_may_be_given(source):
    text = rows("time;kwh", DATES_AND_HOURS, COMMAS)
    assert pairs(source(text, times="end"))[0] == (HOURS[0] - 3600, VALUES[0])


# --- files of Home Assistant: its history panel, and the export of an integration ------------------

BEGIN = 1_761_436_800  # 2025-10-26 00:00 UTC: Central Europe's clocks go back at 01:00


def downloaded(rows, entity="sensor.grid_import"):
    """Rows as the history panel writes them: UTC with milliseconds, of several entities."""
    lines = ["entity_id,state,last_changed"]
    for at, state in rows:
        moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
        moment = moment.replace("+00:00", "Z")
        lines += [f"{entity},{state},{moment}", f"sensor.other,7,{moment}"]
    return "\n".join(lines) + "\n"


HISTORY = {
    "columns": {"state": LOAD},
    "time_column": "last_changed",
    "filter": {"entity_id": "sensor.grid_import"},
}


def test_a_downloaded_history_is_brought_onto_the_grid(source):
    # hours of statistics first, then each change of the register, with a pause of two hours
    hourly = [(BEGIN + 3600 * n, 1000.0 + n) for n in range(49)]
    changes = [(BEGIN + 48 * 3600 + 37.5 * n, round(1048.0 + 0.01 * n, 2)) for n in range(1, 961)]
    del changes[384:576]
    changes[50] = changes[50][0], "unavailable"
    csv = source(downloaded([*hourly, *changes]), **HISTORY, interval_seconds=3600)
    found = dict(pairs(csv))
    assert [found[BEGIN + 3600 * n] for n in range(48)] == pytest.approx([1.0] * 48)
    known = {(at - BEGIN) // 3600 for at in found}
    assert known == set(range(58)) - {52, 53, 54}
    assert found[BEGIN + 49 * 3600] == pytest.approx(0.96)
    assert csv.rejected == {"bad value": 1}
    assert "brought onto a grid of 3600 s; gap (1)" in csv.detect()["column state"]
    assert {r.seconds for r in csv} == {3600}


def test_a_register_off_the_grid_without_an_interval_names_the_remedy(source):
    passed = np.random.default_rng(3).integers(60, 3600, 300).cumsum()
    csv = source(downloaded([(BEGIN + int(n), f"{n / 3600:.3f}") for n in passed]), **HISTORY)
    assert pairs(csv)
    assert "interval_seconds brings it onto a grid" in csv.detect()["column state"]


def test_a_register_off_the_grid_restarts_and_keeps_to_its_span(source):
    states = [1000.0 + 0.1 * n for n in range(100)] + [0.1 * n for n in range(100)]
    rows = [(BEGIN + 617 * n, f"{state:.1f}") for n, state in enumerate(states)]
    csv = source(downloaded(rows), **HISTORY, interval_seconds=3600, until=BEGIN + 30 * 3600)
    found = pairs(csv)
    assert max(value for _, value in found) < 1.0
    assert max(at for at, _ in found) < BEGIN + 30 * 3600
    assert "reset (1)" in csv.detect()["column state"]


def test_the_export_of_statistics_is_read_in_local_time(source):
    # the hour from 02:00 to 03:00 is there twice
    clock = ["26.10.2025 01:00", "26.10.2025 02:00", "26.10.2025 02:00", "26.10.2025 03:00"]
    lines = ["statistic_id\tunit\tstart\tsum\tstate\tdelta"]
    for number, start in enumerate(clock):
        lines.append(f"sensor.grid_import\tkWh\t{start}\t{number}\t{number}\t0.{number + 1}")
        lines.append(f"sensor.other\tkWh\t{start}\t{number}\t{number}\t9.9")
    csv = source(
        "\n".join(lines) + "\n",
        columns={"delta": LOAD},
        time_column="start",
        filter={"statistic_id": "sensor.grid_import"},
        time_zone="Europe/Berlin",
        time_format="%d.%m.%Y %H:%M",
        kind="interval",
    )
    begin = BEGIN - 3600
    assert pairs(csv) == [(begin + 3600 * n, (n + 1) / 10) for n in range(4)]
