"""How large an update may be that a device sends in one message, unasked: what a manifest allows."""

from __future__ import annotations

import pytest

from aggregator.daemon import Daemon
from edge_sdk.link.broker_options import LARGEST_UPDATE
from edge_sdk.protocol.envelope import SINGLE_PAYLOAD_LIMIT
from edge_sdk.protocol.messages import ModelMessage
from firmware_sim.testing.loopback import LoopbackBroker


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ("", 262_144),
        ("max_single_bytes = 100_000", 100_000),
        ("max_single_bytes = 0", None),
        ("max_in_flight_bytes = 229_376", 65_536),  # two of seven chunks for each of three devices
        ("daily_bytes = 800_000", 100_000),  # what one device may send at once
        ("daily_bytes = 240_000", None),  # less than a chunk
        ("max_inline_bytes = 0", None),
    ],
)
def test_a_manifest_states_the_largest_update_in_one_message(
    founded, puppets, still_clock, settings, allowed
):
    broker = LoopbackBroker()
    config = founded(replacing=[("[run]", f"[admission]\n{settings}\n[run]")])
    daemon = Daemon(config, transport=broker.link("_agg"), clock=still_clock)
    try:
        daemon.open()
        (puppet,) = puppets(broker, 1)
        puppet.hello(1)
        for _ in range(6):
            daemon.turn()
            puppet.poll()
        manifest = next(one for one in puppet.heard if isinstance(one, ModelMessage))
    finally:
        daemon.close()
    assert manifest.phase == "train"
    assert manifest.single == allowed


def test_links_carry_what_the_protocol_allows():
    assert LARGEST_UPDATE == SINGLE_PAYLOAD_LIMIT
