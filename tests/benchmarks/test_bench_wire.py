"""What one update costs both ends, beside the hash and the signature that nobody can avoid.

The smaller one goes inline, in one envelope; the larger one in chunks, an envelope each. The offer,
the grant and the receipt around them are not counted.
"""

import hashlib
import random

import numpy as np
import pytest

from aggregator.ingress.admission_policy import Limits, OpenRound, admit_update
from edge_sdk.extensions.encryption.encrypted_body import (
    BodyContext,
    decrypted_body,
    encrypted_body,
)
from edge_sdk.extensions.encryption.hpke import DecryptionKey
from edge_sdk.protocol import codec, envelope, keys
from edge_sdk.protocol.contract.method import CONTRACTS
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.protocol.envelope import AGGREGATOR
from edge_sdk.protocol.messages import CHUNK_LIMIT, ChunkMessage, UpdateMessage, count_of
from edge_sdk.protocol.transfer import Receiving

pytestmark = pytest.mark.bench

KEY = keys.from_seed(bytes(range(32)))
NAMES = {"sender": "meter-1", "recipient": AGGREGATOR, "fleet": "north"}


def body_of(vector, spec):
    update = UpdateMessage(
        run=1,
        round=7,
        base=6,
        life=1,
        seq=7,
        spent=7,
        spec=spec.digest,
        part="delta",
        enc="f4",
        n=64,
        vals={"loss": 0.25},
        blob=codec.pack_tensor(vector, "f4"),
    )
    return codec.encode(update)


def send(vector, spec):
    """Return the payloads that leave a device."""
    body = body_of(vector, spec)
    if len(body) <= CHUNK_LIMIT:
        return [envelope.seal(body, kind="update", signer=KEY, **NAMES)]
    whole = envelope.digest(body)
    envelope.prove(whole, kind="update", signer=KEY, **NAMES)  # said in the offer
    ident, pieces = envelope.ref(whole), range(count_of(len(body), CHUNK_LIMIT))
    cut = (body[i * CHUNK_LIMIT : (i + 1) * CHUNK_LIMIT] for i in pieces)
    chunks = (ChunkMessage(id=ident, i=i, life=1, seq=7, blob=blob) for i, blob in enumerate(cut))
    return [envelope.seal(codec.encode(c), kind="chunk", signer=KEY, **NAMES) for c in chunks]


def receive(payloads, limits, size, whole):
    """Return the admitted update."""
    if len(payloads) == 1:
        body = opened(payloads[0], "update")
    else:
        machine = Receiving(whole, size, CHUNK_LIMIT, now=0.0, rng=random.Random(1))
        for payload in payloads:
            chunk = codec.decode(ChunkMessage, opened(payload, "chunk"))
            machine.add(chunk.id, chunk.i, chunk.blob, 0.0)
        body = machine.body()
    said = codec.decode(UpdateMessage, body)
    return admit_update(said, sender="meter-1", limits=limits, round_state=OpenRound(1, 7, 6))


def opened(payload, kind):
    return envelope.unseal(payload, kind=kind, key_of=lambda *_: KEY.public, **NAMES).body


def floors(best, body):
    """Hash the bytes once and sign, or verify, once: less is not possible."""
    whole = hashlib.sha256(body).digest()
    proof = KEY.sign(whole)
    hashed = best(lambda: hashlib.sha256(body).digest())
    return (
        hashed + best(lambda: KEY.sign(whole)),
        hashed + best(lambda: keys.verify(KEY.public, proof, whole)),
    )


def test_one_update(best, copied, tell):
    rows = []
    for size in (5_760, 42_181):
        spec = ParamSpec.of([("w", (size,))])
        vector = np.random.default_rng(size).standard_normal(size).astype(np.float32)
        limits = Limits(spec.digest, size, CONTRACTS["fedavg"]["train"], max_norm=1e6)
        body, payloads = body_of(vector, spec), send(vector, spec)
        told = payloads, limits, len(body), envelope.digest(body)
        assert np.array_equal(receive(*told).vector.astype(np.float32), vector)
        sent = sum(map(len, payloads))
        works = (
            ("encode, seal", best(lambda v=vector, s=spec: send(v, s))),
            ("unseal, decode, admit", best(lambda told=told: receive(*told))),
        )
        for (what, took), floor in zip(works, floors(best, body), strict=True):
            copy = 2 * sent / copied
            cells = (str(size), str(sent), str(len(payloads)), what, f"{1e6 * took:.0f}")
            rows.append((*cells, f"{took / floor:.2f}", f"{took / copy:.0f}"))
    head = ("scalars", "bytes", "payloads", "work", "us", "time / hash and signature", "/ copy")
    tell("one update, one thread", head, rows)


def test_the_encryption_of_an_update(best, tell):
    """Both directions and neighbours: the context differs, the work is the same."""
    key, rows = DecryptionKey(bytes(range(32))), []
    spec = ParamSpec.of([("w", (5_760,))])
    vector = np.random.default_rng(1).standard_normal(5_760).astype(np.float32)
    body = body_of(vector, spec)
    device = {"sender": AGGREGATOR, "recipient": "meter-1"}
    ways = {
        "up": BodyContext("north", "update", "meter-1", AGGREGATOR),
        "down": BodyContext("north", "task", **device),
        "peer": BodyContext("north", "peer", "meter-1", "meter-2"),
    }
    for way, context in ways.items():
        sent = encrypted_body(body, key.public, context)
        assert decrypted_body(sent, {key.kid: key}.get, context) == body
        clear = best(lambda: envelope.seal(body, kind="update", signer=KEY, **NAMES))
        for what, work in (
            ("encrypt", lambda c=context: encrypted_body(body, key.public, c)),
            ("decrypt", lambda c=context, s=sent: decrypted_body(s, {key.kid: key}.get, c)),
        ):
            took = best(work)
            grown = str(len(sent) - len(body))
            rows.append(
                (way, what, str(len(body)), grown, f"{1e3 * took:.3f}", f"{took / clear:.2f}")
            )
    head = ("direction", "work", "bytes", "more", "ms", "time / hash and signature")
    tell("the encryption of an update, one thread", head, rows)
