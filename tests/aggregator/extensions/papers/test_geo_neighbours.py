"""Neighbours from coordinates and from files."""

from __future__ import annotations

import numpy as np
import pytest

from aggregator.extensions.papers.geo_neighbours import read, within
from aggregator.extensions.papers.graph.stations import Site, distances
from edge_sdk.app.schema import SchemaError

TOWN = {"a": (40.0, -105.0), "b": (40.01, -105.0), "c": (40.0, -105.03), "d": (41.0, -105.0)}


def test_distances_are_those_of_a_sphere():
    def apart(one, other):
        return distances([Site(*one), Site(*other)])[0, 1]

    assert apart((0.0, 0.0), (0.0, 180.0)) == pytest.approx(20015.114, abs=1e-3)  # half around
    assert apart((40.0, -105.0), (40.0, -105.1)) == pytest.approx(8.518, abs=1e-3)
    assert apart((0.0, 179.9), (0.0, -179.9)) == pytest.approx(22.239, abs=1e-3)
    assert apart((89.0, 0.0), (89.0, 180.0)) == pytest.approx(222.39, abs=1e-2)
    assert apart(TOWN["a"], TOWN["b"]) == apart(TOWN["b"], TOWN["a"])


def test_neighbours_lie_within_the_median_distance_or_within_what_is_said():
    near = within(TOWN).among(sorted(TOWN))
    np.testing.assert_array_equal(near, near.T)
    assert near[:3, :3].sum() == 6
    assert not near[3].any()
    assert within(TOWN, 1.2).pairs == {("a", "b")}
    assert len(within(TOWN, 1e4).pairs) == 6


def test_one_place_is_no_distance():
    assert within({"a": (1.0, 1.0), "b": (1.0, 1.0)}, 10.0).pairs == frozenset()


def test_one_site_has_no_neighbours():
    assert within({"a": (1.0, 1.0)}).among(["a"]).tolist() == [[False]]


def test_a_file_of_sites_says_what_a_table_says(tmp_path):
    lines = ["client,latitude,longitude", *(f"{n},{x},{y}" for n, (x, y) in TOWN.items())]
    path = tmp_path / "sites.csv"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    assert read(path) == within(TOWN)
    assert read(path, 1.2) == within(TOWN, 1.2)


def test_a_file_of_pairs(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("client,neighbour\nb,a\n\nb,c\na,b\n", "utf-8")
    assert read(path).pairs == {("a", "b"), ("b", "c")}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (None, "run.settings.neighbours"),
        ("", "run.settings.neighbours"),
        ("from,to\na,b\n", "run.settings.neighbours"),
        ("client,neighbour\na\n", "run.settings.neighbours"),
        ("client,latitude,longitude\na,north,3\n", "run.settings.neighbours"),
        ("client,latitude,longitude\na,91,3\n", "run.settings.sites.a"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, text, key):
    path = tmp_path / "some.csv"
    if text is not None:
        path.write_text(text, "utf-8")
    with pytest.raises(SchemaError) as caught:
        read(path)
    assert caught.value.path == key


def test_pairs_have_no_distance(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("client,neighbour\na,b\n", "utf-8")
    with pytest.raises(SchemaError, match=r"run\.settings\.threshold"):
        read(path, 3.0)
