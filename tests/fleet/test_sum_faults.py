"""Sums through thousands of faults: programs killed at any line, messages doubled, late, reordered, lost.

Daemon, devices and witness are the real ones with their databases on disk; link and clock are the test's.
A kill is an exception at a drawn function call; the program is then opened again from its files.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from aggregator.extensions.sums.opened_sum import SumTable
from aggregator.extensions.sums.sum_collection import recomputed
from aggregator.extensions.sums.sum_set import read_set
from aggregator.extensions.sums.witness_command import read_keys
from aggregator.extensions.sums.witness_link import WitnessLink
from aggregator.extensions.sums.witness_record import WitnessRecord
from aggregator.store.opener import open_store
from edge_sdk.extensions.sums import sum_sender
from edge_sdk.extensions.sums.masked_sum import rounded, unpacked
from edge_sdk.extensions.sums.messages import SumMessage
from edge_sdk.protocol.codec import decode
from edge_sdk.protocol.envelope import digest, unproved
from edge_sdk.protocol.keys import kid_of, read_public, save_public
from firmware_sim.testing.loopback import LoopbackBroker
from tests.fleet.test_sums import CONTRACT, DEVICES, HOUR, Feeders

pytestmark = [
    pytest.mark.extension,
    pytest.mark.timeout(1800),
    # a cut inside a generator that is being dropped
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
KINDS = ("sums", "sum", "sumreceipt", "sumset", "sumopened")
CALLS = {"device": 250, "daemon": 1500, "witness": 60}  # within which a program is killed
SHORT = {'due = "26h"': 'period = "4h"\ndue = "6h"', 'due = "25h"': 'period = "4h"\ndue = "5h"'}


class PowerCut(BaseException):
    """The end of a program at once."""


@contextmanager
def cut_after(calls: int):
    """Raise PowerCut at the call of a function of the programs, after ``calls`` others."""
    left, before = calls, sys.gettrace()

    def trace(frame, event, arg):
        nonlocal left
        name = frame.f_globals.get("__name__", "")
        left -= name.startswith(("edge_sdk.", "aggregator."))
        if left < 0:
            raise PowerCut
        return None if before is None else before(frame, event, arg)

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


class FaultyBroker(LoopbackBroker):
    """A broker that counts what it does to messages of sums, and keeps those that devices send."""

    def __init__(self, **options):
        super().__init__(**options)
        self.draw, self.done, self.share = random.Random(1), Counter(), 0.0
        self.sent = defaultdict(set)  # (device, contract, period): digests of masked numbers

    def publish(self, topic, payload, *, retain):
        if topic.endswith("/up/sum"):
            sent = decode(SumMessage, unproved(payload))
            self.sent[topic.split("/")[3], sent.of, sent.period].add(digest(sent.blob))
        super().publish(topic, payload, retain=retain)

    def _enqueue(self, client_id, topic, payload, *, retained):
        queue = self._sessions[client_id].queue
        fault = ""
        if topic.rpartition("/")[2] in KINDS and self.draw.random() < self.share:
            fault = self.draw.choice(("lost", "doubled", "late", "reordered"))
            self.done[fault] += 1
        if fault == "lost":
            return
        for _ in range(1 + (fault == "doubled")):
            super()._enqueue(client_id, topic, payload, retained=retained)
        if fault == "late":
            queue[-1].due += self.draw.uniform(1.0, 20_000.0)
        elif fault == "reordered":
            queue.insert(self.draw.randint(0, len(queue)), queue.pop())


class Storm:
    """Feeders of twelve homes with periods of four hours, and a witness over the broker or by file."""

    def __init__(self, world, tmp_path, capsys, monkeypatch, seed):
        monkeypatch.setattr("tests.fleet.conftest.LoopbackBroker", FaultyBroker)
        monkeypatch.setattr(sum_sender, "masked_message", self._masked)
        self.plain = {}  # rounded numbers by device and digest of the masked ones
        self.rng, self.kills, self.inside = random.Random(seed), Counter(), 0
        self.feeders = feeders = Feeders(world, tmp_path, capsys, text=_short(CONTRACT), seed=seed)
        self.world, self.broker = feeders.world, feeders.world.broker
        self.keys = read_keys(SimpleNamespace(key=feeders.keys[1], open_key=feeders.keys[3]))
        save_public(feeders.folder / "w.pub", self.keys.sign.public)
        feeders.command("enrol", "w-1", "--public", str(feeders.folder / "w.pub"))
        public = read_public(self.world.folder / "aggregator" / "aggregator.pub")
        self.public = {kid_of(public): public}
        feeders.start()
        self.record = None
        self.start_witness()
        self.broker.share = 0.3

    def _masked(self, values, contract, context, signer):
        message = MASKED(values, contract, context, signer)
        self.plain[context.device, digest(message.blob)] = rounded(values, contract.terms)
        return message

    # --- the programs

    def start_witness(self):
        if self.record is not None:
            self.record.__exit__()
        self.record = WitnessRecord(self.feeders.folder / "sums.db", 3)
        self.link = self.broker.link("w-1")
        self.link.open()
        self.served = WitnessLink(self.link, "north", "w-1", self.public, self.record, self.keys)

    def serve_witness(self):
        if self.rng.random() < 0.5:
            self.served.turn(0.0)
        for path in self.feeders.sets() if self.rng.random() < 0.1 else ():
            path.with_suffix(".opened").write_bytes(self.record.open(path.read_bytes(), self.keys))

    def kill(self, program):
        """End a program at a drawn call of its turn, or else at the turn's end; then start it."""
        self.kills[program] += 1
        number = self.rng.randrange(DEVICES)
        turn = {
            "daemon": lambda: self.world.daemon.turn(0.0),
            "device": lambda: self.world.clients[number].tick(0.0),
            "witness": self.serve_witness,
        }[program]
        try:
            with cut_after(self.rng.randrange(CALLS[program])):
                turn()
        except PowerCut:
            self.inside += 1
        if program == "daemon":
            self.world.kill_daemon()
            self.world.start_daemon()
        elif program == "device":
            self.world.die(number)
            self.world.start(number)
            self.feeders.at -= 12  # a meter tells its newest readings again
        else:
            self.broker.cut("w-1")
            self.start_witness()

    # --- the course

    @property
    def faults(self):
        return self.kills.total() + self.broker.done.total()

    def hour(self):
        self.world.clock.now += HOUR
        self.feeders.measure()
        for client in self.world.clients.values():
            client.flush()
        for _ in range(14):
            self.world.turn(0.5)
            self.serve_witness()
            if self.broker.share and self.rng.random() < 0.5:
                if self.rng.random() < 0.05:
                    self.kills["broker"] += 1
                    self.broker.restart(forget=self.rng.random() < 0.5)
                else:
                    self.kill(self.rng.choices(("device", "daemon", "witness"), (6, 2, 2))[0])

    def calm(self):
        """Let everything arrive, and every period end."""
        self.broker.share = 0.0
        for _ in range(9):
            self.hour()
        for _ in range(40):
            self.world.turn(5.0)
            self.served.turn(0.0)

    def check(self):
        """Compare every opened sum with the plain one; return the sets that were opened."""
        self.world.kill_daemon()
        database = self.world.folder / "aggregator" / "aggregator.db"
        with open_store(database, read_only=True) as store:
            table = store.table(SumTable)
            assert [one.why for one in recomputed(store, self.keys.sign.public) if one.why] == []
            opened = [(table.find_set(of), total) for of, total, _ in table.answers()]
            sums = {(one.contract, one.value, one.period): one for one in table.opened()}
            waiting = table.waiting()
        seen = set()
        for of, total in opened:
            terms = of.contract.terms
            plain = np.sum(
                [self.plain[one.device, one.masked].astype(object) for one in of.members], axis=0
            )
            assert unpacked(total, terms.length).tolist() == plain.tolist()
            assert len(of.members) >= terms.least
            members = {(terms.name, of.period, one.device) for one in of.members}
            assert seen.isdisjoint(members)
            seen |= members
            for one in of.members:
                sent = self.broker.sent[one.device, of.contract.ref, of.period]
                assert sent == {one.masked}
        assert len(sums) == len(opened)
        assert all(len(digests) == 1 for digests in self.broker.sent.values())
        assert {row[1:4] for row in self.record.sums()} >= {
            (of.contract.terms.name, of.period, of.value) for of, _ in opened
        }
        newest = self.world.clock.begun + self.world.clock.now - 8 * HOUR
        assert [one.name for one in waiting if read_set(one.data).period < 1000 * newest] == []
        return [of for of, _ in opened]


MASKED = sum_sender.masked_message


def _short(text):
    for old, new in SHORT.items():
        text = text.replace(old, new)
    return text.replace("length = 24", "length = 4").replace("least = 9", "least = 3")


@pytest.mark.parametrize(
    "faults",
    [
        60,
        pytest.param(1500, marks=pytest.mark.slow),
        pytest.param(10_000, marks=pytest.mark.soak),
    ],
)
def test_every_opened_sum_is_the_plain_one_and_no_set_is_opened_twice(
    world, tmp_path, capsys, monkeypatch, faults
):
    storm = Storm(world, tmp_path, capsys, monkeypatch, seed=faults)
    hours = 0
    while storm.faults < faults:
        storm.hour()
        hours += 1
    storm.calm()
    opened = storm.check()
    members = sum(len(of.members) for of in opened)
    of_source = Counter(of.contract.terms.source for of in opened)
    line = (
        f"{storm.faults} faults in {hours} h: kills {dict(storm.kills)}, of them {storm.inside} inside a call; "
        f"messages {dict(storm.broker.done)}; {len(opened)} sums {dict(of_source)} of {members} vectors "
        f"opened, of {len(storm.broker.sent)} sent\n"
    )
    with capsys.disabled():
        sys.stderr.write(line)
    assert set(of_source) == {"history", "tomorrow"}, line
