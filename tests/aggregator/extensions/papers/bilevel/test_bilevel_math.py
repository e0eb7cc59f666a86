"""BiG-FL's arithmetic: worked numbers, finite differences, autograd as a second opinion."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.extensions.papers.bilevel.bilevel_math import (
    coupled,
    crossed,
    draws,
    hypergradient,
    likeness,
    normalised,
    off,
    sampled,
    upper,
)
from edge_sdk.extensions.papers.bilevel_map import (
    Diagonal,
    LowRank,
    MapBlock,
    gradient_step,
    pack_map,
    unpack_map,
)

PATH = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], bool)
THETA = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
ANY = np.random.default_rng


def full(width):
    return MapBlock(np.eye(width))


def bases(rng, width):
    """One of every form, away from the identity."""
    return (
        Diagonal(rng.normal(1, 0.3, width)),
        LowRank(rng.normal(0, 0.3, (width, 2)), rng.normal(0, 0.3, (width, 2))),
        MapBlock(np.eye(width) + rng.normal(0, 0.2, (width, width))),
        MapBlock(np.eye(2) + rng.normal(0, 0.2, (2, 2)), begin=1),
    )


def dense(basis, width):
    return basis.forth(np.eye(width))


def slope_of(value, basis, step=1e-6):
    """Finite differences in every number of a map."""
    out = {}
    for name, leaf in basis.leaves().items():
        grad = np.zeros_like(leaf)
        for at in np.ndindex(leaf.shape):
            told = []
            for sign in (1, -1):
                moved = {k: v.copy() for k, v in basis.leaves().items()}
                moved[name][at] += sign * step
                told.append(value(basis.with_leaves(moved)))
            grad[at] = (told[0] - told[1]) / (2 * step)
        out[name] = grad
    return out


class TestNumbers:
    """As calculated by hand in the specification."""

    def test_the_graph_of_a_path_and_what_it_makes_of_three_models(self):
        graph = normalised(PATH)
        np.testing.assert_allclose(graph[0], [0.5, 0.40824829, 0.0], atol=1e-8)
        np.testing.assert_allclose(graph[1], [0.40824829, 1 / 3, 0.40824829], atol=1e-8)
        h = full(2).forth(graph @ THETA)
        wanted = [[0.5, 0.40824829], [0.81649658, 0.74158162], [0.5, 0.90824829]]
        np.testing.assert_allclose(h, wanted, atol=1e-8)

    def test_the_upper_loss(self):
        strange = sampled(PATH, 10, ANY(0))
        told = upper(THETA, normalised(PATH), full(2), PATH, strange=strange)
        assert told.likeness.neighbours == pytest.approx(0.03693995, abs=1e-8)
        assert told.likeness.non_neighbours == pytest.approx(0.61840443, abs=1e-8)
        assert told.value == pytest.approx(0.65534437, abs=1e-8)

    def test_the_lower_term_and_its_slope(self):
        graph = normalised(PATH)
        rest = off(graph @ THETA, THETA, full(2))
        np.testing.assert_allclose(rest[0], [-0.5, 0.40824829], atol=1e-8)
        assert float(rest[0] @ rest[0]) == pytest.approx(0.41666667, abs=1e-8)
        slope = np.diag(graph)[:, None] * full(2).back(rest) - rest
        np.testing.assert_allclose(slope[0], [0.25, -0.20412415], atol=1e-8)
        np.testing.assert_allclose(slope[1], [-0.54433105, 0.17227892], atol=1e-8)
        np.testing.assert_allclose(slope[2], [0.25, 0.04587585], atol=1e-8)

    def test_one_device_of_one_number(self):
        """g = (theta-1)²/2 + theta²/4 + (3 phi - theta)², f = (theta-5)²/2 at phi = 1."""
        one, q = np.ones((1, 1)), np.full((1, 1), -3 / 3.5)
        assert q[0, 0] == pytest.approx(-0.85714286, abs=1e-8)
        phi = Diagonal(np.ones(1))
        cross = crossed(3 * one, 2 * one, np.zeros(1), phi, q=q, weight=2.0)
        assert hypergradient({"scale": np.zeros(1)}, cross)["scale"][0] == pytest.approx(
            -5.14285714, abs=1e-8
        )

    def test_two_devices_that_move_each_other(self):
        """The game's exact slope, and the block-diagonal approximation that is 26 % off."""
        graph, b, phi, s, kappa = np.full((2, 2), 0.5), np.array([[1.0], [3.0]]), 1.2, 1.0, 0.1
        theta = solved(phi, graph, b, s, kappa)
        np.testing.assert_allclose(theta[:, 0], [1.29411765, 2.62745098], atol=1e-8)
        basis, p = Diagonal(np.array([phi])), theta - 2.0
        hessian = 1.0 + kappa + s * (0.5 * phi - 1.0) ** 2
        mixed, own = graph @ theta, np.diag(graph)

        def slope(q):
            return -crossed(mixed, theta, own, basis, q=q, weight=s)["scale"][0]

        q = p / hessian
        assert slope(q) == pytest.approx(0.31611775, abs=2e-8)
        for _ in range(60):
            q = coupled(p, q, graph, basis, s) / hessian
        assert slope(q) == pytest.approx(0.25106482, abs=1e-8)

        def loss(at):
            return 0.5 * float(np.sum((solved(at, graph, b, s, kappa) - 2.0) ** 2))

        assert (loss(phi + 1e-5) - loss(phi - 1e-5)) / 2e-5 == pytest.approx(0.25106482, abs=1e-7)

    def test_five_outer_iterations_are_most_of_the_way(self):
        graph, b = np.full((2, 2), 0.5), np.array([[1.0], [3.0]])
        theta = solved(1.2, graph, b, 1.0, 0.1)
        basis, p, hessian = Diagonal(np.array([1.2])), theta - 2.0, 1.1 + 0.16
        q = p / hessian
        for _ in range(5):
            q = coupled(p, q, graph, basis, 1.0) / hessian
        cross = crossed(graph @ theta, theta, np.diag(graph), basis, q=q, weight=1.0)
        assert -cross["scale"][0] == pytest.approx(0.25106482, rel=1e-3)


def solved(phi, graph, b, s, kappa):
    """The game's solution: every device's own slope is zero, given the others."""
    n, own = len(b), np.diag(graph)
    system = np.zeros((n, n))
    for i in range(n):
        tilt = s * (own[i] * phi - 1.0)
        system[i] = tilt * phi * graph[i]
        system[i, i] += 1.0 + kappa - tilt
    return np.linalg.solve(system, b)


class Ridge:
    """Four devices, each a ridge regression of six numbers, drawn to a map of its neighbours."""

    def __init__(self, seed=3, s=0.7, kappa=0.2):
        rng = ANY(seed)
        self.s, self.kappa = s, kappa
        self.x, self.y = rng.normal(size=(4, 9, 6)), rng.normal(size=(4, 9))
        ring = np.roll(np.eye(4), 1, axis=1)
        self.near = (ring + ring.T).astype(bool)
        self.near[0, 1] = self.near[1, 0] = False  # a path: some have two strangers
        self.graph = normalised(self.near)
        self.strange = sampled(self.near, 10, rng)
        self.frozen = rng.normal(size=(4, 6))  # what the neighbours were when the round began
        self.width, self.basis_seed = 6, rng

    def tilt(self, i, basis):
        return self.graph[i, i] * dense(basis, 6) - np.eye(6)

    def hessian(self, i, basis):
        tilt = self.tilt(i, basis)
        data = self.x[i].T @ self.x[i] / len(self.y[i])
        return data + self.kappa * np.eye(6) + self.s * tilt @ tilt.T

    def models(self, basis, given=None):
        """Each device's best model, its neighbours held at what they were given as."""
        around = self.graph @ (self.frozen if given is None else given)
        own = np.diag(self.graph)[:, None]
        around = around - own * (self.frozen if given is None else given)
        phi, out = dense(basis, 6), np.zeros((4, 6))
        for i in range(4):
            wanted = self.x[i].T @ self.y[i] / len(self.y[i])
            wanted = wanted - self.s * around[i] @ phi @ self.tilt(i, basis).T
            out[i] = np.linalg.solve(self.hessian(i, basis), wanted)
        return out, around

    def loss(self, basis, models):
        return upper(models, self.graph, basis, self.near, strange=self.strange).value


@pytest.mark.parametrize("form", range(4))
class TestHypergradient:
    """Against finite differences on a ridge regression of four devices."""

    def test_of_the_frozen_game(self, form):
        ridge = Ridge()
        basis = bases(ANY(form), 6)[form]
        theta, around = ridge.models(basis)
        told = upper(theta, ridge.graph, basis, ridge.near, strange=ridge.strange)
        q = np.stack([np.linalg.solve(ridge.hessian(i, basis), told.p[i]) for i in range(4)])
        own = np.diag(ridge.graph)
        cross = crossed(around + own[:, None] * theta, theta, own, basis, q=q, weight=ridge.s)
        found = hypergradient(told.slopes, cross)
        wanted = slope_of(lambda at: ridge.loss(at, ridge.models(at)[0]), basis)
        for name, slope in wanted.items():
            np.testing.assert_allclose(found[name], slope, rtol=1e-5, atol=1e-6)

    @pytest.mark.slow
    def test_of_the_coupled_game(self, form):
        ridge = Ridge(s=0.3)
        basis = bases(ANY(form), 6)[form]

        def settled(at):
            theta = ridge.frozen
            for _ in range(300):
                theta = ridge.models(at, theta)[0]
            return theta

        theta = settled(basis)
        told = upper(theta, ridge.graph, basis, ridge.near, strange=ridge.strange)
        hessians = [ridge.hessian(i, basis) for i in range(4)]
        q = np.zeros((4, 6))
        for _ in range(200):
            right = coupled(told.p, q, ridge.graph, basis, ridge.s)
            q = np.stack([np.linalg.solve(hessians[i], right[i]) for i in range(4)])
        mixed, own = ridge.graph @ theta, np.diag(ridge.graph)
        found = hypergradient(told.slopes, crossed(mixed, theta, own, basis, q=q, weight=ridge.s))
        wanted = slope_of(lambda at: ridge.loss(at, settled(at)), basis)
        for name, slope in wanted.items():
            np.testing.assert_allclose(found[name], slope, rtol=1e-5, atol=1e-6)

    def test_forms_agree_with_the_matrix_they_stand_for(self, form):
        basis, rng = bases(ANY(7 + form), 5)[form], ANY(1)
        x, phi = rng.normal(size=(3, 5)), dense(basis, 5)
        np.testing.assert_allclose(basis.forth(x), x @ phi, atol=1e-12)
        np.testing.assert_allclose(basis.back(x), x @ phi.T, atol=1e-12)
        assert basis.excess() == pytest.approx(np.sum((phi - np.eye(5)) ** 2))
        half = slope_of(lambda at: 0.5 * at.excess(), basis)
        for name, slope in basis.excess_slopes().items():
            np.testing.assert_allclose(slope, half[name], atol=1e-6)

    def test_over_the_wire_and_back(self, form):
        basis = bases(ANY(form), 5)[form]
        numbers, rows = pack_map(basis, 5)
        again = unpack_map(numbers, rows, 5)
        np.testing.assert_allclose(dense(again, 5), dense(basis, 5), rtol=1e-6, atol=1e-6)

    def test_a_map_that_is_cut_short_is_none(self, form):
        numbers, rows = pack_map(bases(ANY(form), 5)[form], 5)
        assert unpack_map(numbers, rows[:-1], 5) is None
        assert unpack_map(numbers, rows[:, :-1], 5) is None
        assert unpack_map(numbers, None, 5) is None


class TestUpper:
    """The loss and its slopes, whatever the models."""

    def test_slopes_are_those_of_autograd(self):
        torch = pytest.importorskip("torch")
        rng = ANY(5)
        near = rng.random((6, 6)) < 0.4
        near = (near | near.T) & ~np.eye(6, dtype=bool)
        strange, theta = sampled(near, 2, draws(1, 2)), rng.normal(size=(6, 4))
        graph, phi = normalised(near), np.eye(4) + rng.normal(0, 0.3, (4, 4))
        told = upper(theta, graph, MapBlock(phi), near, strange=strange, pull=0.5)
        t, m = (torch.tensor(a, requires_grad=True) for a in (theta, phi))
        h = torch.tensor(graph) @ t @ m
        cosine = torch.nn.functional.cosine_similarity(h[:, None], h[None], dim=2, eps=1e-8)
        value = (torch.tensor(near) * (1 - cosine)).sum() / 6
        value = value + (torch.tensor(strange) * torch.clamp(cosine, min=0)).sum() / 6
        value = value + 0.25 * ((m - torch.eye(4)) ** 2).sum()
        value.backward()
        assert told.value == pytest.approx(value.item())
        np.testing.assert_allclose(told.p, t.grad.numpy(), atol=1e-12)
        np.testing.assert_allclose(told.slopes["matrix"], m.grad.numpy(), atol=1e-12)

    @given(st.permutations(range(4)))
    def test_the_order_of_devices_does_not_matter(self, order):
        rng = ANY(2)
        ridge, theta = Ridge(), rng.normal(size=(4, 6))
        basis, order = MapBlock(np.eye(6) + rng.normal(0, 0.1, (6, 6))), list(order)
        one = upper(theta, ridge.graph, basis, ridge.near, strange=ridge.strange)
        grid = np.ix_(order, order)
        other = upper(
            theta[order], ridge.graph[grid], basis, ridge.near[grid], strange=ridge.strange[grid]
        )
        assert one.value == pytest.approx(other.value, rel=1e-12)
        np.testing.assert_allclose(one.p[order], other.p, atol=1e-12)
        np.testing.assert_allclose(one.slopes["matrix"], other.slopes["matrix"], atol=1e-12)

    def test_on_a_complete_graph_everybody_is_drawn_to_the_mean(self):
        n, rng = 5, ANY(0)
        theta, graph = rng.normal(size=(n, 3)), normalised(~np.eye(n, dtype=bool))
        rest = off(graph @ theta, theta, full(3))
        slope = np.diag(graph)[:, None] * rest - rest
        np.testing.assert_allclose(slope, (1 - 1 / n) * (theta - theta.mean(0)), atol=1e-12)

    def test_who_has_no_neighbour_is_drawn_by_the_map_alone(self):
        graph = normalised(np.zeros((2, 2)))
        basis = Diagonal(np.array([2.0, 1.0]))
        np.testing.assert_allclose(graph, np.eye(2))
        np.testing.assert_allclose(off(graph @ np.ones((2, 2)), np.ones((2, 2)), basis)[0], [1, 0])

    def test_a_model_of_nothing_has_no_angle_and_no_infinite_slope(self):
        told = likeness(np.zeros((3, 2)), PATH, sampled(PATH, 1, ANY(0)))
        assert np.isfinite(told.slope).all()
        assert told.non_neighbours == 0.0

    def test_strangers_are_drawn_again_alike_and_never_a_neighbour(self):
        near = np.zeros((30, 30), bool)
        near[0, 1:10] = near[1:10, 0] = True
        one, other = (sampled(near, 10, draws(4, 7)) for _ in range(2))
        assert (one == other).all()
        assert not one[near].any()
        assert not np.diag(one).any()
        np.testing.assert_allclose(one.sum(axis=1), 1.0)
        assert ((one > 0).sum(axis=1) == 10).all()

    def test_a_step_down_the_slope_of_the_map_lowers_the_loss(self):
        ridge = Ridge()
        for basis in bases(ANY(1), 6):
            told = upper(ridge.frozen, ridge.graph, basis, ridge.near, strange=ridge.strange)
            after = gradient_step(basis, told.slopes, 1e-4)
            less = upper(ridge.frozen, ridge.graph, after, ridge.near, strange=ridge.strange)
            assert less.value < told.value
