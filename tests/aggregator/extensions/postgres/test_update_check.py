"""What an admission worker verifies, passes on unverified, and drops; and what the ingress then skips."""

from dataclasses import replace

import pytest

from aggregator.extensions.postgres.update_queue import QueuedUpdate
from aggregator.extensions.postgres.worker import (
    READ_AFTER,
    READ_EVERY,
    DeviceKeyCache,
    UpdateCheck,
)
from aggregator.ingress.rate_limits import RateLimits
from aggregator.store.types import EnrolledDevice
from edge_sdk.link.transport import Message
from edge_sdk.protocol import envelope, topics
from edge_sdk.protocol.messages import ReceiptMessage, RefusalMessage
from tests.aggregator.rig import FLEET, SPEC, key_of, read

TOPIC = topics.up(FLEET, "meter-1", "update")


@pytest.fixture
def check(desk):
    keys = DeviceKeyCache(desk.store.devices.all, desk.clock)
    return UpdateCheck(
        desk.bodies,
        keys,
        desk.clock,
        inline=1000,
        quotas=RateLimits(),
        sizes={SPEC.digest: SPEC.shared_size},
    )


def taken(desk, queued):
    """Give the ingress a queued update; return its answers."""
    desk.taken = desk.intake.receive(queued)
    return [read(answer) for answer in desk.taken.answers]


def test_a_good_update_has_the_key_and_is_receipted(desk, device, check):
    queued = check.checked(Message(TOPIC, device.seal(device.update())))
    assert queued.verified_by == device.key.public
    (receipt,) = taken(desk, queued)
    assert isinstance(receipt, ReceiptMessage)
    assert [event.vector.tolist() for event in desk.journalled()] == [[0.5, -1.25]]
    assert [one.kind for one in taken(desk, queued)] == ["receipt"]  # again, without counting twice
    assert len(desk.journalled()) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"blob": bytes(4)}, "WRONG_SIZE"),
        ({"blob": b"\x00\x00\xc0\x7f" * 2}, "NOT_FINITE"),
        ({"spec": bytes(16)}, "WRONG_SPEC"),
        ({"enc": "q3"}, "WRONG_ENCODING"),
        ({"blob": bytes(1200)}, "TOO_LARGE"),
    ],
)
def test_a_refused_update_is_passed_on_without_a_key_and_the_ingress_answers(
    desk, device, check, changes, reason
):
    queued = check.checked(Message(TOPIC, device.seal(device.update(**changes))))
    assert (queued.verified_by, check.counts[reason]) == (b"", 1)
    (answer,) = taken(desk, queued)
    assert isinstance(answer, ReceiptMessage | RefusalMessage)
    assert not desk.journalled()


def test_a_forged_update_is_refused_whatever_the_queue_says(desk, device, check):
    payload = device.seal(device.update())
    forged = payload[:-1] + bytes([payload[-1] ^ 1])
    queued = check.checked(Message(TOPIC, forged))
    assert (queued.verified_by, check.counts["BAD_SIGNATURE"]) == (b"", 1)
    other = key_of("meter-2").public
    for key in (b"", other, other[:5]):
        taken(desk, replace(queued, verified_by=key))
    assert desk.intake.counts["BAD_SIGNATURE"] == 3
    assert not desk.journalled()


def test_the_signature_is_not_verified_twice(desk, device, check, monkeypatch):
    queued = check.checked(Message(TOPIC, device.seal(device.update())))
    with monkeypatch.context() as patch:
        patch.setattr(envelope, "verify", lambda *_: pytest.fail("verified again"))
        result = desk.intake.receive(queued)
    assert [read(answer).kind for answer in result.answers] == ["receipt"]
    assert len(desk.journalled()) == 1


def test_a_key_that_was_replaced_after_the_check_counts_no_more(desk, device, check):
    queued = check.checked(Message(TOPIC, device.seal(device.update())))
    desk.store.devices.save(EnrolledDevice("meter-1", (key_of("meter-9").public,)))
    desk.registry.reload()
    taken(desk, queued)
    assert not desk.journalled()
    assert desk.intake.counts["UNKNOWN_CLIENT"] == 1


def test_a_device_enrolled_later_is_found_soon_and_a_revoked_one_is_forgotten(desk):
    keys = DeviceKeyCache(desk.store.devices.all, desk.clock)
    later = key_of("later")
    desk.store.devices.save(EnrolledDevice("later", (later.public,)))
    assert keys.key_of("later", later.kid) is None  # read just now
    desk.clock.seconds += READ_AFTER
    assert keys.key_of("later", later.kid) == later.public
    desk.store.devices.save(EnrolledDevice("later", (later.public,), state="revoked"))
    desk.clock.seconds += READ_EVERY
    assert keys.key_of("later", later.kid) is None


@pytest.mark.parametrize(
    "topic",
    [
        topics.up("south", "meter-1", "update"),
        topics.up(FLEET, "meter-1", "hello"),
        topics.down(FLEET, "meter-1", "update"),
        "made/up",
    ],
)
def test_other_topics_are_dropped(device, check, topic):
    assert check.checked(Message(topic, device.seal(device.update()))) is None
    assert check.counts["dropped"] == 1


def test_a_name_with_many_forged_signatures_is_dropped(device, check):
    payload = device.seal(device.update())
    forged = payload[:-1] + bytes([payload[-1] ^ 1])
    results = [check.checked(Message(TOPIC, forged)) for _ in range(20)]
    assert 0 < sum(one is not None for one in results) < 10
    assert results[-1] is None


def test_a_defect_passes_the_update_on(desk, device, check, monkeypatch):
    """The daemon meets it as well, and sets the message aside; the worker lives on."""
    monkeypatch.setattr(
        "aggregator.extensions.postgres.worker.codec.unpack_tensor", lambda *_: 1 / 0
    )
    queued = check.checked(Message(TOPIC, device.seal(device.update())))
    assert isinstance(queued, QueuedUpdate)
    assert (queued.verified_by, check.counts["INTERNAL"]) == (b"", 1)
