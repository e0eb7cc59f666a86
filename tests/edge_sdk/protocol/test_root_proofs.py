"""What the root sends counts if enough of its keys have signed it."""

from __future__ import annotations

import pytest

from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import envelope, keys
from edge_sdk.protocol.envelope import PROOF_SIZE, ROOT
from edge_sdk.protocol.root_keys import RootKeys

A, B, C, FOREIGN = (keys.from_seed(bytes([n]) * 32) for n in range(1, 5))
ROOT_KEYS = RootKeys((A.public, B.public, C.public), 2)
BODY = b"\x92\x80\xc4\x00"
WAY = {"kind": "keys", "sender": ROOT, "recipient": "_all", "fleet": "north"}


def said_by(*signers, **changes):
    first, *also = signers
    return envelope.seal(BODY, **{**WAY, **changes}, signer=first, also=also)


def unsealed(raw, **changes):
    return envelope.unseal(
        raw,
        **{**WAY, **changes},
        key_of=lambda _sender, kid: ROOT_KEYS.key(kid),
        is_enough=ROOT_KEYS.is_enough,
    )


def reason(raw, **changes):
    with pytest.raises(Refused) as refused:
        unsealed(raw, **changes)
    return refused.value.reason


@pytest.mark.parametrize("signers", [(A, B), (C, A), (A, B, C), (FOREIGN, A, C)])
def test_enough_keys_in_any_order_count(signers):
    assert unsealed(said_by(*signers)).body == BODY


@pytest.mark.parametrize("signers", [(A,), (A, A), (A, FOREIGN), (B, FOREIGN, B)])
def test_too_few_different_keys_do_not(signers):
    assert reason(said_by(*signers)) is Reason.BAD_SIGNATURE


def test_unknown_keys_alone_are_an_unknown_sender():
    assert reason(said_by(FOREIGN)) is Reason.UNKNOWN_CLIENT


def test_a_wrong_signature_of_a_known_key_refuses_the_message():
    """Two of three are right; whoever alters a signature gains nothing, and is counted."""
    raw = bytearray(said_by(A, B, C))
    raw[-1] ^= 1
    assert reason(bytes(raw)) is Reason.BAD_SIGNATURE


def test_the_signatures_belong_to_fleet_kind_and_recipient():
    raw = said_by(A, B)
    assert reason(raw, fleet="south") is Reason.BAD_SIGNATURE
    assert reason(raw, recipient="_other") is Reason.BAD_SIGNATURE


@pytest.mark.parametrize("size", [0, PROOF_SIZE - 1, PROOF_SIZE + 1, 17 * PROOF_SIZE])
def test_a_proof_of_another_length_is_malformed(size):
    raw = envelope.wrap(BODY, kind="keys", sender=ROOT, proof=bytes(size))
    assert reason(raw) is Reason.MALFORMED


def test_no_other_sender_may_send_several_signatures():
    raw = said_by(A, B, sender="_agg", kind="time")
    assert reason(raw, sender="_agg", kind="time") is Reason.MALFORMED


def test_one_signature_has_the_bytes_of_the_releases_before():
    """A root of one key, and any other sender: nothing has changed on the wire."""
    raw = said_by(A)
    proof = envelope.prove(envelope.digest(BODY), **WAY, signer=A)
    assert raw == envelope.wrap(BODY, kind="keys", sender=ROOT, proof=proof)
    assert len(proof) == PROOF_SIZE
