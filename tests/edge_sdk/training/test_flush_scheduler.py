"""What is written by the clock: readings in batches, notes after them, books by the hour."""

from __future__ import annotations

from edge_sdk.forecasting.series import Reading
from edge_sdk.limits import DailyQuota
from edge_sdk.store.store import DeviceStore


def test_readings_that_nothing_follows_are_written_down_after_a_minute(fleet):
    fleet.device.start()
    fleet.run()
    fleet.device.observe(hours=3)
    fleet.run(3, seconds=10.0)
    assert len(fleet.device.client._store.readings) == 0
    fleet.run(5, seconds=10.0)
    assert len(fleet.device.client._store.readings) == 3


def test_many_readings_are_written_at_once_without_waiting(fleet):
    client = fleet.device.start()
    first = 1_700_000_000 // 3600 * 3600
    for hour in range(1025):
        client.observe(Reading("elec.import.energy", first + 3600 * hour, 1.0))
    assert len(client._store.readings) == 1024


def test_a_note_is_written_after_its_readings_and_survives_the_process(fleet):
    client = fleet.device.start()
    fleet.device.observe(5)
    assert client.remembered("p1") is None
    client.remember({"p1": b"where I was"})
    assert len(client._store.readings) == 5
    fleet.device.kill()
    assert fleet.device.start().remembered("p1") == b"where I was"


def test_bytes_written_and_time_awake_are_recorded_at_the_end(fleet):
    client = fleet.device.start()
    fleet.run(20, seconds=1.0)
    client._scheduler.count_time(awake=False)
    fleet.clock.at += 2.0
    client._scheduler.count_time(awake=True)
    client._scheduler.save_usage()
    assert client._store.fact("wake") >= 2000
    assert client._store.fact("peak") > 0


def test_an_issued_forecast_is_of_readings_that_other_programs_see(make):
    """Issue 27: the HTTP output had a forecast while `gridfed-edge forecast` said "no reading yet"."""
    fleet = make()
    client = fleet.device.start()
    fleet.device.observe(30)
    issued = client.issue()
    with DeviceStore.open(client.config.state, read_only=True) as store:
        oldest, newest = store.readings.span()
    assert newest * client.step == issued.newest
    assert newest - oldest == 29
    spent = make("spent", limits={"daily_flash_bytes": 0})
    other = spent.device.start()
    other._scheduler.governor.flash = DailyQuota(0, 1)
    spent.device.observe(30)
    other.issue()  # the day's flash is used up: readings are written hourly
    assert len(other._store.readings) == 0
