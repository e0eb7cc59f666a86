"""Write the wire's golden vectors: ``python tests/vectors/generate.py [FOLDER]``.

Every ``*.bin`` is one whole MQTT payload (``body-*.bin`` is a bare body, ``tensor-*.bin`` a bare
blob). ``index.json`` says what each must decode to, or with which reason it must be refused, in
plain JSON: bytes as hex. Nothing here is random, so a changed byte is a changed protocol.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
import sys
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from edge_sdk.app.schema import key_of
from edge_sdk.extensions.analytic.statistics import gather, to_vector
from edge_sdk.extensions.encryption.encrypted_body import BodyContext, encrypted_body
from edge_sdk.extensions.encryption.hpke import DecryptionKey
from edge_sdk.extensions.model_log import log_format as model_log
from edge_sdk.extensions.model_log import merkle_tree, signed_note
from edge_sdk.extensions.outputs.forecast_message import ForecastMessage
from edge_sdk.extensions.peers.messages import PeerMessage, SettleMessage
from edge_sdk.extensions.rollouts.messages import RolloutMessage, StageMessage, TrialMessage
from edge_sdk.extensions.sums.masked_sum import FollowedContract, SumContext, masked_message
from edge_sdk.extensions.sums.messages import SumContract, SumReceiptMessage, SumsMessage
from edge_sdk.extensions.sums.seed import ExchangeKey
from edge_sdk.extensions.weather.messages import WeatherMessage, topic_of
from edge_sdk.protocol import codec, envelope, keys, messages, model_step, msgpack_reader, topics
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.protocol.messages import LARGEST
from edge_sdk.protocol.statements import command_statement

FLEET = "north"
DEVICE_ID = "meter-0042"
P256_ID = "meter-0044"
DEVICE = keys.from_seed(bytes(range(32)))
AGGREGATOR = keys.from_seed(bytes(range(32, 64)))
ROOT = keys.from_seed(bytes(range(64, 96)))
NEXT = keys.from_seed(bytes(range(160, 192)))
OPEN = DecryptionKey(bytes(range(96, 128)))
OPEN_DEVICE = DecryptionKey(bytes(range(128, 160)))
OPEN_NEIGHBOUR = DecryptionKey(bytes(range(192, 224)))
SPEC = ParamSpec.of([("w", (2,))])
NOW = 1_790_000_000_000  # a server time in 2026, in milliseconds

UP = {"sender": DEVICE_ID, "recipient": "_agg", "signer": DEVICE}
DOWN = {"sender": "_agg", "recipient": DEVICE_ID, "signer": AGGREGATOR}
TO_ALL = {"sender": "_agg", "recipient": "_all", "signer": AGGREGATOR}
FROM_ROOT = {"sender": "_root", "recipient": "_all", "signer": ROOT}

ROWS = np.array([[0.5, 1.0], [-2.0, 1.0]])
TARGETS = np.array([[0.25], [1.5]])
UPDATE = messages.UpdateMessage(
    run=7,
    round=41,
    base=41,
    life=3,
    seq=12,
    spent=12,
    spec=SPEC.digest,
    part="delta",
    enc="f4",
    n=64,
    blob=codec.pack_tensor(np.array([0.5, -1.25]), "f4"),
)
STATISTIC = replace(  # two windows, one output: a triangle of 3, 2 products, 2 sums, the count
    UPDATE,
    round=45,
    seq=15,
    part="stat",
    n=2,
    blob=codec.pack_tensor(to_vector(gather(ROWS, TARGETS, None, TARGETS)), "f4"),
)
HELLO = messages.HelloMessage(
    life=3,
    nonce=bytes(range(16)),
    spent=11,
    lost=False,
    open=((2, 9),),
    wire=(1, 1),
    caps=("f2", "hpke"),
    sdk="1.4.2",
    conn=17,
)
CONTENT = messages.ContentBody(
    run=7,
    version=41,
    part="shared",
    spec=SPEC.digest,
    enc="f4",
    blob=codec.pack_tensor(np.array([0.25, 3.0]), "f4"),
)

STEP = [0.9921875, -0.5]
"""The step from version 40 to ``CONTENT``'s version: exact in ``q8``."""
BASE = [-0.7421875, 3.5]
STEP_BODY = model_step.step_body(
    run=7, version=41, spec=SPEC.digest, blob=codec.pack_tensor(np.array(STEP), "q8")
)


BUNDLE = hashlib.sha256(b"archive").digest()
ANNOUNCED = messages.BundleMessage(
    serial=4,
    name="load-hourly",
    version=2,
    digest=BUNDLE,
    size=7,
    spec=SPEC.digest,
    sdk="0.1.0",
    method="fedavg",
    run=7,
    shared=("w",),
)
MANIFEST = messages.ModelMessage(
    serial=5,
    run=7,
    round=41,
    version=41,
    phase="train",
    part="shared",
    spec=SPEC.digest,
    enc="f4",
    digest=envelope.digest(codec.encode(CONTENT)),
    size=len(codec.encode(CONTENT)),
    chunk=32768,
    until=NOW + 600_000,
    spread=10_000,
    inline=32768,
    share=0.5,
    vals={"steps": 4.0, "rate": 0.01, "prox": 0.0},
    cohort=bytes(range(16)),
)


class P256Key:
    """ECDSA on P-256 with SHA-256 and the nonce of RFC 6979, over integers alone.

    No library: the bytes are the same everywhere, also where a library's nonces are random.
    """

    P = 2**256 - 2**224 + 2**192 + 2**96 - 1
    N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    G = (
        0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
        0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
    )

    def __init__(self, private: int) -> None:
        self.private = private
        x, y = self.times(private, self.G)
        self.public = bytes((2 + y % 2,)) + x.to_bytes(32, "big")

    def add(self, one: Any, two: Any) -> Any:
        """Add two points; None is the neutral one."""
        if one is None or two is None:
            return two if one is None else one
        (x1, y1), (x2, y2), p = one, two, self.P
        if x1 == x2 and (y1 + y2) % p == 0:
            return None
        slope = (
            (3 * x1 * x1 - 3) * pow(2 * y1, -1, p)
            if one == two
            else (y2 - y1) * pow(x2 - x1, -1, p)
        )
        x = (slope * slope - x1 - x2) % p
        return x, (slope * (x1 - x) - y1) % p

    def times(self, number: int, point: Any) -> Any:
        """Multiply a point by doubling and adding."""
        out = None
        while number:
            out = self.add(out, point) if number & 1 else out
            point, number = self.add(point, point), number >> 1
        return out

    def numbers(self, data: bytes) -> tuple[int, int]:
        """Return r and s, as RFC 6979 has them."""
        digest = hashlib.sha256(data).digest()
        h = int.from_bytes(digest, "big") % self.N
        seed = self.private.to_bytes(32, "big") + h.to_bytes(32, "big")
        k, v = bytes(32), b"\x01" * 32
        for mark in (b"\0", b"\1"):
            k = hmac.digest(k, v + mark + seed, "sha256")
            v = hmac.digest(k, v, "sha256")
        nonce = int.from_bytes(hmac.digest(k, v, "sha256"), "big")  # below n but for 1 in 2^32
        r = self.times(nonce, self.G)[0] % self.N
        return r, pow(nonce, -1, self.N) * (h + r * self.private) % self.N

    def sign(self, data: bytes) -> bytes:
        """Return r || s with the smaller s."""
        r, s = self.numbers(data)
        return r.to_bytes(32, "big") + min(s, self.N - s).to_bytes(32, "big")

    def sign_larger(self, data: bytes) -> bytes:
        """Return r || s with the larger s, which is refused."""
        r, s = self.numbers(data)
        return r.to_bytes(32, "big") + max(s, self.N - s).to_bytes(32, "big")


P256 = P256Key(0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721)
"""The key of RFC 6979, appendix A.2.5."""


@dataclass(frozen=True)
class Case:
    """One payload, where it was heard, and what must come of it."""

    name: str
    payload: bytes
    topic: str
    sender: str
    recipient: str
    kind: str
    fields: dict[str, Any] | None = None  # what it decodes to
    refused: str = ""  # or the reason


def plain(value: Any) -> Any:
    """Put a field's value into JSON."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def said(message: messages.ProtocolMessage) -> dict[str, Any]:
    """Return every field that is on the wire, by its header key."""
    body = codec.read_body(codec.encode(message))[0]
    values = {key_of(f.name): getattr(message, f.name) for f in fields(message)}
    return {key: plain(values[key]) for key in (*body, "blob") if key in values}


def sealed(name: str, message: messages.ProtocolMessage, way: dict[str, Any], topic: str) -> Case:
    """Seal one message and expect it back."""
    payload = envelope.seal(codec.encode(message), kind=message.kind, fleet=FLEET, **way)
    return Case(
        name,
        payload,
        topic,
        way["sender"],
        way["recipient"],
        message.kind,
        said(message),
    )


def up(name: str, message: messages.ProtocolMessage) -> Case:
    """Seal what a device says."""
    topic = (
        topics.status(FLEET, DEVICE_ID)
        if message.kind == "status"
        else topics.up(FLEET, DEVICE_ID, message.kind)
    )
    return sealed(name, message, UP, topic)


def down(name: str, message: messages.ProtocolMessage) -> Case:
    """Seal what the aggregator says to one device."""
    return sealed(name, message, DOWN, topics.down(FLEET, DEVICE_ID, message.kind))


def common(name: str, message: messages.ProtocolMessage, way: dict[str, Any] = TO_ALL) -> Case:
    """Seal what is said to all."""
    is_part = isinstance(message, messages.PartMessage)
    topic = topics.part(FLEET, message.i) if is_part else topics.common(FLEET, message.kind)
    return sealed(name, message, way, topic)


def two_chunks() -> tuple[messages.UpdateMessage, bytes]:
    """Return an update whose body needs two chunks of 8,192 bytes, and that body."""
    vector = (np.arange(3000) % 251 - 125) / 64
    large = replace(UPDATE, seq=14, spec=bytes(range(16)), blob=codec.pack_tensor(vector, "f4"))
    return large, codec.encode(large)


def wipe() -> messages.CommandMessage:
    """Return a command that destroys, with the statement of two keys of the root."""
    until = NOW + 604_800_000
    statement = command_statement(FLEET, DEVICE_ID, DEVICE.public, "wipe", until)
    root = b"".join(keys.kid_of(one.public) + one.sign(statement) for one in (ROOT, NEXT))
    return messages.CommandMessage(num=6, op="wipe", until=until, root=root)


def session() -> list[Case]:
    """One of every kind that opens and keeps a session."""
    hello = envelope.ref(envelope.digest(codec.encode(HELLO)))
    return [
        up("status", messages.StatusMessage(state="online", life=3, conn=17)),
        up("hello", HELLO),
        down(
            "welcome",
            messages.WelcomeMessage(
                hello=hello, life=3, spent=11, time=NOW, wire=1, caps=("f2",), run=7,
                inline=32768, window=8, quota=1_000_000, hold=2, cmd=5,
            ),
        ),
        down(
            "welcome-runs",
            messages.WelcomeMessage(
                hello=hello, life=3, spent=11, time=NOW, wire=1, caps=(), run=7, inline=32768,
                window=8, quota=1_000_000, hold=2, cmd=5, runs=("meters", "chargers-2"),
            ),
        ),
        down("floor", messages.FloorMessage(hello=hello, life=9)),
        common(
            "keys",
            messages.KeysMessage(
                serial=3, sign=(AGGREGATOR.public,), open=(), from_=(NOW,),
                until=(NOW + 86_400_000,), min_wire=1,
            ),
            FROM_ROOT,
        ),
        common("bundle", ANNOUNCED, FROM_ROOT),
        common("bundle-expires", replace(ANNOUNCED, expires=NOW + 34_560_000_000), FROM_ROOT),
        common("time", messages.TimeMessage(serial=900, t=NOW)),
        down("command", messages.CommandMessage(num=5, op="report", args={"minutes": 15.0})),
        down("command-of-root", wipe()),
        up(
            "metrics",
            messages.MetricsMessage(
                up=3600, sent=4, resent=1, refused=0, bytes_up=99_000, bytes_down=120_000,
                outbox=1, flash=512, rss=61_000,
            ),
        ),
    ]  # fmt: skip


def forecasts() -> list[Case]:
    """Weather of a region, a device's forecast, and a device that is told its region."""
    hello = envelope.ref(envelope.digest(codec.encode(HELLO)))
    weather = WeatherMessage(
        region="utrecht", t=NOW, start=NOW - 3_600_000, step=3_600_000, num=3,
        names=("weather.temperature", "weather.wind_speed"),
        blob=np.array([[8.5, 9.0, float("nan")], [3.0, 2.5, 2.0]], "<f4").tobytes(),
    )  # fmt: skip
    forecast = ForecastMessage(
        t=NOW, start=NOW + 600_000, step=3_600_000, num=2, stream="elec.import.energy",
        model="load-week-1", bundle=1, run=0, source="model", by="fleet",
        blob=np.array([[0.5, 1.25], [0.25, 1.0], [1.0, 2.0]], "<f4").tobytes(),
    )  # fmt: skip
    topic = topic_of(FLEET, "utrecht")
    body = codec.encode(weather)
    short = body.replace(msgpack_reader.text("num") + b"\x03", msgpack_reader.text("num") + b"\x02")
    bad = envelope.seal(short, kind="weather", fleet=FLEET, **TO_ALL)
    return [
        sealed("weather", weather, TO_ALL, topic),
        Case("bad-weather-rows", bad, topic, "_agg", "_all", "weather", refused="MALFORMED"),
        up("forecast", forecast),
        up("forecast-quality", replace(forecast, run=7, version=41, error=0.125, coverage=0.9)),
        down(
            "welcome-region",
            messages.WelcomeMessage(
                hello=hello, life=3, spent=11, time=NOW, wire=1, caps=(), run=7, inline=32768,
                window=8, quota=1_000_000, hold=2, cmd=5, region="utrecht",
            ),
        ),
    ]  # fmt: skip


def rollouts() -> list[Case]:
    """A rollout's description, its stage, a device's results, and one of a version that is served already."""
    plan = RolloutMessage(
        serial=9, name="load-week-1", version=2, digest=bytes(range(32)), size=51_200,
        served=bytes(range(64, 96)),
        salt=bytes(range(16)), waves=(0.01, 0.05, 0.25, 1.0), shadow=0.25, days=3, least=5,
        margin=0.02, bound=0.01,
    )  # fmt: skip
    body = codec.encode(plan)
    of = envelope.ref(envelope.digest(body))
    same = body.replace(bytes(range(64, 96)), bytes(range(32)))
    topic = topics.common(FLEET, "rollout")
    bad = envelope.seal(same, kind="rollout", fleet=FLEET, **FROM_ROOT)
    return [
        common("rollout", plan, FROM_ROOT),
        Case("bad-rollout-served", bad, topic, "_root", "_all", "rollout", refused="MALFORMED"),
        common("stage", StageMessage(serial=10, of=of, phase="run", stage=1)),
        up("trial", TrialMessage(of=of, state="serve", day=20_780, lost=(1, 2, 0))),
    ]


def sums() -> list[Case]:
    """A contract, a device's masked numbers, and their receipt."""
    witness, day = ExchangeKey(bytes(range(32))), 86_400_000
    body = codec.encode(
        SumContract(
            "feeder-history", "history", "elec.import.power", "kW", 4, -20.0, 50.0, 0.001,
            day, day + 1, 8, witness.public, cohort="feeder",
        )
    )  # fmt: skip
    contract, values = FollowedContract.read(body), np.array([-99.0, -20.0, 0.0, 1.5])
    context = SumContext(FLEET, DEVICE_ID, contract.digest, 20_000 * day)
    sent = masked_message(values, contract, context, DEVICE, ExchangeKey(bytes(range(32, 64))))
    of = envelope.ref(envelope.digest(codec.encode(sent)))
    return [
        common("sums", SumsMessage(NOW, (body,)), FROM_ROOT),
        up("sum", sent),
        down("sumreceipt", SumReceiptMessage(of)),
    ]


def model() -> list[Case]:
    """The common model: manifest and its only part."""
    body, manifest = codec.encode(CONTENT), MANIFEST
    whole = envelope.digest(body)
    step = envelope.digest(STEP_BODY)
    stepped = replace(manifest, deltas=((40, 1),), step=step, step_size=len(STEP_BODY))
    return [
        common("model", manifest),
        common("model-ahead", replace(manifest, round=42, spread=0, share=1.0, ahead=8)),
        common("model-single", replace(manifest, round=42, share=1.0, ahead=8, single=262_144)),
        *(common(f"model-logged-{i}", one) for i, one in enumerate(logged(manifest), 1)),
        common("part", messages.PartMessage(id=whole[:16], i=0, blob=body)),
        common("model-step", stepped),
        common("model-expires", replace(manifest, expires=NOW + 1_209_600_000)),
        replace(
            common("part-step", messages.PartMessage(id=step[:16], i=0, blob=STEP_BODY)),
            topic=topics.part(FLEET, 1),
        ),
    ]


def logged(manifest: messages.ModelMessage) -> list[messages.ModelMessage]:
    """Return the manifests of three rounds, each with its proof, and the log after them in a welcome."""
    nodes: dict[tuple[int, int], bytes] = {}
    found = []
    for index in range(3):
        one = replace(manifest, serial=5 + index, round=41 + index, version=41 + index)
        leaf = model_log.leaf_of(one, BUNDLE).hash
        for level, place, value in merkle_tree.completed(index, leaf, lambda k, i: nodes[k, i]):
            nodes[level, place] = value
        path = merkle_tree.inclusion_proof(index, index + 1, lambda k, i: nodes[k, i])
        root = merkle_tree.root(index + 1, lambda k, i: nodes[k, i])
        note = signed_note.signed(model_log.checkpoint(FLEET, 7, index + 1, root), AGGREGATOR)
        found.append(replace(one, note=note.text, path=merkle_tree.joined(path)))
    return found


def log_sessions() -> list[Case]:
    """A hello with a checkpoint of one leaf, and the welcome that proves that three continue it."""
    first, second, third = logged(MANIFEST)
    one = signed_note.read_note(first.note or "").checkpoint
    hello = replace(HELLO, log=struct.pack(">2Q", 7, one.size), root=one.root)
    nodes = [model_log.leaf_of(two, BUNDLE).hash for two in (second, third)]
    welcome = messages.WelcomeMessage(
        hello=envelope.ref(envelope.digest(codec.encode(hello))), life=3, spent=11, time=NOW, wire=1,
        caps=(), run=7, inline=32768, window=8, quota=1_000_000, hold=2, cmd=5, note=third.note,
        path=merkle_tree.joined(nodes),
    )  # fmt: skip
    body = codec.encode(hello)
    short = body.replace(b"\xa3log\xc4\x10" + hello.log, b"\xa3log\xc4\x0f" + hello.log[1:])
    bad = envelope.seal(short, kind="hello", fleet=FLEET, **UP)
    topic = topics.up(FLEET, DEVICE_ID, "hello")
    return [
        up("hello-log", hello),
        down("welcome-log", welcome),
        Case("bad-hello-log", bad, topic, DEVICE_ID, "_agg", "hello", refused="MALFORMED"),
    ]


def refused_root() -> list[Case]:
    """The hello of a device that refuses the keys of another root, and one with a shorter pair."""
    hello = replace(HELLO, refuses=ROOT.kid + AGGREGATOR.kid)
    body = codec.encode(hello)
    field = b"\xa7refuses\xc4"
    short = body.replace(field + b"\x10" + hello.refuses, field + b"\x0f" + hello.refuses[1:])
    bad = envelope.seal(short, kind="hello", fleet=FLEET, **UP)
    topic = topics.up(FLEET, DEVICE_ID, "hello")
    return [
        up("hello-refuses", hello),
        Case("bad-hello-refuses", bad, topic, DEVICE_ID, "_agg", "hello", refused="MALFORMED"),
    ]


def tasks() -> list[Case]:
    """A task with its content, one whose content is asked for, and one that brings no vectors."""
    body = codec.encode(CONTENT)
    task = messages.TaskMessage(
        run=7, round=42, base=41, ask="step", spec=SPEC.digest, digest=envelope.digest(body),
        size=len(body), chunk=32768, vals={"eps_dual": 0.25, "fired": 41.0}, blob=body,
    )  # fmt: skip
    plain = {"digest": None, "size": None, "chunk": None, "blob": b""}
    return [
        down("task", task),
        down("task-by-digest", replace(task, round=43, attempt=1, step=3, blob=b"")),
        down("task-without-vectors", replace(task, ask="share", vals={}, **plain)),
        down("task-solve", replace(task, round=44, ask="solve", vals={"of": 43.0, "own": 0.5})),
    ]


def uplink() -> list[Case]:
    """An update, inline and offered in two chunks, and every answer."""
    ref = envelope.ref(envelope.digest(codec.encode(UPDATE)))
    large, body = two_chunks()
    whole = envelope.digest(body)
    proof = envelope.prove(whole, kind="update", fleet=FLEET, **UP)
    offer = messages.OfferMessage(
        of="update", digest=whole, size=len(body), chunk=8192, sig=proof, run=large.run,
        round=large.round, base=large.base, spec=large.spec, life=large.life, seq=large.seq,
        spent=large.spent,
    )  # fmt: skip
    chunk = messages.ChunkMessage(
        id=whole[:16], i=0, life=large.life, seq=large.seq, blob=body[:8192]
    )
    return [
        up("update", UPDATE),
        up("update-vals", replace(UPDATE, seq=13, vals={"loss": 0.125, "eps": 2.0}, flags=2)),
        up("update-solution", replace(UPDATE, round=44, seq=14, part="q")),
        up("update-statistic", STATISTIC),
        down("receipt", messages.ReceiptMessage(life=3, seq=12, ref=ref, code=0, run=7, round=41)),
        down("refusal", messages.RefusalMessage(code=40, wait=30_000, ref=ref)),
        up("offer", offer),
        up("offer-ahead", replace(offer, seq=offer.seq + 1, ahead=2)),
        down("grant", messages.GrantMessage(id=whole[:16], have=b"", win=8, keep=120_000, to="w1")),
        up("chunk-0", chunk),
        up("chunk-1", replace(chunk, i=1, blob=body[8192:])),
        up("have", messages.HaveMessage(id=whole[:16], have=b"\x01", win=4)),
    ]


def encrypted() -> list[Case]:
    """An update encrypted to the aggregator, and encrypted bodies that must be refused."""
    context = BodyContext(FLEET, "update", DEVICE_ID, "_agg")
    ephemeral = DecryptionKey(bytes(range(160, 192)))
    public = OPEN.public
    body = encrypted_body(codec.encode(UPDATE), public, context, ephemeral=ephemeral)
    other = replace(context, sender=NEIGHBOUR_ID)
    wrong = {
        "encrypted-to-another-key": body.replace(OPEN.kid, bytes(8)),
        "encrypted-by-another-suite": b"\x94\x02" + body[2:],
        "encrypted-for-another-sender": encrypted_body(
            codec.encode(UPDATE), public, other, ephemeral=ephemeral
        ),
        "encrypted-and-changed": body[:-1] + bytes([body[-1] ^ 1]),
    }
    good = replace(up("update-encrypted", UPDATE), payload=raw(body))
    return [
        good,
        *(
            replace(good, name=f"bad-{name}", payload=raw(bad), fields=None, refused="CANNOT_OPEN")
            for name, bad in wrong.items()
        ),
    ]


NEIGHBOUR_ID = "meter-0043"


def encrypted_down() -> list[Case]:
    """The hello that announces a key, a task and a receipt encrypted to it, and what must be refused."""
    hello = replace(HELLO, key=OPEN_DEVICE.public)
    body = codec.encode(hello)
    short = body.replace(b"\xa3key\xc4\x20" + hello.key, b"\xa3key\xc4\x1f" + hello.key[1:])
    bad = envelope.seal(short, kind="hello", fleet=FLEET, **UP)
    topic = topics.up(FLEET, DEVICE_ID, "hello")
    receipt = down(
        "receipt-encrypted",
        messages.ReceiptMessage(life=3, seq=12, ref=bytes(range(16)), code=0, run=7, round=41),
    )
    command = down("command-encrypted", messages.CommandMessage(4, "budget", {"releases": 40.0}))
    context = BodyContext(FLEET, "receipt", "_agg", DEVICE_ID)
    upward = replace(context, sender=DEVICE_ID, recipient="_agg")
    wrong = {
        "encrypted-to-the-aggregators-key": encrypted_for(receipt, OPEN),
        "encrypted-for-another-device": encrypted_for(receipt, of=replace(context, recipient="m")),
        "encrypted-as-another-kind": encrypted_for(receipt, of=replace(context, kind="command")),
        "encrypted-for-another-direction": encrypted_for(receipt, of=upward),
    }
    return [
        up("hello-key", hello),
        Case("bad-hello-key", bad, topic, DEVICE_ID, "_agg", "hello", refused="MALFORMED"),
        replace(receipt, payload=encrypted_for(receipt)),
        replace(command, payload=encrypted_for(command)),
        *(
            replace(receipt, name=f"bad-{name}", payload=raw, fields=None, refused="CANNOT_OPEN")
            for name, raw in wrong.items()
        ),
    ]


def encrypted_for(
    clear: Case,
    key: DecryptionKey = OPEN_DEVICE,
    of: BodyContext | None = None,
    way: dict[str, Any] = DOWN,
) -> bytes:
    """Return the payload of a message to a device with its body encrypted."""
    context = of or BodyContext(FLEET, clear.kind, clear.sender, clear.recipient)
    ephemeral = DecryptionKey(bytes(range(160, 192)))
    body = encrypted_body(
        envelope.unproved(clear.payload), key.public, context, ephemeral=ephemeral
    )
    return envelope.seal(body, kind=clear.kind, fleet=FLEET, **way)


def turns() -> list[Case]:
    """A turn of split learning: the windows, activations in two pieces, and what comes back."""
    h = np.arange(6, dtype=np.float32).reshape(3, 2, 1) / 4
    ask = messages.TaskMessage(
        run=7, round=42, base=41, ask="encode", spec=SPEC.digest, attempt=1, step=3, enc="i4",
        shape=(3,), num=3, vals={"half": 1.0},
        blob=np.array([497_220, 497_225, 497_301], "<i4").tobytes(),
    )  # fmt: skip
    feat = messages.SignalMessage(
        run=7, round=42, ask="encode", attempt=1, step=3, enc="f2", shape=(3, 2, 1), num=2,
        blob=h[:2].astype("<f2").tobytes(),
    )  # fmt: skip
    last = replace(feat, off=2, num=1, blob=h[2:].astype("<f2").tobytes())
    grad = replace(feat, ask="decode", enc="f4", num=3, vals={"loss": 0.5}, blob=h.tobytes())
    back = {"enc": "f4", "shape": (3, 2, 1), "num": 3, "vals": {}, "blob": h.tobytes()}
    alone = {"enc": "", "shape": (), "num": 0, "vals": {}, "blob": b""}
    ready = messages.SignalMessage(
        run=7, round=42, ask="ready", vals={"first": 480_000.0, "last": 497_301.0}
    )
    return [
        down("task-encode", ask),
        down("task-decode", replace(ask, ask="decode", **back)),
        down("task-finish-alone", replace(ask, ask="finish", **alone)),
        up("signal", feat),
        up("signal-last-rows", last),
        up("signal-gradient", grad),
        up("signal-ready", ready),
    ]


def bad_pieces() -> list[Case]:
    """Pieces that are none: canonical bodies, each with one field that cannot be."""
    good = {"run": 7, "round": 42, "ask": "encode", "enc": "f2", "shape": [2, 2], "num": 2}
    wrong: dict[str, dict[str, Any]] = {
        "rows-one-byte-short": {"blob": bytes(7)},
        "rows-beyond-the-array": {"off": 1},
        "rows-of-no-shape": {"shape": []},
        "rows-of-an-empty-shape": {"shape": [2, 0], "blob": b""},
        "rows-too-long": {"shape": [2, 16385], "num": 1, "blob": bytes(32770)},
        "rows-of-unknown-enc": {"enc": "f8"},
        "rows-none": {"num": 0, "blob": b""},
        "rows-in-five-dimensions": {"shape": [2, 2, 1, 1, 1]},
    }
    out = []
    for name, change in wrong.items():
        said = {**good, **change}
        body = written({k: v for k, v in said.items() if k != "blob"}, said.get("blob", bytes(8)))
        payload = envelope.seal(body, kind="signal", fleet=FLEET, **UP)
        topic = topics.up(FLEET, DEVICE_ID, "signal")
        case = Case(f"bad-{name}", payload, topic, DEVICE_ID, "_agg", "signal")
        out.append(replace(case, refused="MALFORMED"))
    return out


def written(header: dict[str, Any], blob: bytes) -> bytes:
    """Write a body that no honest encoder writes; header keys in order."""
    import msgpack  # noqa: PLC0415 - only for bodies that must be refused

    packed: bytes = msgpack.packb([dict(sorted(header.items())), blob], use_bin_type=True)
    return packed


def neighbours() -> list[Case]:
    """Who a device's neighbours are, what it tells one of them, and how a link is settled."""
    way = {"sender": DEVICE_ID, "recipient": NEIGHBOUR_ID, "signer": DEVICE}
    topic = topics.peer(FLEET, DEVICE_ID, NEIGHBOUR_ID)
    peer = PeerMessage(
        run=7, epoch=2, step=41, part="theta", degree=3, spec=SPEC.digest, enc="f4", off=0, num=2,
        blob=UPDATE.blob,
    )  # fmt: skip
    begin = messages.TaskMessage(
        run=7, round=2, base=0, ask="begin", spec=SPEC.digest, vals={"tau": 1.0},
        peers=(NEIGHBOUR_ID,), keys=(AGGREGATOR.public,), weights=(0.25,),
    )  # fmt: skip
    other = {"sender": NEIGHBOUR_ID, "recipient": DEVICE_ID, "signer": AGGREGATOR}
    back = topics.peer(FLEET, NEIGHBOUR_ID, DEVICE_ID)
    coming = sealed("peer-encrypted", peer, other, back)
    downward = BodyContext(FLEET, "peer", "_agg", DEVICE_ID)
    listed = replace(begin, open=(OPEN_NEIGHBOUR.public,), serial=9)
    body = codec.encode(listed)
    short = body.replace(
        b"\xa4open\x91\xc4\x20" + listed.open[0], b"\xa4open\x91\xc4\x1f" + listed.open[0][1:]
    )
    bad = down("bad-task-neighbour-keys", begin)
    return [
        down("task-neighbour-keys", listed),
        replace(
            bad,
            payload=envelope.seal(short, kind="task", fleet=FLEET, **DOWN),
            fields=None,
            refused="MALFORMED",
        ),
        replace(coming, payload=encrypted_for(coming, way=other)),
        replace(
            coming,
            name="bad-peer-encrypted-for-another-direction",
            payload=encrypted_for(coming, of=downward, way=other),
            fields=None,
            refused="CANNOT_OPEN",
        ),
        down("task-neighbours", begin),
        sealed("peer", peer, way, topic),
        sealed("peer-tracker", replace(peer, part="tracker"), way, topic),
        sealed("settle", SettleMessage(run=7, epoch=2, step=41, used=True), way, topic),
        sealed("settle-unused", SettleMessage(run=7, epoch=2, step=42, used=False), way, topic),
    ]


def authority(name: str, seed: int) -> bytes:
    """Return an authority's certificate, DER; Ed25519 signs the same bytes alike."""
    key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    begin = datetime.fromtimestamp(NOW / 1000, UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(seed)
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=3652))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, None)
    )
    return made.public_bytes(serialization.Encoding.DER)


def authorities() -> list[Case]:
    """A list of keys that names two authorities of TLS certificates."""
    listed = messages.KeysMessage(
        serial=5, sign=(AGGREGATOR.public,), open=(), from_=(NOW,), until=(NOW + 86_400_000,),
        min_wire=1, ca=(authority("North grid 2", 2), authority("North grid", 1)),
    )  # fmt: skip
    return [replace(common("keys", listed, FROM_ROOT), name="keys-authorities")]


def roots() -> list[Case]:
    """A list of keys with every role, signed by the root and by the next one; and flawed lists."""
    way, topic = {"sender": "_root", "recipient": "_all"}, topics.common(FLEET, "keys")
    listed = messages.KeysMessage(
        serial=4, sign=(AGGREGATOR.public, DEVICE.public), open=(OPEN.public,), from_=(NOW, NOW),
        until=(NOW + 86_400_000, NOW + 3_600_000), min_wire=1, roots=(NEXT.public, DEVICE.public),
        root_min=2, bundle=(NEXT.public,), model=(AGGREGATOR.public,),
    )  # fmt: skip
    body = codec.encode(listed)

    def by(*signers: Any) -> bytes:
        first, *also = signers
        return envelope.seal(body, kind="keys", fleet=FLEET, signer=first, also=also, **way)

    good = Case("keys-roles", by(ROOT, NEXT, DEVICE), topic, "_root", "_all", "keys", said(listed))
    flawed = {
        "of-the-next-root-alone": (by(NEXT, DEVICE), "UNKNOWN_CLIENT"),
        "proof-of-100-bytes": (
            envelope.wrap(body, kind="keys", sender="_root", proof=bytes(100)),
            "MALFORMED",
        ),
    }
    return [
        good,
        *(
            replace(good, name=f"bad-keys-{name}", payload=payload, fields=None, refused=reason)
            for name, (payload, reason) in flawed.items()
        ),
    ]


def p256() -> list[Case]:
    """What a device with a P-256 key says, and a neighbour with one."""
    way = {"sender": P256_ID, "recipient": "_agg", "signer": P256}
    topic = topics.up(FLEET, P256_ID, "update")
    good = sealed("update-p256", UPDATE, way, topic)
    body = codec.encode(UPDATE)
    whole = envelope.digest(body)
    said_bytes = b"gridfed/1/sig\0" + b"".join(
        bytes([len(part)]) + part.encode() for part in (FLEET, "update", P256_ID, "_agg")
    )
    proof = keys.kid_of(P256.public) + P256.sign_larger(said_bytes + whole)
    larger = envelope.wrap(body, kind="update", sender=P256_ID, proof=proof)
    swapped = keys.kid_of(P256.public) + DEVICE.sign(said_bytes + whole)
    other = envelope.wrap(body, kind="update", sender=P256_ID, proof=swapped)
    begin = messages.TaskMessage(
        run=7, round=2, base=0, ask="begin", spec=SPEC.digest, vals={"tau": 1.0},
        peers=(NEIGHBOUR_ID, P256_ID), keys=(AGGREGATOR.public, P256.public),
    )  # fmt: skip
    task = down("task-neighbour-p256", begin)
    off = codec.encode(begin).replace(P256.public, P256.public[:-1] + b"\0")
    cut = codec.encode(begin).replace(b"\xc4\x21" + P256.public, b"\xc4\x1f" + P256.public[:-2])
    peer = PeerMessage(
        run=7, epoch=2, step=41, part="theta", degree=3, spec=SPEC.digest, enc="f4", off=0, num=2,
        blob=UPDATE.blob,
    )  # fmt: skip
    to_device = {"sender": P256_ID, "recipient": DEVICE_ID, "signer": P256}
    return [
        good,
        sealed("hello-p256", HELLO, way, topics.up(FLEET, P256_ID, "hello")),
        replace(
            good, name="bad-p256-larger-s", payload=larger, fields=None, refused="BAD_SIGNATURE"
        ),
        replace(
            good, name="bad-p256-by-ed25519", payload=other, fields=None, refused="BAD_SIGNATURE"
        ),
        task,
        *(
            replace(
                task,
                name=f"bad-task-neighbour-p256-{what}",
                payload=envelope.seal(raw_body, kind="task", fleet=FLEET, **DOWN),
                fields=None,
                refused="MALFORMED",
            )
            for what, raw_body in (("off-the-curve", off), ("of-31-bytes", cut))
        ),
        sealed("peer-p256", peer, to_device, topics.peer(FLEET, P256_ID, DEVICE_ID)),
    ]


def widths() -> list[Case]:
    """The largest integer of every width, and the first of the next; too large ones are refused.

    ``int-63`` was good before counters ended at 2^53-1: its bytes stay, and are refused.
    """
    sizes = {"7": 0x7F, "8": 0xFF, "16": 0xFFFF, "32": 2**32 - 1, "53": LARGEST}
    cases = [up(f"int-{k}", replace(UPDATE, life=v, seq=v)) for k, v in sizes.items()]
    over = {"7": 0x80, "8": 0x100, "16": 0x10000, "32": 2**32}
    cases += [up(f"int-over-{k}", replace(UPDATE, life=v, seq=v)) for k, v in over.items()]
    beyond = {"int-63": 2**63 - 1, "int-over-53": LARGEST + 1}
    return cases + [too_large(name, value) for name, value in beyond.items()]


def too_large(name: str, value: int) -> Case:
    """Return an update whose life and number are beyond what a counter may be."""
    body, wide = codec.encode(UPDATE), b"\xcf" + value.to_bytes(8, "big")
    for key, old in (("life", b"\x03"), ("seq", b"\x0c")):
        body = body.replace(msgpack_reader.text(key) + old, msgpack_reader.text(key) + wide)
    return replace(up(name, UPDATE), payload=raw(body), fields=None, refused="MALFORMED")


TENSORS: dict[str, tuple[str, list[float]]] = {
    "f4": ("f4", [0.5, -1.25, 0.0, 3.5]),
    "f2": ("f2", [0.5, -1.25, 65504.0, -65504.0]),
    "i1": ("i1", [127.0, -127.0, 64.0, 0.0, 1.0]),
    "i1-two-blocks": ("i1", [127.0] * 1024 + [-254.0, 2.0]),
    "b1": ("b1", [1.0, -1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 1.0, -1.0, 1.0]),
    "b2": ("b2", [0.0, 1.0, -1.0, 0.0, 1.0]),
    "tk": ("tk", [0.0, 0.5, 0.0, 0.0, -2.0]),
    "q8": ("q8", [63.5, -63.5, 0.0, 0.5, 12.0]),
    "q4": ("q4", [3.5, -3.5, 0.0, 0.5, 1.0]),
    "q4-two-blocks": ("q4", [7.0] * 64 + [-14.0, 2.0, 0.0]),
}


def raw(body: bytes, **changed: str) -> bytes:
    """Seal bytes that no honest encoder writes."""
    way = {**UP, **{k: v for k, v in changed.items() if k in ("sender", "recipient")}}
    return envelope.seal(body, kind="update", fleet=changed.get("fleet", FLEET), **way)


def patched(old: bytes, new: bytes) -> bytes:
    """Return the update's body with one run of bytes replaced."""
    body = codec.encode(UPDATE)
    assert body.count(old) == 1, old
    return body.replace(old, new)


def negative() -> list[Case]:
    """What must be refused, and why. The envelope is rightly signed unless the name says not."""
    good = raw(codec.encode(UPDATE))
    life, seq = msgpack_reader.text("life") + b"\x03", msgpack_reader.text("seq") + b"\x0c"
    zero, wide = b"\x00", b"\xcf" + (2**63).to_bytes(8, "big")
    two_64 = b"\xcb" + bytes.fromhex("43f0000000000000")  # 2^64 exists only as a float
    bomb = b"\x92\x81" + msgpack_reader.text("run") + b"\x81\xa1a" * 500 + b"\x01\xc4\x00"
    bodies = {
        "body-one-more-byte": (codec.encode(UPDATE) + b"\x00", "MALFORMED"),
        "repeated-key": (
            patched(b"\x92\x8a", b"\x92\x8b").replace(life, life + life), "MALFORMED",
        ),
        "bool-as-int": (patched(life, msgpack_reader.text("life") + b"\xc3"), "MALFORMED"),
        "nested-map-bomb": (bomb, "MALFORMED"),
        "array-bomb": (b"\x92\xdd\xff\xff\xff\xff", "MALFORMED"),
        "nil": (patched(life, msgpack_reader.text("life") + b"\xc0"), "MALFORMED"),
        "missing-key": (patched(b"\x92\x8a", b"\x92\x89").replace(life, b""), "MALFORMED"),
        "must-understand": (
            patched(b"\x92\x8a", b"\x92\x8b").replace(life, msgpack_reader.text("Life") + b"\x03" + life),
            "UNKNOWN_FIELD",
        ),
        "sealed": (b"\x94\x01\xc4\x00\xc4\x00\xc4\x00", "MALFORMED"),
    }  # fmt: skip
    for key, field in (("life", life), ("seq", seq)):
        name = msgpack_reader.text(key)
        bodies[f"{key}-zero"] = (patched(field, name + zero), "MALFORMED")
        bodies[f"{key}-2-to-63"] = (patched(field, name + wide), "MALFORMED")
        bodies[f"{key}-2-to-64"] = (patched(field, name + two_64), "MALFORMED")
    payloads = {name: (raw(body), reason) for name, (body, reason) in bodies.items()}
    payloads |= {
        "trailing-byte": (good + b"\x00", "MALFORMED"),
        "sixth-element": (b"\x96" + good[1:] + b"\x00", "MALFORMED"),
        "wire-2": (b"\x95\x02" + good[2:], "UNKNOWN_WIRE"),
        "wrong-recipient": (raw(codec.encode(UPDATE), recipient=DEVICE_ID), "BAD_SIGNATURE"),
        "wrong-fleet": (raw(codec.encode(UPDATE), fleet="south"), "BAD_SIGNATURE"),
        "wrong-sender": (raw(codec.encode(UPDATE), sender="meter-0043"), "WRONG_SENDER"),
        "blob-one-byte-short": (
            raw(codec.encode(replace(UPDATE, blob=UPDATE.blob[:-1]))), "WRONG_SIZE",
        ),
    }  # fmt: skip
    return [
        Case(f"bad-{name}", payload, topics.up(FLEET, DEVICE_ID, "update"), DEVICE_ID, "_agg",
             "update", refused=reason)
        for name, (payload, reason) in payloads.items()
    ]  # fmt: skip


def beyond() -> Case:
    """A chunk that decodes, but whose index is the number of chunks its offer announced."""
    large, body = two_chunks()
    whole = envelope.digest(body)
    count = -(-len(body) // 8192)
    chunk = messages.ChunkMessage(
        id=whole[:16], i=count, life=large.life, seq=large.seq, blob=b"\0"
    )
    return replace(up("bad-chunk-index-is-count", chunk), fields=None, refused="BAD_CHUNK")


def cases() -> list[Case]:
    """Return every payload, good and bad."""
    return [
        *session(),
        *forecasts(),
        *rollouts(),
        *sums(),
        *model(),
        *log_sessions(),
        *refused_root(),
        *tasks(),
        *turns(),
        *bad_pieces(),
        *uplink(),
        *encrypted(),
        *encrypted_down(),
        *neighbours(),
        *p256(),
        *roots(),
        *authorities(),
        *widths(),
        *negative(),
        beyond(),
    ]


def files() -> dict[str, bytes]:
    """Return every file of the folder by name."""
    made = cases()
    out = {f"{case.name}.bin": case.payload for case in made}
    out["body-content.bin"] = codec.encode(CONTENT)
    out["body-step.bin"] = STEP_BODY
    out |= {
        f"tensor-{name}.bin": codec.pack_tensor(np.array(vector), enc)
        for name, (enc, vector) in TENSORS.items()
    }
    index = {
        "fleet": FLEET,
        "keys": {
            who: key.public.hex()
            for who, key in (
                (DEVICE_ID, DEVICE), (NEIGHBOUR_ID, AGGREGATOR), (P256_ID, P256),
                ("_agg", AGGREGATOR), ("_root", ROOT),
            )
        },
        "decryption": {
            who: key.raw.hex()
            for who, key in (("_agg", OPEN), (DEVICE_ID, OPEN_DEVICE), (NEIGHBOUR_ID, OPEN_NEIGHBOUR))
        },
        "size": SPEC.size,
        "payloads": {
            case.name: {
                "topic": case.topic, "sender": case.sender, "recipient": case.recipient,
                "kind": case.kind, "refused": case.refused, "fields": case.fields,
            }
            for case in made
        },
        "content": said(CONTENT),
        "step": {"base": BASE, "model": codec.unpack_tensor(CONTENT.blob, "f4", 2).tolist()},
        "tensors": {name: {"enc": enc, "vector": v} for name, (enc, v) in TENSORS.items()},
    }  # fmt: skip
    out["index.json"] = (json.dumps(index, indent=1, sort_keys=True) + "\n").encode()
    return out


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, data in files().items():
        (folder / name).write_bytes(data)
