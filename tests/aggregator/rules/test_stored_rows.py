"""Rules over rows in a file give the bits of the same rules over rows in memory."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.extensions.rules.geometric_median import geometric_median, weiszfeld_passes
from aggregator.rules import BEFORE, RULES, Rows, TooFewRows, bind
from aggregator.rules.blocked_ops import executed_by
from aggregator.rules.parameters import uniform
from aggregator.rules.preaggregation import grouped
from aggregator.rules.row_maps import Grouped, Picked, Scaled
from aggregator.rules.rows import PAIRS, RuleVerdict
from aggregator.store.row_file import FileMatrix, SpooledRows

STEPS = [[], *([name] for name in BEFORE), ["norm_clipping", {"name": "bucketing", "size": 3}]]


def spooled(vectors, folder):
    return SpooledRows.of(vectors, folder)


def drawn(count, width, dtype, seed=0):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(count, width)).astype(dtype)
    matrix[0] *= -1000
    names = [f"m{i:04}" for i in rng.permutation(count)]  # arrival is not the order of names
    return dict(zip(names, matrix, strict=True))


def both(rule, vectors, folder):
    verdicts = []
    for given_vectors in (vectors, spooled(vectors, folder)):
        rows = Rows.of(given_vectors)
        memory = {}
        for _ in range(2):  # the second round uses what the first one kept
            verdict = rule(rows, uniform(len(rows)), memory)
            memory = verdict.memory
        verdicts.append((verdict, dict(zip(rows.ids, rows.norms(), strict=True))))
    return verdicts


@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize("shape", [(129, 200), (40, 9001)])
def test_every_rule_has_the_same_bits(name, steps, shape, tmp_path):
    more = {"root": "m0003"} if name in {"fltrust", "monna"} else {}
    rule = bind(name, f=2, preaggregation=steps, **more)
    (here, norms), (there, stored_norms) = both(rule, drawn(*shape, np.float32), tmp_path)
    assert here.value.tobytes() == there.value.tobytes()
    assert (here.weights, here.dropped, here.report) == (there.weights, there.dropped, there.report)
    assert norms == stored_norms
    assert {k: v.tobytes() for k, v in here.memory.items()} == {
        k: v.tobytes() for k, v in there.memory.items()
    }


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(5, 300), st.integers(1, 150)),
    dtype=st.sampled_from([np.float32, np.float64]),
    bad=st.sets(st.integers(0, 4)),
    case=st.tuples(
        st.sampled_from(["mean", "median", "trimmed_mean", "centred_clipping", "krum"]),
        st.booleans(),
    ),
)
def test_any_shape_and_any_bad_row(tmp_path_factory, shape, dtype, bad, case):
    (name, mixed), vectors = case, drawn(*shape, dtype, seed=shape[0] * shape[1])
    for number in bad:
        vectors[list(vectors)[number]][0] = [np.nan, np.inf, -np.inf, 1e30, -1e30][number]
    if mixed:
        last = list(vectors)[-1]
        vectors[last] = vectors[last].astype(np.float64) + 1e-12
    try:
        (here, _), (there, _) = both(
            bind(name, f=0 if name == "mean" else 1), vectors, tmp_path_factory.mktemp("rows")
        )
    except TooFewRows:
        return
    assert here.value.tobytes() == there.value.tobytes()
    assert here.dropped == there.dropped


@pytest.mark.parametrize("scale", [1e25, 1e15])
def test_sums_that_exceed_float32_are_added_again_in_float64(scale, tmp_path):
    vectors = {name: row * np.float32(scale) for name, row in drawn(150, 90, np.float32).items()}
    for name in ("mean", "centred_clipping", "multi_krum", "geometric_median"):
        rule = bind(name, f=0 if name == "mean" else 1)
        (here, norms), (there, stored_norms) = both(rule, vectors, tmp_path)
        assert here.value.tobytes() == there.value.tobytes()
        assert norms == stored_norms
        assert np.isfinite(here.value).all()


def test_weights_of_senders_are_those_of_the_maps_matrix():
    rng = np.random.default_rng(1)
    grouped = Grouped(rng.permutation(11), 3)
    maps = [grouped, Scaled(rng.random(11)), Picked(np.array([4, 0, 9]), 11)]
    for one in maps:
        rows = one.matrix.shape[0]
        for weights in (rng.random(rows), rng.random((2, rows)), np.eye(rows)):
            np.testing.assert_array_equal(one.back(weights), weights @ one.matrix)


def test_groups_of_many_rows_are_written_to_a_file_when_they_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr("aggregator.store.row_file._IN_MEMORY", 1000)
    vectors = drawn(700, 70, np.float32)
    rule = bind("trimmed_mean", f=1, preaggregation=[{"name": "bucketing", "size": 2}])
    (here, _), (there, _) = both(rule, vectors, tmp_path)
    assert here.value.tobytes() == there.value.tobytes()
    stored, plain = (
        grouped(Rows.of(given_vectors), np.arange(700), 2)
        for given_vectors in (spooled(vectors, tmp_path), vectors)
    )
    assert isinstance(stored.mixed_values, FileMatrix)
    np.testing.assert_array_equal(stored.block(0, 70), plain.block(0, 70))


def test_the_median_by_passes_is_that_by_pairs(tmp_path):
    rng = np.random.default_rng(5)
    matrix = rng.normal(size=(PAIRS, 30)).astype(np.float32)
    matrix[:200] += 50
    vectors = {f"m{i:04}": row for i, row in enumerate(matrix)}
    rows = Rows.of(spooled(vectors, tmp_path))
    shares = uniform(PAIRS)
    by_pairs = geometric_median(Rows.of(vectors), shares)
    fitted = weiszfeld_passes(rows, shares, rows.distances_to(matrix[500]), floor=1e-6)
    scale = np.linalg.norm(matrix - matrix.mean(axis=0), axis=1).mean()
    assert np.linalg.norm(rows.combine(fitted.weights) - by_pairs.value) < 1e-5 * scale
    assert fitted.objective[-1] <= by_pairs.report["objective"] * (1 + 1e-6)


@pytest.mark.parametrize("name", ["geometric_median", "autogm"])
def test_more_rows_than_pairs_allow_take_no_matrix_of_pairs(name, tmp_path, monkeypatch):
    def refused(*_args):
        raise AssertionError("all pairs were compared")

    monkeypatch.setattr("aggregator.rules.blocked_ops.products", refused)
    vectors = drawn(PAIRS + 1, 12, np.float32)
    (here, _), (there, _) = both(bind(name, f=1), vectors, tmp_path)
    assert here.value.tobytes() == there.value.tobytes()
    assert np.abs(here.value).max() < 1.0  # the row of length 1000 moves it little


def test_a_median_that_is_a_row_is_found_by_passes(tmp_path):
    matrix = np.vstack([np.zeros((3, 4)), np.eye(4)]).astype(np.float32)
    rows = Rows.of(spooled({f"m{i}": row for i, row in enumerate(matrix)}, tmp_path))
    fitted = weiszfeld_passes(rows, uniform(7), rows.distances_to(np.full(4, 1e-3)), floor=1e-9)
    assert np.linalg.norm(rows.combine(fitted.weights)) == 0.0


class Elsewhere:
    """Computes blocks in this process, with functions that were copied through bytes."""

    def __init__(self):
        self.blocks = 0

    def columns(self, count, itemsize):
        return 7

    def map(self, function, blocks):
        for block in blocks:
            self.blocks += 1
            yield function(block)


@pytest.mark.parametrize(
    "name", ["mean", "median", "trimmed_mean", "multi_krum", "geometric_median"]
)
@pytest.mark.parametrize("is_stored", [False, True])
def test_an_executor_changes_no_bit(name, is_stored, tmp_path):
    vectors, executor = drawn(200, 100, np.float32), Elsewhere()
    rule, shares = bind(name, f=0 if name == "mean" else 3), uniform(200)
    plain = rule(Rows.of(vectors), shares).value
    with executed_by(executor):
        rows = Rows.of(spooled(vectors, tmp_path) if is_stored else vectors)
        assert rule(rows, shares).value.tobytes() == plain.tobytes()
    assert executor.blocks


def test_rules_that_read_no_blocks_receive_an_array(tmp_path):
    def foreign(rows):
        return RuleVerdict(np.asarray(rows.values, np.float64).sum(axis=0))

    bound = bind("mean")
    rule = replace(bound, entry=bound.entry._replace(function=foreign, reads_blocks=False))
    vectors = drawn(20, 6, np.float32)
    (here, _), (there, _) = both(rule, vectors, tmp_path)
    assert here.value.tobytes() == there.value.tobytes()
