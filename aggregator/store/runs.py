"""Store runs: their definitions, the journal positions of their states, and closed rounds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from typing import NamedTuple

from aggregator.store.dialect import ALL, Database
from aggregator.store.event_codec import pack_timers, unpack_timers
from aggregator.store.schema import has_runs
from aggregator.store.types import RunRecord, Timer, Version


class Reach(NamedTuple):
    """Journal positions of a run's oldest and last state.

    Attributes:
        anchor: Position of the oldest state after which the journal is complete.
        upto: Position of the last event in the last state.
        timers: Timers pending at that position.
    """

    anchor: int
    upto: int
    timers: tuple[Timer, ...]


def records(db: Database) -> list[RunRecord]:
    """Return the definitions of all runs, newest first."""
    names = _names(db)
    found = "SELECT run, method, settings, bundle, spec, layout FROM runs ORDER BY run DESC"
    return [
        replace(RunRecord(number, *rest), name=names.get(number, ""))
        for number, *rest in db.execute(found)
    ]


def latest(db: Database, name: str | None = None) -> RunRecord | None:
    """Return the latest run of a name, or of all."""
    return next((one for one in records(db) if name in (None, one.name)), None)


def live(db: Database) -> set[int]:
    """Return the latest run of each name.

    Example:
        >>> import sqlite3
        >>> from pathlib import Path
        >>> from aggregator.store.schema import prepare
        >>> db = sqlite3.connect(":memory:", isolation_level=None)
        >>> prepare(db, Path("fleet.db"))
        >>> for number, name in enumerate(("", "meters", "meters", "cells"), 1):
        ...     begin(db, RunRecord(number, "fedavg", "{}", "toy", bytes(16), bytes(16), name), at=0)
        >>> sorted(live(db)), latest(db, "meters").run, latest(db).run, latest(db, "other")
        ([1, 3, 4], 3, 4, None)
    """
    names = _names(db)
    newest = {names.get(number, ""): number for number in numbers(db)}
    return set(newest.values())


def _names(db: Database) -> dict[int, str]:
    return dict(db.execute("SELECT run, name FROM run_names")) if has_runs(db) else {}


def numbers(db: Database) -> list[int]:
    """Return the numbers of all runs, oldest first."""
    return [run for (run,) in db.execute("SELECT run FROM runs ORDER BY run")]


def begin(db: Database, run: RunRecord, at: int) -> None:
    """Insert a run whose first state is at a position of the journal."""
    db.execute(
        "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*astuple(run)[:6], at, at, pack_timers(())),
    )
    if run.name:
        db.execute("INSERT INTO run_names VALUES (?, ?)", (run.run, run.name))


def reach(db: Database, run: int) -> Reach | None:
    """Return the positions of a run's states; None if there is no such run.

    Example:
        >>> import sqlite3
        >>> from pathlib import Path
        >>> from aggregator.store.schema import prepare
        >>> db = sqlite3.connect(":memory:", isolation_level=None)
        >>> prepare(db, Path("fleet.db"))
        >>> begin(db, RunRecord(1, "fedavg", "{}", "toy", bytes(16), bytes(16)), at=4)
        >>> advance(db, 1, 9, ())
        >>> reach(db, 1), reach(db, 2)
        (Reach(anchor=4, upto=9, timers=()), None)
    """
    found = db.execute("SELECT anchor, upto, timers FROM runs WHERE run = ?", (run,)).fetchone()
    if found is None:
        return None
    anchor, upto, timers = found
    return Reach(anchor, upto, unpack_timers(timers))


def advance(db: Database, run: int, upto: int, timers: Sequence[Timer]) -> None:
    """Record the position of the last state and its pending timers."""
    db.execute(
        "UPDATE runs SET upto = ?, timers = ? WHERE run = ?", (upto, pack_timers(timers), run)
    )


def close(db: Database, closed: Version, at: int) -> int:
    """Store a closed round with its closing position; return its report's size in bytes."""
    report = json.dumps(dict(closed.report))
    db.execute(
        "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            closed.run,
            closed.round,
            closed.version,
            int(closed.moved),
            at,
            closed.digest,
            report,
            closed.time,
        ),
    )
    return len(report)


def versions(db: Database, run: int, last: int | None = None) -> list[Version]:
    """Return a run's closed rounds, oldest first; at most the newest ``last`` if given."""
    found = db.execute(
        "SELECT run, round, version, moved, digest, report, time, position FROM versions"
        " WHERE run = ? ORDER BY round DESC LIMIT ?",
        (run, ALL if last is None else last),
    ).fetchall()
    return [
        Version(r, number, version, bool(moved), digest, json.loads(report), time, position)
        for r, number, version, moved, digest, report, time, position in reversed(found)
    ]


def reaches(db: Database) -> list[tuple[int, int, int]]:
    """Return run, anchor and last position of every run, oldest first."""
    return db.execute("SELECT run, anchor, upto FROM runs ORDER BY run").fetchall()


def anchors(db: Database) -> dict[int, int]:
    """Return the anchor of every run."""
    return {run: anchor for run, anchor, _ in reaches(db)}


def lift_anchor(db: Database, run: int, anchor: int) -> None:
    """Move a run's anchor to a later position, after which its journal is complete."""
    db.execute("UPDATE runs SET anchor = ? WHERE run = ?", (anchor, run))


def closed(db: Database) -> Iterator[tuple[int, int, int, int]]:
    """Return run, round, position and report size in bytes of every closed round, in order."""
    yield from db.execute(
        "SELECT run, round, position, length(report) FROM versions ORDER BY position, run, round"
    )


def last_closing(db: Database, run: int, upto: int) -> int:
    """Return the position at which a run last closed a round, up to a position; 0 for none."""
    found = db.execute(
        "SELECT max(position) FROM versions WHERE run = ? AND position <= ?", (run, upto)
    ).fetchone()[0]
    return int(found or 0)


def drop_closed(db: Database, upto: int, held: Mapping[int, int]) -> None:
    """Delete the closed rounds up to a position, of held runs up to their own position."""
    others = ", ".join(map(str, held)) or "-1"  # PostgreSQL refuses an empty list; no run is -1
    db.execute(
        f"DELETE FROM versions WHERE position <= ? AND run NOT IN ({others})",  # noqa: S608 - numbers
        (upto,),
    )
    for run, position in held.items():
        db.execute("DELETE FROM versions WHERE run = ? AND position <= ?", (run, position))


def closed_by(db: Database, run: int, position: int) -> int:
    """Return the last round of a run closed at or before a position; 0 before the first."""
    found = db.execute(
        "SELECT min(round) FILTER (WHERE position > ?) - 1, max(round) FROM versions WHERE run = ?",
        (position, run),
    ).fetchone()
    return int(next((number for number in found if number is not None), 0))
