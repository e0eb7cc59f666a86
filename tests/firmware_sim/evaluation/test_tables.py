"""Tables in the forms that people have: each is understood, or refused with a remedy."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="reading tables (extra: evaluate)")

from firmware_sim.evaluation.records import on_grid  # noqa: E402 - after the library
from firmware_sim.evaluation.tables import TableError, read_tables  # noqa: E402 - as above

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
    assert any("counter" in note for note in records.notes)


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


def test_a_repeated_hour_that_was_left_out_is_missing_and_no_error(tmp_path):
    _, table = local_year(tmp_path, 2)
    table = table[~table["Datum/Uhrzeit"].duplicated()]
    table.to_csv(tmp_path / "Lastgang.csv", sep=";", decimal=",", index=False)
    read = read_tables(tmp_path)
    assert len(read.devices) == 3
    assert len(read.devices[1].times) == 96 * 365 - 8


def test_local_slots_follow_the_change_of_the_clock(tmp_path):
    utc = pd.date_range("2026-03-10", periods=24 * 40, freq="h", tz="UTC")
    pd.DataFrame({"time": utc, "kwh": np.arange(len(utc)) % 24}).to_csv(
        tmp_path / "m.csv", index=False
    )
    record = on_grid(read_tables(tmp_path, zone="Europe/Berlin")).devices[0]
    assert record.slots[0] == 1
    assert record.slots[24 * 30] == 2


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        ("a,b\n1,2\n3,4\n", "no column has dates and times (columns: a, b)", "--time-column"),
        ("time,name\n2026-01-01,x\n2026-01-02,y\n", "no numeric column beside time", "reading"),
        ("time\n", "fewer than two lines", ""),
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
