"""The operator's console over a real daemon: a new operator's questions, each answered in at most three clicks.

A click follows a link or sends a form of the page.
"""

from __future__ import annotations

import logging
import re
from html import unescape
from html.parser import HTMLParser
from urllib.parse import urlencode

import pytest

from aggregator.commands import main as cli
from aggregator.config import AggregatorConfig
from aggregator.extensions.console import live_status
from firmware_sim.attacks.attack_plan import AttackPlan
from tests.aggregator.extensions.console.browser import HOST, Browser
from tests.fleet.conftest import World
from tests.fleet.test_attacks import begin, learned

app = pytest.importorskip(
    "aggregator.extensions.console.app",
    reason="the console extra is not installed",
    exc_type=ImportError,
)

RUN = {
    "rule": {"name": "krum", "f": 1},
    "quorum": 5,
    "settings": {"steps": 2, "rate": 0.003},
}


class Seen(HTMLParser):
    """Links by text, and forms with the fields that they send unless changed."""

    def __init__(self, text):
        super().__init__()
        self.links, self.forms, self._link, self._select = {}, [], None, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if tag == "a":
            self._link = found["href"]
        elif tag == "form":
            self.forms.append((found["method"], found["action"], {}))
        elif tag == "input":
            self.forms[-1][2][found["name"]] = found.get("value", "")
        elif tag == "button" and "name" in found:
            self.forms[-1][2][found["name"]] = ""
        elif tag == "select":
            self._select = found["name"]
            self.forms[-1][2][self._select] = ""

    def handle_endtag(self, tag):
        if tag == "a":
            self._link = None

    def handle_data(self, data):
        if self._link is not None:
            self.links.setdefault(data.strip(), self._link)


class Person:
    """Somebody who begins on the first page, and clicks on what it shows."""

    def __init__(self, browser):
        self.browser, self.clicks = browser, 0
        self.text = browser.get("/").text

    @property
    def words(self):
        plain = re.sub(
            r"<[^>]+>", " ", re.sub(r"<(svg|datalist).*?</\1>", " ", self.text, flags=re.DOTALL)
        )
        return " ".join(unescape(plain).split())

    def follow(self, name):
        self.clicks += 1
        self.text = self.browser.get(Seen(self.text).links[name]).text
        return self

    def send(self, action, at=0, **changes):
        """Send the form of the page that has this action and these names; follow one redirect."""
        self.clicks += 1
        forms = [
            one
            for one in Seen(self.text).forms
            if one[1] == action and changes.keys() <= one[2].keys()
        ]
        method, _, fields = forms[at]
        values = fields | changes
        if method == "get":
            self.text = self.browser.get(f"{action}?{urlencode(values)}").text
            return self
        answer = self.browser.post(action, values, {"origin": f"http://{HOST}"})
        if answer.status_code == 303:
            answer = self.browser.get(answer.headers["location"])
        self.text = answer.text
        return self


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Five devices, one of them Byzantine, three closed rounds; then ``home-4`` is revoked."""
    one = World(tmp_path_factory.mktemp("fleet"), devices=5, run=RUN, admission={"max_updates": 40})
    begin(one, AttackPlan("scaling", byzantine=0.2, options={"factor": -50.0}))
    learned(one, 3)
    assert cli.main(["revoke", "home-4", "--why", "sold", "--config", str(one.config)]) == 0
    for _ in range(30):
        one.turn()
    yield one
    one.close()


@pytest.fixture
def person(fleet, monkeypatch):
    def document(_config):
        return {"running": True, **fleet.daemon._snapshot.document()}

    monkeypatch.setattr(live_status, "read_page", document)
    console = app.ConsoleApp.of(AggregatorConfig.load(fleet.config))
    return Person(Browser(console.starlette(), console))


def test_what_happens_now_and_what_needs_a_person(person):
    assert re.search(r"Round \d is open: \d of 5 updates have arrived\.", person.words)
    assert "Nothing needs a person." in person.words
    assert person.clicks == 0


def test_why_did_this_device_stop(person):
    person.follow("Devices").send("/devices", q="home-4").follow("home-4")
    assert "It is revoked: sold." in person.words
    assert person.clicks <= 3


def test_which_devices_were_left_out_and_by_what(person):
    assert "krum" in person.words
    person.follow("3")
    assert re.search(r"4 of 5 devices were left out by the rule", person.words)
    assert re.search(r"home-0 far from the other updates [\d.]+", person.words)
    assert person.clicks <= 3


def test_who_has_answered_and_who_is_awaited(person):
    person.follow("Runs and rounds").follow("Run 1")
    assert re.search(r"Round \d is open Answered: 4 \(4 of 5 updates\)\. home-0", person.words)
    awaited = "Awaited among the connected devices: 0."
    assert awaited in person.words, "a revoked device is not awaited"
    assert person.clicks <= 3


def test_how_many_bytes_has_the_fleet_cost(person):
    person.follow("Runs and rounds")
    found = re.search(
        r"start: ([\d.]+) (kB|MB) received from devices, ([\d.]+) (kB|MB) sent", person.words
    )
    assert found, person.words
    person.follow("Run 1")
    rows = re.findall(
        r"moved 5 4 [\d.]+ [\d.]+ [\d.]+ ([\d.]+) (?:kB|MB) ([\d.]+) (?:kB|MB)", person.words
    )
    assert len(rows) >= 3, "each closed round has its bytes"
    assert "Since it was opened the daemon has received" in person.words
    assert person.clicks == 2


def test_which_model_has_a_device_and_what_was_refused(person):
    person.follow("Devices").send("/devices", q="home-1")
    assert re.search(r"home-1 enrolled online .* load-mlp, round \d \d of 40 none ", person.words)
    person.follow("home-1")
    assert re.search(r"update \d+\.\d+ for round 3 (accepted|left out)", person.words)
    assert person.clicks == 3


def test_who_did_what_about_this_device(person):
    person.follow("Devices").send("/devices", q="home-4").follow("home-4")
    assert re.search(r"revoke: from enrolled to revoked by \S+ \(command\): sold", person.words)
    assert person.clicks == 3


def test_how_much_budget_is_left(person):
    person.follow("Privacy budgets")
    assert re.search(r"home-1 enrolled (\d+) 40 (\d+) [\d.]+", person.words)
    spent, left = re.search(r"home-1 enrolled (\d+) 40 (\d+)", person.words).groups()
    assert int(spent) + int(left) == 40


def test_when_does_a_device_stop_because_its_budget_is_spent(person):
    person.follow("Privacy budgets")
    assert re.search(r"home-1 enrolled \d+ 40 \d+ [\d.]+ \d{4}-\d\d-\d\d [\d:]+ UTC", person.words)
    assert person.clicks == 1


def test_what_does_a_refusal_mean_and_what_is_to_be_done(person):
    person.follow("Refusals").follow("NORM_EXCEEDED")
    assert (
        "Means: longer than admission.max_norm. To do: check that device's readings" in person.words
    )


def test_who_paused_the_fleet_and_why(fleet, person, caplog):
    """The order waits, the daemon carries it out, and log and page name person and reason."""
    person.send("/order", do="pause", why="storm warning")
    assert "pause fleet local storm warning" in person.words
    with caplog.at_level(logging.INFO, "aggregator.operations.order_executor"):
        fleet.until(lambda: fleet.daemon._engine.phase == "pause")
    assert "by local: storm warning" in caplog.text
    again = Person(person.browser).follow("Orders")
    assert "local pause fleet storm warning" in again.words
    assert "No order waits." in again.words
    Person(person.browser).send("/order", do="resume", why="over")
    fleet.until(lambda: fleet.daemon._engine.phase == "train")


def test_what_expires(person):
    person.follow("Keys and expiry")
    assert "The link to the broker uses no certificate." in person.words
    assert re.search(r"Root [0-9a-f]{16} ", person.words)
