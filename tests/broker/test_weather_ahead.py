"""A forecast that reads the announced weather of its hour: real agent, real broker, both sources."""

from __future__ import annotations

import http.server
import json
import re
import signal
import sqlite3
import threading
import time

import pytest

from firmware_sim.fleet.federation import free_port
from tests.broker.single_meter import HOUR, fetched
from tests.broker.test_fleet_weather import SOURCE, Site
from tests.broker.test_live_weather import count_of

pytestmark = pytest.mark.broker
BUNDLE = "load-week-weather-ahead-1"


def rows(end, *, target=12.0, later=12.0):
    """Return temperatures by hour of Unix time: the target's hour begins at ``end``."""
    hours = range(end // HOUR - 9 * 24, end // HOUR + 24)
    return {h: 10.0 if HOUR * h < end else target if HOUR * h == end else later for h in hours}


def value(port):
    """Return the value of the first forecast hour, None while the model has served none."""
    status, body = fetched(port, "/forecast")
    found = json.loads(body) if status == 200 else {}
    return found["values"][0]["value"] if found.get("source") == "model" else None


def stored(meter):
    """Return the announced temperature of the target's hour in the store."""
    with sqlite3.connect(next((meter.folder / "state").glob("*.db"))) as db:
        found = db.execute(
            "SELECT value FROM readings WHERE stream = 'weather.temperature+1' AND slot = ?",
            (meter.end // HOUR - 1,),
        ).fetchone()
    return None if found is None else found[0]


def forecast(meter):
    """Return the value of the first forecast hour, from the store."""
    found = json.loads(meter.edge("forecast", "--json").stdout)
    assert found["source"] == "model"
    return found["values"][0]


@pytest.fixture
def site(tmp_path, meter, mosquitto):
    made = []

    def make(**more):
        made.append(Site(tmp_path, meter, mosquitto.url, "utrecht", bundle=BUNDLE, **more))
        return made[-1]

    yield make
    for one in made:
        one.stop(signal.SIGKILL)


@pytest.mark.slow
def test_a_forecast_follows_the_announced_weather_of_its_hour_and_of_no_later_one(site, tmp_path):
    port = free_port()
    output = f'[[output]]\ntype = "http"\nlisten = "127.0.0.1:{port}"\ninterval = "1s"\n'
    one = site(more=SOURCE + output)
    meter, end = one.meter, one.meter.end
    said = meter.edge("check").stdout
    assert re.search(r"temperature-ahead +weather.temperature .* announced ahead", said)
    hour = (time.gmtime().tm_hour + 10) % 24  # no round trains during the test
    schedule = f'[run.schedule]\nrounds_per_day = 1\nwindows = ["{hour:02}:00-{hour:02}:59"]\n'
    one.config.write_text(one.config.read_text() + schedule)
    one.start()
    meter.start()

    meter.until(lambda: value(port) is not None)

    def publish(target, later):
        path = tmp_path / f"{target}-{later}.csv"
        lines = [f"{HOUR * h},{v}\n" for h, v in rows(end, target=target, later=later).items()]
        path.write_text("time,temperature\n" + "".join(lines))
        one.weather("publish", str(path), "--region", "utrecht")
        meter.until(lambda: stored(meter) == target)
        return forecast(meter)

    cold, warm = publish(12.0, 12.0), publish(30.0, 12.0)
    assert abs(warm - cold) > 1e-4
    assert publish(12.0, 35.0) == cold, "weather after the forecast hour counts for nothing"
    assert publish(30.0, -5.0) == warm

    # killed and started again, while the aggregator is away: the saved announcement counts
    meter.stop(signal.SIGKILL)
    one.stop(signal.SIGKILL)
    meter.start()
    meter.until(lambda: value(port) == pytest.approx(warm, rel=1e-9))
    one.start()
    assert publish(12.0, 0.0) == cold


class Service(http.server.BaseHTTPRequestHandler):
    """Weather in the form of Open-Meteo."""

    hours: dict[int, float]

    def do_GET(self):
        hours = type(self).hours
        times = [time.strftime("%Y-%m-%dT%H:%M", time.gmtime(HOUR * h)) for h in hours]
        body = {"hourly": {"time": times, "temperature_2m": list(hours.values())}}
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.mark.slow
def test_the_forecast_array_of_a_service_is_read_ahead(meter):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    port = free_port()
    source = f"""
[[source]]
type = "http"
url = "http://127.0.0.1:{server.server_address[1]}/v1/forecast"
poll_interval = "1s"
[[source.value]]
path = "$.hourly.temperature_2m[*]"
time = "$.hourly.time[*]"
stream = "weather.temperature"
[[output]]
type = "http"
listen = "127.0.0.1:{port}"
interval = "1s"
"""
    one = meter(source, bundle=BUNDLE)
    thread.start()
    try:

        def polled(target, later):
            Service.hours = rows(one.end, target=target, later=later)
            one.start()
            one.until(
                lambda: count_of(port, "gridfed_edge_source_frames_total", source="0 http") > 0
            )
            one.stop()
            assert stored(one) == target
            return forecast(one)

        cold, warm = polled(12.0, 12.0), polled(30.0, 12.0)
        assert abs(warm - cold) > 1e-4
        assert (polled(12.0, 35.0), polled(30.0, -5.0)) == (cold, warm)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
