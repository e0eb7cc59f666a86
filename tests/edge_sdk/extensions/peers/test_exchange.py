"""The exchange with neighbours: links are settled alike at both ends, whatever the broker does."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.peers import exchange as gossip
from edge_sdk.extensions.peers.chunks import SLICE, PeerChunks, cut
from edge_sdk.extensions.peers.exchange_types import (
    LinkDisagreement,
    Lost,
    NewerEpoch,
    PeerExchange,
    PeerLink,
)
from edge_sdk.extensions.peers.messages import PeerMessage, SettleMessage
from edge_sdk.protocol.outbox_state import RetryPolicy

SPEC = bytes(16)
EVERY = 0.5  # s from one exchange to the next, but for who is behind
RING = {"a": "be", "b": "ac", "c": "bd", "d": "ce", "e": "da"}


def exchange(me, neighbours, *, strict=False, size=2, deadline=2.0):
    links = {name: PeerLink(PeerChunks(size)) for name in sorted(neighbours)}
    return PeerExchange(me, 1, 1, SPEC, size, strict, deadline, links, RetryPolicy(0.5, 2.0))


class Street:
    """Machines, and a broker that loses, doubles, delays and reorders."""

    def __init__(self, graph, *, strict, seed, drop=0.0, double=0.0, late=0.0, size=2, parts=1):
        self.rng, self.now = random.Random(seed), 0.0
        self.drop, self.double, self.late = drop, double, late
        self.parts = ("theta", "tracker")[:parts]
        self.nodes = {me: exchange(me, n, strict=strict, size=size) for me, n in graph.items()}
        self.flying, self.cut, self.kept = [], set(), {}
        self.log = {me: {} for me in graph}  # step -> what was used, and the rows
        self.notes = []
        for me in graph:
            self.start(me, 0)

    def vector(self, me, step, part):
        return np.full(self.nodes[me].size, ord(me) + 100 * step + 50 * (part == "tracker"), "f4")

    def start(self, me, step):
        offered = {part: self.vector(me, step, part) for part in self.parts}
        self.take(me, gossip.begin(self.nodes[me], step, offered, self.now))

    def take(self, me, turn):
        self.nodes[me] = turn.exchange
        for made in turn.decided:
            self.kept[me, made.name] = made
        self.notes += turn.notes
        for name, message in turn.messages:
            for _ in range(1 + (self.rng.random() < self.double)):
                lost = self.rng.random() < self.drop or {me, name} & self.cut
                if not lost:
                    when = self.now + self.rng.random() * (0.02 + self.late)
                    self.flying.append((when, self.rng.random(), me, name, message))

    def turn(self):
        self.now += 0.1
        arriving = sorted(f for f in self.flying if f[0] <= self.now)
        self.flying = [f for f in self.flying if f[0] > self.now]
        for _, _, sender, name, message in arriving:
            if name not in self.cut:
                self.take(name, gossip.receive(self.nodes[name], sender, message, self.now))
        for me in self.nodes:
            if me in self.cut:
                continue
            self.take(me, gossip.tick(self.nodes[me], self.now, self.rng.random))
            x = self.nodes[me]
            if x.is_over and (x.is_behind or self.now >= x.began + EVERY):
                self.log[me][x.step] = (x.used, gossip.vectors(x))
                self.start(me, x.step + 1)

    def until(self, condition, turns=6000):
        for _ in range(turns):
            if condition():
                return
            self.turn()
        pytest.fail(str({me: x.step for me, x in self.nodes.items()}))

    def disagreements(self):
        out = set()
        for me, steps in self.log.items():
            for step, (used, _) in steps.items():
                for other in self.nodes[me].links:
                    theirs = self.log[other].get(step)
                    if theirs is not None and (other in used) != (me in theirs[0]):
                        out.add((*sorted((me, other)), step))
        return out

    def check_rows(self):
        """What counted was the very vector that was offered for that exchange."""
        for me, steps in self.log.items():
            for step, (used, rows) in steps.items():
                for part in self.parts:
                    assert rows[part].shape == (len(used), self.nodes[me].size)
                    for name, row in zip(used, rows[part], strict=True):
                        assert (row == self.vector(name, step, part)).all(), (me, step)


def test_undisturbed_every_link_counts_in_every_exchange():
    street = Street(RING, strict=False, seed=1)
    street.until(lambda: all(x.step >= 20 for x in street.nodes.values()))
    for me, steps in street.log.items():
        assert all(used == tuple(sorted(RING[me])) for used, _ in steps.values())
    street.check_rows()


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([1, 2]), st.sampled_from([2, 8200]))
def test_a_bad_link_never_makes_two_ends_disagree_if_one_waits(seed, late, parts, size):
    faults = {"drop": 0.2, "double": 0.2, "late": 1.5 if late else 0.0}
    street = Street(RING, strict=True, seed=seed, parts=parts, size=size, **faults)
    street.until(lambda: all(x.step >= 6 for x in street.nodes.values()))
    assert not street.disagreements()
    street.check_rows()


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_a_missed_deadline_is_announced_and_a_possible_disagreement_is_counted(seed):
    street = Street(RING, strict=False, seed=seed, drop=0.3, double=0.1, late=0.5)
    street.until(lambda: all(x.step >= 12 for x in street.nodes.values()))
    street.check_rows()
    assert len(street.disagreements()) <= 6


@pytest.mark.parametrize("lost", ["a", "c", "e"])
def test_the_rest_go_on_without_a_dead_neighbour(lost):
    street = Street(RING, strict=False, seed=2)
    street.until(lambda: all(x.step >= 3 for x in street.nodes.values()))
    street.cut.add(lost)
    street.until(lambda: all(x.step >= 30 for me, x in street.nodes.items() if me != lost))
    assert street.now < 60, "nobody waits twice for who is gone"
    assert not street.disagreements()
    for me, steps in street.log.items():
        if me != lost:
            assert all(lost not in used for step, (used, _) in steps.items() if step > 5)
            mates = tuple(sorted(set(RING[me]) - {lost}))
            assert {used for step, (used, _) in steps.items() if step > 20} == {mates}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("lost", ["a", "c", "e"])
def test_a_returning_peer_takes_part_again(lost, strict):
    street = Street(RING, strict=strict, seed=3)
    street.until(lambda: all(x.step >= 3 for x in street.nodes.values()))
    street.cut.add(lost)
    for _ in range(150):
        street.turn()
    street.cut.clear()
    street.until(lambda: len({x.step for x in street.nodes.values()}) == 1)
    last = street.nodes[lost].step
    street.until(lambda: all(x.step >= last + 8 for x in street.nodes.values()))
    assert all(set(street.log[me][last + 7][0]) == set(RING[me]) for me in RING)
    if strict:
        assert not street.disagreements()
    street.check_rows()


def test_with_strict_links_a_dead_decider_blocks_its_neighbours():
    street = Street({"a": "b", "b": "a"}, strict=True, seed=4)
    street.cut.add("a")
    for _ in range(300):
        street.turn()
    assert street.nodes["b"].step == 0
    assert gossip.next_due(street.nodes["b"]) is not None


def pair(**more):
    x = exchange("a", "b", **more)
    return gossip.begin(x, 0, {"theta": np.zeros(x.size, "f4")}, 0.0).exchange


def peer(step=0, **more):
    made = PeerMessage(1, 1, step, "theta", 1, SPEC, "f4", 0, 2, np.ones(2, "f4").tobytes())
    return replace(made, **more)


@pytest.mark.parametrize(
    ("name", "message", "reason"),
    [
        ("z", peer(), Reason.UNKNOWN_CLIENT),
        ("b", peer(run=2), Reason.WRONG_RUN),
        ("b", SettleMessage(2, 1, 0, used=True), Reason.WRONG_RUN),
        ("b", peer(spec=b"x" * 16), Reason.WRONG_SPEC),
        ("b", peer(off=1), Reason.BAD_CHUNK),
        ("b", peer(off=SLICE), Reason.BAD_CHUNK),
        ("b", peer(num=1, blob=bytes(4)), Reason.BAD_CHUNK),
        ("b", peer(blob=bytes(4)), Reason.WRONG_SIZE),
        ("b", peer(blob=np.array([1, np.nan], "f4").tobytes()), Reason.NOT_FINITE),
    ],
)
def test_an_invalid_peer_message_is_refused_with_its_reason(name, message, reason):
    with pytest.raises(Refused) as refused:
        gossip.receive(pair(), name, message, 0.0)
    assert refused.value.reason is reason


def test_a_higher_epoch_is_reported_and_a_lower_one_receives_the_present_epoch():
    assert gossip.receive(pair(), "b", peer(epoch=3, step=7), 0.0).notes == (NewerEpoch(3, 7),)
    older = replace(pair(size=SLICE + 2), epoch=5)
    ((name, slice_),) = gossip.receive(older, "b", peer(), 0.0).messages
    assert (name, slice_.epoch, slice_.step, slice_.off) == ("b", 5, 0, 0)
    assert gossip.receive(older, "b", peer(off=SLICE), 0.0).messages == (), "once for all slices"
    missed = gossip.tick(older, 2.0, random.random).exchange
    assert gossip.receive(missed, "b", peer(), 2.1).messages == (
        ("b", SettleMessage(1, 5, 0, used=False)),
    )


def test_an_epoch_notice_is_not_a_decision():
    """Two old messages are answered; the second answer comes when the first has been followed."""
    offered = {"theta": np.zeros(2, "f4")}
    ahead = replace(exchange("a", "b", strict=True), epoch=2)
    ahead = gossip.begin(ahead, 3, offered, 0.0).exchange
    answers = [gossip.receive(ahead, "b", peer(step=step), 0.0).messages[0][1] for step in (0, 1)]
    behind = gossip.begin(exchange("b", "a", strict=True), 1, offered, 0.0).exchange
    assert gossip.receive(behind, "a", answers[0], 0.1).notes == (NewerEpoch(2, 3),)
    joined = gossip.begin(replace(behind, epoch=2), 3, offered, 0.2)
    for _, message in joined.messages:
        ahead = gossip.receive(ahead, "b", message, 0.3).exchange
    behind = gossip.receive(joined.exchange, "a", answers[1], 0.3).exchange
    decided = gossip.tick(ahead, 0.4, random.random)
    for _, message in decided.messages:
        behind = gossip.receive(behind, "a", message, 0.5).exchange
    assert decided.exchange.used == ("b",)
    assert behind.used == ("a",), "both ends, or neither"
    told = gossip.receive(decided.exchange, "b", peer(step=1), 0.6).messages
    assert told == (("b", SettleMessage(1, 2, 3, used=True)),), "once decided, as it was decided"


def test_a_decision_outlives_the_process_and_is_never_made_anew():
    x = gossip.receive(pair(), "b", peer(), 0.1).exchange
    turn = gossip.tick(x, 0.1, random.random)
    (made,) = turn.decided
    assert made.used
    assert turn.messages == (("b", SettleMessage(1, 1, 0, used=True)),)
    again = gossip.resumed(pair(), {"b": made})
    assert again.is_over
    assert gossip.tick(again, 99.0, random.random).decided == ()
    assert gossip.vectors(again)["theta"].tolist() == [[1.0, 1.0]]
    refused = made._replace(used=False, last=-1)
    late = gossip.resumed(pair(), {"b": refused})
    assert gossip.receive(late, "b", peer(), 0.2).messages == (
        ("b", SettleMessage(1, 1, 0, used=False)),
    )


def test_an_old_question_is_answered_as_it_was_settled():
    x = gossip.tick(gossip.receive(pair(), "b", peer(), 0.1).exchange, 0.1, random.random).exchange
    for step in range(1, 9):
        x = gossip.begin(x, step, {"theta": np.full(2, step, "f4")}, step).exchange
        x = gossip.tick(x, step + 2.5, random.random).exchange
    assert set(x.offers) == {0, 8}, "what may still be asked for is kept, no more"
    told = gossip.receive(x, "b", peer(), 20.0).messages
    assert [type(m) for _, m in told] == [PeerMessage, SettleMessage]
    assert told[1][1].used
    assert gossip.receive(x, "b", peer(step=5), 20.0).messages == (
        ("b", SettleMessage(1, 1, 5, used=False)),
    )


def test_a_peer_behind_the_last_counted_exchange_has_lost_its_store():
    x = pair()
    for step in range(4):
        x = gossip.begin(x, step, {"theta": np.full(2, step, "f4")}, step).exchange
        x = gossip.receive(x, "b", peer(step=step), step).exchange
        x = gossip.tick(x, step, random.random).exchange
    (answer,) = gossip.receive(x, "b", peer(step=1), 9.0).messages
    assert answer == ("b", SettleMessage(1, 1, 3, used=True))
    waits = exchange("b", "a", strict=True)
    offered = {"theta": np.zeros(2, "f4")}
    for step in range(5):  # one that was there hears nothing new
        waits = gossip.begin(waits, step, offered, step).exchange
        turn = gossip.receive(waits, "a", answer[1], step)
        assert turn.notes == (
            (Lost("a", 3),) if step < 3 else (LinkDisagreement("a", 3),) * (step > 3)
        )
        assert (turn.exchange.links["a"].used is True) is (step == 3)


def test_giving_up_is_noted_by_the_end_that_had_decided():
    x = gossip.tick(gossip.receive(pair(), "b", peer(), 0.1).exchange, 0.1, random.random).exchange
    assert gossip.receive(x, "b", SettleMessage(1, 1, 0, used=False), 1.0).notes == (
        LinkDisagreement("b", 0),
    )


def test_nothing_is_decided_while_the_post_is_still_arriving():
    x = replace(gossip.receive(pair(), "b", peer(), 0.1).exchange, quiet=5.0)
    assert not gossip.tick(x, 4.9, random.random).decided
    assert gossip.tick(x, 5.0, random.random).decided


def test_slices_are_put_together_in_any_order():
    vector = np.arange(2 * SLICE + 3, dtype="f4")
    pieces = list(cut(vector))
    assert [(off, num) for off, num, _ in pieces] == [(0, 8192), (8192, 8192), (16384, 3)]
    slices = PeerChunks(len(vector))
    for off, num, blob in reversed(pieces):
        assert not slices.has(("theta",))
        slices = slices.with_(peer(off=off, num=num, blob=blob))
    assert (slices.vector("theta") == vector).all()
