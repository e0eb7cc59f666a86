"""What ``[run.graph]`` may say, and what becomes of it."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args, get_type_hints

import numpy as np
import pytest

from aggregator.extensions.papers.geo_neighbours import read
from aggregator.extensions.papers.graph.factory import (
    OPTIONS,
    GraphSection,
    bind,
    examples_at_once,
    kept,
    read_sites,
)
from edge_sdk.app.schema import SchemaError, build

DIFFUSION = {"kind": "diffusion", "capacity": 5, "sites": "sites.toml"}
NEAR = """
[sites]
b = { latitude = 40.0, longitude = -105.0 }
a = { latitude = 40.0, longitude = -105.1 }
c = { latitude = 40.0, longitude = -105.3 }
"""


def bound(folder, text=NEAR, **said):
    (folder / "sites.toml").write_text(text)
    return bind(build(GraphSection, {**DIFFUSION, **said}), (2, 3), folder)


def test_stations_sit_where_the_file_has_them_with_room_behind(tmp_path):
    seated = bound(tmp_path)
    assert seated.places == {"b": 0, "a": 1, "c": 2}
    assert seated.model.capacity == 5
    wanted = np.zeros((5, 5))
    wanted[0, 1] = wanted[1, 0] = wanted[1, 2] = wanted[2, 1] = 1.0  # the median of 8, 17, 26 km
    np.testing.assert_array_equal(seated.model.adjacent, wanted)


@pytest.mark.parametrize(
    ("said", "edges"),
    [
        ({"threshold": 10.0}, [(0, 1)]),
        ({"threshold": 30.0}, [(0, 1), (0, 2), (1, 2)]),
        ({"nearest": 1}, [(0, 1), (1, 2)]),
    ],
)
def test_a_distance_or_a_number_says_who_is_near(said, edges, tmp_path):
    adjacent = bound(tmp_path, **said).model.adjacent
    assert [tuple(edge) for edge in np.argwhere(np.triu(adjacent))] == edges
    assert (adjacent == adjacent.T).all()


@pytest.mark.parametrize(
    ("text", "edges"),
    [
        ("client,latitude,longitude\nb,40,-105\na,40,-105.1\nc,40,-105.3\n", [(0, 1), (1, 2)]),
        ("client,neighbour\nb,a\nc,a\n", [(0, 1), (1, 2)]),
    ],
)
def test_the_file_of_the_credits_neighbours_serves_as_well(text, edges, tmp_path):
    (tmp_path / "near.csv").write_text(text)
    section = build(GraphSection, {**DIFFUSION, "sites": "near.csv"})
    seated = bind(section, (2, 3), tmp_path)
    assert seated.places == {"b": 0, "a": 1, "c": 2}
    assert [tuple(edge) for edge in np.argwhere(np.triu(seated.model.adjacent))] == edges
    named = read(tmp_path / "near.csv").among(["b", "a", "c", "x", "y"])
    np.testing.assert_array_equal(seated.model.adjacent, named)


@pytest.mark.parametrize("text", ["", "client,km\n", "client,latitude,longitude\na,b\n"])
def test_a_csv_of_something_else_is_refused(text, tmp_path):
    (tmp_path / "near.csv").write_text(text)
    with pytest.raises(SchemaError, match=r"run\.graph\.sites"):
        read_sites(tmp_path / "near.csv")


def test_edges_win_over_coordinates_and_may_stand_alone(tmp_path):
    seated = bound(tmp_path, 'edges = [["a", "c"]]\n' + NEAR)
    assert seated.places == {"b": 0, "a": 1, "c": 2}
    assert [tuple(edge) for edge in np.argwhere(np.triu(seated.model.adjacent))] == [(1, 2)]
    alone = bound(tmp_path, 'edges = [["x", "y"]]')
    assert alone.places == {"x": 0, "y": 1}


def test_without_a_file_all_are_neighbours():
    seated = bind(GraphSection("diffusion", capacity=3), (2, 3))
    np.testing.assert_array_equal(seated.model.adjacent, 1 - np.eye(3))
    assert not seated.places


@pytest.mark.parametrize(
    ("text", "said", "match"),
    [
        (NEAR, {"capacity": 2}, "run.graph.capacity"),
        ("[sites", {}, "run.graph.sites"),
        ('edges = [["a", "a"]]', {}, "two different stations"),
        ('edges = [["a"]]', {}, "edges"),
        ("[sites]\na = { latitude = 95.0, longitude = 0.0 }", {}, "latitude"),
    ],
)
def test_refuses_what_cannot_be_meant(text, said, match, tmp_path):
    with pytest.raises(SchemaError, match=match):
        bound(tmp_path, text, **said)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"kind": "diffusion", "blocks": 3}, "blocks: has no effect on kind 'diffusion'"),
        ({"kind": "diffusion", "dtype": "float64"}, "dtype: .*pfgl, conv2d, graphnet"),
        ({"kind": "diffusion", "memory_mb": 64}, "memory_mb: "),
        ({"kind": "diffusion", "device": "cuda"}, "device: "),
        ({"kind": "diffusion", "residual_ln": True}, "residual_ln: .*use pfgl"),
        ({"kind": "conv2d", "order": 4}, "order: .*use pfgl, diffusion"),
        ({"kind": "conv2d", "sites": "s", "nearest": 2}, "nearest: "),
        ({"kind": "graphnet", "order": 2}, "order: "),
        ({"kind": "graphnet", "attention": "local"}, "attention: "),
        ({"kind": "conv2d", "astgcn_order": True}, "astgcn_order: "),
        ({"kind": "pfgl", "threshold": 2.0}, "threshold: has no effect without sites"),
        ({"kind": "pfgl", "nearest": 2}, "nearest: has no effect without sites"),
        ({"sites": "s", "nearest": 2, "threshold": 2.0}, "threshold: .* beside nearest"),
    ],
)
def test_an_option_without_effect_is_refused_by_name(given, match):
    with pytest.raises(SchemaError, match=rf"run\.graph: {match}"):
        build(GraphSection, given, where="run.graph")


def test_a_distance_beside_edges_is_refused(tmp_path):
    with pytest.raises(SchemaError, match=r"run\.graph\.nearest: .*has edges"):
        bound(tmp_path, 'edges = [["a", "c"]]\n' + NEAR, nearest=1)


def test_the_table_of_options_names_every_kind_and_option_once():
    options = {one.name for one in fields(GraphSection)} - {"kind", "sites", "capacity"}
    assert set().union(*OPTIONS.values()) == options
    assert list(OPTIONS) == list(get_args(get_type_hints(GraphSection)["kind"]))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SchemaError, match=r"none\.toml"):
        bind(build(GraphSection, {**DIFFUSION, "sites": "none.toml"}), (2, 3), tmp_path)


def test_reads_a_file_of_sites(tmp_path):
    (tmp_path / "s.toml").write_text(NEAR)
    assert read_sites(tmp_path / "s.toml").stations == ("b", "a", "c")


def test_a_block_never_has_less_than_one_example():
    section = GraphSection(memory_mb=16, capacity=2000)
    assert examples_at_once(section, 64, 32, np.zeros((2000, 2000))) == 1


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["pfgl", "conv2d", "graphnet"])
@pytest.mark.parametrize(("stations", "features", "steps"), [(8, 16, 32), (96, 2, 4), (40, 16, 8)])
def test_the_law_of_memory_bounds_what_is_kept(kind, stations, features, steps):
    torch = pytest.importorskip("torch")
    section = GraphSection(kind, capacity=stations, engine="torch")
    model = bind(section, (features, steps)).model
    h = torch.rand(1, stations, features, steps, requires_grad=True)
    around = model._around(np.ones(stations, np.bool_))
    p = torch.tensor(model.init(0))
    given = {t.untyped_storage().data_ptr() for t in (p, h, around.terms)}
    sizes = {}

    def note(tensor):
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in given:
            sizes[memory.data_ptr()] = (memory.nbytes() // 4, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        torch.func.functional_call(model._net, model._weights(p), (h, around))
    counted = sum(size for size, _ in sizes.values())
    law = section.blocks * kept(section, features, steps, 1 - np.eye(stations))
    assert counted <= law * 1.02 + 40_000  # tables of steps and edges' numbers are not in it
    assert law <= 3 * counted


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["pfgl", "conv2d", "graphnet"])
@pytest.mark.parametrize("steps", [1, 4])
def test_every_net_pulls_back_what_finite_differences_find(kind, steps):
    pytest.importorskip("torch")
    model = bind(GraphSection(kind, capacity=4, dtype="float64"), (3, steps)).model
    present = np.array([True, True, False, True])
    draw = np.random.Generator(np.random.Philox(8))
    h, gz = draw.normal(size=(2, 2, 4, 3, steps))
    p = model.init(1)
    gh, gp = model.pullback(p, h, present, gz)
    assert not gh[:, 2].any()
    assert not model.forward(p, h, present)[:, 2].any()
    gz[:, 2] = 0.0
    for of_p, of_h in ((draw.normal(size=p.shape), 0.0), (0.0, draw.normal(size=h.shape))):
        ahead, behind = (model.forward(p + e * of_p, h + e * of_h, present) for e in (1e-6, -1e-6))
        wanted = ((ahead - behind) * gz).sum() / 2e-6
        assert (gp * of_p).sum() + (gh * of_h).sum() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize(("name", "count"), [("cuda", 0), ("cuda:0", 0), ("cuda:2", 2)])
def test_an_accelerator_that_is_not_there_is_refused_with_its_key(name, count, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(SchemaError, match=r"run\.graph\.device.*'cpu'.*CUDA"):
        bind(build(GraphSection, {"kind": "pfgl", "device": name}), (2, 3))
