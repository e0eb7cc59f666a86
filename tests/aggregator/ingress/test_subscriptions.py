"""The aggregator reads the topics of every device once."""

from __future__ import annotations

import pytest

from aggregator.ingress.flood_control import UPLINK, aggregator_filters, updates_filter
from edge_sdk.protocol import topics
from firmware_sim.testing.loopback import matches

EVERY = [
    topics.up("north", "m1", "update"),
    topics.up("north", "m1", "chunk", "w1"),
    topics.status("north", "m1"),
    topics.down("north", "m1", "receipt"),
    *(topics.common("north", kind) for kind in ("keys", "bundle", "model", "time")),
    topics.part("north", 3),
]


@pytest.mark.parametrize("has_workers", [False, True])
def test_the_aggregator_receives_each_devices_messages_once(has_workers):
    filters = [*aggregator_filters("north", has_workers=has_workers)]
    filters += ["gf/1/north/+/up/chunk/w1"]
    filters += [updates_filter("north")] if has_workers else []
    heard = [
        sum(matches(f.removeprefix("$share/admission/"), topic) for f in filters) for topic in EVERY
    ]
    assert heard == [1, 1, 1, 0, 0, 0, 0, 0, 0]


def test_only_updates_are_shared():
    """Retained messages do not reach shared subscriptions, and a transfer needs one receiver."""
    filters = aggregator_filters("north", has_workers=True)
    assert not any(one.startswith("$share") for one in filters)
    kinds = {topics.parse(one.replace("+", "m1")).kind for one in filters}
    assert kinds == {*UPLINK, "status"} - {"update"}
