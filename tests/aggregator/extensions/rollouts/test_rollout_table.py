"""Changes and reports of rollouts are on disk; an older file gets their tables."""

import sqlite3
from dataclasses import replace

from aggregator.extensions.rollouts.rollout_table import DeviceTrial, RolloutChange, RolloutTable
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice


def test_a_file_of_schema_5_has_no_rollouts_until_it_is_upgraded(tmp_path):
    file = tmp_path / "fleet.db"
    with open_store(file) as store:
        store.devices.save(EnrolledDevice("meter-1", (bytes(32),)))
    with sqlite3.connect(file) as db:
        db.executescript(
            "DROP TABLE rollout_changes; DROP TABLE trials; DROP TABLE trial_states;"
            "PRAGMA user_version = 5;"
        )
    with open_store(file, read_only=True) as store:
        assert (store.table(RolloutTable).changes(), store.table(RolloutTable).trials(b"a")) == (
            [],
            [],
        )
    first = RolloutChange(b"a", "run", 0, 20_000, "start", "ann", 1_800_000_000_000)
    with open_store(file) as store:
        store.table(RolloutTable).change(first)
        store.announce({"t": b"payload"})
        store.table(RolloutTable).record(
            b"a", DeviceTrial("meter-1", "score", 20_001, {20_001: (True, False)})
        )
    with open_store(file) as store:
        assert store.table(RolloutTable).changes() == [first]
        assert store.announcements.get("t") == b"payload"
        assert store.table(RolloutTable).trials(b"a") == [
            DeviceTrial("meter-1", "score", 20_001, {20_001: (True, False)})
        ]
        store.table(RolloutTable).change(replace(first, of=b"b"))
        assert store.table(RolloutTable).trials(b"a") == []
        assert [one.of for one in store.table(RolloutTable).changes()] == [b"b"]
