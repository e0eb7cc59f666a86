"""What an exchange costs in bytes, from the real encoders: nobody makes a message longer unseen.

MQTT 5 without properties, QoS 1, topics and both PUBACKs included, for device ``meter-0042`` of
fleet ``north``; TLS and TCP/IP come on top. *Up* is what a device sends.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from edge_sdk.protocol import codec, envelope, keys, topics
from edge_sdk.protocol.messages import (
    CHUNK_LIMIT,
    ChunkMessage,
    ContentBody,
    GrantMessage,
    HelloMessage,
    ModelMessage,
    OfferMessage,
    PartMessage,
    ReceiptMessage,
    TaskMessage,
    UpdateMessage,
    WelcomeMessage,
    count_of,
)
from edge_sdk.protocol.transfer import MOST_IN_FLIGHT, bitmap

FLEET, DEVICE = "north", "meter-0042"
KEY = keys.from_seed(bytes(range(32)))
SPEC = bytes(range(16))
PUBACK = 4
TIME = 1_760_000_000_000


def publish(topic: str, payload: bytes) -> int:
    """Bytes of one PUBLISH: header, topic, packet id, no properties, payload."""
    rest = 2 + len(topic.encode()) + 2 + 1 + len(payload)
    length = 1 + sum(rest >= 128**digits for digits in (1, 2, 3))
    return 1 + length + rest


def sealed(message, sender, recipient) -> bytes:
    facts = {"sender": sender, "recipient": recipient, "fleet": FLEET}
    return envelope.seal(codec.encode(message), kind=message.kind, signer=KEY, **facts)


def up(message, device=DEVICE) -> int:
    return publish(topics.up(FLEET, device, message.kind), sealed(message, device, "_agg"))


def down(message, device=DEVICE) -> int:
    return publish(topics.down(FLEET, device, message.kind), sealed(message, "_agg", device))


def update(scalars: int, **values: float) -> UpdateMessage:
    """An update in the middle of a long run: most numbers take two bytes."""
    return UpdateMessage(
        run=1,
        round=41,
        base=41,
        life=3,
        seq=41,
        spent=41,
        spec=SPEC,
        part="delta",
        enc="f4",
        n=64,
        vals=values,
        blob=np.ones(scalars, "<f4").tobytes(),
    )


def receipt(message: UpdateMessage) -> ReceiptMessage:
    ref = envelope.ref(envelope.digest(codec.encode(message)))
    return ReceiptMessage(life=3, seq=message.seq, ref=ref, code=0, run=1, round=message.round)


def inline(scalars: int, device=DEVICE, **values: float) -> tuple[int, int]:
    """Bytes up and down of an update in one message, with its receipt."""
    said = update(scalars, **values)
    return up(said, device) + PUBACK, down(receipt(said), device) + PUBACK


def offered(scalars: int) -> tuple[int, int, int, int]:
    """Bytes up and down, and messages up and down, of an update in chunks without a loss."""
    said = update(scalars)
    body = codec.encode(said)
    digest = hashlib.sha256(body).digest()
    numbers = {name: getattr(said, name) for name in OFFERED}
    size = len(body)
    offer = OfferMessage(
        of="update", digest=digest, size=size, chunk=CHUNK_LIMIT, sig=bytes(72), **numbers
    )
    count = count_of(size, CHUNK_LIMIT)
    chunks = [
        ChunkMessage(
            digest[:16], i, life=3, seq=41, blob=body[i * CHUNK_LIMIT : (i + 1) * CHUNK_LIMIT]
        )
        for i in range(count)
    ]
    grants = 1 + (count - 1) // MOST_IN_FLIGHT
    grant = GrantMessage(digest[:16], bitmap((), count), MOST_IN_FLIGHT, 120_000)
    ups = [offer, *chunks]
    downs = [grant] * grants + [receipt(said)]
    return (
        sum(map(up, ups)) + PUBACK * len(downs),
        sum(map(down, downs)) + PUBACK * len(ups),
        len(ups),
        len(downs),
    )


OFFERED = ("run", "round", "base", "spec", "life", "seq", "spent")


def common(scalars: int) -> tuple[int, int]:
    """Bytes down of the common model: its parts, and its manifest."""
    blob = np.ones(scalars, "<f4").tobytes()
    body = codec.encode(
        ContentBody(run=1, version=41, part="shared", spec=SPEC, enc="f4", blob=blob)
    )
    digest = hashlib.sha256(body).digest()
    parts = [
        PartMessage(digest[:16], i, body[i * CHUNK_LIMIT : (i + 1) * CHUNK_LIMIT])
        for i in range(count_of(len(body), CHUNK_LIMIT))
    ]
    manifest = ModelMessage(
        serial=4100,
        run=1,
        round=41,
        version=41,
        phase="train",
        part="shared",
        spec=SPEC,
        enc="f4",
        digest=digest,
        size=len(body),
        chunk=CHUNK_LIMIT,
        until=TIME,
        spread=10_000,
        inline=CHUNK_LIMIT,
        share=1.0,
        vals={"steps": 4.0, "rate": 0.001},
    )
    slots = sum(publish(topics.part(FLEET, part.i), sealed(part, "_agg", "_all")) for part in parts)
    return slots, publish(topics.common(FLEET, "model"), sealed(manifest, "_agg", "_all"))


@pytest.mark.parametrize(
    ("scalars", "sent"),
    [(5760, (23_266, 192)), (2400, (9_825, 192))],
    ids=["PL-FL configuration 1", "PL-FL configuration 2"],
)
def test_an_update_in_one_message_costs_418_bytes_beside_its_scalars(scalars, sent):
    assert inline(scalars) == sent
    assert sum(sent) - 4 * scalars == 418 - (scalars == 2400)  # a length of three digits, not four


def test_the_losses_of_two_percent_begin_below_21_kilobytes():
    assert sum(inline(5760)) < 1.02 * 4 * 5760
    assert sum(inline(5225)) <= 1.02 * 4 * 5225
    assert sum(inline(5000)) > 1.02 * 4 * 5000


def test_a_number_of_the_answer_costs_its_name_and_nine_bytes():
    more = inline(4673, loss=0.5)[0] - inline(4673)[0]
    assert more == len("vals") + 1 + 1 + len("loss") + 1 + 9


def test_a_name_occurs_three_times():
    """In the topic and the envelope of the update, and in the topic of its receipt."""
    short, long = inline(5760), inline(5760, "m" * 64)
    assert sum(long) - sum(short) == 3 * 54 + 1  # and one: beyond 31 letters a length takes a byte


def test_an_update_in_chunks_costs_one_percent():
    assert offered(42_181) == (170_212, 393, 7, 2)  # PL-FL configuration 0
    ups, downs, sent, heard = offered(157_440)
    assert (ups, sent, heard) == (633_706, 21, 4)
    assert ups + downs < 1.0081 * 4 * 157_440


@pytest.mark.parametrize(
    ("scalars", "parts", "manifest"),
    [(42_181, 169_680, 354), (5_760, 23_250, 352), (2_400, 9_809, 352)],
)
def test_the_common_model_costs_its_parts_and_a_manifest(scalars, parts, manifest):
    assert common(scalars) == (parts, manifest)


def test_a_task_in_one_message_costs_346_bytes_beside_its_scalars():
    """The consensus of 4,673 scalars to one device, with two numbers; a reminder has no vector."""
    blob = np.ones(4673, "<f4").tobytes()
    body = codec.encode(
        ContentBody(run=1, version=41, part="shared", spec=SPEC, enc="f4", blob=blob)
    )
    task = TaskMessage(
        run=1,
        round=42,
        base=41,
        ask="step",
        spec=SPEC,
        digest=hashlib.sha256(body).digest(),
        size=len(body),
        chunk=CHUNK_LIMIT,
        vals={"eps_dual": 0.25, "fired": 41.0},
        blob=body,
    )
    whole = down(task) + PUBACK
    assert whole - len(blob) == 346
    assert down(replace(task, blob=b"")) == 278


def test_a_session_costs_less_than_half_a_kilobyte():
    hello = HelloMessage(3, bytes(16), 41, False, (), (1, 1), (), "0.1.0", 7)
    welcome = WelcomeMessage(bytes(16), 3, 41, TIME, 1, (), 1, CHUNK_LIMIT, 8, 64_000_000, 2, 0)
    assert (up(hello), down(welcome)) == (216, 245)


def test_a_days_budget_is_enough_for_what_is_promised():
    """One megabyte a day: 21 rounds of configuration 1 or 2 of configuration 0, both ways."""
    for scalars, rounds, sent in ((5_760, 21, inline(5_760)), (42_181, 2, offered(42_181)[:2])):
        a_round = sum(sent) + sum(common(scalars))
        assert rounds == 1_000_000 // a_round
