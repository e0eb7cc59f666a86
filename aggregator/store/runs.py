"""Runs: what each trains, where in the journal its states stand, and the rounds it closed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import astuple
from typing import NamedTuple

from aggregator.records import Run, Timer, Version, pack_timers, unpack_timers


class Reach(NamedTuple):
    """The stretch of the journal between a run's oldest state and its last one.

    Attributes:
        anchor: Position of the oldest state from which the journal is still whole.
        upto: Position the last state contains.
        timers: Wake-ups that were pending then.
    """

    anchor: int
    upto: int
    timers: tuple[Timer, ...]


def latest(db: sqlite3.Connection) -> Run | None:
    """Return the latest run."""
    found = db.execute(
        "SELECT run, method, settings, bundle, spec, layout FROM runs ORDER BY run DESC LIMIT 1"
    ).fetchone()
    return None if found is None else Run(*found)


def numbers(db: sqlite3.Connection) -> list[int]:
    """Return the numbers of all runs, oldest first."""
    return [run for (run,) in db.execute("SELECT run FROM runs ORDER BY run")]


def begin(db: sqlite3.Connection, run: Run, at: int) -> None:
    """Write a new run whose first state stands at a position of the journal."""
    db.execute(
        "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*astuple(run), at, at, pack_timers(())),
    )


def reach(db: sqlite3.Connection, run: int) -> Reach | None:
    """Return where a run's states stand; None if there is no such run.

    Example:
        >>> from pathlib import Path
        >>> from aggregator.store.schema import prepare
        >>> db = sqlite3.connect(":memory:", isolation_level=None)
        >>> prepare(db, Path("fleet.db"))
        >>> begin(db, Run(1, "fedavg", "{}", "toy", bytes(16), bytes(16)), at=4)
        >>> advance(db, 1, 9, ())
        >>> reach(db, 1), reach(db, 2)
        (Reach(anchor=4, upto=9, timers=()), None)
    """
    found = db.execute("SELECT anchor, upto, timers FROM runs WHERE run = ?", (run,)).fetchone()
    if found is None:
        return None
    anchor, upto, timers = found
    return Reach(anchor, upto, unpack_timers(timers))


def advance(db: sqlite3.Connection, run: int, upto: int, timers: Sequence[Timer]) -> None:
    """Note up to where the last state goes, and what is pending then."""
    db.execute(
        "UPDATE runs SET upto = ?, timers = ? WHERE run = ?", (upto, pack_timers(timers), run)
    )


def close(db: sqlite3.Connection, closed: Version, at: int) -> None:
    """Keep a closed round, and the position of the event that closed it."""
    db.execute(
        "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            closed.run,
            closed.round,
            closed.version,
            closed.moved,
            at,
            closed.digest,
            json.dumps(dict(closed.report)),
            closed.time,
        ),
    )


def versions(db: sqlite3.Connection, run: int, last: int | None = None) -> list[Version]:
    """Return a run's closed rounds, oldest first; only the newest ``last`` if given."""
    found = db.execute(
        "SELECT run, round, version, moved, digest, report, time, position FROM versions"
        " WHERE run = ? ORDER BY round DESC LIMIT ?",
        (run, -1 if last is None else last),
    ).fetchall()
    return [
        Version(r, number, version, bool(moved), digest, json.loads(report), time, position)
        for r, number, version, moved, digest, report, time, position in reversed(found)
    ]


def lift_anchor(db: sqlite3.Connection, run: int, keep_rounds: int) -> int | None:
    """Move the anchor to where all but the newest rounds had closed.

    Returns:
        Its new position; None if there are not more closed rounds than are kept.
    """
    found = db.execute(
        "SELECT position FROM versions WHERE run = ? ORDER BY round DESC LIMIT 1 OFFSET ?",
        (run, keep_rounds),
    ).fetchone()
    if found is None:
        return None
    db.execute("UPDATE runs SET anchor = ? WHERE run = ?", (found[0], run))
    return int(found[0])
