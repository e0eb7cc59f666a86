"""The papers together: the personal consensus, the verdicts, and the page that is made of a record."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import numpy as np
import pytest

pytest.importorskip("pandas")

from edge_sdk.app.schema import SchemaError
from edge_sdk.protocol.contract.method import Closed, Due, Task, Update
from tools.experiments import combined as experiment
from tools.experiments.personal_consensus import PersonalRounds, personal_consensus
from tools.papers import combined, curves
from tools.papers.combined import Combination, effect, works

NAMES = ("a", "b", "c")
OPEN = Due(round=0, ask="open")


def answered(half, state, vectors):
    effects = ()
    for name, vector in vectors.items():
        told = Update(name, state.round, state.round - 1, np.array([vector], np.float64), {})
        state, effects = half.apply(state, told)
    return state, effects


def half_of(limit=9, credit=0.8):
    settings = PersonalRounds(NAMES, limit, l1=0.5, rate=0.1, credit=credit, values={"steps": 1.0})
    return personal_consensus(settings)


def test_models_alike_move_a_consensus_by_signs_and_an_unlike_one_has_no_vote():
    half = half_of()
    state, tasks = half.apply(half.init(np.zeros(1, np.float32)), OPEN)
    assert [task.to for task in tasks if isinstance(task, Task)] == list(NAMES)
    state, _ = answered(half, state, {"a": 1.0, "b": 1.1, "c": -9.0})
    assert state.z["a"] == pytest.approx([0.05])  # 0.1 * 0.5 * (1 - 0): c has no weight for a
    assert state.z["b"] == pytest.approx([0.05])


def test_no_device_moves_another_ones_consensus_farther_than_a_step():
    half = half_of()
    state, _ = half.apply(half.init(np.zeros(1, np.float32)), OPEN)
    state, _ = answered(half, state, {"a": 1.0, "b": 2.0, "c": 1e30})
    assert all(abs(float(z[0])) <= 0.05 + 1e-12 for z in state.z.values())


def test_the_run_ends_at_its_limit():
    half = half_of(limit=1)
    state, _ = half.apply(half.init(np.zeros(1, np.float32)), OPEN)
    _, effects = answered(half, state, dict.fromkeys(NAMES, 1.0))
    (note,) = effects
    assert isinstance(note, Closed)
    assert note.report["stop"]


def test_every_subset_has_an_arm_for_every_attack():
    arms = experiment.arms(seeds=2, rounds=60, clients=10)
    assert len(arms) == len({arm.file for arm in arms}) == 2 * (16 * 3 + 2)


def rows(errors):
    subsets = list(experiment.subsets())
    return [
        Combination(ideas, 8, {x: (errors(ideas, x),) for x in combined.ATTACKS})
        for ideas in subsets
    ]


def test_an_idea_that_halves_every_error_has_the_effect_of_a_half():
    made = rows(lambda ideas, _: 50.0 if "credit" in ideas else 100.0)
    assert effect(made, "credit", "alie") == pytest.approx(0.5)
    assert effect(made, "layers", "") == pytest.approx(1.0)


def test_a_combination_that_an_attack_breaks_does_not_work():
    plain = Combination((), 8, {"": (100.0,), "flipping": (100.0,), "alie": (116.0,)})
    assert not works(plain, plain)


def test_the_record_has_every_combination_with_the_same_seeds():
    found = combined.read()
    assert {frozenset(one.ideas) for one in found} == set(map(frozenset, experiment.subsets()))
    assert all(set(one.errors) == set(combined.ATTACKS) for one in found)
    assert len({len(values) for one in found for values in one.errors.values()}) == 1


def test_the_picture_is_xml_and_names_every_combination():
    text = combined.picture(rows(lambda _, x: 900.0 if x else 100.0))
    ET.fromstring(text)
    assert "→" in text
    assert "layers + credit + consensus + noise" in text


def test_a_panel_with_a_line_of_another_length_is_refused(tmp_path, monkeypatch):
    record = {"x": "h", "y": "kWh", "across": [1.0, 2.0], "panels": []}
    monkeypatch.setattr(curves, "FOLDER", tmp_path)
    panel = {"title": "a", "lines": {"measured": [1.0]}}
    (tmp_path / "one.json").write_text(json.dumps({**record, "panels": [panel]}))
    with pytest.raises(ValueError, match="expected 2 values, got 1"):
        curves.read("one")
    (tmp_path / "one.json").write_text(json.dumps({**record, "colour": 1}))
    with pytest.raises(SchemaError):
        curves.read("one")


def test_a_line_has_no_corner_where_it_has_no_value_and_keeps_its_colour():
    first = curves.Panel("a", {"alone": (1.0, None, 3.0), "run": (None, 2.0, None)})
    second = curves.Panel("b", {"run": (1.0, 2.0, None)})
    text = curves.picture(curves.Curves("x", "y", (1.0, 2.0, 3.0), (first, second)))
    lines = [x for x in ET.fromstring(text) if x.tag.endswith("polyline")]
    assert [len(x.get("points").split()) for x in lines] == [2, 1, 2]
    assert lines[1].get("stroke") == lines[2].get("stroke") != lines[0].get("stroke")


@pytest.mark.parametrize("name", sorted(path.stem for path in curves.FOLDER.glob("*.json")))
def test_every_recorded_picture_of_curves_is_xml(name):
    ET.fromstring(curves.picture(curves.read(name)))
