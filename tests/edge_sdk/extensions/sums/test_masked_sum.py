"""Masked numbers: the export of HPKE against the RFC, exact sums of every subset, and no overflow."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.errors import Refused
from edge_sdk.extensions.sums.masked_sum import (
    FollowedContract,
    SumContext,
    added,
    contracts_of,
    masked_message,
    rounded,
    unpacked,
    values_of,
)
from edge_sdk.extensions.sums.messages import DEVICES_LIMIT, SumContract, SumMessage, SumsMessage
from edge_sdk.extensions.sums.seed import ExchangeKey, SeedError, exported, mask_of, new_seed
from edge_sdk.protocol.codec import decode, encode
from edge_sdk.protocol.keys import from_seed, verify
from edge_sdk.protocol.messages import ProtocolMessage

pytestmark = pytest.mark.extension

DAY = 86_400_000
WITNESS = ExchangeKey(bytes(range(32)))

# RFC 9180, appendix A.2.1: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20Poly1305, base mode
INFO = bytes.fromhex("4f6465206f6e2061204772656369616e2055726e")
EPHEMERAL = bytes.fromhex("f4ec9b33b792c372c1d2c2063507b684ef925b8c75a42dbcbf57d63ccd381600")
PUBLIC = bytes.fromhex("4310ee97d88cc1f088a5576c77ab0cf5c3ac797f3d95139c6c84b5429c59662a")
EXPORTED = {
    b"": "4bbd6243b8bb54cec311fac9df81841b6fd61f56538a775e7c80a9f40160606e",
    b"\0": "8c1df14732580e5501b00f82b10a1647b40713191b7c1240ac80e2b68808ba69",
    b"TestContext": "5acb09211139c43b3090489a9da433e8a30ee7188ba8b0a9a1ccf0c229283e53",
}


@dataclass(frozen=True)
class PlainMessage(ProtocolMessage):
    """The same numbers of a period, without a mask."""

    __slots__ = ("blob", "of", "period")
    kind = "plain"
    of: bytes
    period: int
    blob: bytes


def terms(**changed):
    given_ = {
        "name": "feeder-history",
        "source": "history",
        "stream": "elec.import.power",
        "unit": "kW",
        "length": 4,
        "lowest": -20.0,
        "highest": 50.0,
        "resolution": 0.001,
        "period": DAY,
        "due": DAY + 21_600_000,
        "least": 2,
        "witness": WITNESS.public,
        "cohort": "feeder",
    }
    return SumContract(**given_ | changed)


def followed(one):
    return FollowedContract.read(encode(one))


@pytest.mark.parametrize("label", EXPORTED)
def test_the_exported_secret_is_that_of_the_rfc(label):
    one = ExchangeKey(EPHEMERAL)
    assert exported(one.agreed(PUBLIC), one.public + PUBLIC, INFO, label).hex() == EXPORTED[label]


@pytest.mark.parametrize("public", [bytes(32), b"\x01" + bytes(31), bytes(31)])
def test_a_key_that_agrees_on_nothing_is_refused(public):
    with pytest.raises(SeedError):
        new_seed(public, info=b"")
    with pytest.raises(SeedError):
        WITNESS.seed(public, info=b"")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.floats(-1e3, 1e3), min_size=4, max_size=4), min_size=1, max_size=12),
    st.data(),
)
def test_the_opened_sum_of_every_subset_is_the_plain_integer_sum(rows, data):
    contract, signer = followed(terms()), from_seed(bytes(32))
    chosen = data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1))
    plain, masked, masks = [0] * 4, [], []
    for number in sorted(chosen):
        context = SumContext("north", f"meter-{number}", contract.digest, 3 * DAY)
        values = np.array(rows[number])
        message = masked_message(values, contract, context, signer)
        masked.append(unpacked(message.blob, 4))
        masks.append(mask_of(WITNESS.seed(message.enc, info=context.info()), 4))
        plain = [a + int(b) for a, b in zip(plain, rounded(values, contract.terms), strict=True)]
    assert (added(masked, 4) - added(masks, 4)).tolist() == plain


def test_a_device_at_its_clip_leaves_room_for_two_to_the_twentieth_of_them():
    found = terms(lowest=0.0, highest=float(2**43), resolution=1.0)
    assert found.levels * DEVICES_LIMIT == 2**63
    with pytest.raises(ValueError, match="resolution"):
        terms(lowest=0.0, highest=float(2**43 + 1), resolution=1.0)


@pytest.mark.parametrize(
    "changed",
    [
        {"lowest": 50.0},
        {"resolution": 0.0},
        {"resolution": 71.0},
        {"length": 7},
        {"offset": DAY},
        {"least": 1},
        {"name": "Feeder"},
        {"source": "Yesterday"},
        {"witness": bytes(31)},
    ],
    ids=str,
)
def test_a_contract_that_cannot_be_kept_is_refused(changed):
    with pytest.raises((ValueError, Refused)):
        followed(terms(**changed))


@given(st.floats(-1e6, 1e6), st.integers(1, 1000))
def test_a_value_inside_the_clip_comes_back_within_half_a_step(value, members):
    one = terms(length=1)
    back = values_of(rounded(np.array([value]), one) * np.uint64(members), members, one)[0]
    assert abs(back - members * np.clip(value, -20.0, 50.0)) <= members * 0.000501


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 3.0, float("nan")], [float("inf")] * 4])
def test_numbers_that_are_missing_are_not_rounded(values):
    with pytest.raises(ValueError, match="finite"):
        rounded(np.array(values), terms())


def test_the_signature_covers_every_part():
    contract, signer = followed(terms()), from_seed(bytes(32))
    context = SumContext("north", "meter-1", contract.digest, DAY)
    message = masked_message(np.zeros(4), contract, context, signer)
    digest = hashlib.sha256(message.blob).digest()
    assert verify(signer.public, message.proof, context.signed(message.enc, digest))
    for other in (
        SumContext("south", "meter-1", contract.digest, DAY),
        SumContext("north", "meter-2", contract.digest, DAY),
        SumContext("north", "meter-1", bytes(32), DAY),
        SumContext("north", "meter-1", contract.digest, 0),
    ):
        assert not verify(signer.public, message.proof, other.signed(message.enc, digest))
        assert WITNESS.seed(message.enc, info=other.info()) != WITNESS.seed(
            message.enc, info=context.info()
        )
    assert not verify(signer.public, message.proof, context.signed(bytes(32), digest))
    assert not verify(signer.public, message.proof, context.signed(message.enc, bytes(32)))


def test_two_messages_of_one_period_have_nothing_in_common():
    contract, signer = followed(terms()), from_seed(bytes(32))
    context = SumContext("north", "meter-1", contract.digest, DAY)
    one, two = (masked_message(np.zeros(4), contract, context, signer) for _ in range(2))
    assert one.enc != two.enc
    assert not set(unpacked(one.blob, 4).tolist()) & set(unpacked(two.blob, 4).tolist())


def test_the_golden_bytes_of_a_message():
    contract = followed(terms())
    context = SumContext("north", "meter-1", contract.digest, 20_000 * DAY)
    values = np.array([-99.0, -20.0, 0.0, 1.5])
    message = masked_message(
        values, contract, context, from_seed(bytes(32)), ExchangeKey(b"\x07" * 32)
    )
    assert contract.digest.hex() == GOLDEN_CONTRACT
    assert hashlib.sha256(encode(message)).hexdigest() == GOLDEN_MESSAGE
    assert decode(SumMessage, encode(message)) == message


GOLDEN_CONTRACT = "8885f06cdad9acca17a0955fdd85df4f6346c1d3e97c4a8f03fb5784e4ceeff2"
GOLDEN_MESSAGE = "4af05537ed87b043e155d473151314ae88a07c0886faa6120fe7181900060ec1"


def test_two_contracts_of_one_source_are_refused():
    one, two = encode(terms()), encode(terms(name="other"))
    assert len(contracts_of(SumsMessage(1, (one,)))) == 1
    with pytest.raises(Refused, match="one source"):
        contracts_of(SumsMessage(1, (one, two)))
    tomorrow = encode(terms(source="tomorrow"))
    with pytest.raises(Refused, match="one name"):
        contracts_of(SumsMessage(1, (one, tomorrow)))


@settings(max_examples=300)
@given(st.data())
def test_changed_bytes_are_refused_or_another_contract(data):
    body = bytearray(encode(terms()))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = FollowedContract.read(bytes(body))
    except Refused:
        return
    assert encode(found.terms) == bytes(body)


def test_a_mask_costs_at_most_120_bytes():
    contract = followed(terms(length=192, period=192_000, due=1))
    context = SumContext("north", "meter-1", contract.digest, 0)
    message = masked_message(np.zeros(192), contract, context, from_seed(bytes(32)))
    assert len(encode(message)) - len(encode(PlainMessage(message.of, 0, message.blob))) <= 120


@dataclass(frozen=True)
class LaterContract(SumContract):
    """A contract with a key that devices of today do not know."""

    Rounds: int = 0


def test_a_contract_with_an_unknown_key_that_must_be_understood_is_left_out():
    known = terms()
    later = LaterContract(
        **{f: getattr(known, f) for f in SumContract.__slots__}
        | {"name": "x", "source": "tomorrow"},
        Rounds=3,
    )
    (found,) = contracts_of(SumsMessage(1, (encode(later), encode(known))))
    assert found.terms == known


def test_a_longer_vector_is_shortened_and_a_shorter_one_is_not():
    given_ = terms(length=2, lowest=-50.0, highest=50.0, resolution=0.001, Norm=5.0)
    for vector, wanted in (([30.0, 40.0], [3.0, 4.0]), ([3.0, -1.0], [3.0, -1.0])):
        found = values_of(rounded(np.array(vector), given_), 1, given_)
        assert found == pytest.approx(wanted, abs=1e-9)


def test_the_noise_of_a_sum_is_that_of_its_contract_and_may_lead_below_zero():
    given_ = terms(length=4000, lowest=0.0, highest=1.0, resolution=0.01, least=10, Noise=6.0)
    contract = FollowedContract.read(encode(given_))
    total = added((), 4000)
    for number in range(9):
        context = SumContext("north", f"m-{number}", contract.digest, 0)
        made = masked_message(np.zeros(4000), contract, context, from_seed(bytes(32)))
        seed = WITNESS.seed(made.enc, info=context.info())
        total += unpacked(made.blob, 4000) - mask_of(seed, 4000)
    found = values_of(total, 9, given_)
    assert found.std() == pytest.approx(6.0, rel=0.1)  # of nine of ten devices
    assert found.min() < 0.0 < found.max()
    assert abs(found.mean()) < 0.6


@pytest.mark.parametrize(
    "changed", [{"Noise": 1e-6}, {"Noise": 1e12}, {"Noise": -1.0}, {"Norm": -1.0},
                {"Norm": 1.0, "lowest": 1.0}],
    ids=str,
)  # fmt: skip
def test_noise_that_hides_nothing_or_overflows_is_refused(changed):
    with pytest.raises((ValueError, Refused)):
        encode(terms(**changed))


@pytest.mark.parametrize(
    ("changed", "moved"),
    [
        ({}, 50.0 * np.sqrt(24)),
        ({"Norm": 10.0}, np.sqrt(2) * 10.0 + 0.001 * np.sqrt(24)),
        ({"Norm": 10.0, "lowest": -50.0}, 20.0 + 0.001 * np.sqrt(24)),
        ({"Norm": 1e6}, 50.0 * np.sqrt(24)),
    ],
)
def test_the_multiplier_is_the_noise_over_what_one_device_can_move(changed, moved):
    given_ = {"length": 24, "lowest": 0.0, "highest": 50.0, "resolution": 0.001, "Noise": 100.0}
    assert terms(**given_ | changed).multiplier == pytest.approx(100.0 / moved)
