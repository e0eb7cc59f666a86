"""FedAsync and FedBuff: worked numbers, faults, and both real halves on a clock of events."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.methods import METHODS as SERVERS
from aggregator.methods import OPEN, Rounds, Setup
from aggregator.methods.asynchronous import Buffered
from aggregator.rules import bind
from aggregator.store import state_codec
from edge_sdk.app.schema import SchemaError
from edge_sdk.protocol.contract.method import (
    CONTRACTS,
    Closed,
    Due,
    Member,
    Task,
    Up,
    Update,
    answered,
)
from tests.pairs.line import device


def server(method, rounds, rule="mean", parameters=None, **settings):
    row = SERVERS[method]
    return row.half(Setup(bind(rule, **(parameters or {})), row.settings(**settings), rounds))


def fedasync(**settings):
    return server("fedasync", Rounds(quorum=1), **settings)


def fedbuff(quorum, least=None, rule="mean", parameters=None, **settings):
    rounds = Rounds(quorum=quorum, least=least, deadline=60.0)
    return server("fedbuff", rounds, rule, parameters, **settings)


def at(version, w, **more):
    """A run under way: so many versions in, this model."""
    return Buffered(version + 1, version, True, np.atleast_1d(np.float64(w)), **more)


def update(sender, base, vector, *, turn=None, **values):
    vector = np.atleast_1d(np.asarray(vector, np.float64))
    return Update(sender, base + 1 if turn is None else turn, base, vector, values)


def feed(half, state, *events):
    effects = ()
    for event in events:
        state, more = half.apply(state, event)
        effects += more
    return state, effects


def tasks(effects):
    return {effect.to: effect for effect in effects if isinstance(effect, Task)}


class TestNumbers:
    """As calculated by hand in the specification."""

    def test_a_stale_update_is_mixed_with_half_of_alpha(self):
        half = fedasync(alpha=0.6, discount="polynomial", power=0.5)
        state, (closed, *_) = half.apply(at(3, 1.0), update("m", 0, 3.0))
        assert state.w == pytest.approx([1.6], rel=1e-12)
        assert closed.report["staleness"] == {"m": 3}
        assert closed.report["weights"] == {"m": pytest.approx(0.3)}

    def test_a_buffer_of_two_divides_by_its_size(self):
        half = fedbuff(2)
        state, _ = feed(half, at(3, 0.0), update("a", 3, -2.0), update("b", 0, -1.0))
        assert state.w == pytest.approx([1.25], rel=1e-12)

    def test_the_hinge_discount_is_applied(self):
        half = fedasync(alpha=1.0, discount="hinge", slope=10.0, grace=4)
        state, _ = half.apply(at(7, 0.0), update("m", 0, 31.0))
        assert state.w == pytest.approx([1.0], rel=1e-12)

    def test_one_undiscounted_device_determines_the_model(self):
        half = fedasync(alpha=1.0, discount="constant")
        theirs = np.array([0.1, -7.3, 1e-9])
        state, _ = half.apply(at(5, [1.0, 2.0, 3.0]), update("m", 0, theirs))
        assert state.w.tobytes() == theirs.tobytes()

    def test_fresh_updates_of_all_devices_equal_federated_averaging(self):
        names, rng = ["a", "b", "c", "d"], np.random.default_rng(4)
        buff, avg = fedbuff(4), server("fedavg", Rounds(quorum=4))
        start = rng.normal(size=7).astype(np.float32)
        one, _ = feed(buff, buff.init(start), OPEN)
        two, _ = feed(avg, avg.init(start), OPEN)
        for version in range(3):
            vectors = {name: rng.normal(size=7) for name in names}
            said = [update(name, version, vectors[name]) for name in names]
            one, _ = feed(buff, one, *said)
            two, _ = feed(avg, two, *said)
        assert one.version == two.version == 3
        assert one.w.tobytes() == two.w.tobytes()


class TestBuffer:
    """What may go in, what it does there, and when it goes off."""

    @given(order=st.permutations(range(5)))
    def test_the_order_of_arrival_does_not_change_the_model(self, order):
        half = fedbuff(5)
        said = [update(f"m{i}", i, [1e-8 * i, 1e8 / (i + 1)]) for i in range(5)]
        straight, _ = feed(half, at(4, [0.0, 0.0]), *said)
        turned, _ = feed(half, at(4, [0.0, 0.0]), *(said[i] for i in order))
        assert straight.w.tobytes() == turned.w.tobytes()

    def test_the_newest_update_of_a_device_counts_once(self):
        half = fedbuff(2)
        state, _ = feed(half, at(3, 0.0), update("a", 0, -100.0), update("a", 3, -2.0))
        assert state.waiting == 1
        state, _ = half.apply(state, update("b", 0, -1.0))
        assert state.w == pytest.approx([1.25], rel=1e-12)

    def test_a_used_or_older_update_changes_nothing(self):
        half = fedbuff(2)
        state, _ = feed(half, at(3, 0.0), update("a", 3, -2.0), update("b", 0, -1.0))
        for replayed in (update("a", 3, -2.0), update("a", 0, -9.0), update("b", 0, -1.0)):
            assert half.apply(state, replayed) == (state, ())

    @pytest.mark.parametrize(
        "wrong",
        [
            update("a", 21, -1.0),
            update("a", 20, -1.0, turn=22),
            update("a", 3, -1.0),
            update("a", 20, [-1.0, 2.0]),
        ],
        ids=["from the future", "of a later round", "too stale", "of another size"],
    )
    @pytest.mark.parametrize("half", [fedasync(), fedbuff(1)], ids=["fedasync", "fedbuff"])
    def test_a_message_of_another_run_changes_nothing(self, half, wrong):
        state = at(20, 0.0)
        assert half.apply(state, wrong) == (state, ())

    @pytest.mark.parametrize("half", [fedasync(), fedbuff(1)], ids=["fedasync", "fedbuff"])
    def test_an_update_sixteen_versions_behind_counts(self, half):
        state, effects = half.apply(at(20, 0.0), update("a", 4, -1.0))
        assert state.version == 21
        assert tasks(effects).keys() == {"a"}

    def test_the_deadline_closes_a_sufficient_round_or_is_extended(self):
        half = fedbuff(4, least=2)
        state, _ = half.apply(at(0, 0.0), update("a", 0, -2.0))
        after, (due,) = half.apply(state, Due(1, "train"))
        assert after is state
        assert due == Due(1, "train", 1, 60.0)
        state, _ = half.apply(state, update("b", 0, -4.0))
        state, effects = half.apply(state, due)
        assert state.w == pytest.approx([3.0])
        assert tasks(effects).keys() == {"a", "b"}
        assert half.apply(state, due) == (state, ())

    def test_a_robust_rule_withstands_a_byzantine_update_in_the_buffer(self):
        wild = update("x", 0, 1e30)
        said = [update(f"m{i}", 0, -1.0 - 0.1 * i) for i in range(4)]
        half = fedbuff(5, rule="median")
        one, _ = feed(half, at(0, 0.0), *said, wild)
        two, _ = feed(half, at(0, 0.0), *said, update("x", 0, 1e3))
        assert one.w.tobytes() == two.w.tobytes()
        assert 1.0 <= one.w[0] <= 1.3

    def test_a_non_finite_step_is_dropped_and_its_devices_get_new_tasks(self):
        state, effects = feed(
            fedbuff(2, server_rate=10.0), at(0, 0.0), update("a", 0, 3e38), update("b", 0, 3e38)
        )
        closed = next(e for e in effects if isinstance(e, Closed))
        assert (closed.moved, closed.version, state.w.tolist()) == (False, 0, [0.0])
        assert tasks(effects).keys() == {"a", "b"}
        assert tasks(effects)["a"].round == 2


class TestAsking:
    """Who is told what, and when."""

    def test_a_device_present_before_the_start_gets_a_task_at_the_start(self):
        half = fedbuff(2)
        state = half.init(np.zeros(1, np.float32))
        state, effects = feed(half, state, Member("b", True), Member("a", True))
        assert effects == ()
        state, effects = half.apply(state, OPEN)
        assert [effect.to for effect in effects if isinstance(effect, Task)] == ["a", "b"]
        assert tasks(effects)["a"].base == 0

    def test_a_later_device_gets_a_task_unless_its_update_is_pending(self):
        half = fedbuff(2)
        state, _ = half.apply(at(3, 0.0), update("a", 3, -2.0))
        assert half.apply(state, Member("a", True)) == (state, ())
        after, (asked,) = half.apply(state, Member("c", True))
        assert after is state
        assert (asked.to, asked.round, asked.base) == ("c", 4, 3)
        assert half.apply(state, Member("c", False)) == (state, ())

    def test_after_the_last_round_no_task_is_sent(self):
        half = server("fedasync", Rounds(quorum=1, limit=4))
        state, effects = half.apply(at(3, 0.0), update("a", 3, 1.0))
        assert [type(effect) for effect in effects] == [Closed]
        assert effects[0].report["stop"] is True
        assert not state.is_open
        assert half.apply(state, Member("a", True)) == (state, ())
        assert half.apply(state, update("b", 3, 1.0)) == (state, ())

    @pytest.mark.parametrize("method", ["fedasync", "fedbuff"])
    def test_tasks_carry_the_numbers_of_the_contract(self, method):
        half = server(method, Rounds(quorum=1))
        _, (asked,) = half.apply(at(0, 0.0), Member("a", True))
        name, ask = answered(CONTRACTS[method])
        numbers = {number.name: number for number in ask.numbers}
        assert asked.ask == name
        assert asked.values.keys() <= numbers.keys()
        assert all(numbers[key].admits(value) for key, value in asked.values.items())
        assert (ask.personal, ask.patient) == (True, True)
        assert ask.up is (Up.WEIGHTS if method == "fedasync" else Up.DELTA)

    def test_a_buffer_too_small_for_f_is_refused(self):
        with pytest.raises(SchemaError, match=r"run\.quorum: expected at least 5 for f = 1, got 4"):
            fedbuff(4, rule="trimmed_mean", parameters={"f": 1})
        fedbuff(5, rule="trimmed_mean", parameters={"f": 1})

    def test_fedasync_refuses_a_quorum_other_than_one(self):
        with pytest.raises(SchemaError, match=r"run\.quorum: expected 1"):
            server("fedasync", Rounds(quorum=2))

    @given(data=st.data())
    @pytest.mark.parametrize("method", ["fedasync", "fedbuff"])
    def test_versions_never_decrease(self, method, data):
        half = server(method, Rounds(quorum=1 if method == "fedasync" else 3, least=1))
        state, seen = half.init(np.zeros(1, np.float32)), {}
        names = st.sampled_from("abcd")
        events = st.one_of(
            st.builds(Member, names, st.booleans()),
            st.just(OPEN),
            st.builds(Due, st.integers(0, 9), st.just("train"), st.integers(0, 3)),
            st.builds(update, names, st.integers(0, 9), st.floats(-5, 5), turn=st.integers(0, 9)),
        )
        for event in data.draw(st.lists(events, max_size=40)):
            before = state
            state, effects = half.apply(state, event)
            assert state.version >= before.version
            assert state.round >= before.round
            for name, asked in tasks(effects).items():
                assert (asked.round, asked.base) >= seen.get(name, (0, 0))
                seen[name] = (asked.round, asked.base)


class Clock:
    """Both halves, and events in order of (time, client): who takes how long answers when."""

    def __init__(self, method, latency, rounds, **settings):
        self.half, self.latency = server(method, rounds, **settings), latency
        self.devices = {name: device(method, name, 1.0 + 2 * n) for n, name in enumerate(latency)}
        whole = np.zeros(2, np.float32)
        self.states = {name: half.init(whole) for name, half in self.devices.items()}
        self.state, self.queue, self.now, self.firings = self.half.init(whole[:1]), [], 0.0, []
        for event in (OPEN, *(Member(name, True) for name in sorted(latency))):
            self.say(event)

    def say(self, event):
        self.state, effects = self.half.apply(self.state, event)
        for effect in effects:
            if isinstance(effect, Closed):
                self.firings.append((self.now, effect.report["staleness"]))
            if isinstance(effect, Task):
                self.ask(effect.to, effect)

    def ask(self, name, task):
        self.states[name], answers = self.devices[name].apply(self.states[name], task)
        for answer in answers:
            heapq.heappush(self.queue, (self.now + self.latency[name], name, answer))

    def until(self, end):
        while self.queue and self.queue[0][0] <= end:
            self.now, _, answer = heapq.heappop(self.queue)
            self.say(answer)

    def restart(self):
        fresh = self.half.init(np.zeros(1, np.float32))
        self.state = state_codec.rebuild(fresh, state_codec.flatten(self.state))

    @property
    def sums(self):
        phi = float(self.half.model(self.state)["p"][0])
        return [phi + float(state.p[1]) for state in self.states.values()]


LATENCY = {"a": 1.0, "b": 2.0, "c": 5.0}


@pytest.mark.parametrize(("method", "quorum"), [("fedasync", 1), ("fedbuff", 2), ("fedbuff", 3)])
def test_devices_of_different_speed_reach_the_common_minimum(method, quorum):
    clock = Clock(method, LATENCY, Rounds(quorum=quorum), steps=4, rate=0.05)
    clock.until(400.0)
    assert clock.sums == pytest.approx([1.0, 3.0, 5.0], abs=0.05)


def test_fedasync_moves_with_every_update_and_discounts_a_stale_one():
    clock = Clock("fedasync", LATENCY, Rounds(quorum=1), steps=1, rate=0.1)
    clock.until(5.0)
    assert len(clock.firings) == 8
    assert [late for late in clock.firings if "c" in late[1]] == [(5.0, {"c": 7})]


def test_a_buffer_of_two_closes_rounds_as_in_the_timeline():
    clock = Clock("fedbuff", LATENCY, Rounds(quorum=2), steps=1, rate=0.1)
    clock.until(14.0)
    assert clock.firings == [
        (2.0, {"a": 0, "b": 0}),
        (4.0, {"a": 0, "b": 0}),
        (5.0, {"a": 0, "c": 2}),
        (6.0, {"a": 0, "b": 1}),
        (8.0, {"a": 0, "b": 0}),
        (10.0, {"a": 0, "b": 0}),
        (11.0, {"a": 0, "c": 3}),
        (12.0, {"a": 0, "b": 1}),
        (14.0, {"a": 0, "b": 0}),
    ]


@pytest.mark.parametrize(("method", "quorum"), [("fedasync", 1), ("fedbuff", 2)])
def test_a_restarted_server_loses_no_bit(method, quorum):
    straight = Clock(method, LATENCY, Rounds(quorum=quorum), steps=2, rate=0.1)
    stopped = Clock(method, LATENCY, Rounds(quorum=quorum), steps=2, rate=0.1)
    for second in range(1, 30):
        straight.until(float(second))
        stopped.until(float(second))
        stopped.restart()
    assert straight.state.w.tobytes() == stopped.state.w.tobytes()
    assert state_codec.digest(straight.state) == state_codec.digest(stopped.state)
