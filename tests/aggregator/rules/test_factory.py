"""Names and parameters become a pipeline, or are refused with the key at fault."""

import numpy as np
import pytest

from aggregator.methods import METHODS, OPEN, Setup
from aggregator.methods.averaging import Averaged
from aggregator.methods.base.round_machine import Rounds
from aggregator.rules import BEFORE, RULES, Rows, TooFewRows, UnknownRuleError, bind
from aggregator.rules.parameters import uniform
from aggregator.store import state_codec
from edge_sdk.protocol.contract.method import Update


@pytest.mark.extension
@pytest.mark.parametrize(
    ("name", "parameters", "key", "says"),
    [
        ("krumm", {}, "name", "unknown rule 'krumm'; known: autogm, bulyan,"),
        ("krum", {}, "f", "missing"),
        ("krum", {"f": -1}, "f", "expected int from 0"),
        ("krum", {"f": 1.0}, "f", "expected int"),
        ("krum", {"f": True}, "f", "expected int"),
        ("krum", {"f": 1, "m": 2}, "m", "unknown key; known: f, preaggregation"),
        ("multi_krum", {"f": 1, "m": 0}, "m", "from 1"),
        ("trimmed_mean", {"f": 1, "trim": 0.1}, "trim", "unknown key"),
        ("centred_clipping", {"radios": 1.0}, "radios", "did you mean 'radius'?"),
        ("centred_clipping", {"radius": 0.0}, "radius", "from 1e-30"),
        ("fltrust", {}, "root", "missing"),
        ("median", {"preaggregation": "nnm"}, "preaggregation", "expected a list"),
        (
            "median",
            {"preaggregation": ["nmm"]},
            "preaggregation[0]",
            "unknown pre-aggregation 'nmm'; known: ",
        ),
        ("median", {"preaggregation": [{}]}, "preaggregation[0]", "expected a name or a table"),
        (
            "median",
            {"preaggregation": ["nnm", {"name": "bucketing", "s": 2}]},
            "preaggregation[1].s",
            "unknown",
        ),
        (
            "median",
            {"preaggregation": [{"name": "nnm", "f": 2}]},
            "preaggregation[0].f",
            "unknown key",
        ),
    ],
)
def test_what_cannot_be_meant_names_its_key(name, parameters, key, says):
    with pytest.raises(UnknownRuleError) as caught:
        bind(name, **parameters)
    assert caught.value.key == key
    assert says in caught.value.why


@pytest.mark.extension
@pytest.mark.parametrize(
    ("name", "parameters", "least"),
    [
        ("mean", {}, 1),
        ("median", {}, 1),
        ("median", {"f": 3}, 7),
        ("trimmed_mean", {"f": 2}, 5),
        ("trimmed_mean", {"f": 2, "b": 3}, 7),
        ("krum", {"f": 2}, 7),
        ("multi_krum", {"f": 2}, 7),
        ("multi_krum", {"f": 2, "m": 9}, 11),
        ("bulyan", {"f": 2}, 11),
        ("clipped_clustering", {}, 3),
        ("fltrust", {"root": "a"}, 2),
        ("mean", {"f": 2, "preaggregation": ["nnm"]}, 5),
        ("median", {"f": 2, "preaggregation": ["bucketing"]}, 9),
        ("krum", {"f": 1, "preaggregation": [{"name": "bucketing", "size": 3}]}, 13),
        ("krum", {"f": 1, "preaggregation": ["nnm", "norm_clipping", "bucketing"]}, 9),
    ],
)
def test_a_pipeline_knows_how_few_are_too_few(name, parameters, least):
    assert bind(name, **parameters).least == least


@pytest.mark.parametrize(
    ("before", "withstands"),
    [((), False), (("nnm",), False), (("bucketing",), False), (("norm_clipping",), True)],
)
def test_a_mean_withstands_nobody_unless_lengths_are_cut(before, withstands):
    assert bind("mean", preaggregation=before).withstands is withstands
    assert bind("median", preaggregation=before).withstands


def test_just_enough_rows_fill_more_than_twice_f_buckets(rows_of):
    rule = bind("median", f=2, preaggregation=[{"name": "bucketing", "size": 3}])
    mixed = rule._mixed(rows_of(np.zeros((rule.least, 1))), 0)
    assert len(mixed) == 2 * 2 + 1


def test_every_name_says_what_it_is():
    for entry in (*RULES.values(), *BEFORE.values()):
        assert entry.function.__doc__
    assert set(RULES).isdisjoint(BEFORE)


@pytest.mark.extension
def test_the_trusted_clients_row_is_not_mixed_with_what_it_measures():
    honest = {f"m{i}": np.array([1.0, 0.1 * i]) for i in range(4)}
    liars = {f"z{i}": np.array([-50.0, 0.0]) for i in range(2)}
    rows = Rows.of({**honest, **liars, "root": np.array([1.0, 0.0])})
    value = bind("fltrust", root="root", f=2, preaggregation=["nnm"])(rows, uniform(7)).value
    assert np.linalg.norm(value) <= 1.0 + 1e-12
    assert value[0] > 0.9


@pytest.mark.extension
def test_without_the_trusted_client_there_is_no_verdict():
    rows = Rows.of({f"m{i}": np.ones(2) for i in range(5)})
    for before in ((), ("nnm",)):
        with pytest.raises(TooFewRows, match="trusted client 'root'"):
            bind("fltrust", root="root", preaggregation=before)(rows, uniform(5))


def test_a_row_that_is_no_number_is_told_and_counts_as_absent():
    vectors = {f"m{i}": np.full(2, float(i)) for i in range(5)} | {"liar": np.full(2, np.nan)}
    verdict = bind("median")(Rows.of(vectors), uniform(5))
    assert verdict.dropped == {"liar": "not_finite"}
    assert verdict.value.tolist() == [2.0, 2.0]
    with pytest.raises(TooFewRows):
        bind("krum", f=2)(Rows.of(vectors), uniform(5))


class TestMemory:
    """What a rule remembers crosses a restart, and an audit's replay, as leaves of the state."""

    RULES = (
        {"name": "centred_clipping"},
        {"name": "clipped_clustering", "history": 7},
        {"name": "median", "preaggregation": ["bucketing"]},
        {"name": "centred_clipping", "preaggregation": [{"name": "bucketing", "seed": 5}]},
    )

    def half(self, rule):
        parameters = dict(rule)
        bound = bind(parameters.pop("name"), **parameters)
        row = METHODS["fedavg"]
        return row.half(Setup(bound, row.settings(), Rounds(quorum=5)))

    def course(self, half, state, rounds, *, restarts):
        for number in range(rounds):
            for i in range(5):
                vector = np.random.default_rng([number, i]).normal(size=3).astype(np.float32)
                update = Update(f"m{i}", state.round, state.version, vector, {"n": 1.0})
                state, _ = half.apply(state, update)
            if restarts:
                saved = state_codec.flatten(state)
                state = state_codec.rebuild(half.init(np.zeros(3, np.float32)), saved)
        return state

    @pytest.mark.extension
    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["name"])
    def test_a_restart_after_every_round_changes_no_bit(self, rule):
        half = self.half(rule)
        first, _ = half.apply(half.init(np.zeros(3, np.float32)), OPEN)
        straight = self.course(half, first, 6, restarts=False)
        restarted = self.course(half, first, 6, restarts=True)
        assert isinstance(straight, Averaged)
        assert straight.memory
        assert straight.version == 6
        assert state_codec.digest(straight) == state_codec.digest(restarted)

    def test_forgetting_would_show(self):
        half = self.half({"name": "centred_clipping"})
        first, _ = half.apply(half.init(np.zeros(3, np.float32)), OPEN)
        state = self.course(half, first, 1, restarts=False)
        assert "memory.v" in state_codec.flatten(state)
        np.testing.assert_array_equal(state.memory["v"], -state.w)

    @pytest.mark.extension
    def test_norms_are_remembered_up_to_a_number(self):
        half = self.half({"name": "clipped_clustering", "history": 7})
        first, _ = half.apply(half.init(np.zeros(3, np.float32)), OPEN)
        state = self.course(half, first, 4, restarts=False)
        assert len(state.memory["norms"]) == 7

    def test_every_round_draws_other_buckets_and_the_same_when_computed_again(self, rows_of):
        rule = bind("median", preaggregation=["bucketing"])
        rows = rows_of(np.random.default_rng(1).normal(size=(10, 4)))
        one = rule(rows, uniform(10))
        two = rule(rows, uniform(10), one.memory)
        assert one.value.tolist() != two.value.tolist()
        assert rule(rows, uniform(10), one.memory).value.tolist() == two.value.tolist()
        assert int(two.memory["draws"]) == 2
