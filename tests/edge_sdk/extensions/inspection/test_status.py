"""The status of a device is read from its store, beside a running agent or without one."""

from __future__ import annotations

import pytest

from edge_sdk.extensions.inspection import status
from edge_sdk.training import bootstrap
from tests.edge_sdk.test_client import W0
from tests.edge_sdk.training.test_retention import DAY, KEEP, START, observe


@pytest.fixture
def numpy_bundle(numpy_bundle, monkeypatch):
    monkeypatch.setattr(bootstrap, "open_bundle", lambda _config, _announced: numpy_bundle)
    return numpy_bundle


def test_status_and_check_print_the_history_that_is_kept(make):
    fleet = make(**KEEP)
    client = fleet.device.start()
    observe(client, START, 5 * DAY)
    client.flush()
    told = status.status(fleet.device.config)["history"]
    assert told == {
        "days": 5.0,
        "days at most": 20.0,
        "bytes at most": 487 * 80,
        "limit": "training.history_days",
    }


def test_a_spent_budget_is_shown_without_the_agent(make):
    privacy = {
        "mechanism": {"name": "none"},
        "budget": {"max_releases": 1},
    }
    fleet = make(privacy=privacy)
    client = fleet.device.start()
    observe(client, START, 5 * DAY)
    fleet.server.open_round(0, 0, W0)
    fleet.run(20, seconds=0.05)
    assert client.status()["stopped"] == "budget"
    fleet.device.kill()
    assert status.status(fleet.device.config)["stopped"].startswith("budget")
