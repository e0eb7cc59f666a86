import pytest

from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import envelope, keys, msgpack_reader
from edge_sdk.protocol.envelope import PAYLOAD_LIMIT, Sealed

DEVICE, OTHER = keys.from_seed(bytes(32)), keys.from_seed(bytes([1]) * 32)
BODY = b"\x92\x80\xc4\x00"
WAY = {"kind": "update", "sender": "meter-0042", "recipient": "_agg", "fleet": "north"}


def key_of(sender, kid):
    return DEVICE.public if (sender, kid) == ("meter-0042", DEVICE.kid) else None


def sealed(body=BODY, signer=DEVICE, **changed):
    return envelope.seal(body, signer=signer, **{**WAY, **changed})


def refusal(raw, key=key_of, **changed):
    with pytest.raises(Refused) as caught:
        envelope.unseal(raw, key_of=key, **{**WAY, **changed})
    return caught.value.reason


def test_a_sealed_body_opens_with_its_identity():
    got = envelope.unseal(sealed(), key_of=key_of, **WAY)
    whole = envelope.digest(BODY)
    assert got == Sealed("update", "meter-0042", BODY, whole, got.proof)
    assert (got.ref, len(got.ref), len(got.proof)) == (whole[:16], 16, 72)


def test_the_same_body_is_sealed_to_the_same_bytes():
    assert sealed() == sealed()


def test_an_outbox_wraps_a_proof_made_before_to_the_same_bytes():
    proof = envelope.prove(envelope.digest(BODY), signer=DEVICE, **WAY)
    assert envelope.wrap(BODY, kind="update", sender="meter-0042", proof=proof) == sealed()


@pytest.mark.parametrize(
    "moved",
    [{"recipient": "_all"}, {"recipient": "meter-0042"}, {"fleet": "south"}, {"fleet": "northx"}],
)
def test_an_envelope_proves_nothing_in_another_place(moved):
    assert refusal(sealed(), **moved) is Reason.BAD_SIGNATURE


def test_lengths_keep_fields_apart():
    """Without them fleet "a" with kind "bc" would be signed as fleet "ab" with kind "c"."""
    assert refusal(sealed(fleet="a", kind="bc"), fleet="ab", kind="c") is Reason.MALFORMED
    one = envelope.prove(bytes(32), signer=DEVICE, **{**WAY, "fleet": "a", "kind": "bc"})
    other = envelope.prove(bytes(32), signer=DEVICE, **{**WAY, "fleet": "ab", "kind": "c"})
    assert one != other


def test_an_unknown_sender_and_a_wrong_key_have_different_reasons():
    assert refusal(sealed(signer=OTHER)) is Reason.UNKNOWN_CLIENT
    assert refusal(sealed(), key=lambda *_: OTHER.public) is Reason.BAD_SIGNATURE


def test_a_look_up_that_ignores_the_key_id_changes_nothing():
    raw = bytearray(sealed())
    raw[-72] ^= 1  # the first byte of the key id: not under the signature
    assert refusal(bytes(raw), key=lambda *_: DEVICE.public) is Reason.BAD_SIGNATURE


def test_the_look_up_may_refuse_before_any_signature_is_computed():
    def denied(sender, kid):
        raise Refused(Reason.REVOKED, sender)

    assert refusal(sealed(), key=denied) is Reason.REVOKED


def test_the_look_up_is_asked_only_after_the_topic_agrees():
    def asked(sender, kid):
        raise AssertionError("asked too early")

    assert refusal(sealed(sender="meter-0043"), key=asked) is Reason.WRONG_SENDER
    assert refusal(sealed(kind="hello"), key=asked) is Reason.MALFORMED
    assert refusal(b"\x95\x02" + sealed()[2:], key=asked) is Reason.UNKNOWN_WIRE


def test_a_payload_over_the_limit_is_not_even_read():
    assert refusal(bytes(PAYLOAD_LIMIT + 1)) is Reason.TOO_LARGE
    assert refusal(bytes(PAYLOAD_LIMIT)) is Reason.MALFORMED


def test_a_full_payload_is_taken():
    overhead = len(sealed(b"\x92" * 40_000)) - 40_000
    body = b"\x92" * (PAYLOAD_LIMIT - overhead)
    raw = sealed(body)
    assert len(raw) == PAYLOAD_LIMIT
    assert envelope.unseal(raw, key_of=key_of, **WAY).body == body


@pytest.mark.parametrize("first", range(256))
def test_a_body_starts_as_clear_or_sealed(first):
    raw = sealed(bytes([first]))
    if first == 0x92:
        assert envelope.unseal(raw, key_of=key_of, **WAY).body == b"\x92"
    else:
        expected = Reason.CANNOT_OPEN if first == 0x94 else Reason.MALFORMED
        assert refusal(raw) is expected


def test_an_empty_body_is_malformed_but_only_once_its_sender_is_proved():
    assert refusal(sealed(b"")) is Reason.MALFORMED
    assert refusal(sealed(b"", signer=OTHER), key=lambda *_: DEVICE.public) is Reason.BAD_SIGNATURE


ELEMENTS = [
    b"\x01",
    msgpack_reader.text("update"),
    msgpack_reader.text("meter-0042"),
    msgpack_reader.binary(BODY),
]


@pytest.mark.parametrize(
    ("index", "instead"),
    [
        (0, b"\xc3"),
        (0, b"\xcb" + bytes(8)),
        (1, msgpack_reader.binary(b"update")),
        (1, msgpack_reader.text("u" * 17)),
        (2, msgpack_reader.text("m" * 65)),
        (2, b"\xc0"),
        (3, msgpack_reader.text("body")),
        (3, b"\x92\x80\xc4\x00"),
        (4, msgpack_reader.binary(bytes(71))),
        (4, msgpack_reader.binary(bytes(73))),
    ],
)
def test_five_elements_of_fixed_types(index, instead):
    five = [*ELEMENTS, msgpack_reader.binary(bytes(72))]
    five[index] = instead
    assert refusal(b"\x95" + b"".join(five)) is Reason.MALFORMED


def test_a_proof_is_checked_without_its_body():
    whole = envelope.digest(BODY)
    proof = envelope.prove(whole, signer=DEVICE, **WAY)
    envelope.check_proof(whole, proof, key_of=key_of, **WAY)
    for bad, reason in ((proof[:-1], "MALFORMED"), (proof[:8] + bytes(64), "BAD_SIGNATURE")):
        with pytest.raises(Refused, match=reason):
            envelope.check_proof(whole, bad, key_of=key_of, **WAY)


def test_a_signer_may_be_anything_that_signs():
    class Chip:
        public = DEVICE.public

        def sign(self, data):
            return DEVICE.sign(data)

    assert sealed(signer=Chip()) == sealed()
