"""Real programs over TLS: an operator wipes a device, and it begins again under a new key."""

from __future__ import annotations

import signal

import pytest

from edge_sdk import Config
from edge_sdk.store import WIPE_ORDERED, WIPED
from edge_sdk.store.store import DeviceStore
from tests.broker.test_wrong_numbers import Town, town

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]

__all__ = ["town"]  # a fixture


def charges_of(town: Town) -> int:
    with DeviceStore.open(town.state, read_only=True) as store:
        return sum(charge.releases for charge in store.ledger())


def readings_of(town: Town) -> int:
    with DeviceStore.open(town.state, read_only=True) as store:
        return len(store.readings)


def enrol(town: Town):
    line = town.said("gridfed-edge", "enrol", str(town.device.config)).stdout.split("\n")[2]
    name, public, proof = line.split(",")
    words = ("gridfed-aggregator", "enrol", name, "--public", public, "--proof", proof)
    return town.said(*words, "--config", str(town.prepared.aggregator))


def test_a_wiped_device_keeps_its_ledger_only_and_begins_again_under_a_new_key(town):
    town.aggregator()
    device = town.agent()
    town.until(lambda: town.accepted() > 0)
    key = Config.load(town.device.config).keys.device
    before, words = key.read_bytes(), ("gridfed-aggregator", "command", town.device.id, "wipe")
    assert readings_of(town) > 0
    done = town.said(*words, "--config", str(town.prepared.aggregator))
    assert done.returncode == 0, done.stderr
    town.family.members.remove(device)
    assert device.process.wait(60) == 0
    assert "device wiped" in device.log.read_text("utf-8")
    assert (readings_of(town), key.exists()) == (0, False)
    assert town.fact(WIPED) > 0
    charged = charges_of(town)
    assert charged > 0
    again = town.said("gridfed-edge", "run", str(town.device.config))
    assert again.returncode == 2
    assert "gridfed-edge enrol" in again.stderr
    assert "stopped: wiped" in town.said("gridfed-edge", "status", str(town.device.config)).stdout

    done = enrol(town)
    assert "count of releases continues at" in done.stdout, done.stderr
    assert key.read_bytes() != before
    accepted = town.accepted()
    town.agent()
    town.until(lambda: town.accepted() > accepted)
    assert charges_of(town) > charged


def test_a_device_that_is_killed_before_it_has_erased_does_so_when_it_starts_again(town):
    town.aggregator()
    device = town.agent()
    town.until(lambda: town.accepted() > 0)
    device.process.send_signal(signal.SIGKILL)
    device.process.wait(60)
    town.family.members.remove(device)
    with DeviceStore.open(town.state) as store:  # as the command leaves it, in its own transaction
        store.set_facts(stopped=1, **{WIPE_ORDERED: 1})
    again = town.said("gridfed-edge", "run", str(town.device.config))
    assert again.returncode == 2
    assert "wiped" in again.stderr
    assert readings_of(town) == 0
    assert not Config.load(town.device.config).keys.device.exists()
