"""A broker that repeats an expired announcement is found out, and wrong clocks lock nobody out."""

from __future__ import annotations

import pytest

DAY = 86_400.0
MODEL = "gf/1/north/_all/model"
EXPIRED = "arrived ANNOUNCEMENT_EXPIRED"


def refused(one, number):
    return one.clients[number]._session.traffic().get(EXPIRED, 0)


def test_a_device_that_starts_late_refuses_the_manifest_of_a_fortnight_ago(world, monkeypatch):
    one = world(run={"quorum": 1, "deadline": "600h"})
    one.start_daemon()
    one.start(0)
    one.until(lambda: one.version >= 1)
    frozen, publish = one.broker.retained(MODEL)[MODEL], one.broker.publish

    def repeat(topic, payload, *, retain):
        publish(topic, frozen if topic == MODEL else payload, retain=retain)

    one.clock.now += 15 * DAY
    one.until(lambda: one.version >= 2)
    one.die(0)
    monkeypatch.setattr(one.broker, "publish", repeat)  # it withholds newer ones from now on
    one.broker.publish(MODEL, b"", retain=True)
    one.start(1)
    one.until(lambda: refused(one, 1))  # its welcome brings the time
    device = one.clients[1]._session
    assert device.parts.inbox.manifest is None
    monkeypatch.setattr(one.broker, "publish", publish)
    one.kill_daemon()
    one.start_daemon()  # publishes the present one
    before = one.version
    one.until(lambda: one.version > before)
    assert device.parts.inbox.manifest is not None


@pytest.mark.parametrize("years", [-30, 30])
def test_devices_with_a_wrong_clock_learn_over_a_renewal_like_the_others(world, years):
    one = world(run={"quorum": 3})
    one.start_daemon()
    for number in range(one.devices):
        one.start(number)
    client = one.clients[2]
    client._session.time._clock = _Shifted(one.clock, years)
    one.until(lambda: one.version >= 1)
    one.clock.now += 15 * DAY
    before = one.version
    for number in range(one.devices):
        one.broker.cut(f"home-{number}")
    one.until(lambda: one.version >= before + 2)
    assert refused(one, 2) == 0


class _Shifted:
    """The clock of a machine that is years ahead or behind."""

    def __init__(self, clock, years):
        self._clock, self._shift = clock, int(years * 365.25 * DAY * 1000)

    def wall(self):
        return self._clock.wall() + self._shift

    def monotonic(self):
        return self._clock.monotonic()
