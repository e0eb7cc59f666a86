"""What a broker loses of what it retains is asked for again: no device stays in the dark."""

from __future__ import annotations

import pytest

from edge_sdk.protocol import topics
from firmware_sim.testing.loopback import LinkFaults, LoopbackBroker


@pytest.mark.parametrize("lost", ["keys", "bundle", "model"])
def test_a_lost_announcement_is_requested_again(world, monkeypatch, lost):
    one = world(devices=1, run={"rounds": 2})
    dropped = []
    deliver = LoopbackBroker._enqueue

    def forgetful(self, client, topic, payload, *, retained):
        if not dropped and client != "_agg" and topic == topics.common("north", lost):
            dropped.append(topic)
        else:
            deliver(self, client, topic, payload, retained=retained)

    monkeypatch.setattr(LoopbackBroker, "_enqueue", forgetful)
    one.start_all()
    one.until(lambda: one.version >= 2, turns=2000)
    assert dropped


def test_a_lossy_link_excludes_no_device(world):
    # a lost manifest costs the device a round, and the round its quorum: it is opened again
    faults = LinkFaults(drop=0.1, duplicate=0.2, reorder=0.3, delay=0.3)
    one = world(devices=4, run={"rounds": 3, "deadline": "60s"}, faults=faults, seed=1)
    one.start_all()
    one.until(lambda: one.version >= 3, turns=12_000)
