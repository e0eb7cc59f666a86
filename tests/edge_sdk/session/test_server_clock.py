"""The time by which a device judges certificates: the machine's clock, the signed time, or neither yet."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from edge_sdk.app.clock import BUILT, DAY
from edge_sdk.session.server_clock import ServerClock
from edge_sdk.store.store import DeviceStore

HOUR = DAY // 24
RIGHT = BUILT + 400 * DAY


@dataclass
class MachineClock:
    ahead: int = 0
    seconds: float = 0.0

    def wall(self):
        return RIGHT + self.ahead + int(1000 * self.seconds)

    def monotonic(self):
        return self.seconds


@pytest.fixture
def started(tmp_path):
    stores = []

    def start(ahead):
        while stores:
            stores.pop().close()
        stores.append(DeviceStore.open(tmp_path))
        return ServerClock(stores[-1], MachineClock(ahead))

    yield start
    while stores:
        stores.pop().close()


@pytest.mark.parametrize(
    "ahead", [-800 * DAY, -30 * DAY, -2 * HOUR, 2 * HOUR, 30 * DAY, 9000 * DAY]
)
def test_a_welcome_to_this_process_decides_against_a_machine_clock_that_is_wrong(started, ahead):
    clock = started(ahead)
    assert clock.earliest_certificate_time() == BUILT / 1000
    clock.correct(RIGHT, is_sound=True)
    assert clock.earliest_certificate_time() is None
    assert clock.certificate_time() == RIGHT / 1000
    clock = started(ahead)  # the next process knows the signed time, and not whether it is over
    assert clock.earliest_certificate_time() == RIGHT / 1000
    assert clock.certificate_time() == (RIGHT / 1000 if ahead < -DAY else None)


@pytest.mark.parametrize("ahead", [-HOUR // 2, 0, HOUR // 2])
def test_a_clock_that_a_welcome_has_confirmed_is_used(started, ahead):
    clock = started(ahead)
    clock.correct(RIGHT, is_sound=True)
    assert clock.certificate_time() is None


def test_a_time_that_is_no_answer_confirms_nothing(started):
    clock = started(30 * DAY)
    clock.receive(RIGHT, may_request=False)
    assert clock.earliest_certificate_time() is not None
    clock.correct(RIGHT, is_sound=False)
    assert clock.earliest_certificate_time() is not None
