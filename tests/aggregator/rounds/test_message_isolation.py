"""Defects planted in a rule, a method, the codec and elsewhere: the daemon survives them."""

import stat
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from aggregator import rules
from aggregator.daemon import Daemon
from aggregator.operations.control_queue import ControlOrder, leave
from aggregator.rounds import announcements
from aggregator.store import state_codec
from aggregator.store.errors import DatabaseError
from aggregator.store.opener import open_store
from edge_sdk.errors import Reason
from edge_sdk.protocol import codec, envelope
from edge_sdk.protocol.messages import (
    ChunkMessage,
    GrantMessage,
    ModelMessage,
    OfferMessage,
    ReceiptMessage,
    RefusalMessage,
    UpdateMessage,
    WelcomeMessage,
)
from firmware_sim.testing.loopback import LoopbackBroker

POISON = [13.0, 13.0]  # what the planted defects stumble over


class Fleet:
    """A daemon over a loopback link that can be restarted, and three devices that are scripts."""

    def __init__(self, config, clock, puppets):
        self.config, self.clock, self.broker = config, clock, LoopbackBroker()
        self.daemon = None
        self.start()
        self.crew = puppets(self.broker, 3)
        for puppet in self.crew:
            puppet.hello(1)
        self.turns()

    def start(self):
        if self.daemon is not None:
            self.daemon.close()
        self.daemon = Daemon(self.config, transport=self.broker.link("_agg"), clock=self.clock)
        self.daemon.open()
        self.daemon.turn()

    def turns(self, count=6):
        for _ in range(count):
            self.daemon.turn()
            for puppet in getattr(self, "crew", ()):
                puppet.poll()

    def wait(self, seconds):
        self.clock.now += seconds
        self.turns()

    def standing(self):
        """Everything that decides how the run goes on, as it is in memory and on disk."""
        tables = ("journal", "leaves", "versions", "runs", "announcements", "contents")
        db = self.daemon._store._db
        kept = {t: db.execute(f"SELECT * FROM {t}").fetchall() for t in tables}
        return state_codec.digest(self.daemon.state), self.daemon._engine.context, kept

    def letters(self):
        return self.daemon._letters.letters()

    def errors(self, where):
        return self.daemon.metrics.errors.labels(where)._value.get()

    def order(self, do, name):
        leave(self.config.inbox, ControlOrder(do, name))
        self.wait(2)


@pytest.fixture
def fleet(founded, still_clock, puppets):
    opened = []

    def make(more="", **changes):
        opened.append(Fleet(founded(more, **changes), still_clock, puppets))
        return opened[-1]

    yield make
    for one in opened:
        one.daemon.close()


class Plant:
    """Puts a defect into a place; ``calls`` counts how often the poison met it."""

    def __init__(self, monkeypatch):
        self.patch, self.calls = monkeypatch, 0

    def stumble(self, is_poison):
        if is_poison:
            self.calls += 1
            raise ZeroDivisionError("a planted defect")

    def in_rule(self, *, always=False):
        real = rules.RULES["mean"]

        def mean(rows, shares):
            self.stumble(always or 13.0 in rows.values)
            return real.function(rows, shares)

        patched = {**rules.RULES, "mean": real._replace(function=mean)}
        self.patch.setattr(rules, "RULES", patched)

    def in_method(self):
        machine = import_module("aggregator.methods.base.round_machine")
        real = machine._closed_if_ready

        def accepted(hooks, state):
            self.stumble(any(13.0 in vector for vector in state.pending.values()))
            return real(hooks, state)

        self.patch.setattr(machine, "_closed_if_ready", accepted)

    def in_codec(self):
        real = codec.decode

        def decode(cls, body, **more):
            self.stumble(cls is UpdateMessage and np.asarray(POISON, "<f4").tobytes() in body)
            return real(cls, body, **more)

        self.patch.setattr(codec, "decode", decode)

    def in_announcement(self):
        real = announcements.manifest

        def manifest(run, task, *args, **more):
            self.stumble(-12.0 in task.arrays["w"])  # where the poison would have led
            return real(run, task, *args, **more)

        self.patch.setattr(announcements, "manifest", manifest)

    def mend(self):
        self.patch.undo()


@pytest.fixture
def plant(monkeypatch):
    return Plant(monkeypatch)


@pytest.mark.parametrize("place", ["in_rule", "in_method", "in_announcement"])
def test_a_defect_sets_the_message_aside_and_changes_nothing_else(fleet, plant, place, caplog):
    getattr(plant, place)()
    made = fleet()
    one, two, three = made.crew
    one.answer([13.0, 13.0] if place == "in_announcement" else [0.5, 0.0])
    made.turns()
    before = made.standing()
    poisoned = two.answer(POISON)
    made.turns()
    assert plant.calls == 1
    assert made.standing() == before
    assert (two.last(ReceiptMessage).code, two.last(ReceiptMessage).seq) == (Reason.INTERNAL, 1)
    (letter,) = made.letters()
    assert (letter.where, letter.device, letter.number) == ("update", "meter-2", (1, 1))
    assert "a planted defect" in letter.trace
    assert codec.encode(poisoned) in letter.payload
    (file,) = made.config.state.glob("dead-letters/*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert made.errors("update") == 1
    assert "internal error where=update device=meter-2 run=1 site=" in caplog.text
    made.wait(2)
    assert made.daemon.snapshot.status["dead_letters"] == 1

    two.say(poisoned)
    made.turns()
    made.start()
    made.turns()
    two.say(poisoned)
    made.turns()
    assert plant.calls == 1  # not by the same bytes, not even after a restart
    assert state_codec.digest(made.daemon.state) == before[0]

    three.answer([1.5, 1.0])
    made.turns()
    assert three.last(ReceiptMessage).code == Reason.ACCEPTED
    assert (three.last(ModelMessage).round, three.last(ModelMessage).version) == (2, 1)


def test_what_cannot_be_decoded_is_refused_and_an_offer_of_it_settled(fleet, plant):
    plant.in_codec()
    made = fleet()
    one, two, three = made.crew
    before = made.standing()
    poisoned = two.answer(POISON)
    made.turns()
    refusal = two.last(RefusalMessage)
    body = codec.encode(poisoned)
    assert (refusal.code, refusal.wait) == (Reason.INTERNAL, 900_000)
    assert refusal.ref == envelope.ref(envelope.digest(body))
    assert (plant.calls, made.standing()) == (1, before)
    assert [letter.where for letter in made.letters()] == ["update"]

    made.start()
    made.turns()
    two.say(offer_of(two, poisoned))  # as a device sends it from the second time on
    made.turns()
    assert (two.last(ReceiptMessage).code, two.last(ReceiptMessage).seq) == (Reason.INTERNAL, 1)
    assert two.last(GrantMessage) is None
    assert plant.calls == 1
    one.answer([0.5, 0.0])
    three.answer([1.5, 1.0])
    made.turns()
    assert three.last(ModelMessage).version == 1


def offer_of(puppet, update, chunk=8192):
    body = codec.encode(update)
    digest = envelope.digest(body)
    proof = envelope.prove(
        digest,
        kind="update",
        sender=puppet.name,
        recipient="_agg",
        fleet=puppet.fleet,
        signer=puppet.key,
    )
    names = ("run", "round", "base", "spec", "life", "seq", "spent")
    facts = {name: getattr(update, name) for name in names}
    return OfferMessage(of="update", digest=digest, size=len(body), chunk=chunk, sig=proof, **facts)


def test_a_body_that_came_in_chunks_is_set_aside_whole_and_can_be_handled_again(fleet, plant):
    plant.in_method()
    made = fleet()
    one, two, _ = made.crew
    asked = two.last(ModelMessage)
    poisoned = replace(two.answer(POISON), seq=2, spent=2)
    two.seq = 2
    made.turns()
    two.say(offer_of(two, poisoned))
    made.turns()
    grant, body = two.last(GrantMessage), codec.encode(poisoned)
    two.say(ChunkMessage(grant.id, 0, life=1, seq=2, blob=body))
    made.turns()
    assert [r.code for r in two.heard if isinstance(r, ReceiptMessage)] == [Reason.INTERNAL] * 2
    inline, whole = made.letters()
    assert (inline.topic, whole.topic, whole.payload) == ("gf/1/north/meter-2/up/update", "", body)

    plant.mend()
    one.answer([0.5, 0.0])
    made.turns()
    made.order("retry", whole.name)
    assert [letter.name for letter in made.letters()] == [inline.name]
    assert two.last(ReceiptMessage).code == Reason.ACCEPTED
    assert two.last(ModelMessage).round == asked.round + 1


def test_after_an_upgrade_a_message_is_let_in_again(fleet, plant):
    plant.in_method()
    made = fleet()
    one, two, _ = made.crew
    two.answer(POISON)
    one.answer([1.0, 1.0])
    made.turns()
    (letter,) = made.letters()
    plant.mend()
    made.order("retry", letter.name)
    assert made.letters() == []
    assert [r.code for r in two.heard if isinstance(r, ReceiptMessage)] == [
        Reason.INTERNAL,
        Reason.ACCEPTED,
    ]
    assert two.last(ModelMessage).version == 1


def test_what_is_forgotten_is_handled_again_when_it_comes(fleet, plant):
    plant.in_codec()
    made = fleet()
    two = made.crew[1]
    poisoned = two.answer(POISON)
    made.turns()
    plant.mend()
    made.order("clear", "_all")
    two.say(poisoned)
    made.turns()
    assert two.last(ReceiptMessage).code == Reason.ACCEPTED


def test_a_round_whose_deadline_meets_a_defect_is_abandoned(fleet, plant):
    plant.in_rule()
    made = fleet("min_updates = 1")
    one, two, three = made.crew
    two.answer(POISON)
    made.turns()
    assert two.last(ReceiptMessage).code == Reason.ACCEPTED  # nothing has stumbled yet
    made.wait(61)
    assert plant.calls == 1
    assert (one.last(ModelMessage).round, one.last(ModelMessage).version) == (2, 0)
    line = made.daemon.snapshot.status["rounds"][0]
    assert line["result"].startswith("abandoned: internal error")
    assert made.errors("deadline") == 1
    for puppet in (one, three):
        puppet.answer([1.0, 1.0])
    made.turns()
    assert (one.last(ModelMessage).round, one.last(ModelMessage).version) == (3, 1)
    assert made.daemon._engine.halted == ""


def test_a_run_whose_every_round_meets_a_defect_is_halted_and_goes_on_when_mended(
    fleet, plant, caplog
):
    plant.in_rule(always=True)
    made = fleet("min_updates = 1")
    one, two, three = made.crew
    for _ in range(3):
        one.answer([1.0, 1.0])
        made.turns()
        made.wait(61)
    assert plant.calls == 3
    made.wait(600)
    assert plant.calls == 3  # and no more
    status = made.daemon.snapshot.status
    assert "deadline: ZeroDivisionError in test_message_isolation.py" in status["halted"]
    assert "internal error where=deadline device=- run=1 site=" in caplog.text
    assert "dead-letters" in status["halted"]
    assert b"gridfed_run_halted 1.0" in made.daemon.metrics.text()
    assert one.last(ModelMessage).phase == "pause"
    two.answer([1.0, 1.0])
    three.hello(2)  # everything but the run goes on
    made.turns()
    assert two.last(RefusalMessage).code == Reason.PAUSED
    assert three.last(WelcomeMessage).life == 2

    made.start()  # the mended version
    assert made.daemon._engine.halted
    plant.mend()
    made.start()
    made.order("resume", "_all")
    assert made.daemon._engine.halted == ""
    for puppet in (one, two):
        puppet.answer([1.0, 1.0])
    made.turns()
    assert one.last(ModelMessage).version == 1


def test_a_journal_that_cannot_be_applied_halts_the_run_and_not_the_start(fleet, plant):
    made = fleet()
    one, two, _ = made.crew
    one.answer(POISON)
    made.turns()
    before = state_codec.digest(made.daemon.state)
    plant.in_method()  # the next version has a defect
    made.start()
    made.turns()
    assert made.daemon._engine.halted.startswith("start: ZeroDivisionError")
    plant.mend()
    made.start()
    made.order("resume", "_all")
    assert state_codec.digest(made.daemon.state) == before
    two.answer([1.0, 1.0])
    made.turns()
    assert two.last(ModelMessage).version == 1


def test_a_step_of_the_loop_that_meets_a_defect_waits_and_does_not_spin(fleet, plant, monkeypatch):
    made = fleet()
    monkeypatch.setattr(
        type(made.daemon._view.alerts), "measure", lambda *_: plant.stumble(is_poison=True)
    )
    for _ in range(40):
        made.clock.now += 1
        made.daemon.turn()
    assert 4 <= plant.calls <= 6  # 1, 2, 4, 8, 16 seconds apart
    assert len(made.letters()) <= 6
    assert made.daemon._longest_wait() <= 1.0


def test_a_defect_that_meets_everybody_does_not_fill_the_disk(fleet, plant, monkeypatch):
    made = fleet()
    real = codec.decode
    monkeypatch.setattr(
        codec,
        "decode",
        lambda cls, *a, **k: plant.stumble(cls is UpdateMessage) or real(cls, *a, **k),
    )
    for number in range(12):
        for puppet in made.crew:
            puppet.answer([float(number), 0.0])
        made.turns()
        made.clock.now += 10
    assert plant.calls == 36
    assert len(made.letters()) == 8
    assert made.errors("update") == 36


def commits_of(made, monkeypatch):
    """Count the commits of the daemon's store, and what was published before each."""
    transactions = made.daemon._store.transactions
    real, found = transactions._commit, []

    def commit():
        is_open = transactions.db.in_transaction
        real()
        if is_open:
            found.append(len(made.daemon._publisher))

    monkeypatch.setattr(transactions, "_commit", commit)
    return found


def test_messages_that_arrive_together_share_one_commit(fleet, monkeypatch):
    made = fleet()
    commits = commits_of(made, monkeypatch)
    for puppet in made.crew[:2]:
        puppet.answer([0.5, 0.0])
    made.daemon.turn()
    assert len(commits) == 1
    made.turns()
    assert [puppet.last(ReceiptMessage).code for puppet in made.crew[:2]] == [0, 0]


def test_a_defect_among_messages_that_share_a_commit_undoes_its_own_alone(fleet, plant):
    plant.in_method()
    made = fleet()
    one, two, three = made.crew
    one.answer([0.5, 0.0])
    two.answer(POISON)
    three.answer([1.5, 1.0])
    made.turns()
    codes = [puppet.last(ReceiptMessage).code for puppet in made.crew]
    assert codes == [Reason.ACCEPTED, Reason.INTERNAL, Reason.ACCEPTED]
    assert three.last(ModelMessage).version == 1


def test_where_the_common_commit_fails_each_message_has_its_own(fleet, monkeypatch):
    made = fleet()
    before = made.standing()
    transactions = made.daemon._store.transactions
    real, failures = transactions._commit, [DatabaseError("planted")]

    def commit():
        if transactions.db.in_transaction and failures:
            raise failures.pop()
        real()

    monkeypatch.setattr(transactions, "_commit", commit)
    for puppet in made.crew[:2]:
        puppet.answer([0.5, 0.0])
    made.turns()
    assert failures == []
    assert [puppet.last(ReceiptMessage).code for puppet in made.crew[:2]] == [0, 0]
    assert made.daemon.state.version == 1
    assert made.standing() != before
    assert len(made.daemon._store.runs.versions(1)) == 1


def test_messages_of_a_process_that_ends_before_the_common_commit_are_delivered_again(
    fleet, monkeypatch
):
    made = fleet()

    def die():
        raise KeyboardInterrupt

    monkeypatch.setattr(made.daemon._store.transactions, "_commit", die)
    for puppet in made.crew[:2]:
        puppet.answer([0.5, 0.0])
    with pytest.raises(KeyboardInterrupt):
        made.daemon.turn()
    for puppet in made.crew[:2]:
        puppet.poll()
    assert [puppet.last(ReceiptMessage) for puppet in made.crew[:2]] == [None, None]
    with open_store(made.config.database, read_only=True) as store:
        assert list(store.journal.applied()) == []
    monkeypatch.undo()
    made.start()
    made.turns()
    assert [puppet.last(ReceiptMessage).code for puppet in made.crew[:2]] == [0, 0]
    assert len(list(made.daemon._store.journal.applied())) == 2
