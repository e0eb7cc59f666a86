"""Server optimisers against the worked numbers of the specification."""

import numpy as np
import pytest

from aggregator.extensions.papers.split.split_types import corrected_adam
from aggregator.methods.averaging import adam, momentum
from edge_sdk.shared_math.fedavg import server_sgd as sgd
from edge_sdk.shared_math.optim import adam as device_adam
from edge_sdk.shared_math.optim import optimiser_step

DELTAS = (-2.75, -1.0, 0.5)


def trajectory(optimiser, deltas=DELTAS):
    w = np.zeros(1)
    moments = optimiser.init(w)
    path = []
    for delta in deltas:
        w, moments = optimiser_step(optimiser, w, np.array([delta]), moments)
        path.append(float(w[0]))
    return path


@pytest.mark.parametrize(
    ("optimiser", "expected"),
    [
        (sgd(1.0), (2.75, 3.75, 3.25)),
        (momentum(beta=0.9), (0.275, 0.6225, 0.88525)),
        (momentum(beta=0.99), (0.0275, 0.064725, 0.09657775)),
        (momentum(beta=0.9, form="heavy_ball"), (2.75, 6.225, 8.8525)),
    ],
)
def test_momentum_moves_as_worked_out(optimiser, expected):
    assert trajectory(optimiser) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("eps", "expected"),
    [(1e-3, (0.00312612, 0.00710748, 0.01046767)), (1e-8, (0.00316228, 0.00718691, 0.01058312))],
)
def test_adam_moves_as_worked_out(eps, expected):
    assert trajectory(adam(eps=eps)) == pytest.approx(expected, abs=5e-9)


def test_adam_starts_its_second_moment_at_eps_squared():
    optimiser = adam()
    moments = optimiser.init(np.zeros(1))
    assert moments["v"][0] == 1e-6
    _, moments = optimiser_step(optimiser, np.zeros(1), np.array([-2.75]), moments)
    assert moments["v"][0] == pytest.approx(0.007563499, rel=1e-7)


def test_adam_uses_the_second_moment_of_this_step():
    (first, *_) = trajectory(adam(eps=1e-8))
    assert first < 1.0  # with that of the step before it would be some 27,500


@pytest.mark.parametrize("optimiser", [sgd(), momentum(), adam(), corrected_adam(0.1)])
def test_arguments_are_left_alone_and_a_saved_state_continues_to_the_bit(optimiser):
    rng = np.random.default_rng(3)
    w = rng.normal(size=5)
    moments = optimiser.init(w)
    kept = w.copy()
    w1, m1 = optimiser_step(optimiser, w, rng.normal(size=5), moments)
    assert w.tobytes() == kept.tobytes()
    delta = rng.normal(size=5)
    again = {name: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape) for name, x in m1.items()}
    straight, _ = optimiser_step(optimiser, w1, delta, m1)
    resumed, _ = optimiser_step(optimiser, np.frombuffer(w1.tobytes()), delta, again)
    assert straight.tobytes() == resumed.tobytes()


def test_the_corrected_adam_of_the_server_is_the_devices_but_for_the_last_bits():
    assert trajectory(corrected_adam(0.1)) == pytest.approx(trajectory(device_adam(0.1)), rel=1e-12)


def test_corrected_adam_has_the_bits_of_the_journals_written_with_it():
    """The formula as it was first released; a journal of split learning replays with it."""
    rng = np.random.default_rng(11)
    p = q = rng.normal(size=6).astype(np.float32)
    optimiser = corrected_adam(5e-4)
    state = optimiser.init(p)
    first = second = np.zeros_like(q)
    for taken in range(1, 8):
        g = rng.normal(size=6).astype(np.float32)
        p, state = optimiser_step(optimiser, p, g, state)
        first = 0.9 * first + (1.0 - 0.9) * g
        second = 0.999 * second + (1.0 - 0.999) * g * g
        root = np.sqrt(second / (1.0 - 0.999**taken)) + 1e-8
        q = (q - 5e-4 / (1.0 - 0.9**taken) * first / root).astype(np.float32)
    assert p.tobytes() == q.tobytes()
    assert state["first"].tobytes() == first.tobytes()
    assert state["second"].tobytes() == second.tobytes()
    assert state["taken"] == 7
