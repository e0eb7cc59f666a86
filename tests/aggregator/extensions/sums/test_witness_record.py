"""The witness: what it opens, what it refuses, and what it remembers."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.extensions.sums.sum_set import (
    SumMember,
    SumSet,
    file_digest,
    opened_total,
    read_answer,
    read_set,
)
from aggregator.extensions.sums.witness_record import WitnessKeys, WitnessRecord
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.sums.masked_sum import (
    FollowedContract,
    SumContext,
    masked_message,
    rounded,
    unpacked,
)
from edge_sdk.extensions.sums.messages import SumContract
from edge_sdk.extensions.sums.seed import ExchangeKey
from edge_sdk.protocol.codec import encode
from edge_sdk.protocol.keys import from_seed

pytestmark = pytest.mark.extension

ROOT = Path(__file__).resolve().parents[4]
DAY = 86_400_000
KEYS = WitnessKeys(from_seed(b"\x05" * 32), ExchangeKey(bytes(range(32))))
BODY = encode(
    SumContract(
        "feeder-history", "history", "elec.import.power", "kW", 4, -20.0, 50.0, 0.001,
        DAY, DAY + 1, 8, KEYS.open.public, cohort="feeder",
    )
)  # fmt: skip
CONTRACT = FollowedContract.read(BODY)
SIGNERS = {f"meter-{n:02d}": from_seed(bytes([n]) * 32) for n in range(1, 25)}
ROWS = {
    name: np.random.default_rng(n).uniform(-30, 60, 4) for n, name in enumerate(sorted(SIGNERS))
}


def message(device, period=DAY, contract=CONTRACT):
    context = SumContext("north", device, contract.digest, period)
    return masked_message(ROWS[device], contract, context, SIGNERS[device])


def a_set(messages, period=DAY, value="F12", contract=CONTRACT, body=BODY):
    members = tuple(
        SumMember(device, hashlib.sha256(one.blob).digest(), one.enc, one.proof)
        for device, one in sorted(messages.items())
    )
    return SumSet("north", contract, body, period, value, members)


@pytest.fixture
def record(tmp_path):
    with WitnessRecord(tmp_path / "witness" / "sums.db") as found:
        found.enrol("north", [(name, one.public) for name, one in SIGNERS.items()])
        yield found


def messages_of(names, period=DAY):
    return {name: message(name, period) for name in names}


def test_the_opened_sum_is_the_plain_one_and_the_answer_is_signed(record):
    sent = messages_of(sorted(SIGNERS)[:9])
    data = a_set(sent).write()
    answer = read_answer(record.open(data, KEYS))
    answer.require_from(KEYS.sign.public)
    assert (answer.of, answer.members) == (file_digest(data), 9)
    total = opened_total([unpacked(one.blob, 4) for one in sent.values()], answer)
    plain = sum(rounded(ROWS[name], CONTRACT.terms).astype(object) for name in sent)
    assert total.tolist() == plain.tolist()


@pytest.mark.parametrize("change", ["masks", "members", "of", "proof"])
def test_a_forged_answer_is_refused(record, change):
    answer = read_answer(record.open(a_set(messages_of(sorted(SIGNERS)[:8])).write(), KEYS))
    other = {
        "masks": answer.masks + np.uint64(1),
        "members": 9,
        "of": bytes(32),
        "proof": bytes(64),
    }[change]
    with pytest.raises(Refused, match="BAD_SIGNATURE"):
        dataclasses.replace(answer, **{change: other}).require_from(KEYS.sign.public)


def test_the_same_set_again_has_the_same_answer_also_after_a_restart(record, tmp_path):
    data = a_set(messages_of(sorted(SIGNERS)[:8])).write()
    first = record.open(data, KEYS)
    again = WitnessRecord(tmp_path / "witness" / "sums.db")
    assert again.open(data, KEYS) == first == record.open(data, KEYS)
    assert again.sums() == [("north", "feeder-history", DAY, "F12", 8)]


def refusal(record, data, keys=KEYS):
    with pytest.raises(Refused) as caught:
        record.open(data, keys)
    return caught.value.reason


def test_overlapping_sets_are_refused_also_under_another_contract_of_the_name(record, tmp_path):
    names = sorted(SIGNERS)
    sent = messages_of(names)
    record.open(a_set({name: sent[name] for name in names[:8]}).write(), KEYS)
    overlapping = {name: sent[name] for name in names[7:16]}
    again = WitnessRecord(tmp_path / "witness" / "sums.db")
    assert refusal(again, a_set(overlapping).write()) is Reason.TWICE_IN_ROUND
    assert refusal(again, a_set(overlapping, value="F13").write()) is Reason.TWICE_IN_ROUND
    body = encode(dataclasses.replace(CONTRACT.terms, resolution=0.002))
    other = FollowedContract.read(body)
    changed = {name: message(name, contract=other) for name in names[:8]}
    data = a_set(changed, contract=other, body=body).write()
    assert refusal(again, data) is Reason.TWICE_IN_ROUND
    disjoint = {name: sent[name] for name in names[8:16]}
    again.open(a_set(disjoint, value="F13").write(), KEYS)
    next_day = messages_of(names[:8], 2 * DAY)
    again.open(a_set(next_day, 2 * DAY).write(), KEYS)


def test_a_small_set_is_refused_whatever_the_contract_says(record, tmp_path):
    sent = messages_of(sorted(SIGNERS)[:7])
    assert refusal(record, a_set(sent).write()) is Reason.NOT_IN_COHORT
    patient = WitnessRecord(tmp_path / "other.db", least=20)
    assert refusal(patient, a_set(messages_of(sorted(SIGNERS)[:9])).write()) is Reason.NOT_IN_COHORT


def test_unsigned_unknown_and_foreign_members_are_refused(record):
    sent = messages_of(sorted(SIGNERS)[:8])
    one = sent["meter-03"]
    forged = sent | {"meter-03": dataclasses.replace(one, proof=bytes(64))}
    assert refusal(record, a_set(forged).write()) is Reason.BAD_SIGNATURE
    swapped = sent | {"meter-03": dataclasses.replace(one, enc=sent["meter-04"].enc)}
    assert refusal(record, a_set(swapped).write()) is Reason.BAD_SIGNATURE
    assert refusal(record, a_set(sent, 2 * DAY).write()) is Reason.BAD_SIGNATURE
    stranger = {**sent, "sybil": one}
    assert refusal(record, a_set(stranger).write()) is Reason.UNKNOWN_CLIENT
    another = WitnessKeys(KEYS.sign, ExchangeKey.generate())
    assert refusal(record, a_set(sent).write(), another) is Reason.CANNOT_OPEN
    assert record.sums() == []


def test_one_key_is_not_two_devices(record):
    assert record.enrol("north", [("meter-01", SIGNERS["meter-01"].public)]) == 0
    assert record.enrol("north", [("other-1", SIGNERS["meter-01"].public)]) == 1
    sent, signer = messages_of(sorted(SIGNERS)[:8]), SIGNERS["meter-01"]
    context = SumContext("north", "other-1", CONTRACT.digest, DAY)
    second = masked_message(ROWS["meter-01"], CONTRACT, context, signer)
    assert refusal(record, a_set(sent | {"other-1": second}).write()) is Reason.FORK
    record.open(a_set(sent).write(), KEYS)
    others = messages_of(sorted(SIGNERS)[8:16]) | {"other-1": second}
    assert refusal(record, a_set(others, value="F13").write()) is Reason.TWICE_IN_ROUND


def test_a_device_twice_or_out_of_order_is_no_set():
    sent = messages_of(sorted(SIGNERS)[:8])
    good = a_set(sent)
    assert read_set(good.write()) == good
    for members in (good.members[::-1], good.members + good.members[-1:]):
        with pytest.raises(Refused, match="ascending"):
            read_set(dataclasses.replace(good, members=members).write())
    with pytest.raises(Refused, match="begins"):
        read_set(dataclasses.replace(good, period=DAY + 1).write())


GOOD = a_set(messages_of(sorted(SIGNERS)[:8])).write()


@settings(max_examples=200)
@given(st.data())
def test_changed_bytes_of_a_set_are_refused_or_read_back(data):
    body = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    body = bytes(body[: data.draw(st.integers(0, len(body)))]) if data.draw(st.booleans()) else body
    for read in (read_set, read_answer):
        try:
            found = read(bytes(body))
        except Refused:
            continue
        assert read(found.write()) == found


@given(st.binary(max_size=200))
def test_random_bytes_are_neither_set_nor_answer(body):
    for read in (read_set, read_answer):
        with pytest.raises(Refused):
            read(body)


def test_a_witness_that_fails_before_the_answer_was_saved_has_opened_nothing(record, monkeypatch):
    sent = messages_of(sorted(SIGNERS)[:9])
    data = a_set(sent).write()
    with monkeypatch.context() as failing:
        failing.setattr(WitnessRecord, "_save", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            record.open(data, KEYS)
    assert record.sums() == []
    del sent["meter-09"]
    record.open(a_set(sent).write(), KEYS)


KILLED = """
import pathlib, sys
from tests.aggregator.extensions.sums.test_witness_record import KEYS
from aggregator.extensions.sums.witness_record import WitnessRecord
with WitnessRecord(pathlib.Path(sys.argv[1]) / "witness" / "sums.db") as record:
    print("begun", flush=True)
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.set")):
        path.with_suffix(".opened").write_bytes(record.open(path.read_bytes(), KEYS))
"""


def test_a_killed_witness_remembers_every_set_that_it_has_answered(record, tmp_path):
    names, rng = sorted(SIGNERS), random.Random(3)
    sent = {day: messages_of(names[:9], day * DAY) for day in range(1, 40)}
    for day, messages in sent.items():
        (tmp_path / f"{day:02d}.set").write_bytes(a_set(messages, day * DAY).write())
    for _ in range(4):
        words = [sys.executable, "-c", KILLED, str(tmp_path)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT) as witness:
            witness.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.05))
            witness.kill()
    answered = 0
    with WitnessRecord(tmp_path / "witness" / "sums.db") as again:
        opened = {period for _, _, period, _, _ in again.sums()}
        for day, messages in sent.items():
            path = tmp_path / f"{day:02d}.set"
            answer = path.with_suffix(".opened")
            if day * DAY in opened:
                answered += 1
                smaller = dict(list(messages.items())[1:])
                assert refusal(again, a_set(smaller, day * DAY).write()) is Reason.TWICE_IN_ROUND
            else:
                assert not answer.exists()
            whole = answer.exists() and len(answer.read_bytes()) > 0
            found = again.open(path.read_bytes(), KEYS)
            assert not whole or answer.read_bytes() in (found, found[: len(answer.read_bytes())])
    assert answered > 0
