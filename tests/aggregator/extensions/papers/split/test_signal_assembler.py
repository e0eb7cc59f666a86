"""What perishes at the aggregator's door: put together, judged, never answered, never kept."""

from __future__ import annotations

import gc
import random
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.extensions.papers.split.split_driver import SignalAssembler, SplitDriver
from aggregator.rounds.round_steps import RoundSteps
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.papers.split.array_rows import cut
from edge_sdk.protocol import codec, messages
from edge_sdk.protocol.contract.method import CONTRACTS, Due, Member, Play, Played, Task

SHAPE = (6, 2, 3)
ARRAY = np.arange(36, dtype=np.float32).reshape(SHAPE)


def door(wants=lambda _said, _shape: True):
    return SignalAssembler(CONTRACTS["pfgl"], wants)


def pieces(array=ARRAY, enc="f4", size=2, **said):
    """An activation in pieces of two rows."""
    whole = {"run": 1, "round": 2, "ask": "encode", "step": 3, "enc": enc, "shape": array.shape}
    kind = {"f4": "<f4", "f2": "<f2"}[enc]
    return [
        messages.SignalMessage(
            **whole | said, off=k, num=min(size, len(array) - k),
            blob=array[k : k + size].astype(kind).tobytes(),
        )
        for k in range(0, len(array), size)
    ]  # fmt: skip


def refused(signals, said, device="meter-1"):
    with pytest.raises(Refused) as found:
        signals.assemble(device, said)
    return found.value.reason


@given(st.permutations(range(3)), st.sampled_from(["f4", "f2"]))
def test_pieces_in_any_order_make_one_answer(order, enc):
    signals, said = door(), pieces(enc=enc)
    told = [signals.assemble("meter-1", said[k]) for k in order]
    assert told[:2] == [None, None]
    np.testing.assert_array_equal(told[2].array, ARRAY)
    assert (told[2].sender, told[2].round, told[2].ask, told[2].step) == ("meter-1", 2, "encode", 3)


def test_pieces_of_two_devices_or_turns_never_mix():
    signals = door()
    one, other = pieces(), pieces(ARRAY + 100)
    signals.assemble("meter-1", one[0])
    signals.assemble("meter-2", other[0])
    signals.assemble("meter-1", one[1])
    signals.assemble("meter-1", replace(other[2], step=4))  # a newer turn lets go of the older one
    assert signals.assemble("meter-1", one[2]) is None
    for piece in other[1:]:
        told = signals.assemble("meter-2", piece)
    np.testing.assert_array_equal(told.array, ARRAY + 100)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ask": "finish", "enc": "", "shape": ()}, Reason.UNKNOWN_KIND),
        ({"ask": "nothing", "enc": "", "shape": ()}, Reason.UNKNOWN_KIND),
        ({"vals": {"loss": 1.0}}, Reason.BAD_SCALAR),
        ({"ask": "decode", "vals": {"loss": -1.0}}, Reason.BAD_SCALAR),
        ({"ask": "decode", "vals": {"loss": float("inf")}}, Reason.BAD_SCALAR),
        ({"enc": "i4"}, Reason.WRONG_ENCODING),
    ],
)
def test_what_no_device_should_say_is_refused_by_name(change, reason):
    said = pieces()[0]
    if change.get("enc") == "":
        change |= {"off": 0, "num": 0, "blob": b""}
    assert refused(door(), replace(said, **change)) is reason


def test_ready_without_its_windows_is_refused():
    said = messages.SignalMessage(run=1, round=2, ask="ready", vals={"first": 1.0})
    assert refused(door(), said) is Reason.MALFORMED
    whole = replace(said, vals={"first": 1.0, "last": 9.0})
    assert door().assemble("meter-1", whole).values == {"first": 1.0, "last": 9.0}


def test_what_is_not_wanted_takes_no_memory():
    signals = door(lambda _said, _shape: False)
    assert refused(signals, pieces()[0]) is Reason.LATE
    assert not signals._sheets


def test_a_scalar_that_is_not_finite_lets_go_of_the_whole_array():
    signals = door()
    bad = ARRAY.copy()
    bad[5] = np.nan
    first, _, last = pieces(bad)
    signals.assemble("meter-1", first)
    assert refused(signals, last) is Reason.BAD_TENSOR
    assert not signals._sheets


def test_a_device_that_only_begins_holds_one_array_for_each_question():
    signals = door(lambda said, _shape: said.ask in ("encode", "decode", "serve"))
    for step in range(500):
        for ask in ("encode", "decode", "serve"):
            signals.assemble("meter-1", replace(pieces()[0], ask=ask, step=step))
    assert len(signals._sheets) == 3


@settings(max_examples=60)
@given(st.randoms(use_true_random=False))
def test_mutated_signals_are_taken_or_refused_and_nothing_is_kept(rng):
    signals = door(lambda said, shape: said.ask == "encode" and shape == SHAPE)
    for piece in pieces():
        raw = bytearray(codec.encode(piece))
        for _ in range(rng.choice((0, 1, 2, 5))):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        try:
            told = signals.assemble("meter-1", codec.decode(messages.SignalMessage, bytes(raw)))
        except Refused:
            continue
        assert told is None or np.isfinite(told.array).all()
    assert len(signals._sheets) <= 1


def test_a_flood_leaves_no_memory_behind():
    signals, rng = door(lambda _said, shape: shape == SHAPE), random.Random(1)
    said = pieces()

    def flood(count):
        for k in range(count):
            piece = rng.choice(said)
            signals.assemble(f"meter-{k % 5}", replace(piece, step=rng.randrange(1000)))

    flood(200)
    tracemalloc.start()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    flood(2000)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 50_000


class Clock:
    now = 0.0

    def monotonic(self):
        return self.now


class State:
    round, attempt, settled, is_open, slots = 1, 0, 0, True, {}


def stage(effects):
    """A stage whose play answers everything with these effects."""
    machine = Play(
        lambda _state, _before: object(),
        lambda act, event: (act, tuple(effects(event))),
        lambda _act, _said, _shape: True,
        lambda act, _state: act,
    )
    return SplitDriver(machine, CONTRACTS["pfgl"], 7, bytes(16), Clock())


def test_words_are_numbered_for_each_device_and_cut_into_pieces():
    z = np.zeros((6, 64, 32), np.float32)
    made = stage(lambda _event: [Task("a", 1, "decode", arrays={"z": z}), Task("b", 1, "ready")])
    words = made.follow(State())
    assert [(name, m.vals["order"], m.off, m.num) for name, m in words] == [
        ("a", 1.0, 0, 4), ("a", 1.0, 4, 2), ("b", 1.0, 0, 0),
    ]  # fmt: skip
    again = made.receive(Member("a", present=True))
    assert {m.vals["order"] for _, m in again} == {2.0}


def test_a_task_with_a_scalar_that_is_not_finite_is_not_said():
    z = np.full((1, 1, 1), np.inf)
    made = stage(lambda _event: [Task("a", 1, "decode", arrays={"z": z})])
    assert made.follow(State()) == ()
    assert made.unsent == 1


def test_one_wake_up_for_the_round_and_one_for_what_is_served():
    heard = []

    def effects(event):
        heard.append(event)
        if isinstance(event, Due) and event.ask == "begin":
            return [Due(1, "encode", 0, 2.0), Due(0, "serve", 0, 1.0), Due(1, "encode", 1, 3.0)]
        return [Played(1, 0)] if isinstance(event, Due) else []

    made = stage(effects)
    made.follow(State())
    assert made.next_due == 1.0
    made.clock.now = 2.5
    made.wake()
    assert [(e.ask, e.step) for e in heard] == [("begin", 0), ("serve", 0)]
    made.clock.now = 3.5
    made.wake()
    assert (heard[-1].ask, heard[-1].step) == ("encode", 1)
    assert made.result == Played(1, 0)
    assert made.next_due is None


def test_where_rounds_have_no_turns_nothing_happens():
    made = RoundSteps()
    assert made.follow(State()) == made.wake() == made.receive(Member("a", present=True)) == ()
    with pytest.raises(Refused, match="UNKNOWN_KIND"):
        made.signals.assemble("a", pieces()[0])
    assert list(cut(np.zeros((1, 1)), "f4"))
