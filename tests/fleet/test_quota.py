"""A device keeps to the bytes a day that its fleet allows, over restarts, until the next day."""

from __future__ import annotations

QUOTA = 60_000  # a few dozen rounds of one small layer
DAY = 86_400.0


def used(one, number):
    client = one.clients[number]
    return sum(client.status()["counts"][f"bytes_{way}"] for way in ("up", "down"))


def rationed(world):
    run = {"rounds": None, "shared": ["body.4."]}
    one = world(
        devices=1, run=run, admission={"daily_bytes": QUOTA, "messages_per_minute": 100_000}
    )
    one.start_all()
    one.until(lambda: one.clients[0].status()["stopped"] == "quota")
    return one


def test_a_used_daily_quota_stops_messages_and_not_the_device(world):
    one = rationed(world)
    version, spent = one.version, used(one, 0)
    assert version > 1
    for _ in range(600):
        one.turn(1.0)
    assert used(one, 0) - spent < 20_000  # what was under way, time announcements
    assert one.version <= version + 1
    assert one.clients[0].is_ready


def test_a_restart_keeps_the_used_quota_and_a_new_day_resets_it(world):
    one = rationed(world)
    one.clients[0]._session.parts.quota.save()
    one.die(0)
    one.start(0)
    version = one.version
    one.until(lambda: one.clients[0].status()["stopped"] == "quota")
    assert one.version <= version + 1
    one.turn(DAY)
    one.until(lambda: one.version > version + 1)
