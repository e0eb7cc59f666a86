"""Store the newest task of every device, and its outcome."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields
from typing import Any

from aggregator.store.dialect import Database
from aggregator.store.types import PendingTask

_NAMES = tuple(f.name for f in fields(PendingTask))


def get(db: Database, device: str, run: int) -> PendingTask | None:
    """Return a device's newest task in a run, answered or not."""
    found = db.execute(
        "SELECT device, run, round, attempt, step, base, ask, vals, content, state FROM tasks"
        " WHERE device = ? AND run = ?",
        (device, run),
    ).fetchone()
    return None if found is None else _asked(found)


def of_run(db: Database, run: int, state: str = "open") -> list[PendingTask]:
    """Return the devices' newest tasks that are in a state, sorted by device."""
    found = db.execute(
        "SELECT device, run, round, attempt, step, base, ask, vals, content, state FROM tasks"
        " WHERE run = ? AND state = ? ORDER BY device",
        (run, state),
    ).fetchall()
    return [_asked(row) for row in found]


def devices(db: Database, run: int) -> set[str]:
    """Return the devices that have or had a task in a run."""
    return {device for (device,) in db.execute("SELECT device FROM tasks WHERE run = ?", (run,))}


def save(db: Database, asked: Iterable[PendingTask]) -> None:
    """Store newer tasks; a task that is already stored keeps its outcome.

    Example:
        >>> import sqlite3
        >>> from pathlib import Path
        >>> from aggregator.store.schema import prepare
        >>> db = sqlite3.connect(":memory:", isolation_level=None)
        >>> prepare(db, Path("fleet.db"))
        >>> task = PendingTask("meter-1", 1, 7, 0, 0, 6, "step")
        >>> save(db, [task])
        >>> finish(db, "meter-1", 1, 7, "answered")
        >>> save(db, [task])
        >>> get(db, "meter-1", 1).state
        'answered'
    """
    db.executemany(
        "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (device, run) DO UPDATE"
        " SET round = excluded.round, attempt = excluded.attempt,"
        " step = excluded.step, base = excluded.base, ask = excluded.ask, vals = excluded.vals,"
        " content = excluded.content, state = excluded.state WHERE"
        " (excluded.round, excluded.attempt, excluded.step) <> (tasks.round, tasks.attempt, tasks.step)",
        [
            (*astuple(one)[:7], json.dumps(dict(one.values)), one.content, one.state)
            for one in asked
        ],
    )


def finish(db: Database, device: str, run: int, number: int, state: str) -> None:
    """Close a device's open task of a round."""
    db.execute(
        "UPDATE tasks SET state = ? WHERE device = ? AND run = ? AND round = ? AND state = 'open'",
        (state, device, run, number),
    )


def forget(db: Database, *, but: Iterable[int]) -> None:
    """Delete the tasks of all runs except these."""
    kept = ", ".join(str(int(run)) for run in but) or "-1"  # PostgreSQL refuses an empty list
    db.execute(f"DELETE FROM tasks WHERE run NOT IN ({kept})")  # noqa: S608 - numbers


def _asked(row: Sequence[Any]) -> PendingTask:
    found = dict(zip(_NAMES, row, strict=True))
    return PendingTask(**found | {"values": json.loads(found["values"])})
