"""Steps of the model: error feedback, saved state, and what takes a step away."""

from __future__ import annotations

import numpy as np
import pytest

from aggregator.methods import OPEN, Rounds
from aggregator.methods.averaging import adam, averaging
from aggregator.methods.base.round_machine import Averaging
from aggregator.methods.base.wrappers import STEP, adopted
from aggregator.rules import bind
from aggregator.store.state_codec import digest, flatten, layout, rebuild
from edge_sdk.protocol.codec import pack_leaves, unpack_leaves
from edge_sdk.protocol.contract.method import ParentModel, Task, Update
from edge_sdk.protocol.model_step import stepped
from edge_sdk.shared_math.fedavg import server_sgd as sgd

pytestmark = pytest.mark.extension  # the encoding of steps

START = np.linspace(-1, 1, 200).astype(np.float32)


def half(optimiser=None, **rounds):
    chosen = Rounds(quorum=1, downlink="q8", **rounds)
    return averaging(bind("mean"), Averaging(optimiser or sgd(1.0), chosen))


def moved(made, state, rng, scale=0.01):
    vector = rng.normal(0, scale, len(START))
    return made.apply(state, Update("a", state.round, state.version, vector, {"n": 1.0}))


def task_of(effects):
    return next(effect for effect in effects if isinstance(effect, Task))


@pytest.mark.parametrize("optimiser", [sgd(1.0), adam(0.01)])
def test_a_device_that_applies_every_step_has_every_model(optimiser):
    made, rng = half(optimiser), np.random.default_rng(1)
    state, effects = made.apply(made.init(START), OPEN)
    assert STEP not in task_of(effects).arrays
    device = task_of(effects).arrays["w"]
    for _ in range(30):
        state, effects = moved(made, state, rng)
        task = task_of(effects)
        device = stepped(device, np.asarray(task.arrays[STEP]).tobytes())
        assert device.tobytes() == task.arrays["w"].tobytes() == state.w.astype("f4").tobytes()
        assert made.model(state)[STEP] is task.arrays[STEP]


def test_the_sum_of_the_steps_misses_the_sum_of_the_updates_by_one_residual():
    made, rng = half(), np.random.default_rng(2)
    state, _ = made.apply(made.init(START), OPEN)
    exact = START.astype(np.float64)
    for _ in range(200):
        vector = rng.normal(0, 0.01, len(START))
        exact -= vector
        state, _ = made.apply(state, Update("a", state.round, state.version, vector, {"n": 1.0}))
    np.testing.assert_allclose(state.w + state.downlink["residual"], exact, atol=1e-12)
    assert np.abs(state.w - exact).max() < 0.05 / 127


def test_a_saved_state_continues_to_the_same_bits_and_a_run_without_steps_has_no_new_leaves():
    made, rng = half(), np.random.default_rng(3)
    plain = averaging(bind("mean"), Averaging(sgd(1.0), Rounds(quorum=1)))
    assert layout(made.init(START)) == layout(plain.init(START))
    assert not any(path.startswith("downlink") for path in flatten(plain.init(START)))
    state, _ = made.apply(made.init(START), OPEN)
    state, _ = moved(made, state, rng)
    saved = unpack_leaves(pack_leaves(flatten(state)))
    again = rebuild(made.init(START), saved)
    assert digest(again) == digest(state)
    update = Update("a", state.round, state.version, rng.normal(0, 1, len(START)), {"n": 1.0})
    assert digest(made.apply(again, update)[0]) == digest(made.apply(state, update)[0])


def test_a_round_without_a_result_keeps_the_step_of_the_model_it_keeps():
    made, rng = half(), np.random.default_rng(4)
    state, _ = made.apply(made.init(START), OPEN)
    state, _ = moved(made, state, rng)
    endless = Update("a", state.round, state.version, np.full(len(START), 1e300), {"n": 1.0})
    after, effects = made.apply(state, endless)
    assert after.version == state.version
    assert task_of(effects).arrays[STEP] is state.downlink[STEP]


def test_a_parents_model_is_announced_whole():
    made, rng = half(), np.random.default_rng(5)
    state, _ = made.apply(made.init(START), OPEN)
    state, _ = moved(made, state, rng)
    event = ParentModel(
        run=1, number=1, attempt=0, step=0, version=1, vector=START, carry=np.zeros(0)
    )
    after, effects = made.apply(state, event)
    assert after.version == state.version + 1
    assert STEP not in task_of(effects).arrays
    assert not after.downlink


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65])
def test_any_size_has_a_step(size):
    before, after = np.zeros(size), np.linspace(-1, 1, size)
    w, kept = adopted(before, after, {})
    assert w.shape == kept["residual"].shape == (size,)
    assert stepped(before.astype("f4"), kept[STEP].tobytes()).tobytes() == w.astype("f4").tobytes()


def test_steps_that_are_too_small_for_their_block_accumulate_until_they_count():
    w, kept = np.zeros(2), {}
    for _ in range(10):
        w, kept = adopted(w, w + np.array([127.0, 0.25]), kept)
    assert (w.tolist(), kept["residual"].tolist()) == ([1270.0, 3.0], [0.0, -0.5])
