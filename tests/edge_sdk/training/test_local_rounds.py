"""Rounds that a device sets itself: on a copy, or for good where nothing is shared."""

from __future__ import annotations

import numpy as np
import pytest

W0 = np.array([0.1, 0.2, 0.3, 0.4], np.float32)


def test_with_nothing_shared_the_device_trains_locally_and_sends_nothing(make):
    fleet = make(timeouts={"reply": "1s"}, local_rounds={"interval": "1s"})
    fleet.server.announce_bundle(serial=2, shared=())
    client = fleet.device.start()
    fleet.device.observe()
    fleet.run(30, seconds=0.5)
    before = client.state.p.copy()
    fleet.run(10, seconds=0.5)
    assert (client.state.p != before).any()
    assert client.status()["counts"]["rounds alone"] >= 3
    assert fleet.server.updates == []


def test_without_an_aggregator_a_copy_is_trained_and_discarded_afterwards(make):
    fleet = make(timeouts={"reply": "1s"}, local_rounds={"after": "60s", "interval": "10s"})
    client = fleet.device.start()
    fleet.device.observe()
    fleet.run()
    kept = client.state.p.copy()
    fleet.broker.cut("meter-1", stay_down=True)
    fleet.run(40, seconds=5.0)
    assert client.status()["alone"]
    np.testing.assert_array_equal(client.state.p, kept)
    fleet.broker.restore("meter-1")
    fleet.server.open_round(0, 0, W0)
    fleet.run(10, seconds=0.1)
    assert not client.status()["alone"]
    assert len(fleet.server.updates) == 1


def test_local_rounds_keep_their_interval_and_their_count_over_a_restart(make):
    fleet = make(timeouts={"reply": "1s"}, local_rounds={"after": "60s", "interval": "100s"})
    fleet.device.start()
    fleet.device.observe()
    fleet.device.client.flush()
    fleet.broker.cut("meter-1", stay_down=True)
    for rounds in (3, 6):
        fleet.run(66, seconds=5.0)
        assert fleet.device.client._store.fact("alone") == rounds
        fleet.device.kill()
        client = fleet.device.start()
        assert not client.status()["alone"], "what was learned on a copy is not kept"


@pytest.mark.extension
def test_a_device_that_cannot_spare_it_does_not_learn_alone_either(make):
    fleet = make(
        timeouts={"reply": "1s"},
        local_rounds={"after": "60s", "interval": "10s"},
        limits={"upload_windows": ["03:00-03:01"]},
    )
    client = fleet.device.start()
    fleet.device.observe()
    fleet.broker.cut("meter-1", stay_down=True)
    fleet.run(40, seconds=5.0)
    assert client.status()["held"] == "outside the upload windows"
    assert not client.status()["alone"]
