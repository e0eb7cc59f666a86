"""The example of a device extension is found by its table, counts tasks, and survives a restart."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from edge_sdk.app.extensions import ExtensionIndex
from edge_sdk.protocol.contract.method import Task
from edge_sdk.store.store import DeviceStore
from tests.plugins.conftest import installed


@pytest.fixture
def index(site):
    installed(site, "gridfed-tasklog")
    return ExtensionIndex("edge_sdk")


def started(index, store):
    tables = {"tasklog": {"level": "info"}}
    section = index.sections(tables)["tasklog"].load("section")
    (entry,) = (one for one in index.configured(tables) if one.name == "tasklog")
    config = SimpleNamespace(extensions={"tasklog": section()})
    extension = entry.load("extension")(SimpleNamespace(config=config, store=store))
    extension.start()
    return extension


def test_it_is_no_extension_of_a_configuration_without_its_table(index):
    assert "tasklog" not in index.sections([])


def test_it_counts_tasks_across_restarts(index, tmp_path):
    for restart in (1, 2):
        with DeviceStore.open(tmp_path) as store:
            extension = started(index, store)
            assert extension.on_task(Task("_all", restart, "train")) is False
            assert extension.status() == {"tasks": {"train": restart}}
