"""Encrypted bodies: form, context, and refusal of everything that was changed."""

from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.encryption.encrypted_body import (
    BodyContext,
    decrypted_body,
    encrypted_body,
)
from edge_sdk.extensions.encryption.hpke import DecryptionKey, encrypt
from edge_sdk.protocol import envelope
from edge_sdk.protocol.codec import decode, encode
from edge_sdk.protocol.keys import SigningKey
from edge_sdk.protocol.messages import MetricsMessage

KEY = DecryptionKey(bytes(range(32)))
SIGNER = SigningKey.from_seed(bytes(32))
CONTEXT = BodyContext("north", "metrics", "meter-1", "_agg")
CLEAR = b"\x92\x80\xc4\x00"
BODY = encrypted_body(CLEAR, KEY.public, CONTEXT)


def key_of(kid):
    return KEY if kid == KEY.kid else None


def reason_of(body, context=CONTEXT, keys=key_of):
    with pytest.raises(Refused) as caught:
        decrypted_body(body, keys, context)
    return caught.value.reason


def test_the_form_is_suite_kid_enc_and_ciphertext():
    suite, kid, enc, ciphertext = msgpack.unpackb(BODY)
    assert (suite, kid, len(enc), len(ciphertext)) == (1, KEY.kid, 32, len(CLEAR) + 16)
    assert decrypted_body(BODY, key_of, CONTEXT) == CLEAR


@pytest.mark.parametrize(
    ("size", "more"), [(4, 64), (239, 64), (240, 65), (23_100, 65), (65_520, 67)]
)
def test_the_encrypted_form_is_64_to_67_bytes_longer(size, more):
    clear = CLEAR + bytes(size - len(CLEAR))
    assert len(encrypted_body(clear, KEY.public, CONTEXT)) == size + more


def test_the_same_body_is_never_encrypted_to_the_same_bytes():
    assert len({encrypted_body(CLEAR, KEY.public, CONTEXT) for _ in range(20)}) == 20


@pytest.mark.parametrize("field", ["fleet", "kind", "sender", "recipient"])
def test_a_body_is_valid_in_one_context(field):
    assert reason_of(BODY, replace(CONTEXT, **{field: "other"})) is Reason.CANNOT_OPEN


@pytest.mark.parametrize(
    ("sender", "recipient", "label"),
    [
        ("meter-1", "_agg", b"gridfed/1/hpke\0"),
        ("_agg", "meter-1", b"gridfed/1/hpke/down\0"),
        ("meter-1", "meter-2", b"gridfed/1/hpke/peer\0"),
    ],
)
def test_a_second_package_reads_and_writes_every_direction(sender, recipient, label):
    pyhpke = pytest.importorskip("pyhpke", reason="pyhpke is not installed")
    context = BodyContext("north", "task", sender, recipient)
    names = b"".join(bytes([len(x)]) + x.encode() for x in ("north", "task", sender, recipient))
    suite = pyhpke.CipherSuite.new(
        pyhpke.KEMId.DHKEM_X25519_HKDF_SHA256,
        pyhpke.KDFId.HKDF_SHA256,
        pyhpke.AEADId.CHACHA20_POLY1305,
    )
    private = suite.kem.deserialize_private_key(KEY.raw)
    _, kid, enc, ciphertext = msgpack.unpackb(encrypted_body(CLEAR, KEY.public, context))
    receiver = suite.create_recipient_context(enc, private, info=label + names)
    assert (kid, receiver.open(ciphertext)) == (KEY.kid, CLEAR)

    public = suite.kem.deserialize_public_key(KEY.public)
    enc, writer = suite.create_sender_context(public, info=label + names)
    theirs = b"\x94\x01" + b"".join(
        msgpack.packb(part) for part in (KEY.kid, enc, writer.seal(CLEAR))
    )
    assert decrypted_body(theirs, key_of, context) == CLEAR
    for other in ("_agg", "meter-1", "meter-3"):
        if other not in (sender, recipient):
            assert reason_of(theirs, replace(context, recipient=other)) is Reason.CANNOT_OPEN
            assert reason_of(theirs, replace(context, sender=other)) is Reason.CANNOT_OPEN


def test_lengths_separate_the_names_of_a_context():
    moved = BodyContext("northm", "etrics", "meter-1", "_agg")
    assert moved.info() != CONTEXT.info()


def test_an_unknown_key_and_an_unknown_suite_cannot_be_opened():
    assert reason_of(BODY, keys=lambda _kid: None) is Reason.CANNOT_OPEN
    assert reason_of(b"\x94\x02" + BODY[2:]) is Reason.CANNOT_OPEN


@pytest.mark.parametrize(
    "body",
    [
        b"\x94\x01\xc4\x00\xc4\x00\xc4\x00",
        BODY + b"\x00",
        BODY[:-1],
        b"\x93" + BODY[1:],
        encrypted_body(b"\x94" + CLEAR[1:], KEY.public, CONTEXT),
        encrypted_body(BODY, KEY.public, CONTEXT),
    ],
    ids=["empty", "longer", "shorter", "three", "not a body", "encrypted twice"],
)
def test_a_wrong_form_is_malformed(body):
    assert reason_of(body) is Reason.MALFORMED


def test_a_key_of_small_order_is_refused():
    with pytest.raises(Refused, match="CANNOT_OPEN"):
        encrypted_body(CLEAR, bytes(32), CONTEXT)


@given(at=st.integers(0, len(BODY) - 1), bit=st.integers(0, 7))
def test_every_changed_bit_is_refused(at, bit):
    changed = bytearray(BODY)
    changed[at] ^= 1 << bit
    if changed[0] != 0x94:
        return
    assert reason_of(bytes(changed)) in (Reason.CANNOT_OPEN, Reason.MALFORMED)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(tail):
    assert reason_of(b"\x94" + tail) in (Reason.CANNOT_OPEN, Reason.MALFORMED)


def test_an_envelope_around_an_encrypted_body_is_verified_before_it_is_opened():
    way = {"kind": "metrics", "sender": "meter-1", "recipient": "_agg", "fleet": "north"}
    message = MetricsMessage(*range(9))
    body = encrypted_body(encode(message), KEY.public, CONTEXT)
    raw = envelope.seal(body, signer=SIGNER, **way)
    opened = []

    def decrypt(kind, sender, found):
        opened.append((kind, sender))
        return decrypted_body(found, key_of, CONTEXT)

    def unseal(raw, decrypt=decrypt):
        return envelope.unseal(raw, key_of=lambda *_: SIGNER.public, decrypt=decrypt, **way)

    proved = unseal(raw)
    assert decode(MetricsMessage, proved.content) == message
    assert (proved.body, proved.digest) == (body, envelope.digest(body))
    with pytest.raises(Refused, match="CANNOT_OPEN"):
        unseal(raw, None)
    opened.clear()
    with pytest.raises(Refused, match="BAD_SIGNATURE"):
        unseal(raw[:-1] + bytes([raw[-1] ^ 1]))
    assert opened == []


def test_a_stripped_signature_makes_nobody_else_the_sender():
    other = SigningKey.from_seed(bytes([1]) * 32)
    way = {"kind": "metrics", "sender": "meter-2", "recipient": "_agg", "fleet": "north"}
    stolen = envelope.seal(BODY, signer=other, **way)
    context = replace(CONTEXT, sender="meter-2")
    with pytest.raises(Refused, match="CANNOT_OPEN"):
        envelope.unseal(
            stolen,
            key_of=lambda *_: other.public,
            decrypt=lambda _kind, _sender, body: decrypted_body(body, key_of, context),
            **way,
        )


def test_the_size_of_a_ciphertext_is_bounded_before_it_is_decrypted():
    large = encrypt(bytes(8 * 1024 * 1024), KEY.public, info=CONTEXT.info())
    body = b"\x94\x01" + b"".join(msgpack.packb(part) for part in (KEY.kid, large[:32], large[32:]))
    assert reason_of(body) is Reason.TOO_LARGE
