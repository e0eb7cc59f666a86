"""Revoke means out: nothing is delivered to or from the device, and it does not come back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from aggregator.extensions.authority.access.access_changes import denied_users, has_patterns
from aggregator.extensions.authority.access.mosquitto_acl import read
from aggregator.extensions.authority.access.mosquitto_topics import mosquitto_access
from edge_sdk.errors import OK
from edge_sdk.link.broker_options import Broker
from edge_sdk.link.mqtt import MqttLink
from edge_sdk.link.transport import LinkDown, Message
from edge_sdk.protocol import keys
from tests.broker.test_enrolment import ROOT, Site, run, sites

pytestmark = pytest.mark.broker

DENIED = 3_000


@pytest.fixture
def site(tmp_path):
    yield from sites(Site, tmp_path)


def link_of(here, name):
    issued = here.ca / "issued"
    link = MqttLink(
        Broker(
            url=here.url,
            client_id=name,
            ca_file=here.ca / "ca.pem",
            cert_file=issued / f"{name}.pem",
            key_file=issued / f"{name}.key",
            reconnect_max=0.2,
        )
    )
    link.open()
    return link


def up(link, patience=600.0):
    """Return "" once the link is up, or why it went down."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        for one in link.poll(0.05):
            if isinstance(one, LinkDown):
                return one.why
        if link.is_up:
            return ""
    return "no answer"


def enrolled(here, name):
    assert run("ca", "issue", name, "--folder", here.ca) == OK
    public = keys.generate().public.hex()
    assert run("enrol", name, "--public", public, "--config", here.config) == OK


def revoking(here, name):
    words = [sys.executable, "-m", "aggregator", "revoke", name, "--config", str(here.config)]
    return subprocess.Popen(
        [*words, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def exchange(links, topics, seconds):
    """Send both ways for a while; return the messages that arrived, by receiver."""
    arrived, end = dict.fromkeys(links, 0), time.monotonic() + seconds
    while time.monotonic() < end:
        for name, link in links.items():
            if link.is_up:
                link.publish(topics[name], b"said", qos=0)
            for one in link.poll(0.01):
                if isinstance(one, Message):
                    link.acknowledge(one)
                    arrived[name] += 1
    return arrived


@pytest.mark.parametrize("rules", ["patterns", "devices"])
def test_a_connected_device_is_silenced_both_ways_and_stays_out(site, rules):
    here = site(devices=None if rules == "patterns" else ["meter-1", "meter-2"])
    for name in ("meter-1", "meter-2"):
        enrolled(here, name)
    more = "".join(f"user gone-{n}\ntopic deny gf/1/north/#\n" for n in range(DENIED))
    here.access.write_text(here.access.read_text() + more)
    links = {name: link_of(here, name) for name in ("_agg", "meter-1", "meter-2")}
    try:
        assert [up(link) for link in links.values()] == ["", "", ""]
        links["_agg"].subscribe("gf/1/north/+/up/#")
        links["meter-1"].subscribe("gf/1/north/meter-1/down/#")
        one = {"_agg": links["_agg"], "meter-1": links["meter-1"]}
        topics = {"_agg": "gf/1/north/meter-1/down/task", "meter-1": "gf/1/north/meter-1/up/hello"}
        before = exchange(one, topics, 1.0)
        assert before["_agg"] > 3
        assert before["meter-1"] > 3
        process = revoking(here, "meter-1")
        while process.poll() is None:
            exchange(one, topics, 0.1)
        found = json.loads(process.stdout.read())
        process.stdout.close()
        assert process.returncode == OK, found
        assert found["silent_after_ms"] < 15_000
        assert found["reconnection_refused"] is True
        exchange(one, topics, 0.5)  # what was on its way
        after = exchange(one, topics, 1.0)
        assert after == {"_agg": 0, "meter-1": 0}
        links["meter-1"].close()
        again = link_of(here, "meter-1")
        assert "revoked" in up(again) or not again.is_up
        again.close()
        other = {"_agg": links["_agg"], "meter-2": links["meter-2"]}
        topics = {"_agg": "gf/1/north/meter-1/down/task", "meter-2": "gf/1/north/meter-2/up/hello"}
        assert exchange(other, topics, 1.0)["_agg"] > 3
    finally:
        for link in links.values():
            link.close()
    text = here.access.read_text()
    assert "revocation-probe" not in text
    assert len(denied_users(text, "north")) == DENIED + 1
    assert not read(text).may("meter-1", "gf/1/north/meter-1/up/update", write=True)
    assert run("broker", "access", "--config", here.config, "--file", here.access) == OK
    assert "meter-1" in denied_users(here.access.read_text(), "north")


def test_a_killed_command_is_completed_by_giving_it_again(site):
    here = site(devices=["meter-1", "meter-2"])
    for name in ("meter-1", "meter-2"):
        enrolled(here, name)
    for delay in (0.2, 0.5, 0.8, 1.1):
        process = revoking(here, "meter-1")
        time.sleep(delay)
        process.kill()
        process.wait()
        process.stdout.close()
    assert run("revoke", "meter-1", "--config", here.config) == OK
    text = here.access.read_text()
    assert denied_users(text, "north") == ["meter-1"]
    assert "revocation-probe" not in text
    links = [link_of(here, name) for name in ("meter-1", "meter-2")]
    try:
        assert up(links[0])
        assert up(links[1]) == ""
    finally:
        for link in links:
            link.close()


@pytest.mark.slow
def test_a_broker_that_reads_other_rules_is_found_by_the_probe(site, capsys):
    here = site()
    enrolled(here, "meter-1")
    here.config.write_text(
        here.config.read_text()
        .replace('"access.acl"', '"copy.acl"')
        .replace('"kill", "-HUP"', '"true"')
    )
    (here.folder / "copy.acl").write_text(here.access.read_text())
    here.access.write_text(
        here.access.read_text().replace("%u/status", "%u/probe\npattern read gf/1/north/%u/probe")
    )
    here.broker.restart()
    capsys.readouterr()
    assert run("revoke", "meter-1", "--config", here.config) == 1
    assert "NOT SHUT OUT" in capsys.readouterr().out


def test_a_device_that_enrols_again_has_its_rules_again(site):
    here = site(devices=["meter-1"])
    enrolled(here, "meter-1")
    assert run("revoke", "meter-1", "--config", here.config) == OK
    text = here.access.read_text()
    assert denied_users(text, "north") == ["meter-1"]
    assert not has_patterns(text, "north")
    _, est, digest = here.serve()
    word, device = here.password("meter-1"), here.device("meter-1", est)
    from edge_sdk.commands.main import main as edge  # noqa: PLC0415

    assert edge(["enrol", str(device), "--otp", word, "--ca", digest]) == OK
    end = time.monotonic() + 60
    while denied_users(here.access.read_text(), "north"):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert read(here.access.read_text()).may("meter-1", "gf/1/north/meter-1/up/hello", write=True)
    rules = mosquitto_access("north", ["meter-1"])
    assert set(rules.splitlines()) == set(here.access.read_text().splitlines())


def test_settings_that_would_not_shut_out_are_refused_before_anything_happens(site, capsys):
    here = site()
    enrolled(here, "meter-1")
    text = here.config.read_text()
    here.config.write_text("\n".join(line for line in text.splitlines() if "reload" not in line))
    capsys.readouterr()
    assert run("revoke", "meter-1", "--config", here.config) == 2
    assert "ca.reload: missing" in capsys.readouterr().err
    assert run("list", here.config, "--json") == OK
    assert json.loads(capsys.readouterr().out)["devices"][0]["state"] == "enrolled"


def test_a_daemon_grants_the_topics_of_a_run_that_the_rules_lack(site):
    """The rules are older than the enrolment, its label and the run's name."""
    here = site(devices=["meter-1"])
    text = here.config.read_text()
    here.config.write_text(
        text.replace("[run]", '[[run]]\nname = "meters"\ncohort = { kind = "meter" }')
    )
    assert run("init", here.config) == OK
    enrolled(here, "meter-1")
    assert run("label", "kind=meter", "meter-1", "--config", here.config) == OK
    link = link_of(here, "meter-1")
    try:
        assert up(link) == ""
        assert not subscribed(link, "gf/1/north/_meters/bundle", 1)
        here.start("aggregator", "run", here.config)
        assert subscribed(link, "gf/1/north/_meters/bundle", 100)
    finally:
        link.close()
    assert read(here.access.read_text()).may("meter-1", "gf/1/north/_meters/model", write=False)


def subscribed(link, topic, times):
    """Subscribe so many times; return whether the retained message of a topic arrived."""
    for _ in range(times):
        link.subscribe(topic)
        for one in link.poll(0.3):
            if isinstance(one, Message):
                link.acknowledge(one)
                return True
    return False
