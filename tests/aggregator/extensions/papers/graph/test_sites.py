"""What holds for every graph: spectra, symmetry, who is near whom."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.extensions.papers.graph.stations import (
    Site,
    adjacency,
    chebyshev,
    chebyshev_of_present,
    distances,
    laplacian,
    nearest,
    path,
    scaled,
    within,
)

PLACES = st.lists(
    st.builds(Site, st.floats(-89, 89), st.floats(-179, 179)), min_size=1, max_size=9, unique=True
)


@st.composite
def graphs(draw):
    n = draw(st.integers(1, 8))
    bits = draw(st.lists(st.booleans(), min_size=n * n, max_size=n * n))
    upper = np.triu(np.reshape(bits, (n, n)), 1)
    return (upper | upper.T).astype(np.float64)


def test_the_laplacian_of_a_path_of_three():
    root = np.sqrt(0.5)
    wanted = [[1, -root, 0], [-root, 1, -root], [0, -root, 1]]
    np.testing.assert_allclose(laplacian(path(3)), wanted, rtol=0, atol=1e-12)
    values = np.linalg.eigvalsh(laplacian(path(3)))
    np.testing.assert_allclose(values, [0, 1, 2], rtol=0, atol=1e-12)
    np.testing.assert_allclose(scaled(path(3)), wanted - np.eye(3), rtol=0, atol=1e-12)


def test_products_of_matrices_and_not_of_elements():
    second = chebyshev(path(3), 3)[2]
    by_element = 2 * scaled(path(3)) ** 2 - np.eye(3)
    np.testing.assert_allclose(second, [[0, 0, 1], [0, 1, 0], [1, 0, 0]], rtol=0, atol=1e-12)
    wrong = [[-1, 1, 0], [1, -1, 1], [0, 1, -1]]
    np.testing.assert_allclose(by_element, wrong, rtol=0, atol=1e-12)


@given(graphs())
def test_scaled_spectra_lie_between_minus_one_and_one(adjacent):
    found = scaled(adjacent)
    assert np.allclose(found, found.T)
    values = np.linalg.eigvalsh(found)
    assert values.min() >= -1 - 1e-9
    assert values.max() <= 1 + 1e-9


@given(graphs(), st.integers(1, 6))
def test_polynomials_are_those_of_the_eigenvalues(adjacent, order):
    values, vectors = np.linalg.eigh(scaled(adjacent))
    terms = chebyshev(adjacent, order)
    for k in range(order):
        wanted = vectors @ np.diag(np.cos(k * np.arccos(np.clip(values, -1, 1)))) @ vectors.T
        np.testing.assert_allclose(terms[k], wanted, rtol=0, atol=1e-6)


@given(graphs(), st.integers(1, 4))
def test_a_polynomial_reaches_no_further_than_its_edges(adjacent, order):
    reach = within(adjacent, order - 1)
    assert not chebyshev(adjacent, order)[:, ~reach].any()


@given(graphs(), st.randoms(use_true_random=False))
def test_the_absent_leave_the_graph_of_the_others(adjacent, random):
    present = np.array([random.random() < 0.6 for _ in adjacent])
    terms = chebyshev_of_present(adjacent, present, 3)
    alone = chebyshev(adjacent[np.ix_(present, present)], 3)
    np.testing.assert_array_equal(terms[:, present][:, :, present], alone)
    assert not terms[:, ~present].any()
    assert not terms[:, :, ~present].any()


@given(PLACES, st.randoms(use_true_random=False))
def test_neighbours_do_not_depend_on_the_order_of_sites(sites, random):
    order = random.sample(range(len(sites)), len(sites))
    far = distances(sites)
    moved = distances([sites[i] for i in order])
    np.testing.assert_allclose(moved, far[np.ix_(order, order)], rtol=0, atol=1e-9)
    found = adjacency(far)
    assert (found == found.T).all()
    assert not found.diagonal().any()
    assert not nearest(far, 3).diagonal().any()


@given(PLACES, st.integers(1, 4))
def test_everybody_has_the_neighbours_that_were_asked_for(sites, count):
    found = nearest(distances(sites), count)
    assert (found == found.T).all()
    assert (found.sum(1) >= min(count, len(sites) - 1)).all()


def test_a_known_distance():
    boulder, denver = Site(40.0150, -105.2705), Site(39.7392, -104.9903)
    assert distances([boulder, denver])[0, 1] == pytest.approx(38.9, abs=0.2)
