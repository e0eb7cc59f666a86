"""Answers about scores over a real broker: three agents, one daemon, kills, and a reload."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest

from edge_sdk.extensions.scores.score_reporter import POINT
from edge_sdk.protocol.keys import load_signing_key
from edge_sdk.store.store import DeviceStore
from tests.broker.single_meter import Meter

pytestmark = pytest.mark.broker

PATIENCE = 600.0
AGGREGATOR = """
fleet = "north"
state = "fleet"
broker = { url = "URL" }
http = { listen = "off" }
scores = { collect = true }
[run]
bundle = "load-week-1"
method = "fedavg"
quorum = 16
min_updates = 8
deadline = "1d"
"""
SCORES = "[scores]\nreport = true\nepsilon = 1.0\nbudget = 30.0\n"


class Fleet:
    """A daemon and three meters on one broker; the third does not opt in."""

    def __init__(self, folder, url):
        self.folder, self.config, self.daemon = folder, folder / "aggregator.toml", None
        self.config.write_text(AGGREGATOR.replace("URL", url))
        self.say("init")
        self.meters = [self.meter(number, url) for number in range(3)]

    def meter(self, number, url):
        folder = self.folder / f"home-{number}"
        folder.mkdir()
        one = Meter(folder, SCORES if number < 2 else "")
        text = one.config.read_text().replace("mqtt://127.0.0.1:1", url)
        one.config.write_text(text.replace('"meter-1"', f'"meter-{number}"'))
        shutil.copy(self.folder / "fleet" / "root.pub", folder / "root.pub")
        key = load_signing_key(folder / "meter.key").public.hex()
        proof = json.loads(one.edge("enrol", "--json").stdout)["proof"]
        words = ["enrol", f"meter-{number}", "--public", key, "--proof", proof]
        self.run(*words, "--config", str(self.config))
        return one

    def run(self, *words):
        done = subprocess.run(
            [sys.executable, "-m", "aggregator", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def say(self, *words):
        return self.run(words[0], str(self.config), *words[1:])

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
            time.sleep(0.05)

    def answers(self):
        """Return the stored answers by device and day."""
        found = {}
        for path in sorted((self.folder / "fleet" / "scores").glob("*.answers")):
            for line in filter(None, path.read_text().splitlines()):
                row = json.loads(line)
                found[row["device"], path.stem] = row["answer"]
        return found

    def drawn(self, number):
        """Return the number of charges in the ledger of a meter."""
        with DeviceStore.open(self.folder / f"home-{number}" / "state", read_only=True) as store:
            return sum(charge.point == POINT for charge in store.ledger())


@pytest.fixture
def fleet(tmp_path, mosquitto):
    one = Fleet(tmp_path, mosquitto.url)
    yield one
    for meter in one.meters:
        meter.stop(signal.SIGKILL)
    one.stop(signal.SIGKILL)


@pytest.mark.slow
def test_agents_answer_once_a_day_also_across_kills_of_both_ends(fleet):
    begun = time.time()
    for meter in fleet.meters:
        meter.start()
    fleet.start()
    fleet.until(lambda: {device for device, _ in fleet.answers()} == {"meter-0", "meter-1"})
    first = fleet.answers()
    fleet.stop(signal.SIGKILL)
    for meter in fleet.meters:
        meter.stop(signal.SIGKILL)
        meter.start()
    fleet.start()
    for meter in fleet.meters:
        meter.until(lambda meter=meter: "welcome received" in meter.said)
    fleet.meters[0].until(lambda: fleet.meters[0].edge("health").returncode == 0)
    for meter in fleet.meters:
        meter.stop()
    found = fleet.answers()
    assert {key: found[key] for key in first} == first, "the first answers stay"
    days = time.time() // 86_400 - begun // 86_400 + 1  # two where midnight falls into the test
    for number in range(2):
        own = [key for key in found if key[0] == f"meter-{number}"]
        assert len(own) <= fleet.drawn(number) <= days
    assert fleet.drawn(2) == 0

    shown = json.loads(fleet.meters[0].edge("budget", "--json").stdout)
    assert shown["scores"] == {"epsilon": float(fleet.drawn(0)), "allowed": 30.0}
    status = json.loads(fleet.say("status", "--json"))["scores"]
    answers = [device for device, day in found if day == str(status["day"])]
    assert status["answers"] == len(answers) >= 1
    assert sum(one["devices"] for one in status["cells"]) == pytest.approx(len(answers), abs=0.1)
    assert (fleet.folder / "fleet" / "scores").stat().st_mode & 0o077 == 0
