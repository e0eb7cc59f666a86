"""The commands that erase a device's state, or take it along to another fleet."""

from __future__ import annotations

import json

import pytest

from edge_sdk.commands import main as cli
from edge_sdk.protocol import keys
from edge_sdk.store import fleet_of
from edge_sdk.store.store import DeviceStore
from tests.edge_sdk.extensions.lifecycle.test_erasure import CHARGE, fill, secret_bytes

TOML = """
id = "meter-1"
fleet = "FLEET"
state = "state"
bundle = "load-mlp"
broker = { url = "mqtt://127.0.0.1:1" }
keys = { device = "meter.key", root = "root.pub" }
privacy = { mechanism = { name = "none" } }
"""


@pytest.fixture
def config(tmp_path):
    keys.save_public(tmp_path / "root.pub", keys.from_seed(b"r" * 32).public)
    path = tmp_path / "meter.toml"
    path.write_text(TOML.replace("FLEET", "north"))
    assert cli.main(["enrol", str(path)]) == 0
    fill(tmp_path / "state")
    return path


def released(config):
    with DeviceStore.open(config.parent / "state", read_only=True) as store:
        return list(store.ledger())


def test_wipe_asks_for_a_confirmation_and_erases_nothing_without_it(config, capsys):
    assert cli.main(["wipe", str(config)]) == 2
    assert "--yes" in capsys.readouterr().err
    assert len(secret_bytes(config.parent / "state")) == 500
    assert (config.parent / "meter.key").exists()


def test_wipe_erases_readings_and_key_and_says_what_to_do_then(config, capsys):
    capsys.readouterr()
    assert cli.main(["wipe", str(config), "--yes"]) == 0
    out = capsys.readouterr().out
    assert "gridfed-aggregator revoke meter-1" in out
    assert secret_bytes(config.parent / "state") == []
    assert not (config.parent / "meter.key").exists()
    assert released(config) == [CHARGE, CHARGE]
    assert cli.main(["wipe", str(config), "--yes"]) == 0  # repeatable


def test_wipe_of_a_device_without_state_deletes_its_key(config, capsys):
    (config.parent / "state" / "device.db").unlink()
    assert cli.main(["wipe", str(config), "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["folders"] == 0
    assert not (config.parent / "meter.key").exists()


def test_enrol_lets_a_wiped_device_begin_again_with_its_ledger(config, capsys):
    before = (config.parent / "meter.pub").read_text()
    cli.main(["wipe", str(config), "--yes"])
    assert cli.main(["status", str(config)]) == 0
    assert "stopped: wiped" in capsys.readouterr().out
    assert cli.main(["enrol", str(config)]) == 0
    assert (config.parent / "meter.pub").read_text() != before
    capsys.readouterr()
    assert cli.main(["status", str(config)]) == 0
    assert "stopped: no\n" in capsys.readouterr().out
    assert released(config) == [CHARGE, CHARGE]


def test_migrate_takes_readings_and_ledger_along(config, capsys):
    assert cli.main(["migrate", str(config)]) == 2
    assert "belongs to no fleet other than 'north'" in capsys.readouterr().err
    config.write_text(TOML.replace("FLEET", "south"))
    assert cli.main(["migrate", str(config)]) == 0
    assert "has left fleet north and may join south" in capsys.readouterr().out
    with DeviceStore.open(config.parent / "state") as store:
        assert (len(store.readings), fleet_of(store)) == (500, "")
    assert released(config) == [CHARGE, CHARGE]
    assert cli.main(["migrate", str(config)]) == 2


def test_migrate_of_a_wiped_device_is_refused(config, capsys):
    cli.main(["wipe", str(config), "--yes"])
    config.write_text(TOML.replace("FLEET", "south"))
    assert cli.main(["migrate", str(config)]) == 2
    assert "gridfed-edge enrol" in capsys.readouterr().err
