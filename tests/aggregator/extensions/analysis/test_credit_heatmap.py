"""Who trusted whom: what is exactly nothing must not look like little."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from aggregator.extensions.analysis.credit_heatmap import COLUMNS, given, received, svg, table

HONEST = {"a": 0.6, "b": 0.3, "c": 0.1}
ROUNDS = {
    1: {"a": {"a": 0.4, "b": 0.3, "c": 0.3}, "b": {"a": 0.5, "b": 0.5}, "c": {"c": 1.0}},
    2: {"a": {"a": 0.7, "b": 0.3}, "b": {"a": 0.5, "b": 0.5}, "c": {"a": 0.5, "c": 0.5}},
}
SVG = "{http://www.w3.org/2000/svg}"


def cells(picture):
    return [
        (rect.find(f"{SVG}title").text, rect.get("fill"))
        for rect in ET.fromstring(picture).iter(f"{SVG}rect")
    ]


def test_a_weight_from_others_leaves_out_ones_own():
    heat = received(ROUNDS)
    assert heat.devices == ("a", "b", "c")
    assert heat.weights.tolist() == [[0.25, 0.5], [0.15, 0.15], [0.15, 0.0]]
    assert heat.excluded == ("c",)


def test_two_byzantine_devices_that_weigh_each_other_are_excluded():
    honest = {name: {"a": 0.4, "b": 0.3, "c": 0.3} for name in "abc"}
    liars = {"x": {"x": 0.5, "y": 0.5}, "y": {"x": 0.5, "y": 0.5}}
    heat = received({1: honest | liars})
    assert heat.excluded == ("x", "y")
    assert (heat.weights[:3] > 0.0).all()


def test_what_one_device_makes_of_the_others_includes_its_own():
    heat = given(ROUNDS, "a")
    assert heat.weights[:, 1].tolist() == [0.7, 0.3, 0.0]
    with pytest.raises(KeyError):
        given(ROUNDS, "stranger")


def test_a_device_that_took_no_part_is_neither_trusted_nor_cast_out():
    later = {3: {"a": {"a": 1.0}, "b": {"a": 0.2, "b": 0.8}}}
    heat = received(ROUNDS | later)
    assert np.isnan(heat.weights[2, 2])
    assert heat.excluded == ("b", "c")  # b now, c when it was last there
    assert table(heat).splitlines()[-1].split()[-1] == "-"
    assert ("c, version 3: nan", "none") in cells(svg(heat))


def test_red_is_exactly_nothing():
    shown = dict(cells(svg(received({1: {"a": {"b": 1e-6}, "b": {}, "c": {"b": 0.9}}}))))
    assert shown["c, version 1: 0"] == "#b42318"
    assert shown["a, version 1: 0"] == "#b42318"
    assert shown["b, version 1: 0.45"] != "#b42318"
    little = dict(cells(svg(received({1: {"a": {"b": 1e-6, "c": 0.9}, "b": {}, "c": {}}}))))
    assert little["b, version 1: 5e-07"] != "#b42318"


def test_names_are_escaped():
    picture = svg(received({1: {"<a>": {"&": 0.5}, "&": {"<a>": 0.5}}}))
    assert [name for name, _ in cells(picture)] == ["&, version 1: 0.5", "<a>, version 1: 0.5"]


def test_nothing_to_draw_is_still_a_picture():
    assert cells(svg(received({}))) == []
    assert table(received({})) == "version"


@drawn(st.integers(1, 300), st.integers(1, 40))
def test_a_table_has_the_first_and_the_last_round_and_fits(rounds, columns):
    heat = received({n: {"a": {"b": 0.5}, "b": {}} for n in range(1, rounds + 1)})
    head = table(heat, max(columns, 2)).splitlines()[0].split()[1:]
    assert (head[0], head[-1]) == ("1", str(rounds))
    assert len(head) <= max(columns, 2, 1)
    assert COLUMNS * 5 < 80
