"""The device half alone: what it answers, what it keeps, what it ignores."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from edge_sdk.methods import METHODS
from edge_sdk.methods.local_sgd import LocalSgd, LocalState, fedavg, fedsgd
from edge_sdk.methods.training_context import Batch, TrainingContext, keyed
from edge_sdk.protocol.contract.manifest import Training
from edge_sdk.protocol.contract.method import CONTRACTS, Member, Task, Update
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.shared_math.optim import adam, optimiser_step, sgd


class Points:
    """Windows with one channel of ones and the given targets."""

    def __init__(self, targets):
        self.targets = np.asarray(targets, np.float32).reshape(-1, 1)

    def __len__(self):
        return len(self.targets)

    def draw(self, rng, size):
        rows = np.sort(rng.choice(len(self), min(size, len(self)), replace=False))
        return Batch(np.ones((len(rows), 1, 1), np.float32), self.targets[rows])


def line(p, x, y):
    """(phi + psi - y)^2 for p = (phi, psi): loss and gradient, averaged over the batch."""
    error = p.sum() - y[:, 0]
    slope = np.float32(2.0 * error.mean())
    return np.float32((error**2).mean()), np.full(2, slope, np.float32)


def lend(targets, shared=("phi",), size=64, **given):
    spec = ParamSpec.of([("phi", (1,)), ("psi", (1,))], shared)
    points = Points(targets)
    graphs = {"gradient": given.pop("graph", line)}
    return TrainingContext(
        "m-1", spec, graphs, lambda: points, size, partial(keyed, 1, "m-1"), **given
    )


def ask(w, *, count=1, rate=0.1, prox=0.0, number=1):
    values = {"steps": count, "rate": rate, "prox": prox}
    return Task("_all", number, "train", base=9, values=values, arrays={"w": np.float32(w)})


def vector(*values):
    return np.array(values, np.float32)


PLAIN = LocalSgd(optimiser=sgd)


def test_every_method_of_the_wire_has_a_device_half():
    assert METHODS.keys() == CONTRACTS.keys()


def test_the_answer_is_received_minus_trained_with_its_coordinates_and_loss():
    half = fedavg(lend([1.0]), PLAIN)
    state, (update,) = half.apply(half.init(vector(0, 0)), ask([0.5]))
    assert isinstance(update, Update)
    assert (update.sender, update.round, update.base) == ("m-1", 1, 9)
    assert update.vector == pytest.approx([-0.1])  # loss (0.5 - 1)^2, gradient -1, rate 0.1
    assert dict(update.values) == {"loss": pytest.approx(0.25), "n": 1.0}
    assert state.p == pytest.approx([0.6, 0.1])


def test_a_task_of_no_steps_changes_nothing_and_reports_the_loss_of_the_received_model():
    half = fedavg(lend([1.0]), PLAIN)
    state, (update,) = half.apply(half.init(vector(0, 7)), ask([0.5], count=0))
    assert update.vector.tolist() == [0.0]
    assert update.values["loss"] == pytest.approx(6.5**2)
    assert state.p.tolist() == [0.5, 7.0]


def test_the_proximal_term_pulls_towards_what_was_received():
    def quadratic(p, x, y):
        return np.float32(0.5 * ((p - 3) ** 2).sum()), (p - 3).astype(np.float32)

    path = []
    for count in (1, 2, 3, 200):
        half = fedavg(lend([0.0], shared=("",), graph=quadratic), PLAIN)
        state, _ = half.apply(half.init(vector(0, 0)), ask([1.0, 1.0], count=count, prox=1.0))
        path.append(float(state.p[0]))
    assert path == pytest.approx([1.2, 1.36, 1.488, 2.0], rel=1e-6)


def test_a_hard_pull_leaves_the_shared_layers_and_frees_the_personal_ones():
    half = fedavg(lend([1.0]), PLAIN)
    state, (update,) = half.apply(
        half.init(vector(0, 0)), ask([0.0], count=400, prox=1e3, rate=1e-3)
    )
    assert abs(update.vector[0]) < 2e-3
    assert state.p[1] > 0.5


def test_a_fixed_minibatch_counts_once_and_fresh_ones_each_time():
    used = {}
    for policy in ("fixed", "fresh"):
        half = fedavg(lend(range(100), size=8), LocalSgd(optimiser=sgd, minibatch=policy))
        _, (update,) = half.apply(half.init(vector(0, 0)), ask([0.0], count=5, rate=1e-4))
        used[policy] = update.values["n"]
    assert used == {"fixed": 8.0, "fresh": 40.0}


def test_a_fixed_minibatch_is_reused_and_a_fresh_one_is_not():
    seen = []

    def note(p, x, y):
        seen.append(y.tobytes())
        return np.float32(0), np.zeros(2, np.float32)

    for policy, kinds in (("fixed", 1), ("fresh", 4)):
        seen.clear()
        half = fedavg(
            lend(range(1000), size=4, graph=note), LocalSgd(optimiser=sgd, minibatch=policy)
        )
        half.apply(half.init(vector(0, 0)), ask([0.0], count=4))
        assert len(set(seen)) == kinds


def test_the_same_round_is_trained_to_the_same_bits_and_another_one_is_not():
    half = fedavg(lend(range(50), size=4), LocalSgd(optimiser=sgd, minibatch="fresh"))
    state = half.init(vector(0, 0))
    once, again = (half.apply(state, ask([0.0], count=3))[0].p.tobytes() for _ in range(2))
    other = half.apply(state, ask([0.0], count=3, number=2))[0].p.tobytes()
    assert once == again
    assert once != other


def test_moments_start_anew_each_round_unless_they_are_kept():
    for keep in (False, True):
        half = fedavg(lend([1.0], shared=()), LocalSgd(optimiser=adam, keep_moments=keep))
        state = half.init(vector(0, 0))
        for number in (1, 2):
            state, _ = half.apply(state, ask(np.zeros(0), number=number))
        assert (state.moments is not None) is keep
        if keep:
            assert state.moments["taken"] == 2


def test_a_kept_state_goes_through_arrays_unharmed():
    half = fedavg(lend([1.0], shared=()), LocalSgd(keep_moments=True))
    state, _ = half.apply(half.init(vector(0, 0)), ask(np.zeros(0)))
    back = LocalState.from_arrays(state.arrays())
    assert half.apply(back, ask(np.zeros(0)))[0].p.tolist() == (
        half.apply(state, ask(np.zeros(0)))[0].p.tolist()
    )
    assert LocalState.from_arrays(half.init(vector(1, 2)).arrays()).moments is None


def test_starting_from_its_own_layers_still_answers_relative_to_what_was_received():
    half = fedavg(lend([1.0]), LocalSgd(optimiser=sgd, start="own"))
    state, (update,) = half.apply(half.init(vector(0.9, 0.1)), ask([0.0], count=1))
    assert state.p == pytest.approx([0.9, 0.1])  # already at its optimum
    assert update.vector == pytest.approx([-0.9])


def test_without_windows_the_received_layers_are_taken_over_and_nothing_is_answered():
    for factory in (fedavg, fedsgd):
        half = factory(lend([]), PLAIN)
        state, effects = half.apply(half.init(vector(0, 7)), ask([0.5]))
        assert effects == ()
        assert half.model(state)["p"].tolist() == [0.5, 7.0]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_steps_that_leave_the_finite_numbers_are_taken_back():
    for factory in (fedavg, fedsgd):
        half = factory(lend([1e30]), PLAIN)
        state, effects = half.apply(half.init(vector(0, 7)), ask([0.5], count=3, rate=1e3))
        assert effects == ()
        assert state.p.tolist() == [0.5, 7.0]


def test_other_events_and_vectors_of_another_size_change_nothing():
    half = fedavg(lend([1.0]), PLAIN)
    state = half.init(vector(1, 2))
    wrong = Task("_all", 1, "train", arrays={"w": vector(1, 2, 3)})
    for event in (Member("m-2", present=True), Task("_all", 1, "solve"), wrong):
        assert half.apply(state, event) == (state, ())


def test_a_shell_that_raises_in_its_turn_leaves_the_state_as_it_was():
    class StopError(Exception):
        pass

    def turn():
        raise StopError

    half = fedavg(lend(range(9), turn=turn), PLAIN)
    state = half.init(vector(1, 2))
    with pytest.raises(StopError):
        half.apply(state, ask([0.0], count=2))
    assert state.p.tolist() == [1.0, 2.0]


def test_the_gradient_half_is_one_plain_step_of_the_other_one():
    state = LocalState(vector(0.2, 0.4))
    one, (delta,) = fedavg(lend([1.0]), PLAIN).apply(state, ask([0.3]))
    two, (slope,) = fedsgd(lend([1.0]), PLAIN).apply(state, ask([0.3]))
    assert 0.1 * slope.vector == pytest.approx(delta.vector)
    assert two.p.tolist() == [np.float32(0.3), one.p[1]]  # personal moved, shared is the server's


def test_the_bundles_training_section_becomes_the_settings():
    assert LocalSgd.of(Training(optimiser="sgd", rate=0.5, steps=7)).optimiser is sgd
    own = LocalSgd.of(Training(beta1=0.5, eps=1e-3))
    opt, same = own.optimiser(0.1), partial(adam, beta1=0.5, eps=1e-3)(0.1)
    p, g = vector(0.0), vector(1e-3)
    assert optimiser_step(opt, p, g, opt.init(p))[0] == optimiser_step(same, p, g, same.init(p))[0]
    assert own.minibatch == "fresh"


def test_a_task_that_names_no_numbers_takes_the_settings():
    half = fedavg(lend([1.0]), LocalSgd(optimiser=sgd, rate=0.1, steps=2))
    bare = Task("_all", 1, "train", arrays={"w": vector(0)})
    told = half.apply(half.init(vector(0, 0)), ask([0.0], count=2))[0]
    assert half.apply(half.init(vector(0, 0)), bare)[0].p.tolist() == told.p.tolist()
