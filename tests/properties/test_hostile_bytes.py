"""Whatever bytes arrive, the wire answers with a message or with ``Refused``; and keeps nothing."""

import contextlib
import gc
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.errors import Refused
from edge_sdk.protocol import codec, envelope, keys, messages, msgpack_reader, topics
from edge_sdk.protocol.messages import KINDS

FOLDER = Path(__file__).parents[1] / "vectors"
DEVICE = keys.from_seed(bytes(range(32)))
WAY = {"sender": "meter-0042", "recipient": "_agg", "fleet": "north"}
SEEDS = [path.read_bytes() for path in sorted(FOLDER.glob("*.bin")) if path.stat().st_size < 2048]
MARKERS = bytes(
    [0x80, 0x90, 0xA0, 0xC0, 0xC1, 0xC4, 0xC6, 0xC7, 0xCB, 0xCF, 0xDB, 0xDD, 0xDF, 0xFF]
)


def mutate(rng, raw):
    """Flip, cut, insert, repeat or splice a few bytes."""
    out = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(6):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(out):
                out[at] = rng.choice(MARKERS)
            case 2:
                del out[at : at + rng.randrange(1, 9)]
            case 3:
                out[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 4:
                out[at:at] = out[at : at + rng.randrange(1, 40)]
            case _:
                other = rng.choice(SEEDS)
                cut = rng.randrange(len(other))
                out[at:] = other[cut : cut + 400]
    return bytes(out)


def receive(raw):
    """Take bytes as an update's envelope, and as a body of any kind; say how many were accepted."""
    accepted = 0
    try:
        envelope.unseal(raw, kind="update", key_of=lambda *_: DEVICE.public, **WAY)
        accepted += 1
    except Refused:
        pass
    for kind in KINDS:
        try:
            message = codec.decode(kind, raw)
        except Refused:
            continue
        accepted += 1
        if isinstance(message, messages.UpdateMessage):
            attempt_tensor(message.blob, message.enc)
    return accepted


def attempt_tensor(blob, enc):
    with contextlib.suppress(Refused):
        assert np.isfinite(codec.unpack_tensor(blob, enc, 2)).all()


def bodies():
    """Return the bodies inside the good vectors, so that mutations reach the fields."""
    found = []
    for raw in SEEDS:
        at = msgpack_reader.Cursor(raw)
        try:
            at.array(), at.whole(), at.text(16), at.text(64)
            found.append(at.binary(65536))
        except Refused:
            continue
    return found


def fuzz(count, seed):
    rng = random.Random(seed)
    pool, accepted = SEEDS + bodies(), 0
    for _ in range(count):
        accepted += receive(mutate(rng, rng.choice(pool)))
    return accepted


def test_five_thousand_mutants_are_decoded_or_refused():
    accepted = fuzz(5_000, seed=1)
    assert accepted > 50, "the mutator never reaches the fields: it tests nothing"


@pytest.mark.soak
def test_a_hundred_thousand_mutants_are_decoded_or_refused():
    fuzz(100_000, seed=2)


@pytest.mark.slow
def test_refusals_keep_no_memory():
    fuzz(300, seed=3)  # fill caches
    gc.collect()
    tracemalloc.start()
    fuzz(300, seed=4)
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    fuzz(1_500, seed=5)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 32_768


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x92\xdf\xff\xff\xff\xff" + b"\x00" * 60_000,
        b"\x92\x81\xa3run\xdd\xff\xff\xff\xff" + b"\x90" * 60_000,
        b"\x92\x81\xa3run" + b"\x91" * 60_000,
        b"\x92\xde\xff\xff" + b"\xa1a\xc0" * 20_000,
        b"\x92\x80\xc6\xff\xff\xff\xff" + b"\x00" * 60_000,
        b"\x92\x81\xa3run\xc9\xff\xff\xff\xff" + b"\x00" * 60_000,
    ],
    ids=["map", "array", "nest", "keys", "bin", "ext"],
)
def test_a_bomb_costs_less_memory_than_its_own_bytes(bomb):
    def attempt():
        with pytest.raises(Refused):
            codec.decode("update", bomb)

    attempt()
    tracemalloc.start()
    attempt()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(bomb)


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_any_bytes_are_a_message_or_refused(raw):
    receive(raw)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=9)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


def write(value):  # noqa: PLR0911 - one line per type
    """Write any value as msgpack, forbidden ones too."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return (b"\xd3" if value < 0 else b"\xcf") + value.to_bytes(8, "big", signed=value < 0)
        case float():
            return b"\xcb" + np.array(value, ">f8").tobytes()
        case str():
            return msgpack_reader.text(value)
        case bytes():
            return msgpack_reader.binary(value)
        case list():
            return bytes([0x90 | len(value)]) + b"".join(map(write, value))
    items = (write(k) + write(v) for k, v in value.items())
    return bytes([0x80 | len(value)]) + b"".join(items)


@given(st.sampled_from(sorted(KINDS)), st.data())
@settings(max_examples=300)
def test_any_header_values_are_a_message_or_refused(kind, data):
    names = [name.rstrip("_") for name in KINDS[kind].__slots__ if name != "blob"]
    header = {name: data.draw(values) for name in data.draw(st.sets(st.sampled_from(names)))}
    pairs = b"".join(msgpack_reader.text(k) + write(v) for k, v in header.items())
    head = b"\xde" + len(header).to_bytes(2, "big")
    body = b"\x92" + head + pairs + write(data.draw(st.binary(max_size=40)))
    try:
        message = codec.decode(kind, body)
    except Refused:
        return
    assert codec.decode(kind, codec.encode(message)) == message


@given(st.text(max_size=60) | st.lists(st.sampled_from(
    ["gf", "1", "north", "_all", "meter-0042", "up", "down", "part", "7", "٣", "²", "chunk", ""]
), max_size=8).map("/".join))  # fmt: skip
@settings(max_examples=300)
def test_any_topic_is_parsed_or_none(topic):
    address = topics.parse(topic)
    assert address is None or topic.startswith(f"gf/1/{address.fleet}/{address.id}/")


@given(st.binary(max_size=200), st.sampled_from(list(codec.ENCODINGS)), st.integers(0, 40))
@settings(max_examples=400)
def test_any_blob_is_a_finite_vector_or_refused(blob, enc, size):
    try:
        vector = codec.unpack_tensor(blob, enc, size)
    except Refused:
        return
    assert vector.shape == (size,)
    assert vector.dtype == np.float64
    assert np.isfinite(vector).all()
