"""Store the runs, their closed rounds, and the leaves of their states."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from typing import NamedTuple

from aggregator.store.dialect import ALL, has_table, upsert
from aggregator.store.errors import DatabaseError
from aggregator.store.journal import pack_timers, unpack_timers
from aggregator.store.transactions import Table, Transactions
from aggregator.store.types import RunRecord, SavedState, Timer, Version
from edge_sdk.protocol.codec import Leaf, pack_leaves, unpack_leaves


class Reach(NamedTuple):
    """Journal positions of a run's oldest and last state."""

    anchor: int  # position of the oldest state after which the journal is complete
    upto: int  # position of the last event in the last state
    timers: tuple[Timer, ...]  # timers pending at that position


class Runs(Table):
    """Definitions of runs, journal positions of their states, and closed rounds."""

    def records(self) -> list[RunRecord]:
        """Return the definitions of all runs, newest first."""
        names = self._names()
        found = "SELECT run, method, settings, bundle, spec, layout FROM runs ORDER BY run DESC"
        return [
            replace(RunRecord(number, *rest), name=names.get(number, ""))
            for number, *rest in self._db.execute(found)
        ]

    def latest(self, name: str | None = None) -> RunRecord | None:
        return next((one for one in self.records() if name in (None, one.name)), None)

    def live(self) -> set[int]:
        """Return the latest run of each name.

        >>> from aggregator.store.sqlite import in_memory
        >>> runs = in_memory().runs
        >>> for number, name in enumerate(("", "meters", "meters", "cells"), 1):
        ...     runs.begin(RunRecord(number, "fedavg", "{}", "toy", bytes(16), bytes(16), name), at=0)
        >>> sorted(runs.live()), runs.latest("meters").run, runs.latest().run, runs.latest("other")
        ([1, 3, 4], 3, 4, None)
        """
        names = self._names()
        newest = {names.get(number, ""): number for number in self.numbers()}
        return set(newest.values())

    def _names(self) -> dict[int, str]:
        return (
            dict(self._db.execute("SELECT run, name FROM run_names"))
            if has_table(self._db, "run_names")
            else {}
        )

    def numbers(self) -> list[int]:
        """Return the numbers of all runs, oldest first."""
        return [run for (run,) in self._db.execute("SELECT run FROM runs ORDER BY run")]

    def begin(self, run: RunRecord, at: int) -> None:
        """Insert a run whose first state is at a position of the journal."""
        with self._writing() as db:
            db.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*astuple(run)[:6], at, at, pack_timers(())),
            )
            if run.name:
                db.execute("INSERT INTO run_names VALUES (?, ?)", (run.run, run.name))

    def reach(self, run: int) -> Reach | None:
        """Return the positions of a run's states; None if there is no such run.

        >>> from aggregator.store.sqlite import in_memory
        >>> runs = in_memory().runs
        >>> runs.begin(RunRecord(1, "fedavg", "{}", "toy", bytes(16), bytes(16)), at=4)
        >>> runs.advance(1, 9, ())
        >>> runs.reach(1), runs.reach(2)
        (Reach(anchor=4, upto=9, timers=()), None)
        """
        found = self._db.execute(
            "SELECT anchor, upto, timers FROM runs WHERE run = ?", (run,)
        ).fetchone()
        if found is None:
            return None
        anchor, upto, timers = found
        return Reach(anchor, upto, unpack_timers(timers))

    def advance(self, run: int, upto: int, timers: Sequence[Timer]) -> None:
        """Record the position of the last state and its pending timers."""
        with self._writing() as db:
            db.execute(
                "UPDATE runs SET upto = ?, timers = ? WHERE run = ?",
                (upto, pack_timers(timers), run),
            )

    def close(self, closed: Version, at: int) -> int:
        """Store a closed round with its closing position; return its report's size in bytes."""
        with self._writing() as db:
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

    def versions(self, run: int, last: int | None = None) -> list[Version]:
        """Return a run's closed rounds, oldest first; at most the newest ``last`` if given."""
        found = self._db.execute(
            "SELECT run, round, version, moved, digest, report, time, position FROM versions"
            " WHERE run = ? ORDER BY round DESC LIMIT ?",
            (run, ALL if last is None else last),
        ).fetchall()
        return [
            Version(r, number, version, bool(moved), digest, json.loads(report), time, position)
            for r, number, version, moved, digest, report, time, position in reversed(found)
        ]

    def reaches(self) -> list[tuple[int, int, int]]:
        """Return run, anchor and last position of every run, oldest first."""
        return self._db.execute("SELECT run, anchor, upto FROM runs ORDER BY run").fetchall()

    def anchors(self) -> dict[int, int]:
        return {run: anchor for run, anchor, _ in self.reaches()}

    def lift_anchor(self, run: int, anchor: int) -> None:
        """Move a run's anchor to a later position, after which its journal is complete."""
        with self._writing() as db:
            db.execute("UPDATE runs SET anchor = ? WHERE run = ?", (anchor, run))

    def closed(self) -> Iterator[tuple[int, int, int, int]]:
        """Return run, round, position and report size in bytes of every closed round, in order."""
        yield from self._db.execute(
            "SELECT run, round, position, length(report) FROM versions ORDER BY position, run, round"
        )

    def last_closing(self, run: int, upto: int) -> int:
        """Return the position at which a run last closed a round, up to a position; 0 for none."""
        found = self._db.execute(
            "SELECT max(position) FROM versions WHERE run = ? AND position <= ?", (run, upto)
        ).fetchone()[0]
        return int(found or 0)

    def drop_closed(self, upto: int, held: Mapping[int, int]) -> None:
        """Delete the closed rounds up to a position; those of held runs up to a position of their own."""
        with self._writing() as db:
            others = (
                ", ".join(map(str, held)) or "-1"
            )  # PostgreSQL refuses an empty list; no run is -1
            db.execute(
                f"DELETE FROM versions WHERE position <= ? AND run NOT IN ({others})",  # noqa: S608 - numbers
                (upto,),
            )
            for run, position in held.items():
                db.execute("DELETE FROM versions WHERE run = ? AND position <= ?", (run, position))

    def closed_by(self, run: int, position: int) -> int:
        """Return the last round of a run closed at or before a position; 0 before the first."""
        found = self._db.execute(
            "SELECT min(round) FILTER (WHERE position > ?) - 1, max(round) FROM versions WHERE run = ?",
            (position, run),
        ).fetchone()
        return int(next((number for number in found if number is not None), 0))


class States(Table):
    """States of runs by journal position, as changed leaves.

    Args:
        runs: Runs, which have the positions of their oldest and last states.
    """

    def __init__(self, transactions: Transactions, runs: Runs) -> None:
        super().__init__(transactions)
        self._runs = runs

    def load(self, run: int) -> SavedState:
        """Return the last committed state of a run."""
        _, upto, timers = self._reach(run)
        return SavedState(self.at(run, upto), upto, timers)

    def first(self, run: int) -> SavedState:
        """Return the oldest state of a run after which the journal is complete."""
        anchor, _, _ = self._reach(run)
        return SavedState(self.at(run, anchor), anchor)

    def _reach(self, run: int) -> Reach:
        found = self._runs.reach(run)
        if found is None:
            raise DatabaseError(f"{self._transactions.path}: there is no run {run}")
        return found

    def save(self, run: int, position: int, leaves: Mapping[str, Leaf]) -> int:
        """Write changed leaves, where None deletes one; return the number of bytes written.

        >>> from aggregator.store.sqlite import in_memory
        >>> states = in_memory().states
        >>> states.save(1, 0, {"round": 0, "pending": 1}), states.save(1, 5, {"round": 1, "pending": None})
        (86, 43)
        >>> states.at(1, 4) == {"round": 0, "pending": 1}, states.at(1, 5)
        (True, {'round': 1})
        """
        with self._writing() as db:
            packed = [
                (run, path, position, None if leaf is None else pack_leaves({"leaf": leaf}))
                for path, leaf in leaves.items()
            ]
            db.executemany(upsert("leaves", "run, path, position", "value"), packed)
            return sum(len(value or b"") for _, _, _, value in packed)

    def at(self, run: int, position: int) -> dict[str, Leaf]:
        """Return the state at a position: the last written value of each leaf."""
        return {
            path: unpack_leaves(value)["leaf"]
            for path, value in self._db.execute(
                "SELECT leaves.path, value FROM leaves JOIN"
                " (SELECT path, max(position) AS last FROM leaves WHERE run = ? AND position <= ?"
                " GROUP BY path) AS newest ON newest.path = leaves.path AND newest.last = position"
                " WHERE run = ? ORDER BY leaves.path",
                (run, position, run),
            )
            if value is not None
        }

    def forget(self, run: int, before: int) -> None:
        """Delete superseded leaves before a position, and leaves that are deleted by then."""
        with self._writing() as db:
            db.execute(
                "DELETE FROM leaves WHERE run = ? AND position < (SELECT max(later.position)"
                " FROM leaves AS later WHERE later.run = leaves.run AND later.path = leaves.path"
                " AND later.position <= ?)",
                (run, before),
            )
            db.execute(
                "DELETE FROM leaves WHERE run = ? AND position <= ? AND value IS NULL",
                (run, before),
            )

    def drop(self, run: int) -> None:
        with self._writing() as db:
            db.execute("DELETE FROM leaves WHERE run = ?", (run,))

    def sizes(self) -> list[tuple[int, int]]:
        """Return the size of the written leaves in bytes, by position, in order."""
        return self._db.execute(
            "SELECT position, coalesce(sum(length(value)), 0) FROM leaves"
            " GROUP BY position ORDER BY position"
        ).fetchall()
