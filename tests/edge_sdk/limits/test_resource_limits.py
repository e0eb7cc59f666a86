"""What a device can spare: classes, windows, power, and a day's flash, kept to."""

from __future__ import annotations

from edge_sdk.limits import (
    CLASSES,
    DAY,
    DailyQuota,
    LimitsSection,
    limits_of,
)
from edge_sdk.limits.resource_governor import ResourceGovernor, bytes_written

NOW = 20_000 * DAY


def test_a_device_class_sets_only_the_keys_left_out():
    assert limits_of(LimitsSection()) == CLASSES[""]
    assert limits_of(LimitsSection()).memory is None
    own = limits_of(LimitsSection("B", memory_mb=200, daily_flash_bytes=0, commit_interval="2m"))
    assert (own.memory, own.daily_flash_bytes, own.commit_interval) == (200 * 2**20, 0, 120.0)
    assert own.daily_link_bytes == CLASSES["B"].daily_link_bytes


def test_a_used_daily_flash_quota_forbids_training():
    written = [1000]
    booked = DailyQuota(20_000, 300)  # of the process before
    thrift = ResourceGovernor(
        LimitsSection(daily_flash_bytes=500), booked, now=0.0, written=lambda: written[0]
    )
    assert thrift.look(0.0, 0.0, NOW) == ""
    assert thrift.patience == 60.0
    written[0] += 250
    assert thrift.look(5.0, 0.0, NOW) == "", "looked at again too early"
    assert thrift.look(20.0, 0.0, NOW) == "flash"
    assert thrift.flash.used == 550
    assert thrift.patience == 3600.0
    assert thrift.look(40.0, 0.0, NOW + DAY) == "", "another day"
    assert thrift.patience == 60.0


def test_a_used_daily_wake_time_forbids_training():
    woken = DailyQuota(20_000, 20_000)  # ms, of the process before
    thrift = ResourceGovernor(
        LimitsSection(daily_wake_time="30s"), DailyQuota(), woken, now=0.0, written=lambda: 0
    )
    thrift.live(100.0, NOW, awake=False)
    thrift.live(104.0, NOW, awake=True)
    assert thrift.look(104.0, 0.0, NOW) == "", "24 of 30 seconds"
    thrift.live(109.0, NOW, awake=False)
    thrift.live(116.0, NOW, awake=True)
    assert thrift.wake.used == 31_000
    assert thrift.look(120.0, 0.0, NOW) == "wake time"
    thrift.live(121.0, NOW + DAY, awake=True)
    assert thrift.look(140.0, 0.0, NOW + DAY) == "", "another day"


def test_a_new_day_allows_training_again_also_for_a_device_that_did_nothing_since():
    thrift = ResourceGovernor(
        LimitsSection(daily_wake_time="30s"), DailyQuota(), now=0.0, written=lambda: 0
    )
    thrift.live(31.0, NOW, awake=True)
    assert thrift.look(40.0, 0.0, NOW) == "wake time"
    assert not thrift.has_wake_time(1.0, NOW)
    assert thrift.has_wake_time(0.1, NOW + DAY)
    assert thrift.look(60.0, 0.0, NOW + DAY) == ""


def test_a_share_of_the_days_wake_time_is_kept_for_other_work():
    thrift = ResourceGovernor(
        LimitsSection(daily_wake_time="30s"), DailyQuota(), now=0.0, written=lambda: 0
    )
    thrift.live(14.0, NOW, awake=True)
    assert thrift.has_wake_time(0.5, NOW)
    thrift.live(16.0, NOW, awake=True)
    assert not thrift.has_wake_time(0.5, NOW)
    assert thrift.look(60.0, 0.0, NOW) == ""


def test_written_bytes_are_those_that_the_kernel_counts(tmp_path):
    before = bytes_written()
    with (tmp_path / "file").open("wb") as out:
        out.write(bytes(100_000))
        out.flush()
    assert bytes_written() >= before  # on a RAM disk nothing is written
