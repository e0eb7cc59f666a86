"""Store the changes of rollouts, and the results that devices report of them."""

from __future__ import annotations

from aggregator.store.dialect import Database
from aggregator.store.schema import has_rollouts
from aggregator.store.types import DeviceTrial, RolloutChange

_CHANGE = "of, phase, stage, since, why, who, time"


def changes(db: Database, of: bytes | None = None) -> list[RolloutChange]:
    """Return the changes of a rollout, oldest first; of the newest rollout if none is named."""
    if not has_rollouts(db):
        return []
    if of is None:
        newest = db.execute(
            "SELECT of FROM rollout_changes ORDER BY change DESC LIMIT 1"
        ).fetchone()
        of = newest[0] if newest else b""
    found = f"SELECT {_CHANGE} FROM rollout_changes WHERE of = ? ORDER BY change"  # noqa: S608 - a constant
    return [RolloutChange(bytes(row[0]), *row[1:]) for row in db.execute(found, (of,))]


def change(db: Database, new: RolloutChange) -> None:
    """Append a change; results of another rollout than this are deleted."""
    row = (new.of, new.phase, new.stage, new.since, new.why, new.who, new.time)
    db.execute(
        f"INSERT INTO rollout_changes (change, {_CHANGE})"  # noqa: S608 - a constant
        " SELECT coalesce(max(change), 0) + 1, ?, ?, ?, ?, ?, ?, ? FROM rollout_changes",
        row,
    )
    db.execute("DELETE FROM trials WHERE of <> ?", (new.of,))
    db.execute("DELETE FROM trial_states WHERE of <> ?", (new.of,))


def record(db: Database, of: bytes, report: DeviceTrial) -> None:
    """Record a device's report; the first result of a day stays, and its state is the newest.

    Example:
        >>> import sqlite3
        >>> from pathlib import Path
        >>> from aggregator.store.schema import prepare
        >>> db = sqlite3.connect(":memory:", isolation_level=None)
        >>> prepare(db, Path("fleet.db"))
        >>> first = {8: (True, False), 7: (False, False)}
        >>> record(db, b"a", DeviceTrial("meter-1", "score", 8, first))
        >>> later = {9: (False, True), 8: (False, True)}
        >>> record(db, b"a", DeviceTrial("meter-1", "serve", 9, later))
        >>> [(one.device, one.state, one.day, one.results) for one in trials(db, b"a")]
        [('meter-1', 'serve', 9, {7: (False, False), 8: (True, False), 9: (False, True)})]
    """
    db.execute(
        "INSERT INTO trial_states VALUES (?, ?, ?, ?) ON CONFLICT (of, device)"
        " DO UPDATE SET state = excluded.state, day = excluded.day WHERE excluded.day >= trial_states.day",
        (of, report.device, report.state, report.day),
    )
    rows = [(of, report.device, at, int(a), int(b)) for at, (a, b) in report.results.items()]
    db.executemany("INSERT INTO trials VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", rows)


def trials(db: Database, of: bytes) -> list[DeviceTrial]:
    """Return what devices have reported of a rollout, by device."""
    if not has_rollouts(db):
        return []
    results: dict[str, dict[int, tuple[bool, bool]]] = {}
    found = "SELECT device, day, lost, serving FROM trials WHERE of = ? ORDER BY device, day"
    for device, day, lost, serving in db.execute(found, (of,)):
        results.setdefault(device, {})[day] = bool(lost), bool(serving)
    states = "SELECT device, state, day FROM trial_states WHERE of = ? ORDER BY device"
    return [
        DeviceTrial(device, state, day, results.get(device, {}))
        for device, state, day in db.execute(states, (of,))
    ]
