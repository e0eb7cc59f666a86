"""A first start in 1970: the device takes the time over a limited link, and checks the broker then."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk.wire.link.broker_options import UNCHECKED
from edge_sdk.wire.link.transport import LinkUp


@pytest.fixture
def limited(make, monkeypatch):
    """A device whose link could not check the dates, until it connects again."""
    one = make()
    reasons, state = [], {"dates_by": UNCHECKED}
    monkeypatch.setattr(one.clock, "wall", lambda: 5_000)
    client = one.device.start()
    link = client._session._parts.link.link
    poll = link.poll

    def polled(timeout):
        found = poll(timeout)
        return [
            LinkUp(x.max_payload, state["dates_by"]) if isinstance(x, LinkUp) else x for x in found
        ]

    def reconnect(why):
        reasons.append((why, client._session.time.is_unknown()))
        state["dates_by"] = "stored time"
        one.broker.cut(one.device.config.id)

    monkeypatch.setattr(link, "poll", polled)
    monkeypatch.setattr(link, "reconnect", reconnect, raising=False)
    one.reasons = reasons
    return one


def test_the_time_is_unknown_only_before_any_signed_time_and_with_a_clock_before_the_build(
    make, monkeypatch
):
    one = make()
    one.device.start()
    time = one.device.client._session.time
    assert not time.is_unknown()  # the machine's clock is after the build
    monkeypatch.setattr(one.clock, "wall", lambda: 5_000)
    assert time.is_unknown()
    one.run(40)
    assert not time.is_unknown()  # it was welcomed
    one.device.kill()
    one.device.start()
    assert not one.device.client._session.time.is_unknown()  # and remembers


def test_over_a_limited_link_only_the_time_is_taken_and_then_everything(limited):
    one = limited
    one.server.open_round(1, 0, np.zeros(one.server.spec.shared_size, np.float32))
    session = one.device.client._session
    for _ in range(200):
        one.run(1, seconds=0.05)
        if one.reasons:
            break
        assert session._parts.announcements.bundle is None
        assert session._parts.inbox.manifest is None
    assert [unknown for _, unknown in one.reasons] == [False]
    one.device.observe()
    one.run(400, seconds=0.05)
    assert len(one.reasons) == 1
    assert not session.time.is_link_limited
    assert len(one.server.updates) == 1


def test_a_link_with_checked_dates_is_not_connected_again(limited):
    limited.device.client._session._parts.link.link.reconnect("the test")
    limited.reasons.clear()
    limited.run(100, seconds=0.05)
    assert limited.reasons == []
