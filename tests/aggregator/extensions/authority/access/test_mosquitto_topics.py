"""The access file: each topic by name, bounded, for patterns and for listed devices."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aggregator.extensions.authority.access.access_changes import joined
from aggregator.extensions.authority.access.mosquitto_acl import covers, findings, read
from aggregator.extensions.authority.access.mosquitto_topics import mosquitto_access
from aggregator.ingress.flood_control import UPLINK, aggregator_filters
from edge_sdk.extensions.weather.messages import topic_of
from edge_sdk.protocol import messages, topics

ROOT = "gf/1/north"
NEAR = {"m1": {"m2"}, "m2": {"m1"}}
FILES = {
    "patterns": mosquitto_access("north"),
    "patterns and neighbours": mosquitto_access("north", neighbours=NEAR),
    "devices": mosquitto_access("north", ["m1", "m2"]),
    "devices and neighbours": mosquitto_access("north", ["m1", "m2", "m3"], neighbours=NEAR),
}
FORMER = """pattern write gf/1/north/%u/up/#
pattern write gf/1/north/%u/status
pattern write gf/1/north/%u/peer/+
pattern read gf/1/north/%u/down/#
pattern read gf/1/north/_all/#
pattern read gf/1/north/+/peer/%u
user _agg
topic readwrite gf/1/north/#
"""


def test_the_kinds_are_those_of_the_protocol():
    text = (Path(messages.__file__).parent / "PROTOCOL.md").read_text("utf-8")
    row = re.search(r"^\| `gf/1/F/D/up/KIND` \| device D \| `([a-z ]+)` ", text, re.MULTILINE)
    assert row is not None
    assert tuple(row[1].split()) == UPLINK


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_no_device_writes_under_a_wildcard(text):
    rules = read(text)
    granted = [rule for name, own in rules.users.items() if name != "_agg" for rule in own]
    writes = [rule.pattern for rule in (*granted, *rules.patterns) if rule.writes]
    assert writes
    assert not any(set(pattern) & set("+#") for pattern in writes)
    assert text.endswith("user _agg\ntopic readwrite gf/1/north/#\n")


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_the_tested_access_rules_are_those_of_the_protocol(text):
    assert findings(text) == []


def test_the_rules_that_were_shipped_before_are_found_wanting():
    found = "\n".join(findings(FORMER))
    for words in ("up/made-up", "peer/made-up", "named device-b/up may write"):
        assert words in found


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
@pytest.mark.parametrize(
    "name", ["m2/up", "m2/down", "m2/peer", "_all/part", "_all", "m2/up/chunk"]
)
def test_a_name_with_a_slash_writes_nothing_that_anybody_reads(text, name):
    rules = read(text)
    heard = [
        *aggregator_filters("north"),
        *topics.device_filters("north", "m2"),
        topics.parts_filter("north"),
        f"{topics.ROOT}/north/+/peer/m2",
    ]
    for rest in (*(f"up/{kind}" for kind in UPLINK), "status", "peer/m2"):
        topic = f"{ROOT}/{name}/{rest}"
        if any(covers(pattern, topic) for pattern in heard):
            assert not rules.may(name, topic, write=True)


def test_neighbours_may_write_to_each_other_only():
    rules = read(FILES["devices and neighbours"])
    assert rules.may("m1", f"{ROOT}/m1/peer/m2", write=True)
    assert rules.may("m2", f"{ROOT}/m1/peer/m2", write=False)
    assert not rules.may("m1", f"{ROOT}/m1/peer/m3", write=True)
    assert not rules.may("m3", f"{ROOT}/m1/peer/m2", write=False)


@pytest.mark.parametrize(
    "given",
    [
        {"fleet": "north\nuser x"},
        {"fleet": "+"},
        {"fleet": "north", "devices": ["a/up"]},
        {"fleet": "north", "devices": ["_agg"]},
        {"fleet": "north", "neighbours": {"a": ["b\nc"]}},
    ],
)
def test_a_name_that_is_no_id_gets_no_rule(given):
    with pytest.raises(ValueError, match=r"expected \[A-Za-z0-9\]"):
        mosquitto_access(**given)


def test_rules_of_a_shared_broker_name_users_with_their_fleet():
    north = mosquitto_access("north", ["m1", "m2"], neighbours=NEAR, is_shared=True)
    south = mosquitto_access("south", ["m1"], is_shared=True)
    both = joined(joined("", "north", north), "south", south)
    assert findings(north) == findings(both) == []
    rules = read(both)
    assert rules.may("north.m1", f"{ROOT}/m1/peer/m2", write=True)
    for user in ("south.m1", "m1", "_agg", "south._agg"):
        assert not rules.may(user, f"{ROOT}/m1/down/task", write=False)
        assert not rules.may(user, f"{ROOT}/_all/model", write=False)


def test_a_shared_broker_has_no_patterns_and_no_unqualified_users():
    with pytest.raises(ValueError, match="patterns grant access to every certificate"):
        mosquitto_access("north", is_shared=True)
    for loose in (FILES["patterns"], FILES["devices"]):
        with pytest.raises(ValueError, match="rules of fleet north in it are not for a shared"):
            joined(loose, "south", mosquitto_access("south", ["m1"], is_shared=True))
    assert joined(FILES["devices"], "north", "user north.m1\n").count("user m1") == 0


def test_fleets_that_can_see_each_other_are_found():
    both = FILES["devices"] + mosquitto_access("south", ["m1"])
    found = "\n".join(findings(both))
    assert "user _agg of fleet north may use gf/1/south/m1/up/hello" in found
    assert "user _agg of fleet south may use gf/1/north/m1/up/hello" in found


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_devices_read_the_weather_of_any_region_and_only_the_aggregator_writes_it(text):
    rules, topic = read(text), topic_of("north", "utrecht")
    assert rules.may("m1", topic, write=False)
    assert not rules.may("m1", topic, write=True)
    assert rules.may("_agg", topic, write=True)


@pytest.mark.parametrize(
    ("devices", "is_shared"), [(None, False), (["m1", "m2"], False), (["m1", "m2"], True)]
)
def test_a_worker_reads_updates_and_writes_nothing_else_of_a_device(devices, is_shared):
    text = mosquitto_access("north", devices, is_shared=is_shared, workers=["worker-1"])
    rules, user = read(text), "north.worker-1" if is_shared else "worker-1"
    assert findings(text) == findings(mosquitto_access("north", devices, is_shared=is_shared))
    assert rules.may(user, f"{ROOT}/m1/up/update", write=False)
    for rest in ("m1/up/hello", "m1/down/receipt", "m1/status"):
        assert not rules.may(user, f"{ROOT}/{rest}", write=False)
    for rest in ("m1/up/update", "m1/down/receipt", "_all/model", "m1/status"):
        assert not rules.may(user, f"{ROOT}/{rest}", write=True)


def test_a_worker_with_the_id_of_a_device_is_refused():
    with pytest.raises(ValueError, match="a device has this id"):
        mosquitto_access("north", ["m1"], workers=["m1"])
