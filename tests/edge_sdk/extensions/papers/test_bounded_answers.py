"""Other answers to the same steps: whole weights, and bounded lengths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edge_sdk.extensions.papers.bounded_answers import (
    bounded_difference,
    bounded_weights,
    norm_clipped,
    whole_weights,
)
from edge_sdk.methods.local_sgd import LocalSgd, fedavg
from edge_sdk.methods.training_context import Batch
from edge_sdk.protocol.contract.method import END, Member, Task
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.shared_math.optim import sgd

PLAIN = LocalSgd(optimiser=sgd)
VECTORS = arrays(np.float32, st.integers(1, 20), elements=st.floats(-1e6, 1e6, width=32))


class Parabola:
    """A device whose loss is half the squared distance of its shared layer to (6, 8)."""

    client = "m-1"
    spec = ParamSpec.of([("body", (2,)), ("mine", (1,))], ["body"])
    count = 1

    def batches(self, count, of_round, *, fresh):
        del of_round, fresh
        for _ in range(count):
            yield Batch(np.zeros((1, 1, 1), np.float32), np.zeros((1, 1), np.float32))

    def run(self, graph, p, x, y):
        assert graph == "gradient"
        del x, y
        off = p - np.array([6.0, 8.0, 0.0], np.float32)
        return np.float32(0.5 * off @ off), off.astype(np.float32)


def ask(**values):
    told = {"steps": 1.0, "rate": 0.5} | values
    return Task("m-1", 3, "train", base=2, values=told, arrays={"w": np.zeros(2, np.float32)})


def said(factory, task):
    half = factory(Parabola(), PLAIN)
    return half.apply(half.init(np.zeros(3, np.float32)), task)


def test_weights_are_the_trained_shared_layers():
    state, (update,) = said(whole_weights, ask())
    assert update.vector.tolist() == [3.0, 4.0]
    assert (update.round, update.base) == (3, 2)
    assert update.values["loss"] == pytest.approx(50.0)
    assert state.p.tolist() == [3.0, 4.0, 0.0]


def test_bounded_weights_are_shortened_and_what_the_device_keeps_is_not():
    state, (update,) = said(bounded_weights, ask(bound=2.0))
    assert update.vector == pytest.approx([1.2, 1.6])
    assert state.p.tolist() == [3.0, 4.0, 0.0]


def test_a_bounded_difference_is_shortened_received_minus_trained():
    _, (update,) = said(bounded_difference, ask(bound=2.0))
    assert update.vector == pytest.approx([-1.2, -1.6])


def test_a_long_bound_changes_nothing():
    for factory, plain in ((bounded_weights, whole_weights), (bounded_difference, fedavg)):
        _, (bounded,) = said(factory, ask(bound=1e6))
        _, (free,) = said(plain, ask())
        assert bounded.vector.tobytes() == free.vector.tobytes()


@pytest.mark.parametrize("factory", [bounded_weights, bounded_difference])
def test_a_task_without_a_bound_is_not_answered_and_changes_nothing(factory):
    half = factory(Parabola(), PLAIN)
    state = half.init(np.zeros(3, np.float32))
    after, effects = half.apply(state, ask())
    assert after is state
    assert effects == ()


@pytest.mark.parametrize("factory", [whole_weights, bounded_weights, bounded_difference])
def test_events_other_than_training_are_passed_on_unchanged(factory):
    half = factory(Parabola(), PLAIN)
    state = half.init(np.ones(3, np.float32))
    assert half.apply(state, Member("m-1", present=True)) == (state, ())
    final = Task("m-1", 9, END, arrays={"w": np.full(2, 5.0, np.float32)})
    plain = fedavg(Parabola(), PLAIN)
    assert half.apply(state, final)[1] == ()
    assert half.apply(state, final)[0].p.tolist() == plain.apply(state, final)[0].p.tolist()


def test_three_and_four_in_two_as_calculated_by_hand():
    assert norm_clipped(np.array([3.0, 4.0], np.float32), 2.0) == pytest.approx([1.2, 1.6])


@given(vector=VECTORS, bound=st.floats(1e-3, 1e6))
def test_no_vector_is_longer_than_its_bound_and_none_turns(vector, bound):
    short = norm_clipped(vector, bound)
    length = np.linalg.norm(vector.astype(np.float64))
    assert np.linalg.norm(short.astype(np.float64)) <= bound * (1 + 1e-6)
    if length <= bound:
        assert short is vector
    else:
        np.testing.assert_allclose(short, vector * (bound / length), rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_clipped_gradient_keeps_its_direction_and_reaches_its_limit(size):
    g = np.random.default_rng(size).normal(size=size).astype(np.float32) * 1e20
    short = norm_clipped(g, 2.0)  # a norm of 1e20 squared is too large for float32
    assert np.linalg.norm(short.astype(np.float64)) == pytest.approx(2.0, rel=1e-6)
    assert np.dot(short / 2.0, g / np.linalg.norm(g.astype(np.float64))) == pytest.approx(1.0)
    assert norm_clipped(short, 3.0) is short
