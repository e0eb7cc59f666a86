"""Attention over layers: by hand, and that it is no shield."""

import numpy as np
import pytest

from aggregator.extensions.papers.averaging.attention_weights import (
    attend,
    shared_slices,
    softmax,
    towards,
)
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

PAIR = np.array([[-1.0, 0.0], [0.0, -2.0]])
WHOLE = (slice(0, 2),)


def test_two_devices_as_calculated_by_hand():
    step, shares = attend(PAIR, WHOLE)
    assert shares[0] == pytest.approx([0.26894142, 0.73105858], abs=1e-8)
    assert -step == pytest.approx([0.26894142, 1.46211716], abs=1e-8)
    assert -1.2 * step == pytest.approx([0.32272971, 1.75454059], abs=1e-8)


def test_the_pull_to_a_quasi_global_model_as_calculated_by_hand():
    step, _ = attend(PAIR, WHOLE)
    pulled = -(step + 0.1 * towards(np.zeros(2), np.ones(2), WHOLE))
    assert pulled == pytest.approx([0.36894142, 1.56211716], abs=1e-8)


def test_each_layer_is_attended_to_by_itself():
    step, shares = attend(PAIR, (slice(0, 1), slice(1, 2)))
    one, two = softmax([1.0, 0.0]), softmax([0.0, 2.0])
    assert shares.tolist() == [one.tolist(), two.tolist()]
    assert step.tolist() == [-one[0], -2.0 * two[1]]


def test_layers_that_strayed_are_pulled_more_and_the_shares_sum_to_one():
    parts = (slice(0, 1), slice(1, 3))
    pull = towards(np.array([4.0, 3.0, 4.0]), np.zeros(3), parts)
    shares = softmax([4.0, 5.0])
    assert pull == pytest.approx([4.0 * shares[0], 3.0 * shares[1], 4.0 * shares[1]])


def test_one_outlier_takes_the_whole_weight():
    rows = np.array([[1.0 + 0.1 * i] for i in range(9)] + [[1e6]])
    step, shares = attend(rows, (slice(0, 1),))
    assert shares[0, -1] == 1.0
    assert step[0] == 1e6


def test_equal_answers_are_averaged():
    step, shares = attend(np.array([[1.0, -3.0]] * 3), WHOLE)
    assert step == pytest.approx([1.0, -3.0])
    assert shares[0] == pytest.approx([1 / 3] * 3)


def test_only_exchanged_layers_have_a_place():
    spec = ParamSpec.of([("mine", (3,)), ("body", (2, 2)), ("other", (1,)), ("tail", (2,))],
                        ["body", "tail"])  # fmt: skip
    assert shared_slices(spec) == (slice(0, 4), slice(4, 6))
