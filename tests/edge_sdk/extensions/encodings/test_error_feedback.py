"""What an encoding loses is added to the next update, once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.extensions.encodings.block_quantisation import QUANTISED_NORM, dequantise
from edge_sdk.extensions.encodings.error_feedback import (
    RESIDUAL_LIMIT,
    SavedResidual,
    encode_with_feedback,
    rounding_seed,
)
from edge_sdk.protocol.codec import pack_leaves, pack_tensor, unpack_leaves
from edge_sdk.protocol.contract.method import CONTRACTS, Task, Update
from edge_sdk.training.training_transaction import UplinkEncoding, uplink_encoding


def summed(vectors, *, feedback):
    """Return the sum of decoded updates."""
    total, carried = np.zeros(vectors.shape[1]), np.zeros(vectors.shape[1])
    for number, vector in enumerate(vectors):
        seed = rounding_seed("meter-1", run=1, task=Task("meter-1", number, "train"))
        blob, residual = encode_with_feedback(vector, carried, "q4", seed)
        total += dequantise(blob, "q4", len(vector))
        carried = np.asarray(residual, np.float64) if feedback else carried
    return total


def test_feedback_divides_the_accumulated_error():
    draw = np.random.default_rng(2)
    vectors = draw.normal(size=(24, 640)) + draw.normal(size=640)
    true = vectors.sum(axis=0)
    with_it, without = (
        np.linalg.norm(summed(vectors, feedback=way) - true) / np.linalg.norm(true)
        for way in (True, False)
    )
    assert with_it < 0.01 < without
    assert with_it < without / 3


@given(st.integers(0, 2**32 - 1), st.floats(0, 50))
def test_a_sent_update_is_at_most_the_allowance_longer(seed, size):
    draw = np.random.default_rng(seed)
    vector = draw.normal(size=150) * np.exp(3 * draw.normal(size=150))
    carried = draw.normal(size=150) * size
    blob, _ = encode_with_feedback(vector, carried, "q4", bytes(16))
    sent = dequantise(blob, "q4", 150)
    assert np.linalg.norm(sent) <= QUANTISED_NORM * np.linalg.norm(vector)


def test_a_residual_is_saved_and_read_to_the_bit():
    kept = SavedResidual(3, 8, "q4", np.float32([0.1, -0.2]))
    read = SavedResidual.from_leaves(unpack_leaves(pack_leaves({"r": kept.leaves()}))["r"])
    assert (read.run, read.round, read.enc) == (3, 8, "q4")
    np.testing.assert_array_equal(read.values, kept.values)


@pytest.mark.parametrize(
    "changed", [{"run": 4}, {"enc": "q8"}, {"size": 3}, {"round_": 7}], ids=lambda c: next(iter(c))
)
def test_a_residual_of_something_else_counts_for_nothing(changed):
    kept = SavedResidual(3, 8, "q4", np.float32([0.1, -0.2]))
    wanted = {"run": 3, "round_": 9, "enc": "q4", "size": 2} | changed
    assert not kept.carried(**wanted).any()


def test_the_same_update_has_the_same_bytes_and_another_number_others():
    vector = np.random.default_rng(0).normal(size=100)
    tasks = [Task("meter-1", n, "train") for n in (1, 1, 2)]
    seeds = [rounding_seed("meter-1", run=1, task=task) for task in tasks]
    blobs = [encode_with_feedback(vector, np.zeros(100), "q4", seed)[0] for seed in seeds]
    assert blobs[0] == blobs[1] != blobs[2]
    assert rounding_seed("meter-2", run=1, task=tasks[0]) not in seeds


def test_an_exact_encoding_leaves_no_residual():
    update = Update("meter-1", 1, 0, np.float32([1.5, 2.5]), {})
    encoding = UplinkEncoding("f4")
    assert encoding.encode(update.vector) == pack_tensor(update.vector, "f4")
    assert encoding.residual(update, run=1) is None


def test_only_differences_of_weights_are_quantised():
    both = ("f4", "q4"), ("b1", "b2", "q8", "q4")
    assert uplink_encoding(CONTRACTS["fedavg"]["train"], *both) == "q4"
    assert uplink_encoding(CONTRACTS["dp_rsa"]["step"], *both) == "b1"
    assert uplink_encoding(CONTRACTS["pfgl"]["encode"], *both) == "f4"
    assert uplink_encoding(CONTRACTS["fedavg"]["train"], ("f4",), ("q4",)) == "f4"


def test_the_part_of_a_residual_that_is_added_is_bounded():
    vector, carried = np.array([1.0, 0.0]), np.array([0.0, 1e6])
    blob, _ = encode_with_feedback(vector, carried, "q8", bytes(16))
    assert abs(dequantise(blob, "q8", 2)[1]) <= RESIDUAL_LIMIT + 1 / 127
