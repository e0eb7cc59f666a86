"""A manifest inside the contract ruins no device: refused beyond its limits, undone within them."""

from __future__ import annotations

import logging
import tomllib

import numpy as np
import pytest

import aggregator.config.binding
from aggregator.commands import main as cli
from edge_sdk.extensions.inspection.status import status
from firmware_sim.fleet.run_files import toml

EXPLODES = {"steps": 64, "rate": 1.0}  # the most that the shipped bundle was signed for


def in_range(client):
    """Whether a forecast is one that the readings could be: 1 to 10 kWh at this home."""
    told = client.forecast()
    return told.source == "model" and bool(((told.values > 0.0) & (told.values < 20.0)).all())


def arrived(client):
    return client.status()["counts"].get("arrived BAD_SCALAR", 0)


def rewritten(one, **settings):
    """Change the settings of the run that the world's configuration asks for."""
    table = tomllib.loads(one.config.read_text("utf-8"))
    table["run"]["settings"] |= settings
    one.config.write_text(toml(table), "utf-8")


@pytest.mark.parametrize(("name", "value", "most"), [("rate", 1000.0, 1), ("prox", 1e6, 100)])
def test_a_configuration_beyond_the_limits_of_the_bundle_is_refused_on_start(
    world, name, value, most, capsys
):
    one = world(run={"method": "fedprox"})
    rewritten(one, **{name: value})
    for command in ("check-config", "announce", "run"):
        assert cli.main([command, str(one.config)]) != 0
        said = capsys.readouterr().err
        assert f"run.settings.{name}: {value:g} is above {most}" in said, said
        assert f"training.max_{name}" in said


def test_a_manifest_beyond_the_limits_is_refused_by_the_device(world, monkeypatch, caplog):
    """As from an aggregator that does not check: rate 1000 with 64 steps was learned, for good."""
    monkeypatch.setattr(aggregator.config.binding, "check_limits", lambda *_: None)
    one = world(run={"settings": {"steps": 64, "rate": 1000.0}, "deadline": "5s", "rounds": 3})
    with caplog.at_level(logging.WARNING):
        one.start_all()
        one.until(lambda: all(arrived(c) > 0 for c in one.clients.values()))
        for _ in range(100):
            one.turn()
    for client in one.clients.values():
        assert client.status()["round"] == -1
        assert in_range(client)
    assert "rate=1000 above 1, the most accepted here" in caplog.text
    assert one.version == 0


@pytest.mark.parametrize("shared", [None, [""]], ids=["personal head", "all shared"])
def test_exploding_parameters_are_discarded_and_training_continues(world, monkeypatch, shared):
    """Nothing leaves of them; the process dies and starts again; then a sane rate is announced."""
    run = {"settings": EXPLODES, "deadline": "5s"} | ({"shared": shared} if shared else {})
    one = world(run=run)
    one.start_all()
    one.until(lambda: all(c.status()["models returned"] > 0 for c in one.clients.values()))
    assert one.version == 0, "what exploded left the devices"
    before = {number: c.state.p.copy() for number, c in one.clients.items()}
    assert all(map(in_range, one.clients.values()))
    one.die(0)
    again = one.start(0)
    assert again.state.p.tobytes() == before[0].tobytes()
    assert in_range(again)
    assert status(again.config)["models returned"] == again.status()["models returned"] > 0
    one.kill_daemon()
    rewritten(one, steps=16, rate=0.01)
    assert cli.main(["announce", str(one.config)]) == 0
    one.start_daemon()
    one.until(lambda: one.version >= 8)
    losses = [v.report["loss"] for v in one.daemon._store.runs.versions(2)]
    assert losses[-1] < losses[0]
    assert all(map(in_range, one.clients.values()))
    assert all(not np.array_equal(before[n], c.state.p) for n, c in one.clients.items())
