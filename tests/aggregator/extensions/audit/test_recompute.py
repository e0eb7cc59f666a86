"""The history check: sound after any course of a run, and not fooled by a changed bit."""

import numpy as np
import pytest

from aggregator.extensions.audit.recompute import recompute
from aggregator.methods import METHODS, OPEN, Rounds, Setup
from aggregator.rules import bind
from aggregator.store import state_codec
from aggregator.store.ledgers import Ledger, LedgerRow
from aggregator.store.opener import open_store
from aggregator.store.types import Retention, RunRecord, Version
from edge_sdk.protocol.contract.method import Closed, Due, Update

INITIAL = np.array([0.5, -0.5], np.float32)


def half_of(rule="mean", **parameters):
    bound, rounds = bind(rule, **parameters), Rounds(quorum=2)
    return METHODS["fedadam"].half(Setup(bound, METHODS["fedadam"].settings(), rounds))


class Shell:
    """As the daemon: journal, apply, save what a closed round changed."""

    def __init__(self, store, keep=None, half=None):
        self.store, self.half, self.keep = store, half or half_of(), keep
        self.state = self.half.init(INITIAL)
        self.saved = state_codec.flatten(self.state)
        run = RunRecord(1, "fedadam", "{}", "toy", bytes(16), state_codec.layout(self.state))
        store.begin(run, self.saved)
        self.seq = 0
        self.take(store.journal.append(1, OPEN))

    def update(self, sender, vector):
        self.seq += 1
        update = Update(
            sender,
            self.state.round,
            self.state.version,
            np.array(vector, np.float32),
            {"n": 1.0, "loss": 0.5},
        )
        row = LedgerRow(bytes(32), 0, 1, update.round)
        self.take(self.store.append(sender, Ledger(), (1, self.seq), row, update)[1])

    def deadline(self):
        self.take(self.store.journal.append(1, Due(self.state.round, "train")))

    def take(self, entry):
        self.state, effects = self.half.apply(self.state, entry.event)
        closed = next((e for e in effects if isinstance(e, Closed)), None)
        if not effects:
            return
        version = closed and Version(
            1,
            closed.round,
            closed.version,
            closed.moved,
            state_codec.digest(self.state),
            closed.report,
        )
        now = state_codec.flatten(self.state)
        changed = state_codec.changed(self.saved, now)
        self.store.commit(
            1,
            changed,
            entry.position,
            closed=version,
            keep=self.keep and Retention(rounds=self.keep),
        )
        self.saved = now


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "fleet.db") as store:
        yield store


def course(store, rounds=6, keep=None, half=None):
    shell = Shell(store, keep, half)
    for number in range(rounds):
        shell.update("m-1", (0.1 * number, -1.0))
        if number % 3 == 2:
            shell.deadline()
        else:
            shell.update("m-2", (1e-8, number))
    return shell


def test_every_round_is_recomputed_to_the_bit(store):
    course(store)
    audit = recompute(store, half_of(), INITIAL)
    assert (audit.faults, audit.rounds, audit.moved) == ((), 6, 4)
    assert audit.updates == {"m-1": 4, "m-2": 4}
    assert audit.is_sound


@pytest.mark.parametrize("keep", [None, 3], ids=["whole", "pruned"])
@pytest.mark.parametrize("before", [[], [{"name": "bucketing", "size": 1}]], ids=["plain", "drawn"])
def test_what_a_rule_remembers_is_recomputed_too(store, before, keep):
    half = half_of("centred_clipping", preaggregation=before)
    shell = course(store, rounds=9, keep=keep, half=half)
    assert np.any(shell.state.memory["v"])
    assert recompute(store, half, INITIAL).is_sound
    forgetful = half_of("centred_clipping", steps=2, preaggregation=before)
    assert not recompute(store, forgetful, INITIAL).is_sound


def test_updates_of_a_round_that_is_still_open_are_no_fault(store):
    course(store).update("m-1", (1.0, 1.0))
    assert recompute(store, half_of(), INITIAL).is_sound


def test_after_pruning_the_check_begins_at_the_oldest_whole_state(store):
    course(store, keep=3)
    audit = recompute(store, half_of(), INITIAL)
    assert (audit.faults, audit.rounds) == ((), 3)


def test_no_run_is_no_fault(store):
    audit = recompute(store, half_of(), INITIAL)
    assert (audit.run, audit.is_sound) == (0, True)


@pytest.mark.parametrize(
    ("tampering", "fault"),
    [
        (
            "UPDATE journal SET vector = zeroblob(8) WHERE round = 2 AND device = 'm-2'",
            "recomputed state differs",
        ),
        ("DELETE FROM journal WHERE round = 2 AND device = 'm-2'", "announced"),
        ("DELETE FROM versions WHERE round = 4", "never announced"),
        ("UPDATE versions SET version = 9 WHERE round = 1", "announced version 9"),
        ("UPDATE journal SET vector = NULL WHERE round = 2", "has no vector"),
        (
            """UPDATE leaves SET value =
            (SELECT value FROM leaves WHERE path = 'w' AND position = 0)
            WHERE path = 'w' AND position = (SELECT upto FROM runs)""",
            "last committed",
        ),
    ],
    ids=str,
)
def test_a_history_that_was_touched_is_found(store, tampering, fault):
    course(store, rounds=5)
    store._db.execute(tampering)
    audit = recompute(store, half_of(), INITIAL)
    assert not audit.is_sound
    assert fault in " ".join(audit.faults)


def test_another_rule_would_have_given_another_history(store):
    course(store)
    other = METHODS["fedadam"].half(
        Setup(bind("mean"), METHODS["fedadam"].settings(beta1=0.5), Rounds(quorum=2))
    )
    assert len(recompute(store, other, INITIAL).faults) >= 4
