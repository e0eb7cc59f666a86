"""Mixing matrices: worked numbers, what all of them must satisfy, and networkx beside them."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edge_sdk.extensions.peers.mixing_matrix import (
    TopologyError,
    adjacency,
    best_constant,
    maximum_degree,
    metropolis,
    metropolis_row,
    second_eigenvalue,
)
from edge_sdk.extensions.peers.peer_mixing import average

PATH = adjacency("abc", [("a", "b"), ("b", "c")])
PAIR = adjacency("ab", [("a", "b")])
THIRD = 1.0 / 3.0
MAKERS = {"metropolis": metropolis, "maximum": maximum_degree, "laplacian": best_constant}


@pytest.fixture(scope="module")
def nx():
    """The second opinion."""
    return pytest.importorskip("networkx")


def ring(n):
    return adjacency(map(str, range(n)), [(str(i), str((i + 1) % n)) for i in range(n)])


@st.composite
def graphs(draw):
    """A connected graph: a random tree and some more links."""
    n = draw(st.integers(2, 9))
    tree = {(draw(st.integers(0, node - 1)), node) for node in range(1, n)}
    more = draw(st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=12))
    links = tree | {(a, b) for a, b in more if a != b}
    return adjacency(map(str, range(n)), [(str(a), str(b)) for a, b in links])


class TestNumbers:
    """As calculated by hand in the specification."""

    def test_a_path_of_three_by_degrees(self):
        wanted = [[2 / 3, THIRD, 0], [THIRD, THIRD, THIRD], [0, THIRD, 2 / 3]]
        np.testing.assert_allclose(metropolis(PATH), wanted, rtol=1e-12)
        assert second_eigenvalue(metropolis(PATH)) == pytest.approx(2 / 3, rel=1e-12)

    def test_a_path_of_three_by_its_eigenvalues(self):
        wanted = [[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]]
        np.testing.assert_allclose(best_constant(PATH), wanted, atol=1e-12)
        assert second_eigenvalue(best_constant(PATH)) == pytest.approx(0.5, rel=1e-12)

    def test_a_ring_of_five(self):
        weights = metropolis(ring(5))
        np.testing.assert_allclose(weights, THIRD * (ring(5) + np.eye(5)), rtol=1e-12)
        assert second_eigenvalue(weights) == pytest.approx(0.53934466, abs=5e-9)
        assert second_eigenvalue(weights) == pytest.approx(
            (1 + 2 * np.cos(np.deg2rad(72))) / 3, rel=1e-12
        )

    def test_two_devices_take_half(self):
        np.testing.assert_array_equal(metropolis(PAIR), [[0.5, 0.5], [0.5, 0.5]])

    @pytest.mark.parametrize("graph", [PAIR, ring(4), ring(6)], ids=["a pair", "4", "6"])
    def test_one_over_the_degree_itself_swaps_for_ever(self, graph):
        weights = np.eye(len(graph)) - (np.diag(graph.sum(1)) - graph) / graph.sum(1).max()
        assert second_eigenvalue(weights) == pytest.approx(1.0, rel=1e-12)
        assert second_eigenvalue(maximum_degree(graph)) < 1.0

    def test_a_full_graph_agrees_at_once(self):
        full = adjacency("abcd", [(a, b) for a in "abcd" for b in "abcd" if a < b])
        for make in MAKERS.values():
            np.testing.assert_allclose(make(full), np.full((4, 4), 0.25), atol=1e-12)

    def test_alone_nothing_is_mixed(self):
        for make in MAKERS.values():
            np.testing.assert_array_equal(make(adjacency("a", [])), [[1.0]])
        assert second_eigenvalue(np.ones((1, 1))) == 0.0


@given(graph=graphs(), name=st.sampled_from(sorted(MAKERS)))
def test_every_matrix_mixes_and_moves_no_average(graph, name):
    weights = MAKERS[name](graph)
    np.testing.assert_array_equal(weights, weights.T)
    np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-12)
    assert name == "laplacian" or (weights >= 0.0).all()
    assert second_eigenvalue(weights) < 1.0 - 1e-12
    assert ((weights != 0) <= (graph + np.eye(len(graph)) > 0)).all()
    models = np.random.default_rng(len(graph)).normal(size=(len(graph), 3))
    np.testing.assert_allclose((weights @ models).mean(0), models.mean(0), atol=1e-12)


@given(graphs())
def test_a_devices_own_row_is_its_row_of_the_matrix(graph):
    weights, degrees = metropolis(graph), graph.sum(1).astype(int)
    for number in range(len(graph)):
        near = {str(j): int(degrees[j]) for j in np.flatnonzero(graph[number])}
        own, theirs = metropolis_row(int(degrees[number]), near)
        assert own == pytest.approx(weights[number, number], rel=1e-12)
        assert theirs == {name: pytest.approx(weights[number, int(name)]) for name in near}


@given(graphs(), st.data())
def test_missing_links_leave_a_matrix_that_moves_no_average(graph, data):
    weights = metropolis(graph)
    links = [(i, j) for i, j in np.argwhere(graph) if i < j]
    lost = data.draw(st.sets(st.sampled_from(links)))
    after = np.zeros_like(weights)
    for number, row in enumerate(weights):
        theirs = {str(j): float(row[j]) for j in np.flatnonzero(graph[number])}
        gone = [str(b if a == number else a) for a, b in lost if number in (a, b)]
        left = {name: weight for name, weight in theirs.items() if name not in gone}
        shares = np.array([*left.values()])
        (own,) = average(np.ones(1), np.zeros((len(left), 1)), shares)
        after[number, number] = own
        for name, weight in left.items():
            after[number, int(name)] = weight
    np.testing.assert_array_equal(after, after.T)
    np.testing.assert_allclose(after.sum(1), 1.0, atol=1e-12)


@given(graphs())
def test_differences_fade_by_the_speed_and_no_slower(graph):
    weights = metropolis(graph)
    pace = second_eigenvalue(weights)
    assume(pace > 1e-3)
    x = np.random.default_rng(1).normal(size=len(graph))
    x -= x.mean()
    for _ in range(5):
        moved = weights @ x
        assert np.linalg.norm(moved) <= pace * np.linalg.norm(x) * (1 + 1e-9) + 1e-15
        x = moved - moved.mean()
    values, vectors = np.linalg.eigh(weights)
    slow = vectors[:, np.argsort(np.abs(values))[-2]]
    assert np.linalg.norm(weights @ slow) == pytest.approx(pace, rel=1e-9)


@given(graphs(), st.floats(0.02, 0.98))
def test_no_constant_mixes_faster_than_the_best(graph, part):
    values = np.linalg.eigvalsh(np.diag(graph.sum(1)) - graph)
    other = best_constant(graph, part * 2 / values[-1])
    assert second_eigenvalue(best_constant(graph)) <= second_eigenvalue(other) + 1e-9


@given(graph=graphs())
def test_networkx_sees_the_same_graph(nx, graph):
    theirs = nx.from_numpy_array(graph)
    assert nx.is_connected(theirs)
    degrees = dict(theirs.degree())
    weights = metropolis(graph)
    for a, b in theirs.edges():
        assert weights[a, b] == pytest.approx(1 / (1 + max(degrees[a], degrees[b])), rel=1e-12)
    laplacian = np.diag([degrees[i] for i in range(len(graph))]) - nx.to_numpy_array(theirs)
    values = np.linalg.eigvalsh(laplacian)
    epsilon = 2 / (values[1] + values[-1])
    wanted = np.eye(len(graph)) - epsilon * laplacian
    np.testing.assert_allclose(best_constant(graph), wanted, atol=1e-12)
    wanted = np.eye(len(graph)) - laplacian / (1 + max(degrees.values()))
    np.testing.assert_allclose(maximum_degree(graph), wanted, atol=1e-12)


@given(
    n=st.integers(2, 7),
    links=st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=9),
)
def test_networkx_agrees_on_what_is_connected(nx, n, links):
    links = {(a, b) for a, b in links if a != b and max(a, b) < n}
    theirs = nx.Graph(sorted(links))
    theirs.add_nodes_from(range(n))
    try:
        adjacency(map(str, range(n)), [(str(a), str(b)) for a, b in links])
    except TopologyError:
        assert not nx.is_connected(theirs)
    else:
        assert nx.is_connected(theirs)


class TestRefusals:
    """What cannot be mixed over, and why."""

    @pytest.mark.parametrize(
        ("links", "why"),
        [
            ([("a", "b")], "not connected: c cannot be reached from a"),
            ([("a", "d")], "a - d: d is unknown"),
            ([("a", "a")], "a - a: a device cannot be its own neighbour"),
        ],
    )
    def test_graphs(self, links, why):
        with pytest.raises(TopologyError, match=why):
            adjacency("abc", links)

    @pytest.mark.parametrize("epsilon", [0.0, -0.1, 2 / 3, 1.0, float("nan")])
    def test_steps_with_which_models_drift_apart(self, epsilon):
        with pytest.raises(TopologyError, match=r"epsilon: expected above 0 and below 0\.666667"):
            best_constant(PATH, epsilon)

    @pytest.mark.parametrize(("degree", "near"), [(2, {"b": 1}), (1, {"b": 0}), (0, {"b": 1})])
    def test_degrees(self, degree, near):
        with pytest.raises(TopologyError, match="degree"):
            metropolis_row(degree, near)
