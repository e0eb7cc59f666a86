"""The view for an operator's pages: search, labels, order, bounds, suspects, and older files."""

import sqlite3

import pytest

from aggregator.audit_log import AuditLog, Initiator
from aggregator.extensions.console.overview import StoreOverview
from aggregator.extensions.console.overview_rows import DeviceFilter, RoundCounts
from aggregator.extensions.rollouts.rollout_table import DeviceTrial, RolloutChange, RolloutTable
from aggregator.store.dialect import DatabaseUrl
from aggregator.store.ledgers import Ledger, LedgerRow
from aggregator.store.opener import open_store
from aggregator.store.types import Contact, DeclinedRun, EnrolledDevice, RunRecord, Version
from edge_sdk.errors import Reason
from edge_sdk.protocol import keys
from edge_sdk.protocol.contract.method import Due
from tests.postgres_server import postgres_server

__all__ = ["postgres_server"]


@pytest.fixture(params=["sqlite", "postgres"])
def path(request, tmp_path):
    if request.param == "sqlite":
        found = tmp_path / "state" / "fleet.db"
    else:
        found = DatabaseUrl(request.getfixturevalue("postgres_server").schema())
    with open_store(found) as store:
        for n in range(12):
            labels = (("kind", "cell" if n % 3 else "meter"), ("site", str(n)))
            store.devices.save(EnrolledDevice(f"Dev_{n:02}", (bytes([n]) * 32,), labels=labels))
            store.ledgers.save(f"Dev_{n:02}", Ledger(spent=n))
        store.devices.save(EnrolledDevice("gone", (), state="revoked", why="sold"))
        store.begin(RunRecord(1, "fedavg", "{}", "toy", bytes(16), bytes(16)), {})
        for number in range(1, 6):
            entry = store.journal.append(1, Due(number, "train"))
            report = {
                "cohort": ["a", "b", 'c"d'],
                "dropped": {"a": "far"} if number % 2 else {},
                "weights": {"b": 0.0, 'c"d': 0.0 if number == 5 else 1.0},
                "loss": 0.5,
            }
            closed = Version(1, number, number, True, bytes(32), report, 1000 * number)
            store.commit(1, {}, entry.position, closed=closed)
        row = LedgerRow(bytes(32), Reason.TOO_STALE, 1, 3)
        for seq in (1, 2):
            store.refuse("Dev_01", Ledger(spent=1), (1, seq), row)
        store.commands.issue("Dev_01", "stop")
    return found


def names(found):
    return [one.id for one in found]


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (DeviceFilter(), 13),
        (DeviceFilter(text="dev_0"), 10),
        (DeviceFilter(text="%"), 0),
        (DeviceFilter(label="kind=meter"), 4),
        (DeviceFilter(label="kind"), 12),
        (DeviceFilter(label="kind=' OR 1=1 --"), 0),
        (DeviceFilter(state="revoked"), 1),
        (DeviceFilter(text="1", label="kind=cell", state="enrolled"), 3),
    ],
)
def test_search_counts_what_it_lists(path, wanted, count):
    with StoreOverview.open(path) as store:
        assert store.count(wanted) == count == len(store.devices(wanted, 100))


def test_devices_are_paged_and_sorted(path):
    with StoreOverview.open(path) as store:
        pages = [names(store.devices(DeviceFilter(), 5, offset)) for offset in (0, 5, 10, 15)]
        assert sum(pages, []) == sorted(sum(pages, []))  # noqa: RUF017 - four lists
        assert [len(page) for page in pages] == [5, 5, 3, 0]
        top = store.devices(DeviceFilter(), 2, by_spent=True)
        assert [(one.id, one.spent) for one in top] == [("Dev_11", 11), ("Dev_10", 10)]
        one = store.device("Dev_03")
        assert one.labels == (("kind", "meter"), ("site", "3"))
        assert store.device("none") is None


def test_cohort_of_a_run(path):
    with StoreOverview.open(path) as store:
        assert len(store.eligible({})) == 12
        assert store.eligible({"kind": "meter", "site": "3"}) == {"Dev_03"}


def test_suspects_are_counted_in_the_newest_rounds(path):
    with StoreOverview.open(path) as store:
        found = {one.device: one for one in store.suspects(1, 4)}
        assert (found["b"].excluded, found["b"].rounds, found["b"].reasons) == (4, 4, ("weight 0",))
        assert (found["a"].excluded, found["a"].last, found["a"].reasons) == (2, 5, ("far",))
        assert found['c"d'].excluded == 1
        assert found["a"].when[0] == 5
        assert len(found["a"].when) == 2
        assert [one.device for one in store.suspects(1, 4, most=1)] == ["b"]


def test_refusals_rounds_and_timeline(path):
    with StoreOverview.open(path) as store:
        assert store.refusals() == [(Reason.TOO_STALE, 2, 1)]
        assert store.refused_devices(Reason.TOO_STALE) == [("Dev_01", 2, 3)]
        newest, *_ = store.timeline("Dev_01")
        assert (newest.seq, newest.code, newest.time) == (2, Reason.TOO_STALE, 3000)
        rounds = store.rounds(1, 2)
        assert [(one.round, one.devices, one.dropped, one.loss) for one in rounds] == [
            (5, 3, 1, 0.5),
            (4, 3, 0, 0.5),
        ]
        assert store.version(1, 9) is None
        assert [(one.device, one.op, one.code) for one in store.commands()] == [
            ("Dev_01", "stop", None)
        ]


def test_rounds_are_counted_by_slot_of_time_and_since_the_last_that_moved(path):
    with open_store(path) as store:
        for number in (6, 7):
            report = {"why": "too few updates"}
            closed = Version(1, number, 5, False, bytes(32), report, 1000 * number)
            store.commit(
                1, {}, store.journal.append(1, Due(number, "train")).position, closed=closed
            )
    with StoreOverview.open(path) as store:
        assert store.round_counts(1, 2000, 4000) == [
            RoundCounts(0, closed=2, moved=2, last=3),
            RoundCounts(1, closed=4, moved=2, last=5),
        ]
        assert store.round_counts(1, 9000, 4000) == store.round_counts(2, 0, 4000) == []
        assert store.standstill(1) == (2, "too few updates")
        assert store.standstill(2) == (0, "")


def test_newest_updates_contacts_and_declined_runs_of_devices(path):
    with open_store(path) as store:
        store.contacts.save({"Dev_01": Contact("1.0", 7000), "gone": Contact("0.9", 8000)})
        store.declined.add(DeclinedRun("Dev_02", "meters", "NO_WINDOWS", bytes(16)))
    with StoreOverview.open(path) as store:
        assert [(one.run, one.round, one.code) for one in store.settled("Dev_01", 1)] == [
            (1, 3, Reason.TOO_STALE)
        ]
        assert len(store.settled("Dev_01")) == 2
        assert store.contacts(["Dev_01", "Dev_02"]) == {"Dev_01": ("1.0", 7000)}
        assert store.declined(["Dev_01", "Dev_02"]) == {"Dev_02": {"meters": "NO_WINDOWS"}}
        assert store.contacts([]) == store.declined([]) == {}
        assert store.closed_at(1, 2) == {5: (5, 5000), 4: (4, 4000)}
        assert sorted(store.spent()) == list(range(12)), "a revoked device does not count"


def test_acts_and_days_of_a_rollout_about_one_device(path):
    of, other = bytes(16), bytes([1]) * 16
    with open_store(path) as store:
        log = AuditLog(store, "north", keys.from_seed(bytes(32)))
        for act in ("enrol", "label", "revoke"):
            log.record(Initiator("command", "ann"), act, "gone", reason="why")
        log.record(Initiator("command", "ann"), "label", "Dev_01")
        for serial, one in enumerate((other, of)):
            store.table(RolloutTable).change(
                RolloutChange(one, "run", 0, 1, "start", "ann", serial + 1)
            )
            trial = DeviceTrial("Dev_01", "score", 20 + serial, {20 + serial: (True, False)})
            store.table(RolloutTable).record(one, trial)
    with StoreOverview.open(path) as store:
        assert [one.act for one in store.acts_about("gone", 2)] == ["revoke", "label"]
        assert [one.act for one in store.acts_about("gone", searched=2)] == ["revoke"]
    with open_store(path, read_only=True) as store:
        rollouts = store.table(RolloutTable)
        assert rollouts.days("Dev_01") == [(21, True, False)], "the newest rollout"
        assert rollouts.days("gone") == []


def test_fingerprint_changes_with_devices_and_rounds(path):
    with StoreOverview.open(path) as store:
        before = store.fingerprint()
        assert store.fingerprint() == before
        with open_store(path) as writer:
            writer.journal.append(1, Due(9, "train"))
        assert store.fingerprint() != before


def test_a_view_cannot_write(path):
    with (
        StoreOverview.open(path) as store,
        pytest.raises(sqlite3.OperationalError, match=r"read-?only"),
    ):
        store._db.execute("DELETE FROM clients")
