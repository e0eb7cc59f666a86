"""The graph experiments: what they make up, count, judge and write."""

import argparse
import json

import numpy as np
import pytest

from aggregator.extensions.papers.graph import Site
from edge_sdk.bundle import Bundle, TrustedKeys
from tools.experiments import (
    artificial_graph_curves,
    language,
    located_devices,
    real_graphs,
    related_methods_pages,
    synthetic_graph,
    synthetic_graph_pages,
)
from tools.experiments.located_devices import beside
from tools.experiments.nets import Net
from tools.experiments.related_methods import Course, Field, course
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


def told(method, losses, **way):
    """What a run of figure 10.1 leaves behind."""
    way = {"fading": False, "linear": False, "rate": synthetic_graph.RATE} | way
    shown = [[i, 0.0, loss, 1.0 / i] for i, loss in enumerate(losses, start=1)]
    return {"figure": "10.1", "method": method, "seed": 0, "shown": shown, **way}


def test_rounds_are_counted_to_a_loss_that_all_reach():
    runs = [told("fedavg", [5.0, 2.0, 1.0]), told("dfl_gt", [5.0, 4.0, 3.0])]
    runs += [told("dfl_sgd", [5.0, 3.5, 2.5])]
    needed = synthetic_graph_pages._needed(runs, [0], synthetic_graph_pages.HELD)
    assert needed == {"fedavg": [2.0], "dfl_gt": [3.0], "dfl_sgd": [3.0]}
    runs[1] = told("dfl_gt", [5.0, 4.0, np.inf])
    assert np.isnan(
        synthetic_graph_pages._needed(runs, [0], synthetic_graph_pages.HELD)["fedavg"]
    ).all()
    claim = synthetic_graph_pages._faster(runs, [0], synthetic_graph_pages.HELD, "order")
    assert not claim.holds


def test_steps_that_are_too_long_are_tried_and_named():
    made = list(synthetic_graph.ways(quick=False))
    assert {rate for net, fading, rate in made if not fading} == set(synthetic_graph.RATES)
    runs = [told(x, [1.0, 0.5], rate=rate) for x in synthetic_graph.SPEEDS for rate in (0.1, 0.2)]
    runs[1] = told("fedavg", [1.0, 1e9], rate=0.2)
    lines = synthetic_graph_pages._by_step(runs, [0])
    assert lines[2].endswith("| 0 of 1 |")
    assert lines[3].endswith("| 1 of 1 |")


@pytest.mark.soak
def test_a_quick_run_writes_a_page_with_every_claim(tmp_path):
    options = argparse.Namespace(
        out=tmp_path, data=None, seeds=1, quick=True, kept=False, docs=None, experiments=["e7"]
    )
    assert related_methods_pages.main(options) == 0
    page = (tmp_path / "E7.md").read_text()
    assert page.count("reproduced**") == 13
    assert "<img" in (tmp_path / "E7.html").read_text()
    options.kept = True
    assert related_methods_pages.main(options) == 0


def keep(folder, figure, method, *parts):
    """Keep a run as it is kept: round, bytes, loss, distance, loss of the average."""
    found = [{"method": method, "seed": 0, "figure": figure, **said} for said in parts]
    (folder / synthetic_graph.file(figure, method, 0, quick=False)).write_text(json.dumps(found))


def test_a_figure_has_the_loss_of_the_average_where_there_is_no_server(tmp_path):
    options = argparse.Namespace(out=tmp_path, quick=False)
    shown = {"train": [[1, 0.0, 4.0, 0.0, 5.0], [6, 0.0, 2.0, 0.0, 3.0]]}
    shown["test"] = [[1, 0.0, 8.0, 0.0, 9.0]]
    for method in synthetic_graph.KINDS:
        keep(tmp_path, "10.3", method, *({"part": x, "shown": y} for x, y in shown.items()))
    record = artificial_graph_curves.fifty(options)
    train, test = (one["lines"] for one in record["panels"])
    assert record["across"] == [1, 6]
    assert (train["FeSEM"], train["DFL-SGD"]) == ([4.0, 2.0], [5.0, 3.0])
    assert (test["FeSEM"], test["DFL-GT"]) == ([8.0, None], [9.0, None])


def test_a_figure_shows_the_two_steps_that_it_names(tmp_path):
    options = argparse.Namespace(out=tmp_path, quick=False)
    for method in synthetic_graph.SPEEDS:
        runs = [
            {"linear": net is synthetic_graph.LINE, "fading": fading, "rate": rate}
            | {"shown": [[1, 0.0, 10 * rate + fading, 0.0]]}
            for net, fading, rate in synthetic_graph.ways(quick=False)
        ]
        keep(tmp_path, "10.1", method, *runs)
    constant, fading = (one["lines"] for one in artificial_graph_curves.five(options)["panels"])
    assert constant == {"FedAvg": [1.0], "DFL-GT": [1.0], "DFL-SGD": [1.0]}
    assert fading == {"FedAvg": [2.0], "DFL-GT": [2.0], "DFL-SGD": [2.0]}


def real(name, seed, score):
    shown = [{"round": 1, "said": 8.0, "QS": score, "MAE": score / 2}]
    said = {"title": "some sites", "said": "Two sites.", "score": "QS"}
    return {"name": name, "seed": seed, "rate": 0.1, "shown": shown, **said}


def test_real_runs_are_judged_in_every_seed():
    runs = [real("local", s, 2.0) for s in (0, 1)]
    runs += [real("FedAvg", s, 3.0) for s in (0, 1)]
    runs += [real("FeSEM", 0, 1.0), real("FeSEM", 1, 2.5), real("BiG-FL", 0, 0.5)]
    lines = related_methods_pages.real(runs).lines
    (row,) = [x for x in lines if x.startswith("| FeSEM")]
    assert row.endswith("| **no** | yes |  |")
    (row,) = [x for x in lines if x.startswith("| BiG-FL (1 seed)")]
    assert row.endswith("| yes | yes |  |")
    assert real_graphs.file("milan", "BiG-FL, phi = I", 0, 5) == "milan-BiG-FL,phi=I-r5-s0.json"


def test_a_map_is_solved_for_only_where_a_model_has_its_curvature():
    kind = real_graphs.KINDS["BiG-FL"]
    for name, solves in (("cells-mlp-1", True), ("chargers-1", False)):
        place = argparse.Namespace(bundle=Bundle.open(name, trust=TrustedKeys()))
        assert ("solver" not in real_graphs._settings(kind, place)) is solves


def test_sites_are_linked_to_the_nearest_wherever_they_are():
    sites = [Site(0.0, 179.9), Site(0.0, -179.9), Site(0.0, 170.0)]  # across the date line
    links = synthetic_graph.nearest("abc", located_devices.on_the_globe(sites), 1)
    assert links == {("a", "b"), ("a", "c")}


def test_a_speaker_learns_down_its_slope_and_knows_its_curvature():
    rng, speaker = np.random.default_rng(0), language.Speaker(20)
    x, y = rng.integers(0, 20, (30, language.WINDOW)), rng.integers(0, 20, 30)
    p, v = speaker.first(rng).astype(np.float64), rng.normal(size=speaker.spec.size)
    value, g = speaker.gradient(p, x, y)
    assert value == pytest.approx(speaker.loss(p, x, y))
    step = 1e-4
    along = speaker.gradient(p + step * v, x, y)[0] - speaker.gradient(p - step * v, x, y)[0]
    assert g @ v == pytest.approx(float(along) / (2 * step), rel=2e-2, abs=1e-2)
    (curved,) = speaker.hvp(p, x, y, v)
    (twice,) = speaker.hvp(p, x, y, 2 * v)
    np.testing.assert_allclose(twice, 2 * curved, rtol=0.05, atol=0.01)
    assert not speaker.hvp(p, x, y, np.zeros_like(v))[0].any()


def test_domains_are_text_that_is_there_and_apart_from_what_judges():
    made = language.spoken(0, words=50)
    assert len(made.held) >= 10
    for name, some in made.held.items():
        assert len(some) == language.HELD
        assert len(made.field.windows[name]) > language.HELD
        assert int(some.x.max()) < 50


def test_the_language_page_judges_every_claim():
    def run(method, end):
        shown = [[1, 0.0, 9.0], [2, 1.0, end]]
        return {"method": method, "seed": 0, "domains": 15, "size": 7, "shown": shown}

    ends = {"fedavg": 3.0, "fesem": 2.0, "bigfl": 2.5, "local": 4.0}
    page = related_methods_pages.language_models([run(*pair) for pair in ends.items()])
    assert [x.holds for x in page.claims] == [False, True, True]
    assert related_methods_pages.language_models([]).lines == ()
