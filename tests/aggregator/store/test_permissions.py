"""Whatever the umask: the database, its log, its copies, its keys and its orders are private."""

from __future__ import annotations

import os
import stat

import pytest

from aggregator.commands import main as cli
from aggregator.commands.backup import _put_aside
from aggregator.operations.control_queue import ControlOrder, leave
from aggregator.store.opener import open_store
from edge_sdk.app.permissions import PermissionsError
from firmware_sim.fleet.run_files import toml


@pytest.fixture
def umask():
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def open_to_others(folder):
    """Return what of a folder other users might use, public keys left out."""
    return {
        str(path.relative_to(folder)): oct(mode(path))
        for path in folder.rglob("*")
        if mode(path) & 0o077 and path.suffix != ".pub"
    }


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "aggregator.toml"
    path.write_text(toml({
        "fleet": "north",
        "state": "state",
        "broker": {"url": "mqtt://127.0.0.1:1"},
        "http": {"listen": "off"},
        "run": {"bundle": "load-mlp", "method": "fedavg", "quorum": 2},
    }))  # fmt: skip
    return path


@pytest.mark.usefixtures("umask")
def test_a_fleet_is_founded_backed_up_and_restored_in_private(config, tmp_path):
    state = tmp_path / "state"
    assert cli.main(["init", str(config)]) == 0
    assert mode(state) == 0o700
    with open_store(state / "aggregator.db") as store:
        assert store.commands.issue("meter-1", "hello", {}, None).num == 1
        names = {path.name for path in state.iterdir()}
        assert {"aggregator.db-wal", "aggregator.db-shm", "aggregator.db.lock"} <= names
        assert open_to_others(state) == {}
        copy = tmp_path / "copy.db"
        copy.write_bytes(b"an older one")
        store.backup(copy)
        assert mode(copy) == 0o600
    copy.chmod(0o644)
    assert cli.main(["restore", str(copy), "--config", str(config)]) == 0
    assert [path.name for path in state.glob("aggregator-before-*.db")]
    assert open_to_others(state) == {}


@pytest.mark.usefixtures("umask")
def test_a_state_folder_from_before_is_tightened_with_all_that_is_in_it(config, tmp_path):
    state = tmp_path / "state"
    assert cli.main(["init", str(config)]) == 0
    aside = state / "aggregator.db.schema-1"
    aside.write_bytes(b"")
    for path in state.iterdir():
        if path.suffix != ".key":
            path.chmod(0o644)
    state.chmod(0o755)
    with open_store(state / "aggregator.db") as store:
        assert store.runs.latest() is not None
        assert open_to_others(state) == {}
    assert mode(state) == 0o700


@pytest.mark.usefixtures("umask")
def test_a_database_that_is_put_aside_is_tightened(tmp_path):
    database = tmp_path / "aggregator.db"
    for name in ("aggregator.db", "aggregator.db-wal"):
        (tmp_path / name).write_bytes(b"")
        (tmp_path / name).chmod(0o644)
    assert mode(_put_aside(database, 1000)) == 0o600
    assert open_to_others(tmp_path) == {}


@pytest.mark.usefixtures("umask")
def test_an_order_that_waits_is_private(tmp_path):
    path = leave(tmp_path / "inbox", ControlOrder("enrol", "meter-1", public="00" * 32))
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)


def test_a_signing_key_that_others_can_read_is_refused(config, tmp_path, capsys):
    assert cli.main(["init", str(config)]) == 0
    key = tmp_path / "state" / "aggregator.key"
    key.chmod(0o644)
    assert cli.main(["init", str(config)]) == 2
    said = capsys.readouterr().err
    assert f"{key}: other users can read this key" in said
    assert f"chmod 600 {key}" in said


def test_a_state_in_a_shared_folder_is_refused(tmp_path):
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(PermissionsError, match="shared by several users"):
        open_store(shared / "aggregator.db")
    assert mode(shared) == 0o1777
