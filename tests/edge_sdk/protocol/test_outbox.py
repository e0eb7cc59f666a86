"""The uplink's rules one by one, then all of them against a network that does its worst."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.errors import Reason
from edge_sdk.protocol import messages as m
from edge_sdk.protocol import outbox
from edge_sdk.protocol.codec import encode
from edge_sdk.protocol.envelope import digest, ref
from edge_sdk.protocol.outbox import Outbox
from edge_sdk.protocol.outbox_state import (
    EntrySettled,
    OutboxEntry,
    RetryPolicy,
    SendChunk,
    SendWhole,
    StepInputs,
    UplinkCounters,
)


def chance(now: float = 0.0, nonce: int = 1) -> StepInputs:
    return StepInputs(lambda: 1.0, lambda: nonce.to_bytes(16, "big"), now)


def entry(life: int = 1, seq: int = 1, size: int = 100, attempts: int = 0) -> OutboxEntry:
    body = (b"%d/%d " % (life, seq)).ljust(size, b".")
    return OutboxEntry(life, seq, body, b"p" * 72, 1, seq, 0, b"s" * 16, seq, attempts=attempts)


def welcome(up: Outbox, *, inline: int = 1000, hold: int = 2, spent: int = 0) -> m.WelcomeMessage:
    return m.WelcomeMessage(
        hello=up.hello.ref,
        life=up.numbers.life,
        spent=spent,
        time=0,
        wire=1,
        caps=(),
        run=1,
        inline=inline,
        window=4,
        quota=0,
        hold=hold,
        cmd=0,
    )


def ready(*entries: OutboxEntry, **options) -> Outbox:
    up = outbox.linked(Outbox(entries=entries), chance(), max_payload=65536, conn=1).outbox
    return outbox.receive(up, welcome(up, **options), chance()).outbox


def receipt(of: OutboxEntry, code: int = 0) -> m.ReceiptMessage:
    return m.ReceiptMessage(of.life, of.seq, of.id, code, 1, of.round)


def test_a_first_attempt_that_fits_is_sent_whole_and_later_ones_are_offered():
    up = ready()
    turn = outbox.release(up, entry(), chance())
    assert [type(s) for s in turn.messages] == [SendWhole]
    later = outbox.tick(turn.outbox, chance(now=11.0))
    assert [type(s) for s in later.messages] == [m.OfferMessage]
    assert later.outbox.entries[0].attempts == 2


def test_a_body_above_the_inline_limit_is_offered():
    up = ready(inline=99)
    assert [type(s) for s in outbox.release(up, entry(size=100), chance()).messages] == [
        m.OfferMessage
    ]


def test_no_entry_is_sent_before_the_welcome():
    up = outbox.linked(Outbox(entries=(entry(),)), chance(), max_payload=65536, conn=1)
    assert [type(s) for s in up.messages] == [m.HelloMessage]
    assert not up.outbox.may_release
    assert [type(s) for s in outbox.tick(up.outbox, chance(now=99.0)).messages] == [m.HelloMessage]


def test_the_hello_is_repeated_byte_for_byte():
    first = outbox.linked(Outbox(), chance(nonce=1), max_payload=65536, conn=1)
    again = outbox.tick(first.outbox, chance(now=20.0, nonce=2))
    assert encode(first.messages[0]) == encode(again.messages[0])


def test_a_second_welcome_does_not_reset_the_numbers():
    up = outbox.linked(Outbox(), chance(), max_payload=65536, conn=1).outbox
    told = welcome(up)
    up = outbox.receive(up, told, chance()).outbox
    up = outbox.release(up, entry(seq=1), chance()).outbox
    assert outbox.receive(up, told, chance()).outbox.numbers.seq == 1


def test_a_floor_is_answered_with_a_larger_life_and_a_new_nonce():
    up = outbox.linked(Outbox(), chance(nonce=1), max_payload=65536, conn=1).outbox
    turn = outbox.receive(up, m.FloorMessage(up.hello.ref, 41), chance(nonce=2))
    assert (turn.messages[0].life, turn.messages[0].nonce[-1]) == (42, 2)
    assert outbox.receive(up, m.FloorMessage(b"x" * 16, 41), chance()).outbox == up


def test_the_ledger_is_the_larger_of_both_counts():
    up = outbox.linked(
        Outbox(numbers=UplinkCounters(spent=5)), chance(), max_payload=65536, conn=1
    ).outbox
    assert outbox.receive(up, welcome(up, spent=9), chance()).outbox.numbers.spent == 9
    assert outbox.receive(up, welcome(up, spent=3), chance()).outbox.numbers.spent == 5


@pytest.mark.parametrize("code", [0, 22, 24, 99])
def test_any_receipt_that_matches_is_final(code):
    up = outbox.release(ready(), entry(), chance()).outbox
    turn = outbox.receive(up, receipt(entry(), code), chance())
    assert turn.outbox.entries == ()
    assert turn.notes == (EntrySettled(replace(entry(), attempts=1), code),)


def test_a_receipt_for_other_bytes_settles_nothing():
    up = outbox.release(ready(), entry(), chance()).outbox
    forged = replace(receipt(entry()), ref=b"x" * 16)
    assert outbox.receive(up, forged, chance()).outbox.entries != ()


@pytest.mark.parametrize("code", [Reason.FORK, Reason.CLOSED])
def test_a_fork_or_a_closed_present_life_starts_a_new_one(code):
    up = outbox.release(ready(), entry(), chance()).outbox
    turn = outbox.receive(up, receipt(entry(), code), chance(nonce=2))
    assert [s.life for s in turn.messages] == [2]
    assert not turn.outbox.may_release


def test_a_closed_older_life_is_only_dropped():
    old = entry(life=1, seq=9, attempts=3)
    up = ready(old)
    up = replace(up, numbers=replace(up.numbers, life=2))
    turn = outbox.receive(up, receipt(old, Reason.CLOSED), chance())
    assert turn.outbox.hello is None


def test_no_more_than_hold_may_wait():
    up = outbox.release(ready(hold=2), entry(seq=1), chance()).outbox
    assert up.may_release
    assert not outbox.release(up, entry(seq=2), chance()).outbox.may_release


def test_a_refusal_makes_the_entry_wait_and_lets_the_other_one_go():
    up = ready(inline=0)
    up = outbox.release(up, entry(seq=1), chance()).outbox
    up = outbox.release(up, entry(seq=2), chance()).outbox
    assert up.transfer.key == (1, 1)  # one transfer at a time
    busy = m.RefusalMessage(code=Reason.BUSY, wait=60_000, id=entry(seq=1).id)
    up = outbox.receive(up, busy, chance()).outbox
    turn = outbox.tick(up, chance(now=1.0))
    assert [s.seq for s in turn.messages] == [2]
    assert outbox.tick(turn.outbox, chance(now=59.0)).outbox.entry((1, 1)).attempts == 1


def test_a_refused_offer_may_be_named_by_its_own_digest():
    turn = outbox.release(ready(inline=0), entry(), chance())
    named = m.RefusalMessage(
        code=Reason.BUSY, wait=60_000, ref=ref(digest(encode(turn.messages[0])))
    )
    up = outbox.receive(turn.outbox, named, chance()).outbox
    assert outbox.next_due(up) == 60.0


@pytest.mark.parametrize("code", range(1, 7))
def test_blame_for_malformed_messages_changes_nothing(code):
    up = outbox.release(ready(), entry(), chance()).outbox
    assert (
        outbox.receive(up, m.RefusalMessage(code=code, wait=9, id=entry().id), chance()).outbox
        == up
    )


def test_two_lives_stops_this_process():
    up = ready()
    up = outbox.receive(up, m.RefusalMessage(code=Reason.TWO_LIVES, wait=0), chance()).outbox
    assert not up.may_release
    assert outbox.tick(up, chance(now=1e6)).messages == ()


def test_the_refusal_say_hello_starts_a_new_life_once():
    refusal = m.RefusalMessage(code=Reason.SAY_HELLO, wait=0, id=entry().id)
    turn = outbox.receive(ready(), refusal, chance(nonce=2))
    assert [s.life for s in turn.messages] == [2]
    assert outbox.receive(turn.outbox, refusal, chance(nonce=3)).outbox.numbers.life == 2


def sending(size: int = 5 * 8192) -> tuple[Outbox, OutboxEntry]:
    up = replace(ready(inline=0), chunk=8192)
    up = outbox.release(up, entry(size=size), chance()).outbox
    return up, up.entries[0]


def grant(of: OutboxEntry, have: bytes = b"", win: int = 2) -> m.GrantMessage:
    return m.GrantMessage(of.id, have, win, 60_000)


def sent(turn: outbox.OutboxStep) -> list[int]:
    return [say.chunk.i for say in turn.messages if isinstance(say, SendChunk)]


def test_only_missing_chunks_go_and_no_more_than_the_window():
    up, of = sending()
    first = outbox.receive(up, grant(of, win=2), chance())
    assert sent(first) == [0, 1]
    second = outbox.receive(first.outbox, grant(of, have=b"\x01", win=2), chance())
    assert sent(second) == [2]  # 1 is still flying


def test_a_chunk_overtaken_by_a_later_one_is_sent_again():
    up, of = sending()
    turn = outbox.receive(up, grant(of, win=3), chance())
    assert sent(turn) == [0, 1, 2]
    assert sent(outbox.receive(turn.outbox, grant(of, have=b"\x04", win=3), chance())) == [0, 1, 3]


def test_a_report_without_news_brings_everything_again():
    up, of = sending()
    turn = outbox.receive(up, grant(of, win=2), chance())
    assert sent(outbox.receive(turn.outbox, m.HaveMessage(of.id, b"", 1), chance(now=1.0))) == [0]


@pytest.mark.parametrize("again", ["have", "grant"])
def test_a_report_that_crossed_with_the_chunks_brings_nothing_again(again):
    up, of = sending()
    turn = outbox.receive(up, grant(of, win=2), chance())
    word = m.HaveMessage(of.id, b"", 1) if again == "have" else grant(of, win=2)
    assert sent(outbox.receive(turn.outbox, word, chance(now=0.9))) == []


def ahead(chunks: int, *, size: int = 80_000) -> tuple[Outbox, OutboxEntry]:
    return replace(ready(), ahead=chunks), entry(size=size)


def test_all_chunks_follow_the_first_offer_where_they_are_granted_ahead():
    up, of = ahead(3)
    turn = outbox.release(up, of, chance())
    assert turn.messages[0].ahead == 3
    assert sent(turn) == [0, 1, 2]
    assert b"".join(say.chunk.blob for say in turn.messages[1:]) == of.body
    assert sent(outbox.receive(turn.outbox, m.HaveMessage(of.id, b"\x04", 8), chance())) == [0, 1]


@pytest.mark.parametrize(
    ("single", "payload", "is_single"),
    [
        (80_000, 80_512, True),
        (79_999, 80_512, False),  # larger than the manifest allows
        (80_000, 80_511, False),  # larger than the link carries with its envelope
        (0, 262_656, False),
    ],
)
def test_an_update_goes_in_one_message_where_manifest_and_link_allow_it(single, payload, is_single):
    up = outbox.linked(ready(), chance(), max_payload=payload, conn=2).outbox
    turn = outbox.release(replace(up, single=single, ahead=8), entry(size=80_000), chance())
    assert [type(say) for say in turn.messages[:1]] == [SendWhole if is_single else m.OfferMessage]
    assert len(turn.messages) == (1 if is_single else 4)


def test_an_update_goes_in_one_message_once():
    up = outbox.linked(ready(), chance(), max_payload=262_656, conn=2).outbox
    turn = outbox.release(replace(up, single=262_144), entry(size=80_000), chance())
    assert [type(say) for say in turn.messages] == [SendWhole]
    again = outbox.linked(turn.outbox, chance(), max_payload=262_656, conn=3)
    assert [type(say) for say in again.messages] == [m.OfferMessage]


def test_a_later_attempt_waits_for_its_grant():
    up, of = ahead(8)
    turn = outbox.release(up, of, chance())
    assert outbox.tick(turn.outbox, chance(now=9.9)).messages == ()
    again = outbox.tick(turn.outbox, chance(now=10.0))
    assert [(type(s), s.ahead) for s in again.messages] == [(m.OfferMessage, None)]
    restarted = ready(replace(of, attempts=1))
    offers = outbox.tick(replace(restarted, ahead=8, due=()), chance(now=99.0)).messages
    assert [(type(s), s.ahead) for s in offers] == [(m.OfferMessage, None)]


def test_a_body_of_more_chunks_than_were_granted_ahead_is_only_offered():
    up, of = ahead(2)
    assert [s.ahead for s in outbox.release(up, of, chance()).messages] == [None]


def test_a_grant_after_chunks_ahead_means_that_none_was_taken():
    up, of = ahead(3)
    turn = outbox.release(up, of, chance())
    assert sent(outbox.receive(turn.outbox, grant(of, win=8), chance(now=0.1))) == [0, 1, 2]


def test_after_a_silence_it_asks_again():
    up, of = sending()
    up = outbox.receive(up, grant(of), chance(now=5.0)).outbox
    assert outbox.tick(up, chance(now=14.9)).messages == ()
    assert [type(s) for s in outbox.tick(up, chance(now=15.0)).messages] == [m.OfferMessage]


def test_a_link_too_narrow_for_chunks_stops_uploads_with_a_reason():
    up = outbox.linked(Outbox(), chance(), max_payload=8000, conn=1).outbox
    assert up.stopped == Reason.UNUSABLE_LINK
    wider = outbox.linked(up, chance(), max_payload=65536, conn=2).outbox
    assert wider.stopped is None


@given(attempts=st.integers(1, 200), draw=st.floats(0, 1))
def test_waits_never_exceed_the_doubling_step(attempts, draw):
    wait = RetryPolicy(10.0, 900.0).wait(attempts, draw)
    assert 0 < wait <= min(900.0, 10.0 * 2.0 ** min(attempts - 1, 20))


# --- everything at once ---------------------------------------------------------------------------


class World:
    """One device, one aggregator by the rules A1 to A4, and a network that keeps no promise."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.up = Outbox()
        self.disk = (UplinkCounters(), ())
        self.now = 0.0
        self.bag: list[tuple[str, object]] = []
        self.old: list[object] = []
        self.current, self.hello, self.open = 0, (0, b"", ()), frozenset()
        self.admissible: frozenset = frozenset()
        self.rows: dict[tuple[int, int], bytes] = {}
        self.applied: list[tuple[int, int]] = []
        self.bodies: dict[tuple[int, int], bytes] = {}
        self.accepted: set[tuple[int, int]] = set()
        self.releases = 0
        self.sets: dict[bytes, dict[int, bytes]] = {}
        self.ahead = seed % 2 * 4

    def chance(self) -> StepInputs:
        return StepInputs(self.rng.random, lambda: self.rng.randbytes(16), self.now)

    def follow(self, turn: outbox.OutboxStep) -> None:
        """Save, then say; a crash may come between."""
        if self.rng.random() < 0.03:
            return self.crash()
        self.disk = (turn.outbox.numbers, turn.outbox.entries)
        if self.rng.random() < 0.03:
            return self.crash()
        self.up = turn.outbox
        for note in turn.notes:
            if isinstance(note, EntrySettled):
                assert note.code == 0, f"a live entry was refused: {note.code}"
                self.accepted.add(note.entry.key)
        for say in turn.messages:
            self.bag.append(("agg", say))
            self.old.append(say)
        return None

    def crash(self) -> None:
        numbers, entries = self.disk
        self.up = Outbox(numbers=numbers, entries=entries)

    def link(self) -> None:
        self.follow(outbox.linked(self.up, self.chance(), max_payload=8704, conn=1))
        self.up = replace(self.up, ahead=self.ahead)

    def release(self) -> None:
        if not self.up.may_release:
            return None
        numbers = self.up.numbers
        self.releases += 1
        size = 50 if self.rng.random() < 0.5 else 20_000
        body = self.rng.randbytes(16).ljust(size, b".")
        made = OutboxEntry(
            numbers.life, numbers.seq + 1, body, b"p" * 72, 1, 0, 0, b"s" * 16, numbers.spent + 1
        )
        before = self.bodies.setdefault(made.key, body)
        assert before == body or made.key not in {e.key for e in self.disk[1]}
        after = replace(numbers, seq=made.seq, spent=made.spent)
        self.disk = (after, (*self.up.entries, made))
        if self.rng.random() < 0.1:
            return self.crash()
        return self.follow(outbox.release(self.up, made, self.chance()))

    def deliver(self) -> None:
        if not self.bag:
            return
        at = self.rng.randrange(len(self.bag))
        to, message = self.bag[at] if self.rng.random() < 0.15 else self.bag.pop(at)
        if to == "agg":
            self.bag += [("dev", answer) for answer in self.aggregator(message)]
        elif self.up.is_linked:
            self.follow(outbox.receive(self.up, message, self.chance()))

    def aggregator(self, message) -> Iterator[object]:
        if isinstance(message, m.HelloMessage):
            yield self.greet(message)
            return
        update = message.entry if isinstance(message, SendWhole) else message
        update = message.chunk if isinstance(message, SendChunk) else update
        key = (update.life, update.seq)
        if key[0] == self.hello[0] != self.current:
            allowed = frozenset(k for k in self.hello[2] if k in self.open or k[0] >= self.current)
            self.open, self.current = allowed, key[0]
        name = update.digest[:16] if isinstance(update, m.OfferMessage) else update.id
        if key in self.rows:
            code = 0 if self.rows[key] == name else 21
            yield m.ReceiptMessage(*key, name, code, 1, 0)
        elif key[0] > self.hello[0]:
            yield m.RefusalMessage(code=Reason.SAY_HELLO, wait=0, id=name)
        elif key[0] < self.current and key not in self.open:
            yield m.ReceiptMessage(*key, name, int(Reason.CLOSED), 0, 0)
        else:
            yield from self.take(message, key, name)

    def greet(self, hello: m.HelloMessage) -> object:
        which = ref(digest(encode(hello)))
        if which != self.hello[1]:
            top = max(self.current, self.hello[0])
            if hello.life <= top:
                return m.FloorMessage(which, top)
            self.hello = (hello.life, which, hello.open)
        return m.WelcomeMessage(which, hello.life, hello.spent, 0, 1, (), 1, 1000, 4, 0, 2, 0)

    def take(self, message, key, name) -> Iterator[object]:
        if isinstance(message, SendWhole):
            yield self.commit(key, name, message.entry.body)
        elif isinstance(message, m.OfferMessage):
            if message.ahead and self.rng.random() < 0.7:
                self.sets.setdefault(name, {})  # the chunks follow; otherwise they are dropped
                return
            self.sets.setdefault(name, {})
            yield self.report(name, -(-message.size // message.chunk))
        elif name in self.sets:
            have = self.sets[name]
            have[message.chunk.i] = message.chunk.blob
            whole = b"".join(have[i] for i in sorted(have))
            if digest(whole)[:16] == name:
                yield self.commit(key, name, whole)

    def report(self, name: bytes, count: int) -> m.GrantMessage:
        have = self.sets[name]
        bits = sum(1 << i for i in have).to_bytes(-(-count // 8), "little") if have else b""
        return m.GrantMessage(name, bits, 4, 60_000)

    def commit(self, key, name, body) -> m.ReceiptMessage:
        assert digest(body)[:16] == name
        assert key not in self.applied, "applied twice"
        self.rows[key] = name
        self.applied.append(key)
        return m.ReceiptMessage(*key, name, 0, 1, 0)

    def step(self) -> None:
        self.now += self.rng.random() * 20
        act = self.rng.choices(
            ["tick", "release", "deliver", "drop", "replay", "cut", "forget"],
            [4, 2, 10, 1, 1, 0.5, 0.3],
        )[0]
        if act == "tick":
            self.follow(outbox.tick(self.up, self.chance()))
        elif act == "release":
            self.release()
        elif act == "deliver":
            self.deliver()
        elif act == "drop" and self.bag:
            self.bag.pop(self.rng.randrange(len(self.bag)))
        elif act == "replay" and self.old:
            self.bag.append(("agg", self.rng.choice(self.old)))
        elif act == "cut":
            self.up = outbox.unlinked(self.up)
        elif act == "forget":
            self.sets.clear()
        if not self.up.is_linked:
            self.link()

    def settle(self) -> None:
        """The faults stop: the outbox must empty."""
        self.rng.random, self.old = (lambda: 0.5), []
        for _ in range(400):
            self.now += 1000.0
            if not self.up.is_linked:
                self.link()
            self.follow(outbox.tick(self.up, self.chance()))
            for _ in range(50):
                if self.bag:
                    to, message = self.bag.pop(0)
                    if to == "agg":
                        self.bag += [("dev", answer) for answer in self.aggregator(message)]
                    else:
                        self.follow(outbox.receive(self.up, message, self.chance()))
            if self.up.is_ready and not self.up.entries:
                return
        raise AssertionError("the outbox never empties")


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_whatever_the_network_does_every_release_counts_once(seed):
    world = World(seed)
    world.link()
    for _ in range(250):
        world.step()
    world.settle()
    assert world.accepted <= set(world.applied), "a receipted update is not in the ledger"
    assert len(set(world.applied)) == len(world.applied)
    assert world.up.numbers.spent >= len(world.applied)
    owed = {e.key for e in world.disk[1]}
    assert owed == set()
