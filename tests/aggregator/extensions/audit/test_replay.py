"""A recorded incident replayed under another rule: equal to a run that had that rule, where it can be."""

import hashlib
from itertools import pairwise

import numpy as np
import pytest

from aggregator.extensions.audit.replay import ReplayError, ReplayScenario, replay
from aggregator.methods import METHODS, OPEN, Rounds, Setup
from aggregator.rules import bind
from aggregator.store import state_codec
from aggregator.store.ledgers import Ledger, LedgerRow
from aggregator.store.opener import open_store
from aggregator.store.types import Retention, RunRecord, Version
from edge_sdk.protocol.contract.method import Closed, Due, Update
from firmware_sim.attacks.attack_context import AttackContext
from firmware_sim.attacks.model import alie

HONEST, BYZANTINE, SIZE, ROUNDS = 8, 2, 40, 4
DEVICES = [f"m-{n}" for n in range(HONEST + BYZANTINE)]
INITIAL = np.linspace(-1, 1, SIZE).astype(np.float32)
RULES = {
    "trimmed mean": {"name": "trimmed_mean", "f": 2},
    "nnm+krum": {"name": "krum", "f": 2, "preaggregation": ["nnm"]},
}


def half_of(rule="mean", *, method="fedavgm", least=None, **parameters):
    rounds = Rounds(quorum=len(DEVICES), least=least)
    return METHODS[method].half(Setup(bind(rule, **parameters), METHODS[method].settings(), rounds))


def honest_updates(number, model):
    """Updates of a round; each pulls to the device's own optimum if a model is given."""
    rng = np.random.default_rng(number)
    own = rng.normal(1.0, 0.3, (HONEST, SIZE))
    return own if model is None else 0.3 * (own - model)


class Recorder:
    """Journal a run as the daemon does: record, apply, save what a closed round changed."""

    def __init__(self, path, half, *, keep=None, depends=True):
        self.half, self.depends, self.keep = half, depends, keep
        self.store = open_store(path)
        self.state = half.init(INITIAL)
        self.saved = state_codec.flatten(self.state)
        self.models, self.seq = [], 0
        layout = state_codec.layout(self.state)
        self.store.begin(RunRecord(1, "fedavgm", "{}", "toy", bytes(16), layout), self.saved)
        self.take(self.store.journal.append(1, OPEN))

    def play_round(self, number, devices=DEVICES):
        honest = honest_updates(number, self.state.w if self.depends else None)
        scene = AttackContext.among(honest)
        vectors = [*honest, *[alie(scene, z=1.5)] * BYZANTINE]
        rows = dict(zip(DEVICES, vectors, strict=True))
        self.send_round({one: rows[one] for one in devices})

    def send_round(self, rows):
        base, opened = self.state.version, self.state.round
        for number, device in enumerate(rows):
            self.seq += 1
            values = {"n": 1.0, "loss": 1.0 + number}
            update = Update(device, opened, base, rows[device].astype(np.float32), values)
            row = LedgerRow(bytes(32), 0, 1, opened)
            self.take(self.store.append(device, Ledger(), (1, self.seq), row, update)[1])
        if self.state.round == opened:
            self.take(self.store.journal.append(1, Due(opened, "train")))
        self.models.append(
            hashlib.sha256(self.state.w.astype(np.float32).astype("<f4").tobytes()).hexdigest()
        )

    def take(self, entry):
        self.state, effects = self.half.apply(self.state, entry.event)
        closed = next((one for one in effects if isinstance(one, Closed)), None)
        if not effects:
            return
        digest = state_codec.digest(self.state)
        version = closed and Version(
            1, closed.round, closed.version, closed.moved, digest, closed.report
        )
        now = state_codec.flatten(self.state)
        changed = state_codec.changed(self.saved, now)
        keep = self.keep and Retention(rounds=self.keep)
        self.store.commit(1, changed, entry.position, closed=version, keep=keep)
        self.saved = now


@pytest.fixture
def record(tmp_path):
    made = []

    def make(half=None, *, devices=DEVICES, rounds=ROUNDS, **options):
        one = Recorder(tmp_path / f"{len(made)}.db", half or half_of(), **options)
        for number in range(1, rounds + 1):
            one.play_round(number, devices)
        made.append(one)
        return one

    yield make
    for one in made:
        one.store.close()


def replayed(one, half, first=1, last=ROUNDS, **scenario):
    return replay(
        one.store,
        1,
        ReplayScenario(first, last, **scenario),
        recorded=half_of(),
        other=half,
        initial=INITIAL,
    )


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_first_round_of_an_incident_is_bit_equal_to_a_run_with_that_rule(record, rule):
    other = half_of(rule["name"], **{k: v for k, v in rule.items() if k != "name"})
    incident, anew = record(), record(other)
    rounds = replayed(incident, other)
    assert [one.round for one in rounds] == [1, 2, 3, 4]
    assert rounds[0].chained.model == rounds[0].single.model == anew.models[0]
    assert [one.recorded.model for one in rounds] == incident.models
    assert rounds[0].single_distance > 0
    assert rounds[1].chained.model != anew.models[1], "the devices would have answered otherwise"


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_round_is_bit_equal_where_answers_depend_on_no_model(record, rule):
    other = half_of(rule["name"], **{k: v for k, v in rule.items() if k != "name"})
    incident, anew = record(depends=False), record(other, depends=False)
    rounds = replayed(incident, other)
    assert [one.chained.model for one in rounds] == anew.models


def test_same_rule_changes_nothing(record):
    incident = record()
    for one in replayed(incident, half_of(), is_other_rule=False):
        assert one.single == one.chained == one.recorded
        assert one.single_distance == one.chained_distance == 0.0


def test_krum_excludes_the_byzantine_devices_and_says_so(record):
    incident = record()
    half = half_of("krum", f=2, preaggregation=["nnm"])
    for one in replayed(incident, half):
        assert set(one.recorded.used) == set(DEVICES)
        assert set(DEVICES[HONEST:]) <= set(one.single.excluded)
        assert one.single.loss != one.recorded.loss


def test_leaving_devices_out_equals_a_run_without_them(record):
    incident = record(depends=False)
    without = record(half_of(least=8), devices=DEVICES[:HONEST], depends=False)
    rounds = replayed(
        incident, half_of(least=8), without=set(DEVICES[HONEST:]), is_other_rule=False
    )
    assert [one.chained.model for one in rounds] == without.models
    assert set(rounds[0].single.used) == set(DEVICES[:HONEST])
    assert rounds[0].single.loss == np.mean(range(1, HONEST + 1))


def test_too_few_updates_abandon_the_replayed_round(record):
    incident = record()
    rounds = replayed(incident, half_of(), without={"m-1"}, is_other_rule=False)
    assert not any(one.chained.moved or one.single.moved for one in rounds)
    assert rounds[0].single.why == "9 of 10 answers"
    assert rounds[0].chained.step == 0.0
    assert [a.chained_distance < b.chained_distance for a, b in pairwise(rounds)] == [True] * 3


def test_later_rounds_alone_begin_with_the_recorded_model(record):
    incident = record()
    half = half_of("trimmed_mean", f=2)
    whole, part = replayed(incident, half), replayed(incident, half, first=3, last=3)
    assert [one.single for one in whole][2] == part[0].single == part[0].chained


def test_deleted_updates_are_refused_with_the_rounds_that_are_kept(record):
    incident = record(rounds=9, keep=3)
    with pytest.raises(ReplayError, match="expected rounds of 7:9"):
        replayed(incident, half_of(), first=2, last=9)
    assert len(replayed(incident, half_of("median"), first=7, last=9)) == 3


@pytest.mark.parametrize(("first", "last"), [(0, 2), (3, 5), (3, 2)])
def test_rounds_outside_of_the_record_are_refused(record, first, last):
    incident = record()
    with pytest.raises(ReplayError, match="expected rounds of 1:4"):
        replayed(incident, half_of(), first=first, last=last)


def test_another_configuration_is_found(record):
    incident = record()
    with pytest.raises(ReplayError, match="does not reproduce the recorded round"):
        replay(
            incident.store,
            1,
            ReplayScenario(1, 2),
            recorded=half_of("median"),
            other=half_of(),
            initial=INITIAL,
        )


def test_a_journal_is_not_changed(record, tmp_path):
    incident = record()
    before = "\n".join(incident.store._db.iterdump())
    replayed(incident, half_of("median"), without={"m-3"})
    assert "\n".join(incident.store._db.iterdump()) == before
