import math
from dataclasses import replace

import numpy as np
import pytest

from aggregator.ingress.admission_policy import Limits, OpenRound, admit_update
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import codec, messages
from edge_sdk.protocol.contract.method import CONTRACTS

SPEC = bytes(range(16))
UPDATE = messages.UpdateMessage(
    run=7, round=41, base=12, life=3, seq=12, spent=12, spec=SPEC, part="delta", enc="f4", n=64,
    vals={"loss": 0.25}, blob=codec.pack_tensor(np.array([3.0, -4.0]), "f4"),
)  # fmt: skip
LIMITS = Limits(SPEC, 2, CONTRACTS["fedavg"]["train"], max_norm=5.0, encs=("f4", "f2"))
NOW = OpenRound(run=7, round=41, version=12)


def admit(update=UPDATE, limits=LIMITS, now=NOW):
    return admit_update(update, sender="meter-0042", limits=limits, round_state=now)


def reason(update=UPDATE, limits=LIMITS, now=NOW):
    with pytest.raises(Refused) as caught:
        admit(update, limits, now)
    assert caught.value.reason.is_final
    return caught.value.reason


def blob(*values, enc="f4"):
    return codec.pack_tensor(np.array(values), enc)


def test_a_sound_update_becomes_what_a_method_sees():
    got = admit()
    assert (got.sender, got.round, got.base) == ("meter-0042", 41, 12)
    assert got.vector.dtype == np.float64
    assert got.vector.tolist() == [3.0, -4.0]
    assert got.values == {"loss": 0.25, "n": 64.0}


def test_the_sender_is_the_one_that_the_envelope_proves():
    assert "sender" not in messages.UpdateMessage.__slots__


def test_a_norm_at_the_limit_passes_and_above_it_not():
    assert admit(replace(UPDATE, blob=blob(3.0, 4.0)))
    assert reason(replace(UPDATE, blob=blob(3.0, 4.000001))) is Reason.NORM_EXCEEDED


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"run": 6}, Reason.WRONG_RUN),
        ({"run": 8}, Reason.WRONG_RUN),
        ({"spec": bytes(16)}, Reason.WRONG_SPEC),
        ({"part": "weights"}, Reason.WRONG_ENCODING),
        ({"enc": "i1"}, Reason.WRONG_ENCODING),
        ({"enc": "zz"}, Reason.WRONG_ENCODING),
        ({"enc": "f2"}, Reason.WRONG_SIZE),
        ({"blob": bytes(7)}, Reason.WRONG_SIZE),
        ({"blob": bytes(12)}, Reason.WRONG_SIZE),
        ({"blob": np.float32([math.nan, 0]).tobytes()}, Reason.NOT_FINITE),
        ({"blob": np.float32([math.inf, 0]).tobytes()}, Reason.NOT_FINITE),
        ({"vals": {"loss": math.nan}}, Reason.BAD_SCALAR),
        ({"vals": {"loss": -1.0}}, Reason.BAD_SCALAR),
        ({"vals": {"eps": 1.0}}, Reason.BAD_SCALAR),
        ({"n": 10**12}, Reason.BAD_SCALAR),
        ({"base": 13}, Reason.FROM_FUTURE),
        ({"round": 42}, Reason.FROM_FUTURE),
        ({"base": 11}, Reason.TOO_STALE),
        ({"round": 40}, Reason.LATE),
    ],
)
def test_each_fault_has_its_reason(changed, expected):
    assert reason(replace(UPDATE, **changed)) is expected


def test_an_allowed_encoding_is_decoded():
    got = admit(replace(UPDATE, enc="f2", blob=blob(1.5, -2.0, enc="f2")))
    assert got.vector.tolist() == [1.5, -2.0]


def test_a_round_that_has_closed_is_late():
    assert reason(now=replace(NOW, is_open=False)) is Reason.LATE


def test_after_an_abandoned_round_the_version_stands_and_the_update_is_late():
    assert reason(now=replace(NOW, round=42)) is Reason.LATE


def test_after_a_round_that_moved_the_update_is_too_stale():
    assert reason(now=replace(NOW, round=42, version=13)) is Reason.TOO_STALE


def test_missing_numbers_are_no_fault():
    assert admit(replace(UPDATE, vals={})).values == {"n": 64.0}


def test_with_staleness_allowed_older_rounds_count_up_to_the_limit():
    loose = replace(LIMITS, max_staleness=2)
    later = OpenRound(run=7, round=43, version=14)
    assert admit(limits=loose, now=later).base == 12
    assert reason(limits=loose, now=replace(later, version=15)) is Reason.TOO_STALE
    assert reason(replace(UPDATE, base=15), loose, later) is Reason.FROM_FUTURE


FAULTS = [  # in the order in which they must be found
    ({"run": 6}, Reason.WRONG_RUN),
    ({"spec": bytes(16)}, Reason.WRONG_SPEC),
    ({"enc": "zz"}, Reason.WRONG_ENCODING),
    ({"blob": bytes(7)}, Reason.WRONG_SIZE),
    ({"blob": np.float32([math.nan, 9]).tobytes()}, Reason.NOT_FINITE),
    ({"blob": blob(30.0, 40.0)}, Reason.NORM_EXCEEDED),
    ({"vals": {"loss": -1.0}}, Reason.BAD_SCALAR),
    ({"base": 13}, Reason.FROM_FUTURE),
]


@pytest.mark.parametrize("first", range(len(FAULTS)))
def test_of_several_faults_the_first_is_receipted(first):
    changed = {}
    for fault, _ in reversed(FAULTS[first:]):
        changed |= fault
    assert reason(replace(UPDATE, **changed)) is FAULTS[first][1]
