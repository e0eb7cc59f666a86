"""Answers about scores in a whole federation: once a day, only where both sides ask, within a budget."""

from __future__ import annotations

import json
import tomllib

import pytest

from aggregator.commands import main as aggregator
from edge_sdk.config import Config
from edge_sdk.extensions.inspection.budget import budget
from edge_sdk.extensions.scores.score_reporter import ANSWER, POINT
from edge_sdk.store.store import DeviceStore
from firmware_sim.fleet.run_files import toml
from tests.fleet.conftest import World

DAY = 86_400
REPORT = {"report": True, "epsilon": 1.0, "budget": 3.0}


def change(path, **more):
    path.write_text(toml(tomllib.loads(path.read_text()) | more))


def street(folder, *, collect=True, report=(0, 1), **more):
    world = World(folder, devices=3, run={"rounds": 1})
    change(world.config, scores={"collect": collect})
    for number in report:
        change(folder / f"home-{number}.toml", scores=REPORT | more)
    world.clock.now += DAY - world.clock.wall() / 1000 % DAY + DAY / 2  # noon: all answer by then
    return world


def answers(folder):
    """Return the answers that the aggregator has stored, by device and day."""
    rows = {}
    for path in sorted((folder / "aggregator" / "scores").glob("*.answers")):
        for line in filter(None, path.read_text().splitlines()):
            row = json.loads(line)
            assert (row["device"], path.stem) not in rows, "a device counts once a day"
            rows[row["device"], path.stem] = row
    return rows


def charges(folder, name):
    with DeviceStore.open(folder / name, read_only=True) as store:
        return [charge for charge in store.ledger() if charge.point == POINT]


@pytest.fixture
def open_street(tmp_path):
    made = []

    def make(**more):
        made.append(street(tmp_path, **more))
        return made[-1]

    yield make
    for world in made:
        world.close()


def settle(world):
    """Let some seconds pass, so that welcomes and answers arrive."""
    for _ in range(40):
        world.turn()


def test_devices_that_opt_in_answer_once_a_day_until_their_budget_is_spent(open_street, tmp_path):
    world = open_street()
    world.start_all()
    for days in range(5):
        settle(world)
        assert len(answers(tmp_path)) == 2 * min(days + 1, 3)
        world.clock.now += DAY
    found = answers(tmp_path)
    assert {device for device, _ in found} == {"home-0", "home-1"}
    assert {row["how"] for row in found.values()} == {"k-ary"}
    status = world.clients[0].status()["scores"]
    assert (status["epsilon"], status["allowed"]) == (3.0, 3.0)
    assert "scores" not in world.clients[2].status()
    for client in world.clients.values():
        client.close()
    assert len(charges(tmp_path, "home-0")) == 3
    assert charges(tmp_path, "home-2") == []
    shown = budget(Config.load(tmp_path / "home-0.toml"))
    assert shown["scores"]["epsilon"] == 3.0
    assert "answers about scores: epsilon 3 of 3" in shown["text"]
    world.clients.clear()


def test_a_further_participation_of_a_device_answers_nothing(open_street, tmp_path):
    open_street()
    further = [{"id": "home-0-b", "bundle": "load-mlp"}]
    change(tmp_path / "home-0.toml", participation=further)
    first, second = Config.load(tmp_path / "home-0.toml").participants()
    assert first.extensions["scores"].report
    assert "scores" not in second.extensions


@pytest.mark.parametrize(("collect", "report"), [(True, ()), (False, (0, 1))])
def test_nothing_is_drawn_unless_both_sides_ask(open_street, tmp_path, collect, report):
    world = open_street(collect=collect, report=report)
    world.start_all()
    settle(world)
    assert answers(tmp_path) == {}
    for client in world.clients.values():
        client.close()
    world.clients.clear()
    assert charges(tmp_path, "home-0") == []
    with DeviceStore.open(tmp_path / "home-0", read_only=True) as store:
        assert store.paper(ANSWER) is None


def test_the_histogram_is_in_the_status_and_the_metrics(open_street, tmp_path, capsys):
    world = open_street()
    world.start_all()
    settle(world)
    status = world.daemon._view.snapshot().status["scores"]
    assert status["answers"] == 2
    assert sum(cell["devices"] for cell in status["cells"]) == pytest.approx(2, abs=0.1)
    text = world.daemon.metrics.text().decode()
    assert "gridfed_score_answers 2.0" in text
    assert 'gridfed_score_devices{cell="no score"}' in text
    capsys.readouterr()
    assert aggregator.main(["status", str(world.config)]) == 0
    assert "2 answers" in capsys.readouterr().out
