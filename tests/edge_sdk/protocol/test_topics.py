import pytest

from edge_sdk.protocol import topics
from edge_sdk.protocol.topics import TopicAddress


@pytest.mark.parametrize(
    ("topic", "address"),
    [
        (topics.up("north", "m1", "hello"), TopicAddress("north", "m1", "up", "hello")),
        (topics.up("north", "m1", "chunk", "w1"), TopicAddress("north", "m1", "up", "chunk", "w1")),
        (topics.status("north", "m1"), TopicAddress("north", "m1", "status", "status")),
        (topics.down("north", "m1", "grant"), TopicAddress("north", "m1", "down", "grant")),
        (topics.common("north", "keys"), TopicAddress("north", "_all", "all", "keys")),
        (topics.part("north", 0), TopicAddress("north", "_all", "all", "part", "0")),
        (topics.part("north", 255), TopicAddress("north", "_all", "all", "part", "255")),
        ("gf/1/north/m1/peer/m2", TopicAddress("north", "m1", "peer", "", "m2")),
    ],
)
def test_a_built_topic_is_parsed_to_the_same_address(topic, address):
    assert topics.parse(topic) == address


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "gf/1/north",
        "gf/1/north/m1",
        "gf/1/north/m1/up",
        "gf/1/north/m1/up/",
        "gf/1/north/m1/up/update/x",
        "gf/1/north/m1/up/Update",
        "gf/1/north/m1/up/" + "u" * 17,
        "gf/1/north/m1/up/chunk/",
        "gf/1/north/m1/up/chunk/a/b",
        "gf/1/north/m1/down/chunk/w1",
        "gf/1/north/m1/status/x",
        "gf/1/north/m1/other/x",
        "gf/1/north/m1/peer/_agg",
        "gf/1/north/_agg/up/update",
        "gf/1/north/_all/part",
        "gf/1/north/_all/part/256",
        "gf/1/north/_all/part/-1",
        "gf/1/north/_all/part/01",
        "gf/1/north/_all/part/²",
        "gf/1/north/_all/part/٣",
        "gf/1/north/_all/part/1/2",
        "gf/1/north/_all/part/" + "9" * 5000,
        "gf/2/north/m1/up/update",
        "xx/1/north/m1/up/update",
        "/gf/1/north/m1/up/update",
        "gf/1/_x/m1/up/update",
        "gf/1/north/m 1/up/update",
        "gf/1/north/m1\n/up/update",
        "gf/1/" + "n" * 33 + "/m1/up/update",
        "gf/1/north/" + "m" * 65 + "/up/update",
        "gf/1/north/+/up/update",
    ],
)
def test_any_other_shape_is_none(topic):
    assert topics.parse(topic) is None


def test_ids_have_lengths_and_no_leading_mark():
    assert topics.is_device_id("m" * 64)
    assert topics.is_fleet_id("n" * 32)
    assert not topics.is_fleet_id("n" * 33)
    for bad in ("", "_m", "-m", "é", "m1\n", "#", "+"):
        assert not topics.is_device_id(bad)
        assert not topics.is_fleet_id(bad)


def matches(pattern, topic):
    """Say whether an MQTT filter matches a topic."""
    levels = pattern.removeprefix("$share/admission/").split("/")
    said = topic.split("/")
    if levels[-1] == "#":
        return said[: len(levels) - 1] == levels[:-1] and len(said) >= len(levels)
    pairs = zip(levels, said, strict=False)
    return len(levels) == len(said) and all(a in ("+", b) for a, b in pairs)


EVERY = [
    topics.up("north", "m1", "update"),
    topics.up("north", "m1", "chunk", "w1"),
    topics.status("north", "m1"),
    topics.down("north", "m1", "receipt"),
    *(topics.common("north", kind) for kind in ("keys", "bundle", "model", "time")),
    topics.part("north", 3),
]


def test_a_device_receives_its_own_topics_and_common_ones_once():
    filters = topics.device_filters("north", "m1")
    heard = [[f for f in filters if matches(f, topic)] for topic in EVERY]
    assert [len(hits) for hits in heard] == [0, 0, 0, 1, 1, 1, 1, 1, 0]
    assert not any(matches(f, topics.down("north", "m2", "receipt")) for f in filters)
    assert matches(topics.parts_filter("north"), topics.part("north", 3))
