"""Server optimisers against the worked numbers of the specification."""

import numpy as np
import pytest

from aggregator.methods.base.server_optim import adam, averaged, sgd

DELTAS = (-2.75, -1.0, 0.5)


def trajectory(optimiser, deltas=DELTAS):
    w = np.zeros(1)
    moments = optimiser.init(w)
    path = []
    for delta in deltas:
        w, moments = optimiser.update(w, np.array([delta]), moments)
        path.append(float(w[0]))
    return path


@pytest.mark.parametrize(
    ("optimiser", "expected"),
    [
        (sgd(1.0), (2.75, 3.75, 3.25)),
        (averaged(beta=0.9), (0.275, 0.6225, 0.88525)),
        (averaged(beta=0.99), (0.0275, 0.064725, 0.09657775)),
        (averaged(beta=0.9, form="heavy_ball"), (2.75, 6.225, 8.8525)),
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
    _, moments = optimiser.update(np.zeros(1), np.array([-2.75]), moments)
    assert moments["v"][0] == pytest.approx(0.007563499, rel=1e-7)


def test_adam_uses_the_second_moment_of_this_step():
    (first, *_) = trajectory(adam(eps=1e-8))
    assert first < 1.0  # with that of the step before it would be some 27,500


@pytest.mark.parametrize("optimiser", [sgd(), averaged(), adam()])
def test_arguments_are_left_alone_and_a_saved_state_continues_to_the_bit(optimiser):
    rng = np.random.default_rng(3)
    w = rng.normal(size=5)
    moments = optimiser.init(w)
    kept = w.copy()
    w1, m1 = optimiser.update(w, rng.normal(size=5), moments)
    assert w.tobytes() == kept.tobytes()
    delta = rng.normal(size=5)
    again = {name: np.frombuffer(value.tobytes()) for name, value in m1.items()}
    straight, _ = optimiser.update(w1, delta, m1)
    resumed, _ = optimiser.update(np.frombuffer(w1.tobytes()), delta, again)
    assert straight.tobytes() == resumed.tobytes()
