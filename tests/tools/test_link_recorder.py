"""What the record beside a link remembers when the process that keeps it is killed."""

from __future__ import annotations

import stat

import numpy as np
import pytest

from edge_sdk.protocol import codec, topics
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.codec import vector_digest
from edge_sdk.protocol.envelope import AGGREGATOR, digest, ref, seal
from edge_sdk.protocol.keys import from_seed
from tools.chaos.link_recorder import LinkRecord
from tools.chaos.link_trace import Sent, read

FLEET, DEVICE, KEY = "north", "home-0", from_seed(b"d" * 32)
VECTOR = np.arange(40, dtype=np.float32)
HEAD = {"run": 1, "round": 3, "base": 2, "spec": bytes(16), "life": 4, "seq": 1, "spent": 5}
BODY = codec.encode(
    m.UpdateMessage(**HEAD, part="delta", enc="f4", n=7, blob=codec.pack_tensor(VECTOR, "f4"))
)
CHUNK = 100
OFFER = m.OfferMessage(
    of="update", digest=digest(BODY), size=len(BODY), chunk=CHUNK, sig=bytes(72), **HEAD
)
PIECES = [
    m.ChunkMessage(ref(digest(BODY)), i, blob=BODY[i * CHUNK : (i + 1) * CHUNK])
    for i in range(-(-len(BODY) // CHUNK))
]


def leave(record, *messages):
    for message in messages:
        payload = seal(
            codec.encode(message),
            kind=message.kind,
            sender=DEVICE,
            recipient=AGGREGATOR,
            fleet=FLEET,
            signer=KEY,
        )
        record.record_publish(topics.up(FLEET, DEVICE, message.kind), payload, 9.0)


def lines(folder):
    with (folder / "home-0.jsonl").open() as record:
        return [line for line in read(record) if isinstance(line, Sent)]


def opened(folder):
    return LinkRecord(folder / "home-0.jsonl", device=KEY.public, aggregator=bytes(32))


@pytest.mark.parametrize("deaths", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_a_body_sent_by_several_processes_is_recorded_whole(tmp_path, deaths):
    """A process is killed after the offer, or after the chunk before: the next sends the rest."""
    assert len(PIECES) == 3
    record = opened(tmp_path)
    leave(record, OFFER)
    for i, piece in enumerate(PIECES):
        if i in deaths:
            record = opened(tmp_path)
        leave(record, piece)
    *before, whole = lines(tmp_path)
    assert [line.vector for line in before] == [""]
    assert (whole.vector, whole.digest) == (vector_digest(VECTOR), digest(BODY).hex())
    assert (tmp_path / "home-0.pieces").stat().st_size == 0, "what is whole is not kept"


def test_a_truncated_line_is_dropped(tmp_path):
    leave(opened(tmp_path), OFFER, PIECES[0])
    kept = tmp_path / "home-0.pieces"
    kept.write_text(kept.read_text()[:-5])
    record = opened(tmp_path)
    leave(record, *PIECES[1:])
    assert [line.vector for line in lines(tmp_path)] == [""]
    leave(opened(tmp_path), PIECES[0])
    assert [line.vector for line in lines(tmp_path)] == ["", vector_digest(VECTOR)]


def test_a_link_record_is_private(tmp_path):
    path = tmp_path / "diaries" / "home-0.jsonl"
    LinkRecord(path, device=bytes(32), aggregator=bytes(32))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    path.with_suffix(".pieces").chmod(0o644)
    LinkRecord(path, device=bytes(32), aggregator=bytes(32))
    assert {stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()} == {0o600}
