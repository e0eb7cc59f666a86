"""Weather and forecasts over the fleet's own link: real daemon, real agent, real broker, restarts."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from edge_sdk.extensions.weather.messages import WeatherMessage, topic_of
from edge_sdk.protocol.codec import encode
from edge_sdk.protocol.envelope import seal
from edge_sdk.protocol.keys import from_seed, load_signing_key
from tests.broker.single_meter import HOUR, PATIENCE

pytestmark = pytest.mark.broker

BUNDLE = "load-week-weather-1"
AGGREGATOR = """
fleet = "north"
state = "fleet"
broker = { url = "URL" }
http = { listen = "off" }
[run]
bundle = "load-week-weather-1"
method = "fedavg"
shared = ["body."]
quorum = 16
min_updates = 8
deadline = "1d"
"""
SOURCE = '[[source]]\ntype = "fleet-weather"\n'


class Site:
    """One daemon and one meter on one broker."""

    def __init__(self, folder, meter, url, region, *, more=SOURCE, fleet="", bundle=BUNDLE):
        self.folder, self.config = folder, folder / "aggregator.toml"
        self.config.write_text(fleet + AGGREGATOR.replace("URL", url).replace(BUNDLE, bundle))
        self.meter = meter(more, bundle=bundle)
        text = self.meter.config.read_text().replace("mqtt://127.0.0.1:1", url)
        self.meter.config.write_text(text)
        self.say("init", str(self.config))
        shutil.copy(folder / "fleet" / "root.pub", folder / "root.pub")
        key = load_signing_key(folder / "meter.key").public.hex()
        proof = json.loads(self.meter.edge("enrol", "--json").stdout)["proof"]
        words = ["--public", key, "--proof", proof, "--label", f"region={region}"]
        self.say("enrol", "meter-1", *words, "--config", str(self.config))
        self.daemon = None

    def say(self, *words, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "aggregator", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def weather(self, *words, code=0):
        return self.say("weather", *words, "--config", str(self.config), code=code)

    def start(self):
        self.log = (self.folder / "daemon.log").open("ab")
        words = [sys.executable, "-m", "aggregator", "run", str(self.config)]
        self.daemon = subprocess.Popen(words, stdout=self.log, stderr=self.log)

    def stop(self, number=signal.SIGTERM):
        if self.daemon is not None:
            self.daemon.send_signal(number)
            self.daemon.wait(PATIENCE)
            self.log.close()
            self.daemon = None

    def until(self, done):
        end = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < end, (self.folder / "daemon.log").read_text()
            assert self.daemon.poll() is None, (self.folder / "daemon.log").read_text()
            time.sleep(0.05)

    def temperatures(self):
        """Return the stored temperatures of the meter by hour."""
        import sqlite3  # noqa: PLC0415 - what the store holds, seen from outside

        with sqlite3.connect(next((self.folder / "state").glob("*.db"))) as db:
            rows = db.execute(
                "SELECT slot, value FROM readings WHERE stream = 'weather.temperature'"
            )
            return dict(rows.fetchall())


@pytest.fixture
def site(tmp_path, meter, mosquitto):
    made = []

    def make(region, **more):
        made.append(Site(tmp_path, meter, mosquitto.url, region, **more))
        return made[-1]

    yield make
    for one in made:
        one.stop(signal.SIGKILL)


def written(path, end, first, last, base):
    rows = [f"{end + HOUR * i},{base + i % 24 / 4:.2f}\n" for i in range(first, last)]
    path.write_text("time,temperature\n" + "".join(rows))
    return str(path)


@pytest.mark.slow
def test_signed_weather_reaches_a_device_and_survives_restarts(site, room, mosquitto, tmp_path):
    one = site("utrecht")
    meter = one.meter
    check = meter.edge("check").stdout
    assert re.search(r"temperature +weather.temperature +source\[1\], fleet-weather", check)
    end = meter.end
    before = written(tmp_path / "before.csv", end, -9 * 24, 24, 10.0)
    said = one.weather("publish", "--region", "utrecht", before)
    assert "published when the daemon starts" in said
    one.start()
    meter.start()
    meter.until(lambda: "weather received" in meter.said)
    assert "region assigned" in meter.said
    tap = room.join(mosquitto.url, "tap", "gf/1/north/_all/weather/utrecht")
    room.until(lambda: len(tap.messages) >= 1)

    # the running daemon announces a correction: what has passed since replaces the forecast of it
    after = written(tmp_path / "after.csv", end, -2, 24, 20.0)
    assert "queued for the running daemon" in one.weather("publish", after, "--region", "utrecht")
    meter.until(lambda: meter.said.count("weather received") == 2)
    room.until(lambda: tap.messages[-1].payload != tap.messages[0].payload)
    newer = tap.messages[-1].payload
    tap.link.publish(topic_of("north", "utrecht"), b"", retain=True)  # the broker loses it
    room.until(lambda: tap.messages[-1].payload == b"")

    # killed and started again, without the retained message: the saved one counts
    meter.stop(signal.SIGKILL)
    one.stop(signal.SIGKILL)
    meter.start()
    meter.until(lambda: meter.edge("health").returncode == 0)
    meter.stop()
    found = one.temperatures()
    assert found[end // HOUR - 2] == pytest.approx(20.0 + -2 % 24 / 4)
    assert found[end // HOUR - 100] == pytest.approx(10.0 + -100 % 24 / 4)
    assert max(found) <= int(time.time()) // HOUR, "a forecast of the future is no reading"

    # a daemon that was killed publishes its weather again
    one.start()
    room.until(lambda: tap.messages[-1].payload == newer)
    assert "utrecht" in one.weather("list")
    assert "cleared" in one.weather("clear", "--region", "utrecht")
    room.until(lambda: tap.messages[-1].payload == b"")
    one.stop()
    assert "no weather is published" in one.weather("list")


@pytest.mark.slow
def test_forged_old_and_replayed_weather_is_refused_with_a_log_event(
    site, room, mosquitto, tmp_path
):
    one = site("leiden")
    meter = one.meter
    one.weather(
        "publish", "--region", "leiden", written(tmp_path / "1.csv", meter.end, -9, 9, 10.0)
    )
    one.start()
    meter.start()
    meter.until(lambda: meter.said.count("weather received") == 1)
    tap = room.join(mosquitto.url, "tap", "gf/1/north/_all/weather/leiden")
    room.until(lambda: len(tap.messages) >= 1)
    older = tap.messages[-1].payload
    one.weather(
        "publish", "--region", "leiden", written(tmp_path / "2.csv", meter.end, -9, 9, 20.0)
    )
    meter.until(lambda: meter.said.count("weather received") == 2)

    blob = np.full(2, 60.0, "<f4").tobytes()
    wall = int(time.time() * 1000)

    def forged(t, signer, region="leiden"):
        message = WeatherMessage(
            region, t, (meter.end - HOUR) * 1000, HOUR * 1000, 2, ("weather.temperature",), blob
        )
        way = {"kind": "weather", "sender": "_agg", "recipient": "_all", "fleet": "north"}
        return seal(encode(message), signer=signer, **way)

    key = load_signing_key(tmp_path / "fleet" / "aggregator.key")
    hostile = {
        "ROLLBACK": older,
        "UNKNOWN_CLIENT": forged(wall + 60_000, from_seed(b"x" * 32)),
        "BAD_SIGNATURE": forged(wall + 60_000, key).replace(blob[:4], b"abcd"),
        "MALFORMED": forged(wall + 60_000, key, "elsewhere"),
        "FROM_FUTURE": forged(wall + 8 * 86_400_000, key),
    }
    for reason, payload in hostile.items():
        tap.link.publish(topic_of("north", "leiden"), payload, retain=True)
        pattern = re.compile(rf"weather refused region=leiden why=.?{reason}")
        meter.until(lambda pattern=pattern: pattern.search(meter.said), lambda: room.serve(0.05))
    meter.stop()
    values = one.temperatures().values()
    assert 20.0 <= max(values) < 30.0
    assert meter.said.count("weather received") == 2


@pytest.mark.slow
def test_a_forecast_reaches_the_aggregator_only_if_both_sides_ask_for_it(site, tmp_path):
    output = '[[output]]\ntype = "fleet"\ninterval = "1s"\n'
    one = site("delft", more=output, fleet="forecasts = { store = true }\n")
    meter, config = one.meter, str(one.config)
    assert "outputs: 0 fleet" in meter.edge("check").stdout
    one.start()
    meter.start()
    one.until(lambda: "meter-1" in one.say("forecasts", config))

    def stored():
        return json.loads(one.say("forecasts", config, "--json"))["forecasts"][0]

    def is_the_present_one():  # it changes after a round; the next second sends it
        own = json.loads(meter.edge("forecast", "--json").stdout)
        return stored()["values"][0]["value"] == pytest.approx(own["values"][0], rel=1e-6)

    one.until(is_the_present_one)
    row = stored()
    assert (row["model"], row["candidate"]) == ("load-week-weather-1", "fleet")
    assert row["values"][0]["lower"] <= row["values"][0]["value"] <= row["values"][0]["upper"]
    lines = one.say("forecasts", config, "--csv").splitlines()
    assert lines[0].startswith("device,issued,stream,start,value")
    assert len(lines) == 1 + len(row["values"])
    assert "no forecast is stored" in one.say("forecasts", config, "--label", "region=elsewhere")

    # without the operator's setting the same device is refused, and nothing is stored
    one.stop()
    shutil.rmtree(tmp_path / "fleet" / "forecasts")
    text = one.config.read_text().replace("store = true", "store = false")
    one.config.write_text(text)
    one.start()
    meter.stop()
    meter.start()
    meter.until(lambda: meter.edge("health").returncode == 0)
    meter.until(lambda: "welcome received" in meter.said)
    meter.stop()
    assert "forecasts.store is false" in one.say("forecasts", config)
