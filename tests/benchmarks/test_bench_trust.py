"""What trust costs: enrolments a second of one core, the encryption of an update, a root of several keys."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from aggregator.authority import enrolment
from aggregator.authority.enrolment import Credentials, EnrolmentAuthority, EnrolmentPolicy
from aggregator.authority.folder import opened_authority
from edge_sdk.wire import keys
from edge_sdk.wire.hpke import DecryptionKey
from edge_sdk.wire.protocol import envelope
from edge_sdk.wire.protocol.encrypted_body import BodyContext, encrypted_body
from edge_sdk.wire.root_keys import RootKeys
from tests.aggregator.authority.est import FLEET, NOW, Device, made_authority

pytestmark = pytest.mark.bench

WAY = {"kind": "keys", "sender": "_root", "recipient": "_all", "fleet": FLEET}

DEVICES = 400
UPDATE = 23_040  # bytes of the shared layers of `load-lstm-week`


def test_enrolments_a_second(tell, tmp_path):
    """Requests are made before; a decision verifies, signs, and commits to the disk."""
    folder = made_authority(tmp_path / "ca")
    requests = [(f"meter-{n}", Device(f"meter-{n}").request()) for n in range(DEVICES)]
    with opened_authority(folder) as (authority, record):
        listed = [(name, name, "") for name, _ in requests]
        words = enrolment.list_serials(record, listed, NOW + timedelta(days=30))
        password = {name: word for _, name, word in words}
        decides = EnrolmentAuthority(record, authority, EnrolmentPolicy(FLEET))
        wall, processor = time.perf_counter(), time.process_time()
        for name, der in requests:
            assert decides.enrol(der, Credentials(name, password[name]), NOW)
        used, passed = time.process_time() - processor, time.perf_counter() - wall
    rate = [f"{DEVICES / used:.0f}", f"{DEVICES / passed:.0f}", f"{1e3 * used / DEVICES:.2f}"]
    names = ("a second of a core", "a second on this machine", "ms of a core each")
    tell("enrolments", names, [rate])


def test_the_encryption_of_an_update(best, tell):
    key, body = DecryptionKey.generate(), bytes(UPDATE)
    context = BodyContext(FLEET, "update", "meter-1", "_agg")
    seconds = best(lambda: encrypted_body(body, key.public, context))
    extra = len(encrypted_body(body, key.public, context)) - len(body)
    tell(
        "encryption of an update",
        ("bytes", "bytes more", "ms"),
        [[f"{UPDATE:,}", str(extra), f"{1e3 * seconds:.2f}"]],
    )


def test_a_root_of_several_keys(best, tell):
    rows, signers = [], [keys.from_seed(bytes([n]) * 32) for n in range(1, 9)]
    for threshold, count in ((1, 1), (2, 3), (5, 8)):
        root = RootKeys(tuple(key.public for key in signers[:count]), threshold)
        first, *also = signers[:threshold]
        raw = envelope.seal(b"\x92\x80\xc4\x00", **WAY, signer=first, also=also)
        seconds = best(
            lambda raw=raw, root=root: envelope.unseal(
                raw, **WAY, key_of=lambda _, kid: root.key(kid), is_enough=root.is_enough
            )
        )
        rows.append([f"{threshold} of {count}", str(72 * threshold), f"{1e3 * seconds:.2f}"])
    tell("a root of several keys", ("root", "bytes of proof", "ms to verify"), rows)
