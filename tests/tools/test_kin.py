"""The graph experiments: what they make up, count, judge and write."""

import argparse

import numpy as np
import pytest

from tools.experiments import kin_pages, milan_graph, synthetic_graph
from tools.experiments.kin import Course, Field, course
from tools.experiments.milan_graph import beside
from tools.experiments.nets import Net
from tools.experiments.synthetic_graph import Samples

NAMES = "abc"
NET = Net((2, 3, 1))


@pytest.fixture(scope="module")
def path():
    """Three devices in a row."""
    rng = np.random.default_rng(0)
    windows = {}
    for number, name in enumerate(NAMES):
        x = rng.normal(size=(20, 1, 2)).astype(np.float32)
        windows[name] = Samples(x, (x[:, 0] @ np.array([[1.0], [number]])).astype(np.float32))
    links = frozenset({("a", "b"), ("b", "c")})
    return Field(NET.spec, NET.first(rng), NET.graphs, windows, links, batch=20)


def ended(path, method, rounds=3, **more):
    *_, last = course(Course(method, rounds, 2, 0.1, **more), path)
    return last


def test_bytes_are_those_of_the_vectors_that_cross(path):
    size = 4 * NET.spec.size
    assert ended(path, "local").said == 0.0
    assert ended(path, "fedavg").said == 2 * 3 * size
    assert ended(path, "dfl_sgd").said == pytest.approx(2 * 3 * size * 4 / 3)  # of degree 4/3
    assert ended(path, "dfl_gt").said == pytest.approx(2 * ended(path, "dfl_sgd").said)
    two = ended(path, "bigfl", settings={"map_rate": 0.0}).said
    assert two == 2 * 3 * size
    four = ended(path, "bigfl", settings={"map": "diagonal"}).said
    assert four == pytest.approx((2 + 2) * 3 * size + 2 * size)  # the map, once it has moved


def test_learning_alone_is_the_bilevel_method_without_a_graph(path):
    alone = ended(path, "local")
    settings = {"smooth": 0.0, "ridge": 0.0, "map_rate": 0.0}
    apart = ended(path, "bigfl", settings=settings)
    for name in NAMES:
        np.testing.assert_allclose(apart.vectors[name], alone.vectors[name], atol=1e-6)


def test_fading_steps_fade_alike_with_and_without_a_server(path):
    plain, faded = (ended(path, "fedavg", fading=fading).common for fading in (False, True))
    assert np.linalg.norm(faded - path.first) < np.linalg.norm(plain - path.first)


def test_fifty_are_near_whom_they_are_like_and_all_can_be_reached():
    made = synthetic_graph.fifty(3, nodes=20)
    degrees = dict.fromkeys(made.field.windows, 0)
    for pair in made.field.links:
        for name in pair:
            degrees[name] += 1
    assert min(degrees.values()) >= 4
    names = sorted(made.field.windows)
    assert (
        len(
            synthetic_graph._reached(
                {(names.index(a), names.index(b)) for a, b in made.field.links}
            )
        )
        == 20
    )
    assert made.field.spec.size == 512


def test_squares_border_on_squares_of_their_row_and_column():
    assert beside("cell_4142", "cell_4143")
    assert beside("cell_4142", "cell_4042")
    assert not beside("cell_4199", "cell_4200")


@pytest.mark.slow
def test_a_quick_run_writes_a_page_with_every_claim(tmp_path):
    options = argparse.Namespace(
        out=tmp_path, data=None, seeds=1, quick=True, kept=False, docs=None, json=False
    )
    assert kin_pages.main(options) == 0
    page = (tmp_path / "E7.md").read_text()
    assert page.count("reproduced**") == 7
    assert "<img" in (tmp_path / "E7.html").read_text()
    options.kept = True
    assert kin_pages.main(options) == 0


def test_real_runs_are_judged_in_every_seed():
    def run(name, seed, rmse):
        shown = [{"round": 1, "said": 8.0, "RMSE": rmse, "MAE": rmse / 2}]
        return {"name": name, "seed": seed, "rate": 0.1, "shown": shown}

    runs = [run("local", s, 2.0) for s in (0, 1)]
    runs += [run("FedAvg", s, 3.0) for s in (0, 1)]
    runs += [run("FeSEM", 0, 1.0), run("FeSEM", 1, 2.5)]
    lines = kin_pages.real(runs).lines
    (row,) = [x for x in lines if x.startswith("| FeSEM")]
    assert row.endswith("| **no** | yes |  |")
    assert milan_graph.file("BiG-FL, phi = I", 0, 5) == "milan-BiG-FL,phi=I-r5-s0.json"
