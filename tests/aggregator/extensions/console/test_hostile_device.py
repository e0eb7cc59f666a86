"""An enrolled device sends hostile texts over a real broker to a real daemon: every page shows them as text."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from html.parser import HTMLParser

import numpy as np
import pytest

from aggregator.config import AggregatorConfig, bind
from aggregator.extensions.authority.access.broker_process import mosquitto_program, start
from aggregator.extensions.console.rendering import PAGES
from aggregator.operations.run_setup import set_up
from aggregator.operations.signing_keys import RootSigners
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice
from edge_sdk.extensions.outputs.forecast_message import ForecastMessage
from edge_sdk.link.mqtt import Broker, MqttLink, Poller
from edge_sdk.protocol import keys, topics
from edge_sdk.protocol.messages import HelloMessage, ModelMessage, WelcomeMessage
from firmware_sim.fleet.federation import free_port
from tests.aggregator.conftest import ONLINE, ROOT, Puppet
from tools import chromium

if chromium.missing():
    pytest.skip(chromium.missing(), allow_module_level=True)

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]

SOFTWARE = "<img src=x onerror=alert(1)>"  # as long as a version may be, almost
CLAIM = "\"><script>alert(2)</script>&'{{7*7}}"
NAME = "<img src=x onerror=alert(3)>"  # of a device: no id, so the topic is refused
FORGED = "x\nERROR forged=1"
PATIENCE = 600.0


class RealBroker:
    """Links to a broker, as the puppets want them."""

    def __init__(self, url):
        self.url, self.poller = url, Poller()

    def link(self, name):
        return MqttLink(Broker(url=self.url, client_id=name), poller=self.poller)


def until(done, serve):
    ends = time.monotonic() + PATIENCE
    while not (found := done()):
        assert time.monotonic() < ends, "not in time"
        serve()
    return found


def read(address):
    return served(address)[0]


def served(address):
    """Return the text of an address and its policy; empty while nothing answers."""
    try:
        with urllib.request.urlopen(address, timeout=30) as page:
            return page.read().decode(), page.headers["Content-Security-Policy"] or ""
    except urllib.error.URLError:
        return "", ""


def forecast():
    """Return a forecast whose texts are hostile, as a device may send it."""
    values = np.ones((3, 2), "<f4").tobytes()
    now = int(time.time() * 1000)
    return ForecastMessage(
        now, now, 3_600_000, 2, CLAIM, SOFTWARE, 1, 1, CLAIM, FORGED, error=0.5, coverage=0.9, blob=values
    )  # fmt: skip


class Page(HTMLParser):
    """The elements of a page that a text could have become."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        names = {name for name, _ in attrs}
        if tag in ("img", "iframe") or any(one.startswith("on") for one in names):
            self.found.append(self.get_starttag_text())
        if tag == "script" and names != {"src", "defer"}:
            self.found.append(self.get_starttag_text())


def founded(path):
    """Set up the fleet of a configuration, with two enrolled puppets."""
    config = AggregatorConfig.load(path)
    keys.save_signing_key(config.signing_key, ONLINE)
    with open_store(config.database) as store:
        now = int(time.time() * 1000)
        set_up(bind(config), store, root=RootSigners.of(ROOT), online=ONLINE.public, now=now)
        for number in (1, 2):
            public = keys.from_seed(bytes([number]) * 32).public
            store.devices.save(EnrolledDevice(f"meter-{number}", (public,)))
    return config


@pytest.fixture
def stack():
    with ExitStack() as one:
        yield one


def program(stack, tmp_path, *words):
    """Start a program; it is killed at the end of the test."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    log = stack.enter_context((tmp_path / f"{words[0]}.log").open("wb"))
    process = subprocess.Popen([sys.executable, "-m", *words], env=environ, stdout=log, stderr=log)
    stack.callback(process.wait, 60)
    stack.callback(process.kill)


def require_text_on_every_page(driver, address):
    """Read every page without and with a browser: texts of devices are text, and no script ran."""
    shown = 0
    for at in [*(one for one, _ in PAGES), "/device?id=meter-1", "/run?run=1"]:
        text, policy = served(address + at)
        assert "default-src 'none'" in policy, at
        assert "unsafe" not in policy, at
        assert Page(text).found == [], at
        driver.get(address + at)
        assert driver.find_element("css selector", "h1").text
        assert not driver.find_elements("css selector", "img, main script"), at
        shown += SOFTWARE in driver.find_element("css selector", "main").text
    assert shown == 2, "the list and the device show the text"
    driver.get(address + "/device?id=meter-1")
    assert CLAIM in driver.find_element("css selector", "main").text, "the forecast's stream"
    assert chromium.complaints(driver) == [], "the policy did not have to stop anything"


def test_texts_of_a_device_never_become_markup(workplace, tmp_path, stack):
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    broker = stack.enter_context(start("mosquitto", folder=tmp_path / "broker"))
    page, port = free_port(), free_port()
    replacing = [
        ("mqtt://127.0.0.1:1883", broker.url),
        (
            'http = { listen = "off" }',
            f'http = {{ listen = "127.0.0.1:{page}" }}\nforecasts = {{ store = true }}',
        ),
    ]
    path = workplace(f'[console]\nlisten = "127.0.0.1:{port}"\n', replacing)
    founded(path)
    program(stack, tmp_path, "aggregator", "run", str(path))
    program(stack, tmp_path, "aggregator.extensions.console", "--config", str(path))
    until(lambda: read(f"http://127.0.0.1:{page}/readyz"), lambda: time.sleep(0.1))
    lines = RealBroker(broker.url)
    stack.callback(lines.poller.close)
    puppets = [Puppet(lines, name=f"meter-{n}", seed=n) for n in (1, 2)]

    def serve():
        lines.poller.serve(0.05)
        for one in puppets:
            one.poll()

    for one in puppets:
        stack.callback(one.link.close)
        until(lambda one=one: one.link.is_up, serve)
        one.life = 1
        caps = (CLAIM[:16],)
        one.say(HelloMessage(1, bytes([1]) * 16, 0, False, (), (1, 1), caps, SOFTWARE, 1))
    for one in puppets:
        until(lambda one=one: one.last(WelcomeMessage), serve)
        until(lambda one=one: one.last(ModelMessage), serve)
        one.answer([0.1, 0.2], vals={"loss": 0.5, CLAIM: 1.0})
        one.answer([0.1, 0.2], part=CLAIM[:16], enc=CLAIM[:16])
        one.say(forecast())
        one.link.publish(topics.up("north", NAME, "hello"), b"as a device whose id is markup")

    def has_arrived():
        found = json.loads(read(f"http://127.0.0.1:{page}/status") or "{}")
        contact = found.get("contacts", {}).get("meter-1", {})
        stored = list((tmp_path / "state" / "forecasts").glob("*.forecast"))
        return contact.get("sdk") == SOFTWARE and len(found["refused"]) > 1 and len(stored) == 2

    until(has_arrived, serve)
    refused = json.loads(read(f"http://127.0.0.1:{page}/status"))["refused"]
    assert sum(refused.values()) >= 4, refused
    command = [sys.executable, "-m", "aggregator", "label", f"site={CLAIM}", "meter-1"]
    done = subprocess.run(
        [*command, "--config", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "label" in done.stderr
    address = f"http://127.0.0.1:{port}"
    until(lambda: read(f"{address}/static/console.css"), lambda: time.sleep(0.1))
    driver = chromium.start(tmp_path / "profile")
    stack.callback(driver.quit)
    require_text_on_every_page(driver, address)
    for log in ("aggregator", "aggregator.extensions.console"):
        lines = (tmp_path / f"{log}.log").read_text("utf-8").splitlines()
        assert not [one for one in lines if one.startswith("ERROR forged")]
