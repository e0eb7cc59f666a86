"""Weather from CSV and JSON: the forms that services and people write, and the errors they make."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import threading
from contextlib import contextmanager
from urllib.request import Request

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.extensions.weather.weather_tables import (
    WeatherError,
    WeatherTable,
    fetched,
    from_csv,
    from_json,
    merged,
    opener,
)
from edge_sdk.extensions.weather.fleet_weather import FleetWeatherSource, on_grid
from edge_sdk.extensions.weather.messages import WEATHER_LIMIT, WeatherMessage
from edge_sdk.protocol.codec import decode, encode

TEMPERATURE, WIND = "weather.temperature", "weather.wind_speed"


@pytest.mark.parametrize(
    "text",
    [
        "time,temperature,wind_speed\n2026-01-01T00:00,1.5,2\n2026-01-01T01:00,,4\n",
        "time;weather.temperature;wind_speed\n2026-01-01 00:00;1,5;2\n2026-01-01 01:00;NA;4\n",
        "wind_speed,station,time,temperature\n4,x,1767229200,\n2,x,1767225600,1.5\n",
    ],
)
def test_a_csv_file_in_the_forms_that_people_write(tmp_path, text):
    (tmp_path / "w.csv").write_text(text)
    table = from_csv(tmp_path / "w.csv")
    assert (table.start, table.step, table.rows) == (1767225600, 3600, 2)
    np.testing.assert_array_equal(table.columns[TEMPERATURE], [1.5, np.nan])
    np.testing.assert_array_equal(table.columns[WIND], [2, 4])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("when,temperature\n1,2\n", "expected the columns 'time'"),
        ("time,rain\n1767225600,2\n", "temperature, wind_speed, irradiance"),
        ("time,temperature\n1767225600,2\n1767229200,warm\n", "line 3"),
        ("time,temperature\n1767225600,2\n", "1 rows"),
        ("time,temperature\n1767225600,2\n1767225601,2\n", "grid of 1 s"),
        ("time,temperature\n1767225600,\n1767229200,\n", "no row has a value"),
        ("", "expected the columns"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path, text, words):
    (tmp_path / "w.csv").write_text(text)
    with pytest.raises(WeatherError, match=words):
        from_csv(tmp_path / "w.csv")


def open_meteo(**more):
    hourly = {"time": ["2026-01-01T00:00", "2026-01-01T01:00"], "temperature_2m": [50.0, None]}
    hourly["wind_speed_10m"] = [36, 18]
    units = {"temperature_2m": "°F", "wind_speed_10m": "km/h"}
    return json.dumps({"hourly": hourly, "hourly_units": units} | more).encode()


def test_the_document_of_open_meteo_with_its_own_units():
    table = from_json(open_meteo())
    np.testing.assert_allclose(table.columns[TEMPERATURE], [10.0, np.nan])
    np.testing.assert_allclose(table.columns[WIND], [10.0, 5.0])


def test_a_document_of_another_service():
    raw = json.dumps({"at": [0, 3600], "rows": [{"w": 3.6}, {"w": 7.2}]}).encode()
    table = from_json(raw, {WIND: "$.rows[*].w km/h"}, "$.at[*]")
    np.testing.assert_allclose(table.columns[WIND], [1.0, 2.0])
    with pytest.raises(WeatherError, match="'W' is no unit of"):
        from_json(raw, {WIND: "$.rows[*].w W"}, "$.at[*]")


@contextmanager
def served(*parts, keeps=False):
    """Answer one request at 127.0.0.1 with these bytes; then send a byte now and then, or close."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = threading.Event()

        def answer():
            with contextlib.suppress(OSError), server.accept()[0] as channel:
                channel.recv(4096)
                channel.sendall(b"".join(parts))
                while keeps and not done.wait(0.01):
                    channel.sendall(b"x")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/forecast"
        done.set()
        thread.join(10)


OK = b"HTTP/1.0 200 OK\r\n\r\n"


def test_a_document_is_fetched():
    with served(OK, b"{}") as url:
        assert fetched(url) == b"{}"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.0 302 x\r\nLocation: http://169.254.169.254/\r\n\r\n", "is not followed"),
        (b"HTTP/1.0 302 x\r\nLocation: //localhost/\r\n\r\n", "is not followed"),
        (b"HTTP/1.0 302 x\r\nLocation: ftp://127.0.0.1/x\r\n\r\n", "is not followed|not allowed"),
        (b"HTTP/1.0 302 x\r\nLocation: file:///etc/passwd\r\n\r\n", "is not followed|not allowed"),
        (b"HTTP/1.0 404 gone\r\n\r\n", "gone"),
        (b"SSH-2.0\r\n", "127.0.0.1: "),
        (OK + b"x" * (4 << 20) + b"x", "larger than"),
    ],
)
def test_an_answer_of_another_kind_is_refused(answer, words):
    with served(answer) as url, pytest.raises(WeatherError, match=words):
        fetched(url)


@pytest.mark.parametrize("begun", [b"HTTP/1.0 200 OK\r\nx: ", OK])
def test_an_answer_that_never_ends_is_left_after_the_time_limit(begun):
    with served(begun, keeps=True) as url, pytest.raises(WeatherError, match=r"within 0\.2 s"):
        fetched(url, timeout=0.2)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "file:///etc/passwd", "http:///x", "x"])
def test_an_address_of_another_protocol_is_refused(url):
    with pytest.raises(WeatherError, match="is no http"):
        fetched(url)
    with pytest.raises((OSError, ValueError)):
        opener().open(url)


def test_a_redirect_to_the_same_host_is_followed_and_one_to_a_weaker_protocol_is_not():
    follow = opener().handle_error["http"][302][0].redirect_request
    request = Request("https://weather.example/a")
    to = [f"{where}/b" for where in ("https://weather.example", "http://weather.example")]
    assert follow(request, None, 302, "x", {}, to[0]).full_url == to[0]
    with pytest.raises(WeatherError, match="is not followed"):
        follow(request, io.BytesIO(), 302, "x", {}, to[1])


def test_a_file_larger_than_any_table_is_refused(tmp_path):
    (tmp_path / "w.csv").write_bytes(bytes((4 << 20) + 1))
    with pytest.raises(WeatherError, match="larger than"):
        from_csv(tmp_path / "w.csv")


@given(st.binary(max_size=200) | st.sampled_from([b"{}", b"[]", b'{"hourly": 1}', b"[" * 9000]))
def test_any_bytes_are_a_table_or_a_named_error(raw):
    with pytest.raises(WeatherError):
        from_json(raw)


def test_a_later_table_corrects_an_earlier_one_and_keeps_the_rest():
    early = WeatherTable.of([0, 3600, 7200], {TEMPERATURE: [1.0, 2.0, 3.0]})
    late = WeatherTable.of([3600, 7200], {TEMPERATURE: [9.0, float("nan")], WIND: [4.0, 5.0]})
    both = merged([early, late])
    np.testing.assert_array_equal(both.columns[TEMPERATURE], [1.0, 9.0, 3.0])
    np.testing.assert_array_equal(both.columns[WIND], [np.nan, 4.0, 5.0])


def test_the_oldest_rows_are_left_out_of_a_message_that_would_be_too_large():
    times = range(0, 900 * (WEATHER_LIMIT + 10), 900)
    table = WeatherTable.of(list(times), {TEMPERATURE: [1.0] * len(times)})
    assert (table.rows, table.dropped) == (WEATHER_LIMIT, 10)
    assert decode(WeatherMessage, encode(table.message("x", 1))).num == WEATHER_LIMIT


numbers = st.floats(-50, 50, width=32) | st.just(float("nan"))


@given(
    st.lists(numbers, min_size=2, max_size=30),
    st.sampled_from([600, 900, 3600, 10_800]),
    st.sampled_from([900, 3600]),
    st.integers(0, 7200),
)
def test_a_slot_has_the_value_of_its_row_or_one_between_its_neighbours(values, every, step, start):
    blob = np.array(values, "<f4").tobytes()
    message = WeatherMessage("x", 1, 1000 * start, 1000 * every, len(values), (TEMPERATURE,), blob)
    slots, columns = on_grid(message, step)
    rows = start + every * np.arange(len(values))
    for slot, value in zip(slots, columns[TEMPERATURE], strict=True):
        assert slot % step == 0
        inside = [v for at, v in zip(rows, values, strict=True) if slot <= at < slot + step]
        if every < step:
            np.testing.assert_allclose(value, inside[0] if inside else np.nan)
        elif slot in rows:
            np.testing.assert_allclose(value, values[list(rows).index(slot)])
        else:
            near = [v for at, v in zip(rows, values, strict=True) if abs(at - slot) < every]
            assert np.isnan(value) == any(np.isnan(near))
            assert np.isnan(value) or min(near) - 1e-4 <= value <= max(near) + 1e-4


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8))
def test_each_row_is_read_once_when_its_time_has_come(hours):
    blob = np.arange(30, dtype="<f4").tobytes()
    message = WeatherMessage("x", 1, 0, 3_600_000, 30, (TEMPERATURE,), blob)
    source = FleetWeatherSource("x", frozenset({TEMPERATURE}))
    read = [r for hour in hours for r in source.due(message, 3600.0 * hour, 3600)]
    assert [r.value for r in read] == list(range(min(30, max(hours) + 1)))
    assert all(r.time == 3600 * r.value for r in read)
