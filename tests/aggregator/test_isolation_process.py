"""A defect in a rule, in a real daemon at a real broker: one message is set aside, others go on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from aggregator.extensions.authority.access.broker_process import mosquitto_program, start
from edge_sdk.errors import Reason
from edge_sdk.link.mqtt import Broker, MqttLink
from edge_sdk.protocol.messages import ModelMessage, ReceiptMessage, WelcomeMessage

ROOT = Path(__file__).resolve().parents[2]

PLANT = """
from pathlib import Path

from aggregator import rules

real = rules.RULES["mean"]


def mean(rows, shares):
    if 13.0 in rows.values:
        with (Path(__file__).parent / "calls").open("a") as calls:
            calls.write("x")
        raise ZeroDivisionError("a planted defect")
    return real.function(rows, shares)


rules.RULES = {**rules.RULES, "mean": real._replace(function=mean)}
"""
"""What Python imports by itself at every start, where it finds it."""


class Links:
    """Gives puppets a link to a real broker."""

    def __init__(self, url):
        self.url, self.made = url, []

    def link(self, name):
        self.made.append(MqttLink(Broker(url=self.url, client_id=name, reconnect_min=0.2)))
        return self.made[-1]


class Site:
    """The folder, the broker, the daemon's process and three devices."""

    def __init__(self, config, port, links, crew):
        self.config, self.links, self.crew = config, links, crew
        self.page = f"http://127.0.0.1:{port}"
        (config.state / "sitecustomize.py").write_text(PLANT, "utf-8")
        self.running = None

    def words(self, *words):
        return [sys.executable, "-m", "aggregator", *words]

    def environ(self):
        paths = [str(self.config.state), str(ROOT)]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def start(self):
        with (self.config.state / "log").open("a") as out:
            words = self.words("run", str(self.config.file))
            self.running = subprocess.Popen(words, stderr=out, env=self.environ())

    def stop(self):
        if self.running is not None and self.running.poll() is None:
            self.running.terminate()
            self.running.wait(30)

    def command(self, *words):
        words = [*words, "--config", str(self.config.file), "--json"]
        done = subprocess.run(
            self.words(*words), env=self.environ(), capture_output=True, timeout=60, check=True
        )
        return json.loads(done.stdout)

    def until(self, holds, patience=600.0):
        end = time.monotonic() + patience
        while time.monotonic() < end:
            for puppet in self.crew:
                puppet.poll()
            if holds():
                return
            assert self.running.poll() is None, (self.config.state / "log").read_text("utf-8")
            time.sleep(0.02)
        pytest.fail((self.config.state / "log").read_text("utf-8"))

    def calls(self):
        file = self.config.state / "calls"
        return len(file.read_text("utf-8")) if file.exists() else 0

    def status(self):
        with urllib.request.urlopen(f"{self.page}/status", timeout=10) as page:
            return json.load(page)


@pytest.fixture
def site(founded, puppets, tmp_path):
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    with start("mosquitto", folder=tmp_path / "broker") as broker:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        changes = [("mqtt://127.0.0.1:1883", broker.url), ('"off"', f'"127.0.0.1:{port}"')]
        config = founded(replacing=[*changes, ('"60s"', '"600s"')])
        links = Links(broker.url)
        made = Site(config, port, links, puppets(links, 3))
        made.start()
        yield made
        made.stop()
        for link in links.made:
            link.close()


@pytest.mark.broker
@pytest.mark.slow
def test_a_daemon_survives_a_defect_in_a_rule_and_goes_on_with_others(site):
    one, two, three = site.crew
    site.until(lambda: all(puppet.link.is_up for puppet in site.crew))
    site.until(lambda: two.last(ModelMessage) is not None)
    for puppet in site.crew:
        puppet.hello(1)
    site.until(lambda: all(puppet.last(WelcomeMessage) is not None for puppet in site.crew))
    one.answer([0.5, 0.0])
    site.until(lambda: one.last(ReceiptMessage) is not None)
    poisoned = two.answer([13.0, 13.0])
    site.until(lambda: two.last(ReceiptMessage) is not None)
    assert two.last(ReceiptMessage).code == Reason.INTERNAL
    assert site.calls() == 1
    (letter,) = site.command("dead-letters", "list")["dead_letters"]
    assert (letter["device"], letter["where"]) == ("meter-2", "update")
    shown = site.command("dead-letters", "show", letter["name"])
    assert "a planted defect" in shown["trace"]

    site.stop()  # the same bytes, after a restart
    site.start()
    two.heard.clear()
    two.say(poisoned)
    site.until(lambda: site.calls() > 1 or any(m.kind == "refusal" for m in two.heard))
    assert site.calls() == 1

    three.answer([1.5, 1.0], round=1, base=0)
    site.until(lambda: three.last(ModelMessage).version == 1)
    assert three.last(ReceiptMessage).code == Reason.ACCEPTED
    assert site.status()["dead_letters"] == 1
    assert site.command("dead-letters", "clear") == {"cleared": "_all"}
    site.until(lambda: site.command("dead-letters", "list")["dead_letters"] == [])
