"""Who counts releases outside the state folder: with an extension for it, without one, and with a broken one."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk.app.extensions import ExtensionEntry
from edge_sdk.privacy.ledger import BudgetSpent, PrivacyCharge
from edge_sdk.session.identity import find_releases
from edge_sdk.store import second_count
from edge_sdk.store.second_count import CountPlace, recover_count
from edge_sdk.store.store import COUNTED, DeviceStore
from edge_sdk.training import bootstrap
from tests.edge_sdk.conftest import DEVICE_KEY

W0 = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
MOST = 2
NOISE = {
    "mode": "honest",
    "mechanism": {"name": "gaussian", "point": "update", "clip_norm": 1.0},
    "budget": {"epsilon": 8.0, "delta": 1e-6, "max_releases": MOST},
}


@pytest.fixture
def bounded(make, numpy_bundle, monkeypatch):
    """A device with noise and a budget of two releases, whose files have no second count."""
    monkeypatch.setattr(bootstrap, "open_bundle", lambda _config, _announced: numpy_bundle)
    fleet = make("fleet", privacy=NOISE, accept={"max_steps": 3})
    fleet.device.config.counted_in.unlink(missing_ok=True)
    return fleet


@pytest.fixture
def without(monkeypatch):
    """The core where no extension counts releases."""
    monkeypatch.setattr(second_count, "INDEX", _Index())


class _Index:
    def __init__(self, *entries):
        self.entries = list(entries)

    def having(self, _key):
        return self.entries


def updates(fleet, number):
    """Offer so many rounds to the device; return how many updates have left in all."""
    if fleet.device.client is None:
        fleet.device.start()
        fleet.device.observe(60)
        fleet.run(10)
    for _ in range(number):
        at = fleet.server._serial
        fleet.server.open_round(at, at, W0)
        fleet.run(20, seconds=0.05)
    return len(fleet.server.updates)


def test_without_the_extension_the_ledger_alone_holds_the_budget(bounded, without):
    assert updates(bounded, MOST + 2) == MOST
    assert bounded.device.client.status()["stopped"] == "budget"
    assert not bounded.device.client._session.outbox.is_counted  # its hellos say so
    assert not bounded.device.config.counted_in.exists()
    bounded.device.kill()
    assert updates(bounded, 2) == MOST, "also after a restart"


@pytest.mark.parametrize("trace", ["file", "fact"])
def test_a_count_that_nothing_installed_can_continue_stops_every_release(
    bounded, without, trace, caplog
):
    config = bounded.device.config
    if trace == "file":
        config.counted_in.write_text("{}")
    else:
        with DeviceStore.open(config.state) as store:
            store.set_facts(**{COUNTED: 1})
    assert updates(bounded, 2) == 0
    assert "release count missing" in caplog.text
    assert "is not installed" in caplog.text
    assert bounded.device.client.status()["stopped"] == "budget"
    bounded.device.kill()
    with DeviceStore.open(config.state, read_only=True) as store:
        found = find_releases(config, store)
    assert found.is_lost
    assert "install it" in found.remedy


def test_an_extension_that_cannot_be_imported_stops_the_start(bounded, monkeypatch):
    broken = ExtensionEntry("budget", "edge_sdk.extensions", {"second_count": "nowhere:Counts"})
    monkeypatch.setattr(second_count, "INDEX", _Index(broken))
    with pytest.raises(ImportError, match="nowhere"):
        bounded.device.start()


def test_a_store_of_which_nobody_has_said_who_counts_has_no_room_for_a_release(bounded):
    charge = PrivacyCharge(0, "device", "update", "gaussian", 100.0, releases=1)
    config = bounded.device.config
    plan = bootstrap.plan(config, bootstrap.open_bundle(config, None).manifest, "fedavg", 4)
    with DeviceStore.open(config.state) as store:
        with pytest.raises(BudgetSpent, match="not counted"):
            bootstrap.account_of(store, plan).charge(charge)
        store.count_outside(None)
        assert bootstrap.account_of(store, plan).charge(charge).released == 1


@pytest.mark.parametrize("is_installed", [True, False])
def test_where_no_budget_needs_a_count_and_none_exists_nothing_is_loaded(
    tmp_path, monkeypatch, is_installed
):
    """A new store notes that it began without one where one could be kept: it is not made up later."""
    broken = ExtensionEntry("budget", "edge_sdk.extensions", {"second_count": "nowhere:Counts"})
    monkeypatch.setattr(second_count, "INDEX", _Index(*([broken] * is_installed)))
    place = CountPlace(tmp_path / "meter.count", "", is_needed=False)
    with DeviceStore.open(tmp_path / "state") as store:
        recover_count(store, place, DEVICE_KEY)
        assert (store.second_count, store.lacks_count) == (None, False)
        assert store.fact(COUNTED) == is_installed
    assert not place.path.exists()
