"""Faults of the protocol, judged by the real admission: each is refused for its own reason."""

from __future__ import annotations

import numpy as np
import pytest

from aggregator.ingress.admission_policy import Limits, OpenRound, admit_update
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol.codec import decode, encode, pack_tensor
from edge_sdk.protocol.contract.method import CONTRACTS
from edge_sdk.protocol.messages import UpdateMessage
from firmware_sim.attacks import ATTACKS, protocol

SPEC = bytes(16)
HONEST = UpdateMessage(
    run=1, round=3, base=2, life=1, seq=1, spent=1, spec=SPEC, part="delta", enc="f4", n=7,
    vals={"loss": 0.5}, blob=pack_tensor(np.array([1.0, -1.0, 0.5]), "f4"),
)  # fmt: skip
LIMITS = Limits(SPEC, 3, CONTRACTS["fedavg"]["train"], max_norm=1e6)
NOW = OpenRound(run=1, round=3, version=2)
REASONS = {
    "nan": Reason.NOT_FINITE,
    "huge": Reason.NORM_EXCEEDED,
    "wrong_size": Reason.WRONG_SIZE,
    "wrong_version": Reason.FROM_FUTURE,
    "empty_vector": Reason.WRONG_SIZE,
}


def admitted(update):
    said = decode(UpdateMessage, encode(update))  # a liar's body still has to be well formed
    return admit_update(said, sender="liar", limits=LIMITS, round_state=NOW)


@pytest.mark.parametrize("name", REASONS)
def test_each_protocol_fault_is_refused_with_its_reason(name):
    with pytest.raises(Refused) as refused:
        admitted(ATTACKS[name].act(HONEST))
    assert refused.value.reason is REASONS[name]


def test_too_few_scalars_and_an_old_version_are_refused_as_well():
    with pytest.raises(Refused) as short:
        admitted(protocol.wrong_size(HONEST, more=-2))
    with pytest.raises(Refused) as old:
        admitted(protocol.wrong_version(HONEST, ahead=-1))
    assert (short.value.reason, old.value.reason) == (Reason.WRONG_SIZE, Reason.TOO_STALE)


def test_a_claimed_number_of_samples_is_admitted():
    assert admitted(protocol.samples(HONEST)).values["n"] == 1e9
    np.testing.assert_array_equal(admitted(protocol.samples(HONEST)).vector, [1, -1, 0.5])


def test_every_body_fault_is_tested_here():
    bodies = {row.name for row in ATTACKS.values() if row.kind == "body"}
    assert bodies == {*REASONS, "samples"}


def test_each_link_attack_acts_as_defined():
    rng = np.random.default_rng(0)
    assert protocol.delay(b"x", rng, seconds=4.0) == ((4.0, b"x"),)
    assert protocol.duplicate(b"x", rng, copies=3) == ((0.0, b"x"),) * 3
    assert protocol.empty_payload(b"x", rng) == ((0.0, b""),)
    lost = sum(protocol.drop(b"x", rng, share=0.25) == () for _ in range(2000))
    assert 430 < lost < 570
    waits = [protocol.reorder(b"x", rng, within=2.0)[0][0] for _ in range(50)]
    assert waits != sorted(waits)
    assert 0 <= min(waits) <= max(waits) < 2


def test_signal_attacks_keep_the_dtype():
    z = np.array([1.0, -2.0], np.float32)
    assert protocol.flip_signal(z).tolist() == [-1, 2]
    assert protocol.scale_signal(z, factor=3.0).dtype == np.float32
