"""Whatever the umask, and whatever was there before: what a device keeps is for its owner only."""

from __future__ import annotations

import os
import stat

import pytest

from edge_sdk.app.permissions import (
    PermissionsError,
    make_private_file,
    make_private_folder,
    open_private,
    require_private,
    tighten,
)
from edge_sdk.commands import main as cli
from edge_sdk.forecasting.series import SeriesRow
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore


@pytest.fixture
def umask():
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def modes(folder):
    """Return the permissions of everything below a folder that others might use."""
    return {str(p.relative_to(folder)): oct(mode(p)) for p in folder.rglob("*") if mode(p) & 0o077}


@pytest.mark.usefixtures("umask")
def test_a_new_store_its_log_and_its_lock_are_private(tmp_path):
    folder = tmp_path / "lib" / "gridfed"
    with DeviceStore.open(folder) as store:
        store.add_readings([SeriesRow("elec.import.energy", 1, 0.5)])
        assert {f"{FILE}-wal", f"{FILE}-shm", "lock"} <= {p.name for p in folder.iterdir()}
        assert modes(folder) == {}
    assert (mode(folder), mode(folder.parent)) == (0o700, 0o755)


@pytest.mark.usefixtures("umask")
def test_an_existing_store_gets_private_permissions(tmp_path):
    folder = tmp_path / "state"
    with DeviceStore.open(folder) as store:
        store.add_readings([SeriesRow("elec.import.energy", 1, 0.5)])
        for path in folder.iterdir():
            path.chmod(0o644)
        left = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name, content in left.items():  # as a power cut leaves them, the log not merged
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o644)
    folder.chmod(0o755)
    with DeviceStore.open(folder) as store:
        assert [row.value for row in store.readings] == [0.5]
        assert modes(folder) == {}
    assert mode(folder) == 0o700


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("is_there", [False, True])
def test_an_exported_file_is_private_while_it_is_written(tmp_path, is_there):
    path = tmp_path / "readings.csv"
    if is_there:
        path.write_text("old")
    with open_private(path, encoding="utf-8") as file:
        assert mode(path) == 0o600
        file.write("new")
    assert path.read_text() == "new"


@pytest.mark.usefixtures("umask")
def test_a_new_key_is_in_a_private_folder(tmp_path):
    make_private_folder(tmp_path / "etc")
    config = tmp_path / "etc" / "meter.toml"
    config.write_text(
        'id = "meter-1"\nfleet = "north"\nstate = "state"\nbundle = "load-mlp"\n'
        '[broker]\nurl = "mqtt://127.0.0.1:1"\n'
        '[keys]\ndevice = "keys/meter.key"\nroot = "root.pub"\n'
        '[privacy.mechanism]\nname = "none"\n'
    )
    assert cli.main(["enrol", str(config)]) == 0
    assert mode(tmp_path / "etc" / "keys") == 0o700
    assert mode(tmp_path / "etc" / "keys" / "meter.key") == 0o600
    key = tmp_path / "etc" / "keys" / "meter.key"
    require_private(key)
    key.chmod(0o640)
    with pytest.raises(PermissionsError, match="other users can read this key"):
        require_private(key)


def test_a_shared_folder_is_refused_unchanged(tmp_path):
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(PermissionsError, match="mode 1777: this folder is shared") as caught:
        DeviceStore.open(shared)
    assert "folder of its own" in caught.value.hint
    assert mode(shared) == 0o1777
    assert list(shared.iterdir()) == []


def test_a_file_that_cannot_be_made_private_is_refused(tmp_path, monkeypatch):
    """A file system without permissions, or an owner who is somebody else."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    for change in (lambda *_a, **_k: None, _deny):
        monkeypatch.setattr("pathlib.Path.chmod", change)
        with pytest.raises(
            PermissionsError, match="mode 0755 is readable by other users"
        ) as caught:
            DeviceStore.open(folder)
        assert f"chmod go= {folder}" in caught.value.hint
        monkeypatch.undo()


def _deny(*_args, **_named):
    raise PermissionError(1, "Operation not permitted")


def test_missing_and_private_files_stay_unchanged(tmp_path):
    tighten(tmp_path / "nothing")
    path = tmp_path / "file"
    make_private_file(path)
    path.chmod(0o400)
    make_private_file(path)
    assert mode(path) == 0o400
