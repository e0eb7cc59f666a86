"""Tables in the forms that people have: each is understood, or refused with a remedy."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="reading tables (extra: evaluate)")

from edge_sdk.extensions.sources.csv_columns import proposed_columns  # noqa: E402 - as above
from edge_sdk.sources import SOURCES  # noqa: E402 - after the library
from firmware_sim.evaluation.records import on_grid  # noqa: E402 - as above
from firmware_sim.evaluation.table_files import TableError  # noqa: E402 - as above
from firmware_sim.evaluation.tables import read_tables  # noqa: E402 - as above

HOURS = pd.date_range("2026-01-05", periods=24 * 30, freq="h")
LOAD = 2.0 + np.sin(2 * np.pi * np.arange(len(HOURS)) / 24) + np.arange(len(HOURS)) % 7 / 10


def frame(**columns):
    return pd.DataFrame({"time": HOURS, **columns})


def notes(read):
    return "\n".join(read.notes)


def only(read):
    assert len(read.devices) == 1
    return read.devices[0]


def expect_load(table, start="2026-01-05"):
    assert table.times[0] == pd.Timestamp(start, tz="UTC").timestamp()
    assert set(np.diff(table.times)) == {3600}
    np.testing.assert_allclose(table.values, LOAD, atol=1e-6)


def test_a_file_for_each_device(tmp_path):
    for name in ("b", "a"):
        frame(kwh=LOAD).to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "notes.md").write_text("not a table")
    read = read_tables(tmp_path)
    assert [one.device for one in read.devices] == ["a", "b"]
    expect_load(read.devices[0])
    assert "2 files" in notes(read)
    assert "one device a file, readings in column kwh" in notes(read)


def test_semicolons_decimal_commas_and_the_day_first(tmp_path):
    times = HOURS.strftime("%d.%m.%Y %H:%M")
    rows = [f"{t};{f'{v:.6f}'.replace('.', ',')}" for t, v in zip(times, LOAD, strict=True)]
    (tmp_path / "meter.csv").write_text("Zeit;Verbrauch\n" + "\n".join(rows), encoding="utf-8-sig")
    read = read_tables(tmp_path / "meter.csv")
    expect_load(only(read))
    assert "separator ;, decimal comma" in notes(read)
    assert "time in column Zeit: day first" in notes(read)


def test_the_month_first_is_recognised_by_a_day_above_twelve(tmp_path):
    frame(load=LOAD).assign(time=HOURS.strftime("%m/%d/%Y %H:%M")).to_csv(
        tmp_path / "meter.csv", index=False
    )
    read = read_tables(tmp_path)
    expect_load(only(read))
    assert "month first" in notes(read)


@pytest.mark.parametrize(("unit", "text"), [(1, "Unix seconds"), (1000, "Unix milliseconds")])
def test_unix_times(tmp_path, unit, text):
    seconds = HOURS.tz_localize("UTC").as_unit("s").asi8 * unit
    pd.DataFrame({"ts": seconds, "value": LOAD}).to_csv(tmp_path / "m.csv", index=False)
    read = read_tables(tmp_path)
    expect_load(only(read))
    assert text in notes(read)


def test_date_and_time_in_two_columns(tmp_path):
    table = pd.DataFrame(
        {"Date": HOURS.strftime("%Y-%m-%d"), "Time": HOURS.strftime("%H:%M"), "kW": LOAD}
    )
    table.to_csv(tmp_path / "m.tsv", index=False, sep="\t")
    read = read_tables(tmp_path)
    expect_load(only(read))
    assert "columns Date and Time" in notes(read)


def test_offsets_are_followed(tmp_path):
    times = [f"{t.isoformat()}+02:00" for t in HOURS]
    frame(load=LOAD).assign(time=times).to_csv(tmp_path / "m.csv", index=False)
    expect_load(only(read_tables(tmp_path)), start="2026-01-04 22:00")


def test_a_wide_file_and_parquet_and_gzip(tmp_path):
    wide = frame(north=LOAD, south=2 * LOAD, east=3 * LOAD)
    wide.to_parquet(tmp_path / "fleet.parquet", index=False)
    read = read_tables(tmp_path)
    assert [one.device for one in read.devices] == ["east", "north", "south"]
    assert "wide table: 3 devices" in notes(read)
    (tmp_path / "fleet.parquet").unlink()
    (tmp_path / "fleet.csv.gz").write_bytes(gzip.compress(wide.to_csv(index=False).encode()))
    assert len(read_tables(tmp_path).devices) == 3


def test_a_long_table(tmp_path):
    parts = [frame(load=LOAD * k).assign(meter=f"m{k}") for k in (1, 2, 3)]
    pd.concat(parts).to_csv(tmp_path / "all.csv", index=False)
    read = read_tables(tmp_path)
    assert [one.device for one in read.devices] == ["m1", "m2", "m3"]
    expect_load(read.devices[0])
    assert "devices in column meter" in notes(read)


THIRDS = {"2026-01": slice(0, 240), "2026-02": slice(240, 480), "2026-03": slice(480, 720)}


@pytest.mark.parametrize(
    ("name", "record"),
    [("load_{}.csv", "load"), ("{}.csv", "months"), ("Lastgang {} (2).csv", "Lastgang (2)")],
)
def test_the_parts_of_a_record_in_several_files_are_put_together(tmp_path, name, record):
    folder = tmp_path / "months"
    folder.mkdir()
    for month, rows in THIRDS.items():
        frame(kwh=LOAD).iloc[rows].to_csv(folder / name.format(month), index=False)
    read = read_tables(folder)
    expect_load(only(read))
    assert only(read).device == record
    assert f"3 files are one record, {record}: " in notes(read)


def test_numbered_files_of_one_time_and_names_with_other_letters_are_devices(tmp_path):
    for number in (1, 2):
        frame(kwh=number * LOAD).to_csv(tmp_path / f"home-{number}.csv", index=False)
    for letter, rows in zip("abc", THIRDS.values(), strict=True):
        frame(kwh=LOAD).iloc[rows].to_csv(tmp_path / f"meter {letter}.csv", index=False)
    for month, rows in THIRDS.items():
        for number in (7, 8):
            frame(kwh=number * LOAD).iloc[rows].to_csv(
                tmp_path / f"{month} flat {number}.csv", index=False
            )
    for number, rows in enumerate((slice(0, 240), slice(480, 720))):  # one charger after another
        frame(kwh=LOAD).iloc[rows].to_csv(tmp_path / f"charger {number}.csv", index=False)
    found = {one.device: one for one in read_tables(tmp_path).devices}
    assert [*found][:2] == ["charger 0", "charger 1"]
    assert [*found][2:] == ["flat 7", "flat 8", "home-1", "home-2", "meter a", "meter b", "meter c"]
    np.testing.assert_allclose(found["flat 8"].values, 8 * LOAD)


@pytest.mark.parametrize("layout", ["long", "wide"])
def test_devices_that_are_in_several_files_are_put_together(tmp_path, layout):
    whole = frame(a=LOAD, b=2 * LOAD)
    if layout == "long":
        whole = whole.melt("time", var_name="meter", value_name="kwh").sort_values("time")
        whole.index = np.arange(len(whole)) // 2
    for month, rows in THIRDS.items():
        whole.loc[rows.start : rows.stop - 1].to_csv(tmp_path / f"{month}.csv", index=False)
    read = read_tables(tmp_path)
    assert [one.device for one in read.devices] == ["a", "b"]
    expect_load(read.devices[0])
    assert "2 devices are in several files: put together" in notes(read)
    (tmp_path / "2026-04.csv").write_bytes((tmp_path / "2026-03.csv").read_bytes())
    with pytest.raises(TableError, match=r"device a is in another file too, at the same times"):
        read_tables(tmp_path)


def test_one_load_beside_weather_is_one_device(tmp_path):
    frame(energy_kwh=LOAD, temperature=LOAD * 0).to_csv(tmp_path / "m.csv", index=False)
    assert "readings in column energy_kwh" in notes(read_tables(tmp_path))


def test_the_zone_is_found_by_the_hour_that_does_not_exist(tmp_path):
    utc = pd.date_range("2026-03-10", periods=24 * 40, freq="h", tz="UTC")
    local = utc.tz_convert("Europe/Berlin").tz_localize(None)
    pd.DataFrame({"time": local, "kwh": np.arange(len(local)) % 24}).to_csv(
        tmp_path / "m.csv", index=False
    )
    read = read_tables(tmp_path)
    assert read.zone == "Europe/Berlin"
    assert set(np.diff(only(read).times)) == {3600}
    assert read_tables(tmp_path, zone="UTC").zone == "UTC"


def test_a_counter_is_read_as_differences(tmp_path):
    frame(total_kwh=1000 + np.cumsum(LOAD)).to_csv(tmp_path / "m.csv", index=False)
    records = on_grid(read_tables(tmp_path))
    np.testing.assert_allclose(records.devices[0].values, LOAD[1:], atol=1e-6)
    assert any(
        "registers (counters), read as differences: 1 of 1 devices (m)" in note
        for note in records.notes
    )


CHARGED = np.where(np.arange(len(HOURS)) % 24 < 3, 4.0, 0.0)  # a charger that works at night
WEEK = np.where(np.arange(len(HOURS)) % 168 == 20, 6.0, 0.0)  # and one that works once a week
TODAY = pd.Series(LOAD).groupby(np.arange(len(HOURS)) // 24).cumsum().to_numpy()


@pytest.mark.parametrize(
    ("values", "expected", "sentence"),
    [
        (500 + np.cumsum(CHARGED), CHARGED[1:], "read as differences: 1 of 1 devices (m)"),
        (500 + np.cumsum(WEEK), WEEK[1:], "read as differences: 1 of 1 devices (m)"),
        (
            np.concatenate([5000 + np.cumsum(LOAD[:300]), 3 + np.cumsum(LOAD[300:])]),
            np.where(np.arange(719) == 299, np.nan, LOAD[1:]),
            "1 fall, as at an exchange: the difference is missing",
        ),
        (
            np.concatenate([500 + np.cumsum(LOAD[:300]), 90_500 + np.cumsum(LOAD[300:])]),
            np.where(np.arange(719) == 299, np.nan, LOAD[1:]),
            "rises far beyond all others, as at an exchange, left out: 89",
        ),
        (
            np.concatenate([[0.0], TODAY[:-1]]) * (np.arange(len(HOURS)) % 24 > 0),
            np.where(np.arange(719) % 24 == 23, np.nan, LOAD[:-1]),
            "it restarts at midnight (29 times); 29 differences up to midnight missing",
        ),
        (TODAY, np.where(np.arange(719) % 24 == 23, np.nan, LOAD[1:]), "it restarts at midnight"),
        (
            np.where(np.arange(len(HOURS)) == 400, 0.0, 1000 + np.cumsum(LOAD)),
            np.where((np.arange(719) == 399) | (np.arange(719) == 400), np.nan, LOAD[1:]),
            "1 reading off its course left out; 1 difference over a gap left out",
        ),
    ],
    ids=[
        "every night",
        "once a week",
        "exchanged",
        "exchanged upwards",
        "of today",
        "of today from one",
        "one at zero",
    ],
)
def test_a_register_is_recognised_whatever_restarts_it(tmp_path, values, expected, sentence):
    """The differences are those that pandas' cumulated sums were made of."""
    frame(register_kwh=values).to_csv(tmp_path / "m.csv", index=False)
    read = read_tables(tmp_path)
    records = on_grid(read)
    np.testing.assert_allclose(records.devices[0].values, expected, atol=1e-6)
    assert any(sentence in note for note in records.notes)
    levels = on_grid(read, kind="level")
    np.testing.assert_allclose(levels.devices[0].values, values, atol=1e-6)
    assert not any("registers" in note for note in levels.notes)


def test_a_register_that_is_written_only_when_it_moves_has_zeros_in_between(tmp_path):
    table = frame(register_kwh=500 + np.cumsum(CHARGED))
    hour = np.arange(len(HOURS)) % 24
    table[(hour < 5) | (hour % 6 == 5)].to_csv(tmp_path / "m.csv", index=False)
    record = only(on_grid(read_tables(tmp_path)))
    np.testing.assert_allclose(record.values, CHARGED[1:])


def test_a_register_read_at_irregular_times_keeps_its_energy(tmp_path):
    """Home automation writes a state when it changes."""
    rng = np.random.default_rng(7)
    hours = [
        hour + np.sort(rng.choice(3600, 3, replace=False)) for hour in range(0, 30 * 86_400, 3600)
    ]
    seconds = np.concatenate(hours)
    at = pd.Timestamp("2026-01-05", tz="UTC") + pd.to_timedelta(seconds, unit="s")
    register = 500 + np.interp(seconds, 3600 * np.arange(721), [0.0, *np.cumsum(LOAD)])
    table = pd.DataFrame({"last_changed": at, "state": register.round(4)})
    table = table[~table["last_changed"].dt.strftime("%d").eq("10")]  # a day without readings
    table.to_csv(tmp_path / "sensor.csv", index=False)
    records = on_grid(read_tables(tmp_path), step=3600)
    record = only(records)
    expected = np.where(np.isfinite(record.values), LOAD[1 : 1 + len(record.values)], np.nan)
    assert np.isnan(record.values).sum() <= 27
    np.testing.assert_allclose(record.values, expected, atol=0.5)
    assert np.nansum(record.values) == pytest.approx(np.nansum(expected), abs=1.0)
    assert any("irregular times: its register is interpolated to every" in x for x in records.notes)


def test_a_register_beside_its_own_readings_is_no_second_device(tmp_path):
    total = np.cumsum(LOAD)
    other = 40 + np.cumsum(LOAD[::-1] ** 3)
    table = frame(a=LOAD, total=900 + total, today=TODAY.round(1), other=other)
    table.to_csv(tmp_path / "m.csv", index=False)
    records = on_grid(read_tables(tmp_path))
    assert [one.device for one in records.devices] == ["a", "other"]
    for name in ("total", "today"):
        assert f"{name} left out: its differences are the readings of a" in records.notes
    table.drop(columns="a").to_csv(tmp_path / "m.csv", index=False)
    assert [one.device for one in on_grid(read_tables(tmp_path)).devices] == ["other", "total"]


def test_a_kind_that_is_given_overrides_what_is_recognised(tmp_path):
    minutes = pd.date_range("2026-01-05", periods=12 * 24 * 22, freq="5min")
    load = 1 + np.arange(len(minutes)) % 288 % 7
    pd.DataFrame({"time": minutes, "load": load}).to_csv(tmp_path / "m.csv", index=False)
    read = read_tables(tmp_path)
    expected = load.reshape(-1, 3)
    for kind, values in (("energy", expected.sum(axis=1)), ("level", expected.mean(axis=1))):
        record = on_grid(read, kind=kind).devices[0]
        np.testing.assert_allclose(record.values, values)
    forced = on_grid(read, kind="register")
    assert any("registers" in note for note in forced.notes)


def test_what_is_left_out_of_a_wide_table_is_said(tmp_path):
    table = frame(a=LOAD, b=np.nan, c=[f"{v:.2f} ok" if v > 2 else f"{v:.2f}" for v in LOAD])
    doubled = table.iloc[3:4].assign(time=HOURS[3] + pd.Timedelta("7min"))
    pd.concat([table, doubled]).to_csv(tmp_path / "m.csv", index=False)
    found = on_grid(read_tables(tmp_path)).notes
    for sentence in (
        "m.csv, column b: fewer than 2 numbers: left out",
        "readings in a slot of 1 h that has another: 1, averaged",
    ):
        assert sentence in found
    assert any("column c" in note and "are no numbers" in note for note in found)


def test_a_mark_that_could_be_either_is_given(tmp_path):
    (tmp_path / "m.csv").write_text("time,wh\n" + rows_of(ISO, ['"1,015"', '"2,015"'] * 360))
    for mark, value in ((".", 1015.0), (",", 1.015)):
        assert only(read_tables(tmp_path, decimal=mark)).values[0] == value


def test_a_preamble_in_one_of_several_files_is_read_and_said(tmp_path):
    for name in "abc":
        frame(kwh=LOAD).to_csv(tmp_path / f"{name}.csv", index=False)
    last = tmp_path / "c.csv"
    last.write_text(f"Account,0\n\n{last.read_text()}")
    seen = []
    read = read_tables(tmp_path, progress=seen.append)
    expect_load(read.devices[2])
    assert seen == ["1 of 3: a.csv", "2 of 3: b.csv", "3 of 3: c.csv"]
    assert "c.csv: separator ,, decimal point, header in line 3 (2 lines before it)" in notes(read)
    assert notes(read).count("decimal point") == 2


def test_a_packed_file_with_a_line_beyond_the_limit_is_refused_before_it_is_parsed(tmp_path):
    packed = gzip.compress(b"time,kwh\n2026-01-01,1\n" + b"9" * (2 << 20))
    (tmp_path / "a.csv.gz").write_bytes(packed)
    with pytest.raises(TableError, match=r"a\.csv\.gz: line too long"):
        read_tables(tmp_path / "a.csv.gz")


def test_a_file_without_a_table_is_refused_before_any_is_read(tmp_path):
    frame(kwh=LOAD).to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "b.csv").write_text("just\ntext\n")
    with pytest.raises(TableError, match=r"b.csv: no column has dates and times"):
        read_tables(tmp_path, progress=lambda name: pytest.fail(f"read {name}"))


def test_gaps_stay_gaps_and_fine_readings_are_averaged(tmp_path):
    minutes = pd.date_range("2026-01-05", periods=24 * 60 * 22, freq="min")
    values = np.where(minutes.hour == 3, np.nan, minutes.minute.to_numpy() % 15 + minutes.day)
    pd.DataFrame({"time": minutes, "load": values}).to_csv(tmp_path / "m.csv", index=False)
    records = on_grid(read_tables(tmp_path))
    record = records.devices[0]
    assert records.step == 900
    assert np.isnan(record.values[12:16]).all()
    np.testing.assert_allclose(record.values[:12], 12.0)  # 7 on average, and the 5th of January
    assert record.slots[:3].tolist() == [0, 1, 2]
    assert record.weekdays[0] == 0


def local_year(tmp_path, columns):
    """Write a wide file as a utility exports it: semicolons, decimal commas, a year of local quarters."""
    utc = pd.date_range("2025-12-31 23:00", periods=96 * 365, freq="15min", tz="UTC")
    local = utc.tz_convert("Europe/Berlin").tz_localize(None)
    table = pd.DataFrame({"Datum/Uhrzeit": local.strftime("%d.%m.%Y %H:%M")})
    for number in range(columns):
        values = 1 + number + np.sin(2 * np.pi * np.arange(len(utc)) / 96)
        table[f"Station {number}"] = np.where(
            np.arange(len(utc)) % 7 == 0, np.round(values), values
        )
    table["Pumpe"] = np.arange(len(utc)) // 30 % 2 * 0.5  # few different values
    table.to_csv(tmp_path / "Lastgang.csv", sep=";", decimal=",", index=False, encoding="utf-8-sig")
    return utc, table


def test_an_hour_that_autumn_repeats_makes_no_long_table_and_loses_no_reading(tmp_path):
    utc, table = local_year(tmp_path, 3)
    read = read_tables(tmp_path)
    assert read.zone == "Europe/Berlin"
    assert [one.device for one in read.devices] == ["Pumpe", "Station 0", "Station 1", "Station 2"]
    assert "wide table: 4 devices" in notes(read)
    np.testing.assert_array_equal(read.devices[1].times, utc.as_unit("s").asi8)
    np.testing.assert_allclose(read.devices[1].values, table["Station 0"], atol=1e-9)


@pytest.mark.slow
def test_a_repeated_hour_that_was_left_out_is_missing_and_no_error(tmp_path):
    _, table = local_year(tmp_path, 2)
    table = table[~table["Datum/Uhrzeit"].duplicated()]
    table.to_csv(tmp_path / "Lastgang.csv", sep=";", decimal=",", index=False)
    read = read_tables(tmp_path)
    assert len(read.devices) == 3
    assert len(read.devices[1].times) == 96 * 365 - 8


@pytest.mark.parametrize("form", ["{}", "{:02d}:00"])
@pytest.mark.parametrize("month", ["2024-03-15", "2024-10-10"])
def test_hours_are_counted_over_a_change_of_the_clock(tmp_path, month, form):
    """Some portals number the hours of a day from 1 to 23, 24 or 25."""
    begin = pd.Timestamp(month, tz="Europe/Madrid")
    local = pd.date_range(begin, begin + pd.Timedelta("32D"), freq="h")
    local = local[local < pd.Timestamp(local[-1].date(), tz="Europe/Madrid")]
    days = pd.Series(local.strftime("%d/%m/%Y"))
    hours = [form.format(n + 1) for n in days.groupby(days).cumcount()]
    load = 1 + np.arange(len(local)) * 7919 % 97 / 97
    text = rows_of(days, hours, [number(v, ",") for v in load], separator=";")
    (tmp_path / "m.csv").write_text("Fecha;Hora;AE_kWh\n" + text)
    read = read_tables(tmp_path)
    assert read.zone == "Europe/Berlin"
    assert only(read).times.tolist() == local.as_unit("s").asi8.tolist()
    np.testing.assert_allclose(only(read).values, load, atol=6e-4)
    assert "also on days of 23 and 25 hours" in notes(read)


def test_local_slots_follow_the_change_of_the_clock(tmp_path):
    utc = pd.date_range("2026-03-10", periods=24 * 40, freq="h", tz="UTC")
    pd.DataFrame({"time": utc, "kwh": np.arange(len(utc)) % 24}).to_csv(
        tmp_path / "m.csv", index=False
    )
    record = on_grid(read_tables(tmp_path, zone="Europe/Berlin")).devices[0]
    assert record.slots[0] == 1
    assert record.slots[24 * 30] == 2


def rows_of(*columns, separator=","):
    return "".join(separator.join(row) + "\n" for row in zip(*columns, strict=True))


def number(value, decimal=".", thousands=""):
    text = f"{value:,.3f}".replace(",", "|").replace(".", decimal)
    return text.replace("|", thousands)


ISO = [f"{t:%Y-%m-%d %H:%M}" for t in HOURS]
DAYS = [f"{t:%d/%m/%Y}" for t in HOURS]
POINTS = [number(v) for v in LOAD]
COMMAS = [number(v, ",") for v in LOAD]
LARGE = 400.0 * LOAD  # from 400 to 1440: some numbers have a mark between thousands
ENDS = [f"{t:%d.%m.%Y} {t.hour + 1:02d}:00" for t in HOURS]
PLACES = [str(t.hour + 1) for t in HOURS]


def day_rows(names, times, values, separator=","):
    """Return a row a day: the date, then a column for each interval."""
    days = values.reshape(-1, len(names))
    dates = [f"{t:%d/%m/%Y}" for t in times[:: len(names)]]
    rows = (separator.join([d, *map(number, row)]) for d, row in zip(dates, days, strict=True))
    return separator.join(["Date", *names]) + "\n" + "\n".join(rows) + "\n"


HALVES = pd.date_range("2026-01-05", periods=48 * 30, freq="30min")
HALF_LOAD = 2.0 + np.sin(2 * np.pi * np.arange(len(HALVES)) / 48)
QUARTERS = pd.date_range("2026-01-05", periods=96 * 22, freq="15min")
QUARTER_LOAD = 2.0 + np.sin(2 * np.pi * np.arange(len(QUARTERS)) / 96)


def fluvius():
    """Return a month of one meter by day and night, taken and given, as a grid operator exports it."""
    lines = [
        "Van (datum);Van (tijdstip);Tot (datum);Tot (tijdstip);EAN-code;Meter;Register;Volume;Eenheid"
    ]
    for t, value in zip(HOURS, COMMAS, strict=True):
        end = t + pd.Timedelta("1h")
        tariff = "Dag" if 7 <= t.hour < 22 else "Nacht"
        lines += [
            f'{t:%d-%m-%Y;%H:%M:%S};{end:%d-%m-%Y;%H:%M:%S};="541448800000000000";1SAG0;'
            f"{way} {tariff};{amount};kWh"
            for way, amount in (("Afname", value), ("Injectie", "9,000"))
        ]
    return "\n".join(lines) + "\n"


FORMS = {
    "thousands with a comma": (
        "time,wh\n" + rows_of(ISO, [f'"{number(v, ".", ",")}"' for v in LARGE]),
        LARGE,
        "decimal point",
    ),
    "thousands with a point": (
        "time;wh\n" + rows_of(ISO, [number(v, ",", ".") for v in LARGE], separator=";"),
        LARGE,
        "decimal comma",
    ),
    "thousands with a space": (
        "time;wh\n" + rows_of(ISO, [number(v, ",", " ") for v in LARGE], separator=";"),
        LARGE,
        "decimal comma",
    ),
    "whole numbers with a comma between thousands": (
        "time,wh\n" + rows_of(ISO, [f'"{v:,.0f}"' for v in LARGE]),
        np.round(LARGE),
        "",
    ),
    "a decimal comma in quotation marks": (
        "time,kWh\n" + rows_of(ISO, [f'"{number(v, ",")}"' for v in LOAD / 4]),
        LOAD / 4,
        "decimal comma",
    ),
    "a preamble": (
        'Name,X\nAddress,"1 STREET, TOWN"\nPeriod,2026-01-05,2026-02-03\n\nDATE,START TIME,kWh\n'
        + rows_of([t[:10] for t in ISO], [t[11:] for t in ISO], POINTS),
        LOAD,
        "header in line 5 (4 lines before it)",
    ),
    "a preamble that a spreadsheet filled, and a line of units": (
        "Account;17;\n;;\nZeit;Wert;Status\n;kWh;\n"
        + rows_of(ISO, COMMAS, ["ok"] * len(ISO), separator=";"),
        LOAD,
        "header in line 3 (2 lines before it)",
    ),
    "comments before the header and a total after the rows": (
        "# made by a portal\ntime,kWh\n" + rows_of(ISO, POINTS) + "Total,1700.0\n",
        LOAD,
        "1 of 721 rows left out: no time can be read, first in line 723",
    ),
    "a column that is added on the way": (
        "time,kWh\n"
        + rows_of(ISO[:300], POINTS[:300])
        + "time,status,kWh\n"
        + rows_of(ISO[300:], ["ok"] * 420, POINTS[300:]),
        LOAD,
        "header again in line 302; its names decide",
    ),
    "a column that is added early": (
        "Zeit;kWh\n"
        + rows_of(ISO[:30], COMMAS[:30], separator=";")
        + "Zeit;Temp;kWh\n"
        + rows_of(ISO[30:], ["21,5"] * 690, COMMAS[30:], separator=";"),
        LOAD,
        "header again in line 32",
    ),
    "columns that are exchanged, and one that is taken away": (
        "time,temperature,kWh\n"
        + rows_of(ISO[:300], ["21.5"] * 300, POINTS[:300])
        + "time,kWh,temperature\n"
        + rows_of(ISO[300:600], POINTS[300:600], ["20.1"] * 300)
        + "time,kWh\n"
        + rows_of(ISO[600:], POINTS[600:]),
        LOAD,
        "header again in line 302 and 1 later lines",
    ),
    "no header": (rows_of(ISO, POINTS), LOAD, "no header line"),
    "date and hour to 24:00": (
        "cups;fecha;hora;consumo_kWh;metodo\n"
        + rows_of(["ES0"] * 720, DAYS, [t[11:] for t in ENDS], COMMAS, ["R"] * 720, separator=";"),
        LOAD,
        "times are the ends of the intervals",
    ),
    "hours numbered from 1": (
        "date,hour,kWh\n" + rows_of(DAYS, PLACES, POINTS),
        LOAD,
        "hours numbered from 1",
    ),
    "hours numbered from 0": (
        "date,hour,kWh\n" + rows_of(DAYS, [str(t.hour) for t in HOURS], POINTS),
        LOAD,
        "times are the beginnings of the intervals",
    ),
    "spans of times in one column": (
        "MTU;Load\n"
        + rows_of(
            [f"{t:%d.%m.%Y %H:%M} - {t + pd.Timedelta('1h'):%d.%m.%Y %H:%M}" for t in HOURS],
            COMMAS,
            separator=";",
        ),
        LOAD,
        "day first, spans read at their beginnings",
    ),
    "spans of ISO 8601": (
        "period,kWh\n"
        + rows_of(
            [f"{t:%Y-%m-%dT%H:%MZ}/{t + pd.Timedelta('1h'):%Y-%m-%dT%H:%MZ}" for t in HOURS], POINTS
        ),
        LOAD,
        "spans read at their beginnings",
    ),
    "times with the name of their zone": (
        "Zeit;kWh\n"
        + rows_of(
            [f"{t + pd.Timedelta('1h'):%d.%m.%Y %H:%M} CET" for t in HOURS], COMMAS, separator=";"
        ),
        LOAD,
        "day first with offsets",
    ),
    "times with an offset after a space": (
        "time,kWh\n"
        + rows_of([f"{t - pd.Timedelta('5h'):%m/%d/%Y %H:%M:%S} -0500" for t in HOURS], POINTS),
        LOAD,
        "month first with offsets",
    ),
    "spans of the clock": (
        "Date;Time;kWh\n"
        + rows_of(
            DAYS, [f"{t:%H:%M} - {(t.hour + 1):02d}:00" for t in HOURS], COMMAS, separator=";"
        ),
        LOAD,
        "times are the beginnings of the intervals",
    ),
    "spans of hours": (
        "Fecha;Hora;kWh\n"
        + rows_of(DAYS, [f"{t.hour:02d}-{t.hour + 1:02d}h" for t in HOURS], COMMAS, separator=";"),
        LOAD,
        "times are the beginnings of the intervals",
    ),
    "a clock with points": (
        "Datum;Uhrzeit;kWh\n" + rows_of(DAYS, [f"{t:%H.%M}" for t in HOURS], COMMAS, separator=";"),
        LOAD,
        "time in columns Datum and Uhrzeit",
    ),
    "times with points": (
        "Zeit;kWh\n" + rows_of([f"{t:%d.%m.%Y %H.%M}" for t in HOURS], COMMAS, separator=";"),
        LOAD,
        "day first",
    ),
    "a midnight before the clock": (
        "Date,Time,kWh\n"
        + rows_of([f"{t[:10]} 00:00:00" for t in ISO], [t[11:] for t in ISO], POINTS),
        LOAD,
        "time in columns Date and Time",
    ),
    "dates of 8 digits and a clock of 4": (
        "date,time,kWh\n"
        + rows_of([f"{t:%Y%m%d}" for t in HOURS], [f"{t:%H%M}" for t in HOURS], POINTS),
        LOAD,
        "time in columns date and time",
    ),
    "dates of 10 digits": (
        "time,kWh\n" + rows_of([f"{t:%Y%m%d%H}" for t in HOURS], POINTS),
        LOAD,
        "dates of 10 digits",
    ),
    "dates of 12 digits": (
        "time,kWh\n" + rows_of([f"{t:%Y%m%d%H%M}" for t in HOURS], POINTS),
        LOAD,
        "dates of 12 digits",
    ),
    "Unix milliseconds": (
        "time,kWh\n" + rows_of([f"{1000 * int(t.timestamp())}" for t in HOURS], POINTS),
        LOAD,
        "Unix milliseconds",
    ),
    "Unix nanoseconds": (
        "time,kWh\n" + rows_of([f"{10**9 * int(t.timestamp())}" for t in HOURS], POINTS),
        LOAD,
        "Unix nanoseconds",
    ),
    "names with a number sign": (
        "time,Meter #1 kWh,# of faults\n" + rows_of(ISO, POINTS, ["0"] * len(ISO)),
        LOAD,
        "readings in column Meter #1 kWh",
    ),
    "24:00 at the end of a day": (
        "time;kWh\n" + rows_of(ENDS, COMMAS, separator=";"),
        LOAD,
        "24:00 ends a day",
    ),
    "the end of the interval by its name": (
        "interval end,kWh\n"
        + rows_of([f"{t + pd.Timedelta('1h'):%Y-%m-%d %H:%M}" for t in HOURS], POINTS),
        LOAD,
        "times are the ends of the intervals",
    ),
    "a separator after the last field": (
        "Zeit;kWh\n" + rows_of(ISO, [f"{v};" for v in COMMAS], separator=";"),
        LOAD,
        "separator ;, decimal comma",
    ),
    "a column that no row fills": (
        "Zeit;kWh;\n" + rows_of(ISO, [f"{v};" for v in COMMAS], separator=";"),
        LOAD,
        "readings in column kWh",
    ),
    "marks of missing readings": (
        "Zeit;kWh\n" + rows_of(ISO, ["-", "n/a", "--", *COMMAS[3:]], separator=";"),
        np.concatenate([[np.nan] * 3, LOAD[3:]]),
        "",
    ),
    "a text among the readings": (
        "Zeit;kWh\n" + rows_of(ISO, ["defect", *COMMAS[1:]], separator=";"),
        np.concatenate([[np.nan], LOAD[1:]]),
        "column kWh: 1 of 720 entries are no numbers, such as 'defect' in line 2",
    ),
    "times with AM and PM": (
        "time,kWh\n" + rows_of([f"{t:%m/%d/%Y %I:%M %p}" for t in HOURS], POINTS),
        LOAD,
        "month first",
    ),
    "an old encoding": (
        ("Zähler,kWh\n" + rows_of(ISO, POINTS)).encode("cp1252"),
        LOAD,
        "time in column Zähler",
    ),
    "an encoding of spreadsheets": (
        ("Zeit\tkWh\n" + rows_of(ISO, COMMAS, separator="\t")).encode("utf-16"),
        LOAD,
        "separator tabulator",
    ),
    "a row a day of 24 hours": (
        day_rows([f"H{n}" for n in range(1, 25)], HOURS, LOAD),
        LOAD,
        "24 columns, H1 to H24, each named for the end",
    ),
    "a row a day of 48 halves of an hour": (
        day_rows([f"{m // 60:02d}:{m % 60:02d}" for m in range(0, 1440, 30)], HALVES, HALF_LOAD),
        HALF_LOAD,
        "48 columns, 00:00 to 23:30, each named for the beginning",
    ),
    "a row a day of 96 quarters of an hour": (
        day_rows(
            [f"{m // 60:02d}:{m % 60:02d}" for m in range(15, 1441, 15)], QUARTERS, QUARTER_LOAD
        ),
        QUARTER_LOAD,
        "96 columns, 00:15 to 24:00, each named for the end",
    ),
    "import and export of one meter in rows": (
        fluvius(),
        LOAD,
        "Afname Dag + Afname Nacht is read, Injectie Dag, Injectie Nacht left out (720 rows)",
    ),
    "import and export of one meter in columns": (
        "time,Import T1 kWh,Import T2 kWh,Export T1 kWh,Export T2 kWh\n"
        + rows_of(ISO, POINTS, POINTS, POINTS, POINTS),
        2 * LOAD,
        "Import T1 kWh + Import T2 kWh is read, Export T1 kWh, Export T2 kWh left out",
    ),
    "consumption and production": (
        "time,consumption_kwh,production_kwh\n" + rows_of(ISO, POINTS, POINTS),
        LOAD,
        "consumption_kwh is read, production_kwh left out",
    ),
    "a time twice": (
        "time,kWh\n" + rows_of(ISO, POINTS) + f"{ISO[-1]},{POINTS[-1]}\n",
        LOAD,
        "1 reading of m at a time that has another reading: the last one counts",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_strangers_form_is_read_as_pandas_wrote_it(tmp_path, form):
    text, expected, sentence = FORMS[form]
    (tmp_path / "m.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    read = read_tables(tmp_path)
    record = only(on_grid(read))
    assert record.start == HOURS[0].tz_localize("UTC").timestamp()
    np.testing.assert_allclose(record.values, expected, atol=6e-4)
    assert sentence in notes(read)


NOT_ON_A_DEVICE = (
    "no header",
    "a row a day of 24 hours",
    "a row a day of 48 halves of an hour",
    "a row a day of 96 quarters of an hour",
    "import and export of one meter in columns",  # two columns that add up
)


@pytest.mark.parametrize("form", sorted(FORMS.keys() - set(NOT_ON_A_DEVICE)))
def test_a_device_reads_what_pandas_reads(tmp_path, form):
    """The keys that ``init`` proposes for the file make the same readings."""
    text, expected, _ = FORMS[form]
    path = tmp_path / "m.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    proposed = proposed_columns(path, "elec.import.energy")
    source = SOURCES["csv"]({"path": path, **proposed.section()})
    found = {r.time: r.value for r in source if r.stream == "elec.import.energy"}
    times = HOURS.tz_localize("UTC").as_unit("s").asi8
    assert set(found) == set(times[np.isfinite(expected)])
    values = [found.get(time, np.nan) for time in times]
    np.testing.assert_allclose(values, expected, atol=6e-4)


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        ("a,b\n1,2\n3,4\n", "no column has dates and times (columns: a,b)", "--time-column"),
        ("time,name\n2026-01-01,x\n2026-01-02,y\n", "no numeric column beside time", "reading"),
        ("time\n", "fewer than two lines", ""),
        (
            "time,kWh\n" + rows_of(ISO, COMMAS),
            "m.csv: line 2 has more fields than the header",
            "comma",
        ),
        (
            "time;a\n" + rows_of(ISO, POINTS, POINTS, POINTS, separator=";"),
            "more fields than",
            "mark",
        ),
        ("time,wh\n" + rows_of(ISO, ['"1,015"'] * 720), "1,015 could be read in two ways", "mark"),
        ("time,kWh\n" + rows_of(ISO[::24], POINTS[::24]), "readings are 24 h apart", "every hour"),
        (
            "time,kWh\n" + rows_of(ISO, POINTS) + rows_of(ISO, POINTS),
            "50% of the rows have a time that another row has",
            "one row a time",
        ),
        (
            "time,kWh\n" + rows_of([*ISO[:500], *["soon"] * 220], POINTS),
            "column time: only 69% of the rows have a date and time; line 502 has 'soon'",
            "--time-column",
        ),
        (
            "time,kWh\n" + rows_of(ISO, POINTS) + "2199-01-01 00:00,1.0\n",
            "m left out: 63183 days, 0% of slots known",
            "history",
        ),
        ("time,hour\n,\n2026-01-01,\n2026-01-02,1\n", "no numeric column beside time", "reading"),
        ("100,NEM12,2026\n200,1\n300,20260101,1\n", "a NEM12 file has records", "CSV"),
        ("time,load\n2026-01-01T00:00,1\n2026-01-01T01:00,2\n", "no device has 21 days", "history"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_remedy(tmp_path, text, sentence, hint):
    (tmp_path / "m.csv").write_text(text)
    with pytest.raises(TableError) as error:
        on_grid(read_tables(tmp_path))
    assert sentence in str(error.value)
    assert hint in error.value.hint


def test_two_loads_in_a_file_must_be_chosen(tmp_path):
    for name in ("a", "b"):
        frame(load_1=LOAD, load_2=LOAD).to_csv(tmp_path / f"{name}.csv", index=False)
    with pytest.raises(TableError, match="several numeric columns: load_1, load_2"):
        read_tables(tmp_path)
    assert len(read_tables(tmp_path, value_column="load_2").devices) == 2
    with pytest.raises(TableError, match="no numeric column 'load_3'"):
        read_tables(tmp_path, value_column="load_3")


def test_an_empty_folder_and_a_wrong_zone_are_refused(tmp_path):
    with pytest.raises(TableError, match="no file ends in"):
        read_tables(tmp_path)
    with pytest.raises(TableError, match="no such file or folder"):
        read_tables(tmp_path / "x")
    frame(kwh=LOAD).to_csv(tmp_path / "m.csv", index=False)
    with pytest.raises(TableError, match="not a time zone"):
        read_tables(tmp_path, zone="Middle/Earth")
