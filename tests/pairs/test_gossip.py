"""DFL-SGD and DFL-GT over several devices, without wires: every oracle number, every invariant."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.extensions.peers import mixing_matrix
from edge_sdk.extensions.peers.gossip import (
    ADAPT,
    ALONE,
    BEGIN,
    MIX,
    THETA,
    TRACKER,
    GossipState,
    dfl_gt,
    dfl_sgd,
    exchange_parts,
)
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import Batch, TrainingContext, keyed
from edge_sdk.protocol.contract.method import Task
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

HALVES = {"dfl_sgd": dfl_sgd, "dfl_gt": dfl_gt}
P3 = mixing_matrix.metropolis(mixing_matrix.adjacency("abc", [("a", "b"), ("b", "c")]))
FULL = np.full((3, 3), 1 / 3)
B = (0.0, 3.0, 6.0)
ONES, CURVED = (1.0, 1.0, 1.0), (1.0, 2.0, 5.0)


class Noisy:
    """One window for each draw: its target wobbles, its curvature does not."""

    def __init__(self, curvature, target, wobble):
        self.curvature, self.target, self.wobble = curvature, target, wobble

    def __len__(self):
        return 1

    def draw(self, rng, _size):
        target = self.target + self.wobble * rng.normal()
        x = np.full((1, 1, 1), self.curvature)
        return Batch(x, np.full((1, 1), target))


def bowl(p, x, y):
    """``a/2 (p - b)^2`` of every number, and its gradient."""
    error = p - y[0, 0]
    return 0.5 * x[0, 0, 0] * float(error @ error), x[0, 0, 0] * error


class Street:
    """Devices and a mixing matrix, in the place of the shells."""

    def __init__(self, method, weights, *, curved=ONES, b=B, wobble=0.0, start=None, size=1, **say):
        self.method, self.weights = method, np.asarray(weights, float)
        self.values = {"rate": 0.1, "steps": 1.0, "order": 0.0, "fading": 0.0} | say
        spec = ParamSpec.of([("w", (size,))])
        self.spec, self.halves, self.step = spec, [], 0
        for number in range(len(self.weights)):
            windows = Noisy(curved[number], b[number], wobble)
            local = TrainingContext(
                f"d{number}", spec, {"gradient": bowl}, partial(self._of, windows), 1,
                partial(keyed, 1, f"d{number}"),
            )  # fmt: skip
            self.halves.append(HALVES[method](local, LocalSgd()))
        first = np.zeros((len(self.halves), size)) if start is None else np.asarray(start, float)
        self.states = [h.init(row.copy()) for h, row in zip(self.halves, first, strict=True)]
        self.each(BEGIN)

    def _of(self, windows):
        return windows

    @property
    def theta(self):
        return np.array([state.p for state in self.states])

    @property
    def tracker(self):
        return np.array([state.tracker for state in self.states])

    def each(self, ask, arrays=lambda _: {}, turn=0):
        values = self.values | {"turn": float(turn)}
        told = [
            Task(f"d{n}", 1, ask, step=self.step, values=values, arrays=arrays(n))
            for n in range(len(self.halves))
        ]
        self.states = [
            h.apply(s, t)[0] for h, s, t in zip(self.halves, self.states, told, strict=True)
        ]

    def go(self, steps=1, weights=None):
        for _ in range(steps):
            if self.step % int(self.values["steps"]):
                self.each(ALONE)
            else:
                self.exchange(self.weights if weights is None else weights)
            self.step += 1
        return self

    def exchange(self, weights):
        for turn, parts in enumerate(exchange_parts(self.method, self.values)):
            self.each(ADAPT, turn=turn)
            said = [{p: s.offered(self.spec, p) for p in parts} for s in self.states]
            self.each(MIX, lambda n, said=said: self.heard(n, said, weights), turn)

    def heard(self, n, said, weights):
        others = [j for j in range(len(said)) if j != n and weights[n, j]]
        out = {"weights": np.array([weights[n, j] for j in others])}
        size = self.spec.shared_size
        return out | {
            part: np.array([said[j][part] for j in others]).reshape(len(others), size)
            for part in said[n]
        }


def close(street, *numbers):
    assert street.theta[:, 0] == pytest.approx(np.array(numbers), rel=1e-8, abs=1e-9)


def test_dfl_sgd_on_a_path_of_three_agrees_with_the_example():
    street = Street("dfl_sgd", P3)
    close(street.go(), 0, 0.3, 0.6)
    close(street.go(), 0.1, 0.57, 1.04)


def test_dfl_gt_on_a_path_of_three_agrees_with_the_example():
    street = Street("dfl_gt", P3)
    close(street.go(), 0, 0.3, 0.6)
    assert street.tracker[:, 0] == pytest.approx([-1, -2.7, -4.4])
    close(street.go(), 0.2, 0.57, 0.94)
    assert street.tracker[:, 0] == pytest.approx([-1.36666667, -2.43, -3.49333333])


def test_adapt_then_combine_on_the_full_graph_equals_fedsgd():
    street = Street("dfl_sgd", FULL, curved=CURVED, rate=0.05, order=1.0)
    for number in (0.6, 1.12, 1.57066667):
        close(street.go(), number, number, number)


def test_the_papers_order_differs_from_fedsgd_after_its_first_step():
    street = Street("dfl_sgd", FULL, curved=CURVED, rate=0.05)
    close(street.go(), 0, 0.3, 1.5)
    close(street.go(), 0.6, 0.87, 1.725)
    assert street.theta.mean() == pytest.approx(1.065)
    assert street.go().theta.mean() == pytest.approx(1.48225)


def test_a_tracker_started_at_zero_never_moves():
    """Why ``begin`` starts it at the gradient (D11): the regression test of the printed start."""
    street = Street("dfl_gt", P3)
    street.states = [
        GossipState(s.p, s.seen, np.zeros_like(s.tracker), s.draws) for s in street.states
    ]
    close(street.go(200), 0, 0, 0)


def test_a_half_without_a_start_does_nothing():
    street = Street("dfl_gt", P3)
    fresh = street.halves[0].init(np.zeros(1))
    for ask in (ALONE, ADAPT, MIX):
        assert street.halves[0].apply(fresh, Task("d0", 1, ask, values=street.values))[0] is fresh


@pytest.mark.parametrize(
    ("method", "say", "curved", "ends"),
    [
        ("dfl_sgd", {"rate": 0.1}, ONES, (2.30769231, 3, 3.69230769)),
        ("dfl_sgd", {"rate": 0.05, "steps": 5.0}, ONES, (1.63647106, 3, 4.36352894)),
        ("dfl_gt", {"rate": 0.1}, ONES, (3, 3, 3)),
        ("dfl_gt", {"rate": 0.05, "steps": 5.0}, ONES, (3, 3, 3)),
        ("dfl_gt", {"rate": 0.05}, CURVED, (4.5, 4.5, 4.5)),
        ("dfl_gt", {"rate": 0.02, "steps": 4.0}, CURVED, (4.5, 4.5, 4.5)),
        ("dfl_gt", {"rate": 0.05, "order": 1.0}, CURVED, (4.5, 4.5, 4.5)),
        ("dfl_sgd", {"rate": 0.05}, CURVED, (3.51409978, 4.04121475, 4.88069414)),
    ],
)
def test_the_fixed_points_agree_with_theory(method, say, curved, ends):
    """Just before an exchange, where there are steps in between: that is the point printed."""
    street = Street(method, P3, curved=curved, **say)
    close(street.go(2000 * int(say.get("steps", 1))), *ends)


@pytest.mark.parametrize("order", [0.0, 1.0])
@pytest.mark.parametrize("steps", [1.0, 3.0])
@pytest.mark.parametrize("method", ["dfl_sgd", "dfl_gt"])
def test_a_device_without_neighbours_mixes_nothing(method, steps, order):
    """W = I is local learning, exactly."""
    street = Street(method, np.eye(3), wobble=1.0, steps=steps, order=order, size=2)
    alone = Street(method, np.eye(1), b=B[1:], wobble=1.0, steps=steps, order=order, size=2)
    local = alone.halves[0]
    alone.halves = [street.halves[1]]
    assert local is not alone.halves[0]
    alone.states = [street.states[1]]
    street.go(12), alone.go(12)
    assert (street.theta[1] == alone.theta[0]).all()


@pytest.mark.parametrize("method", ["dfl_sgd", "dfl_gt"])
def test_disagreement_decays_at_the_spectral_rate(method):
    ring = mixing_matrix.metropolis(
        mixing_matrix.adjacency("abcde", ["ab", "bc", "cd", "de", "ea"])
    )
    start = np.arange(5.0)[:, None] ** 2
    say = {"b": (0.0,) * 5, "curved": (1.0,) * 5, "start": start, "rate": 0.0}
    street = Street(method, ring, **say).go(12)
    before = np.linalg.norm(street.theta - start.mean())
    after = np.linalg.norm(street.go().theta - start.mean())
    # The slowest mode's factor is 1/3 + 2/3 cos(72 deg). After 12 steps the next mode, 0.206 a
    # step, is (0.206 / 0.539)^24 = 1e-10 of the squares; and the differences, about 10 at first,
    # are still 0.539^12 * 10 = 6e-3: rounding of numbers near 6 (1e-15) is 2e-13 of them.
    assert after / before == pytest.approx((1 + 2 * np.cos(np.radians(72))) / 3, rel=1e-8)


links = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)


@settings(max_examples=40)
@given(links, st.sampled_from([0.0, 1.0]), st.integers(1, 3), st.data())
def test_the_trackers_sum_to_the_gradients(extra, order, steps, data):
    """Whatever links there are, and whichever of them are missing, with stochastic batches."""
    names = [f"d{n}" for n in range(6)]
    ring = [(names[n], names[(n + 1) % 6]) for n in range(6)]
    more = [(names[i], names[j]) for i, j in extra if i != j]
    whole = mixing_matrix.metropolis(mixing_matrix.adjacency(names, ring + more))
    say = {"b": np.arange(6.0), "curved": np.linspace(0.5, 2, 6), "wobble": 1.0}
    street = Street("dfl_gt", whole, order=order, steps=float(steps), size=3, **say)
    for _ in range(6):
        lost = data.draw(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5))))
        weights = whole.copy()
        for i, j in lost:
            if i != j:
                weights[i, j] = weights[j, i] = 0.0
        before, along = street.theta.mean(axis=0), street.tracker.mean(axis=0)
        street.go(weights=weights)
        seen = np.mean([state.seen for state in street.states], axis=0)
        assert street.tracker.mean(axis=0) == pytest.approx(seen, abs=1e-10)
        assert street.theta.mean(axis=0) == pytest.approx(before - 0.1 * along, abs=1e-10)


@pytest.mark.parametrize("order", [0.0, 1.0])
def test_the_average_steps_along_the_average_gradient(order):
    street = Street("dfl_sgd", P3, curved=CURVED, order=order)
    gradient = np.array(CURVED)[:, None] * (street.theta - np.array(B)[:, None])
    before = street.theta.mean()
    assert street.go().theta.mean() == pytest.approx(before - 0.1 * gradient.mean(), abs=1e-12)


def test_a_byzantine_neighbour_moves_a_clipping_device_by_its_radius_at_most():
    start = np.array([[0.0], [1e9], [0.0]])
    street = Street("dfl_sgd", P3, rate=0.0, start=start, robust=1.0, radius=0.6)
    assert street.go().theta[0, 0] == pytest.approx(0.2)
    plain = Street("dfl_sgd", P3, rate=0.0, start=start)
    assert plain.go().theta[0, 0] > 1e8


def test_a_trimming_device_excludes_extremes():
    star = mixing_matrix.metropolis(mixing_matrix.adjacency("abcd", ["ab", "ac", "ad"]))
    start = np.array([[1.0], [2.0], [1e9], [0.0]])
    street = Street(
        "dfl_sgd", star, b=(0.0,) * 4, curved=(1.0,) * 4, rate=0.0, start=start, robust=2.0,
        trim=1.0,
    )  # fmt: skip
    close(street.go(), 1.5, 2.0, 1e9, 0.0)


def test_the_step_size_decays_with_the_square_root():
    street = Street("dfl_sgd", np.eye(1), b=(1.0,), rate=0.5, fading=1.0)
    close(street.go(), 0.5)
    close(street.go(), 0.5 + 0.5 / np.sqrt(2) * 0.5)


@pytest.mark.parametrize("method", ["dfl_sgd", "dfl_gt"])
def test_a_state_is_saved_and_restored(method):
    street = Street(method, P3, wobble=1.0, size=2).go(3)
    street.states = [GossipState.from_arrays(state.arrays()) for state in street.states]
    other = Street(method, P3, wobble=1.0, size=2).go(3)
    assert (street.go(3).theta == other.go(3).theta).all()


def test_offers_name_their_parts():
    street = Street("dfl_gt", P3)
    assert street.states[1].offered(street.spec, TRACKER).tolist() == [-3.0]
    assert street.states[1].offered(street.spec, THETA).tolist() == [0.0]
