"""Announcements keep their order and wait for room; nothing is published into the void."""

from aggregator.ingress.replies import Reply
from aggregator.metrics import Metrics
from aggregator.rounds.announcements import Publication
from aggregator.rounds.publisher import Publisher
from firmware_sim.testing.loopback import LoopbackBroker


def joined(window=3):
    broker = LoopbackBroker(window=window)
    link, ear = broker.link("_agg"), broker.link("ear")
    for one in (link, ear):
        one.open()
        one.poll(0)
    ear.subscribe("gf/1/north/#")
    return broker, link, ear, Publisher(link, Metrics())


def heard(ear):
    got = []
    while messages := ear.poll(0):
        for message in messages:
            ear.acknowledge(message)
            got.append(message.topic.rsplit("/", 1)[1])
    return got


def test_what_finds_no_room_waits_in_order():
    _, link, ear, out = joined()
    out.announce([Publication(f"gf/1/north/_all/part/{i}", b"x") for i in range(4)])
    out.announce([Publication("gf/1/north/_all/model", b"x")])
    out.publish()
    assert len(out) == 2
    link.poll(0)
    out.publish()
    assert (len(out), heard(ear)) == (0, ["0", "1", "2", "3", "model"])


def test_nothing_leaves_while_the_link_is_down():
    broker, _link, ear, out = joined()
    broker.cut("_agg", stay_down=True)
    out.reply([Reply("gf/1/north/m/down/receipt", b"x")])
    out.publish()
    assert (len(out), heard(ear)) == (1, [])
    out.clear()
    assert len(out) == 0


def test_what_the_link_cannot_carry_does_not_block_the_rest(caplog):
    broker, _, ear, out = joined()
    broker.max_payload = 10
    out.announce([Publication("gf/1/north/_all/model", bytes(11))])
    out.announce([Publication("gf/1/north/_all/keys", b"x")])
    out.publish()
    assert heard(ear) == ["keys"]
    assert "publish failed" in caplog.text


def test_an_empty_payload_clears_a_topic():
    broker, _, _, out = joined()
    out.announce([Publication("gf/1/north/_all/part/0", b"x")])
    out.announce([Publication("gf/1/north/_all/part/0", b"")])
    out.publish()
    assert broker.retained() == {}


def test_an_answer_in_a_slot_is_retained_and_any_other_is_not():
    broker, _link, _ear, out = joined()
    out.reply([Reply("gf/1/north/_all/part/0", b"s", True), Reply("gf/1/north/m/down/have", b"h")])
    out.publish()
    late = broker.link("late")
    late.open()
    late.poll(0)
    late.subscribe("gf/1/north/#")
    assert heard(late) == ["0"]
