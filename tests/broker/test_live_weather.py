"""Weather that goes on arriving: over MQTT and HTTP, into the installed agent."""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import sys
import threading
import time

import pytest

from firmware_sim.fleet.federation import free_port
from tests.broker.single_meter import fetched

pytestmark = pytest.mark.broker

HOSTILE = (b"", b"\x00\xff", b"[" * 50_000, b'{"t": "warm"}', b'{"t": 1e400}', b"x" * 60_000)


class Service(http.server.BaseHTTPRequestHandler):
    """Hourly weather of the last days and of the next, as Open-Meteo gives it; or garbage."""

    is_broken = False

    def do_GET(self):
        hour = int(time.time()) // 3600 * 3600
        times = range(hour - 8 * 86_400, hour + 86_400, 3600)
        body = {
            "hourly": {
                "time": [time.strftime("%Y-%m-%dT%H:%M", time.gmtime(at)) for at in times],
                "temperature_2m": [10.0 + at // 3600 % 24 / 4 for at in times],
            }
        }
        text = b"<html>" if type(self).is_broken else json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    Service.is_broken = False
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1/forecast"
    server.shutdown()
    server.server_close()
    thread.join()


def configured(url, weather, port):
    return f"""
[[source]]
type = "mqtt"
url = "{url}"
topic = "home/outside"
[[source.value]]
path = "$.t"
stream = "weather.temperature"
unit = "°F"
[[source]]
type = "http"
url = "{weather}"
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


def count_of(port, name, **labels):
    """Return the sum of a metric's samples with these labels."""
    text = fetched(port, "/metrics")[1].decode()
    rows = re.findall(rf"^{name}{{(.*)}} (\S+)$", text, re.MULTILINE)
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(float(value) for inside, value in rows if all(one in inside for one in wanted))


@pytest.mark.slow
def test_weather_arrives_while_the_agent_runs_and_hostile_weather_stops_nothing(
    meter, mosquitto, room, service
):
    port = free_port()
    one = meter(configured(mosquitto.url, service, port), bundle="load-week-weather-1")
    check = one.edge("check")
    assert check.returncode == 0, check.stderr
    assert re.search(r"temperature +weather.temperature +source\[1\], mqtt", check.stdout)
    one.start()
    station = room.join(mosquitto.url, "station")
    one.until(lambda: count_of(port, "gridfed_edge_source_frames_total", source="1 http") > 0)
    before = count_of(port, "gridfed_edge_source_frames_total", source="0 mqtt")

    def publish(payload):
        room.until(lambda: station.link.publish("home/outside", payload))
        room.serve(0.05)

    def has_arrived():
        publish(b'{"t": 50}')
        return count_of(port, "gridfed_edge_source_frames_total", source="0 mqtt") > before

    one.until(has_arrived)
    for payload in HOSTILE:
        publish(payload)
    Service.is_broken = True
    one.until(
        lambda: (
            count_of(port, "gridfed_edge_source_rejected_total", source="1 http") > 0
            and count_of(port, "gridfed_edge_source_rejected_total", source="0 mqtt") >= 4
        )
    )
    publish(b'{"t": 50}')
    served = json.loads(fetched(port, "/forecast")[1])
    assert served["source"] == "model"
    start = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(one.end))
    assert served["values"][0]["start"] == start, "it follows the newest energy, not the weather"
    one.stop()
    status = one.edge("status", "--json")
    assert json.loads(status.stdout)["readings"] >= 8 * 24 + 7 * 24


def test_source_test_shows_each_of_them(meter, mosquitto, room, service):
    one = meter(configured(mosquitto.url, service, free_port()), bundle="load-week-weather-1")
    http_words = one.edge("source", "test", "2", "--count", "3")
    assert http_words.returncode == 0, http_words.stderr
    assert http_words.stdout.count("weather.temperature = ") == 3
    station = room.join(mosquitto.url, "station")
    words = [sys.executable, "-m", "edge_sdk", "source", "test", str(one.config), "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            station.link.publish("home/outside", b'{"t": 50}')
            room.serve(0.2)
        assert process.returncode == 0
        assert "weather.temperature = 10 °C" in process.stdout.read()
    silent = one.edge("source", "test", "1", "--seconds", "1")
    assert silent.returncode == 75
