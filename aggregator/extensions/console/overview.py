"""Read the rows of an operator's pages: devices, refusals, closed rounds and commands, page by page.

Every query is bounded, so that a page of a large fleet reads little. Nothing here writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from aggregator.extensions.console import suspects
from aggregator.extensions.console.overview_rows import (
    ClosedRound,
    CommandRow,
    DeviceFilter,
    DeviceSummary,
    RoundCounts,
    SettledUpdate,
    SuspectRow,
    TimelineEntry,
)
from aggregator.store.audit_record import AuditRecord
from aggregator.store.commands import Tasks
from aggregator.store.dialect import Database, Location, dialect_of, has_table
from aggregator.store.journal import Journal
from aggregator.store.opener import open_reader
from aggregator.store.runs import Runs
from aggregator.store.transactions import Transactions
from aggregator.store.types import Version


class StoreOverview:
    """Read-only view of a database. Open it with ``open``; close it, or use ``with``."""

    def __init__(self, db: Database, closing: Callable[[], None]) -> None:
        """Take over a read-only connection and the function that closes it; use ``open``."""
        self._db, self._closing = db, closing
        transactions = Transactions(db, Path())
        self.runs, self.tasks = Runs(transactions), Tasks(transactions)
        self.journal = Journal(transactions)
        self._has_runs = has_table(db, "run_names")

    @classmethod
    def open(cls, place: Location) -> StoreOverview:
        """Open a database for reading, beside a running daemon; raise DatabaseError if it cannot be opened."""
        return cls(*open_reader(place))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing()

    # --- devices

    def states(self) -> dict[str, int]:
        return dict(
            self._db.execute("SELECT state, count(*) FROM clients GROUP BY state").fetchall()
        )

    def count(self, wanted: DeviceFilter) -> int:
        """Return the number of selected devices."""
        where, values = self._where(wanted)
        found = self._db.execute(f"SELECT count(*) FROM clients WHERE {where}", values)  # noqa: S608 - fixed text
        return int(found.fetchone()[0])

    def devices(
        self, wanted: DeviceFilter, limit: int, offset: int = 0, *, by_spent: bool = False
    ) -> list[DeviceSummary]:
        """Return selected devices from ``offset`` on, by id or by releases, largest first."""
        where, values = self._where(wanted)
        order = "spent DESC, id" if by_spent else "id"
        rows = self._db.execute(
            "SELECT id, state, why, generation, sign, coalesce(ledgers.spent, 0) AS spent"  # noqa: S608
            " FROM clients LEFT JOIN ledgers ON ledgers.device = clients.id"
            f" WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?",
            (*values, limit, offset),
        ).fetchall()
        return [
            DeviceSummary(
                name, state, why, generation, tuple(json.loads(sign)), spent, self._labels(name)
            )
            for name, state, why, generation, sign, spent in rows
        ]

    def device(self, name: str) -> DeviceSummary | None:
        """Return one device, or None."""
        row = self._db.execute(
            "SELECT state, why, generation, sign, coalesce(ledgers.spent, 0)"
            " FROM clients LEFT JOIN ledgers ON ledgers.device = clients.id WHERE id = ?",
            (name,),
        ).fetchone()
        if row is None:
            return None
        state, why, generation, sign, spent = row
        keys = tuple(json.loads(sign))
        return DeviceSummary(name, state, why, generation, keys, spent, self._labels(name))

    def eligible(self, cohort: Mapping[str, str]) -> frozenset[str]:
        """Return the enrolled devices that have all labels of a cohort."""
        found = {
            name for (name,) in self._db.execute("SELECT id FROM clients WHERE state = 'enrolled'")
        }
        for label in cohort.items() if self._has_runs else ():
            rows = self._db.execute("SELECT device FROM labels WHERE name = ? AND value = ?", label)
            found &= {name for (name,) in rows}
        return frozenset(found if self._has_runs or not cohort else ())

    def label_names(self, most: int = 50) -> list[str]:
        """Return the labels in use as ``name=value``, the most frequent first."""
        if not self._has_runs:
            return []
        return [
            f"{name}={value}"
            for name, value in self._db.execute(
                "SELECT name, value FROM labels GROUP BY name, value"
                " ORDER BY count(*) DESC, name, value LIMIT ?",
                (most,),
            )
        ]

    def _labels(self, device: str) -> tuple[tuple[str, str], ...]:
        if not self._has_runs:
            return ()
        return tuple(
            self._db.execute(
                "SELECT name, value FROM labels WHERE device = ? ORDER BY name", (device,)
            )
        )

    def _where(self, wanted: DeviceFilter) -> tuple[str, list[str]]:
        parts, values = ["1 = 1"], []
        if wanted.text:
            parts.append("replace(lower(id), lower(?), '') <> lower(id)")
            values.append(wanted.text)
        if wanted.state:
            parts.append("state = ?")
            values.append(wanted.state)
        if wanted.label:
            name, sign, value = wanted.label.partition("=")
            of_value = " AND value = ?" if sign else ""
            found = f"id IN (SELECT device FROM labels WHERE name = ?{of_value})"  # noqa: S608 - fixed text
            parts.append(found if self._has_runs else "1 = 0")
            values += ([name, value] if sign else [name]) if self._has_runs else []
        return " AND ".join(parts), values

    def spent(self) -> list[int]:
        rows = self._db.execute(
            "SELECT coalesce(ledgers.spent, 0) FROM clients LEFT JOIN ledgers"
            " ON ledgers.device = clients.id WHERE state = 'enrolled'"
        )
        return [spent for (spent,) in rows]

    def contacts(self, names: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Return software and time of the last message (Unix ms) of devices, as the daemon saved them.

        The daemon saves them every few minutes, and when it stops.
        """
        if not names or not has_table(self._db, "contacts"):
            return {}
        marks = ", ".join("?" * len(names))
        rows = self._db.execute(
            f"SELECT device, sdk, seen FROM contacts WHERE device IN ({marks})",  # noqa: S608 - marks
            list(names),
        )
        return {name: (sdk, seen) for name, sdk, seen in rows}

    def declined(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the runs that devices have declined, each with the name of the reason."""
        found: dict[str, dict[str, str]] = {}
        if names and has_table(self._db, "contacts"):
            marks = ", ".join("?" * len(names))
            rows = self._db.execute(
                f"SELECT device, name, reason FROM declined WHERE device IN ({marks})",  # noqa: S608 - marks
                list(names),
            )
            for device, name, reason in rows:
                found.setdefault(device, {})[name] = reason
        return found

    # --- verdicts and commands

    def settled(self, device: str, most: int = 100) -> list[SettledUpdate]:
        """Return a device's newest settled updates in short, newest first."""
        rows = self._db.execute(
            "SELECT run, round, code FROM rows WHERE device = ? ORDER BY life DESC, seq DESC LIMIT ?",
            (device, most),
        )
        return [SettledUpdate(*row) for row in rows]

    def acts_about(self, device: str, most: int = 50, searched: int = 5000) -> list[AuditRecord]:
        """Return the newest records of the audit log about a device, newest first."""
        if not has_table(self._db, "audit_records"):
            return []
        last = self._db.execute("SELECT coalesce(max(number), 0) FROM audit_records").fetchone()[0]
        rows = self._db.execute(
            "SELECT number, time, via, actor, act, subject, reason, detail FROM audit_records"
            " WHERE number > ? AND subject = ? ORDER BY number DESC LIMIT ?",
            (last - searched, device, most),
        )
        return [AuditRecord(*row) for row in rows]

    def refusals(self) -> list[tuple[int, int, int]]:
        """Return code, number of updates and number of devices of every final refusal kept."""
        return self._db.execute(
            "SELECT code, count(*), count(DISTINCT device) FROM rows WHERE code > 0"
            " GROUP BY code ORDER BY 2 DESC"
        ).fetchall()

    def refused_devices(self, code: int, most: int = 50) -> list[tuple[str, int, int]]:
        """Return device, number and last round of one refusal, the most frequent first."""
        return self._db.execute(
            "SELECT device, count(*), max(round) FROM rows WHERE code = ?"
            " GROUP BY device ORDER BY 2 DESC, 1 LIMIT ?",
            (code, most),
        ).fetchall()

    def timeline(self, device: str, most: int = 50) -> list[TimelineEntry]:
        """Return a device's settled updates, newest first."""
        dropped_of = dialect_of(self._db).json_items("v.report", "dropped")
        rows = self._db.execute(
            "SELECT r.run, r.round, r.life, r.seq, r.code, coalesce(v.time, 0),"  # noqa: S608
            f" coalesce((SELECT value FROM {dropped_of} WHERE key = r.device), '')"
            " FROM rows r LEFT JOIN versions v ON v.run = r.run AND v.round = r.round"
            " WHERE r.device = ? ORDER BY r.life DESC, r.seq DESC LIMIT ?",
            (device, most),
        )
        return [
            TimelineEntry(run, number, life, seq, code, time, str(dropped))
            for run, number, life, seq, code, time, dropped in rows
        ]

    def commands(self, device: str = "", most: int = 100) -> list[CommandRow]:
        """Return the newest commands, of one device or those of all that are not receipted."""
        where = "device = ?" if device else "done = 0"
        rows = self._db.execute(
            f"SELECT device, num, op, args, done FROM commands WHERE {where}"  # noqa: S608 - fixed text
            " ORDER BY done > 0, num DESC, device LIMIT ?",
            (*((device,) if device else ()), most),
        )
        return [
            CommandRow(name, num, op, json.loads(args), done - 1 if done else None)
            for name, num, op, args, done in rows
        ]

    # --- runs and rounds

    def rounds(self, run: int, last: int) -> list[ClosedRound]:
        """Return a run's newest closed rounds, newest first."""
        db = self._db
        numbers = ", ".join(
            dialect_of(self._db).json_number("report", key)
            for key in ("loss", "step", "seconds", "received", "sent")
        )
        rows = db.execute(
            "SELECT round, version, moved, time,"  # noqa: S608 - fixed text
            f" coalesce({dialect_of(self._db).json_length('report', 'cohort')}, 0),"
            f" (SELECT count(*) FROM {dialect_of(self._db).json_items('versions.report', 'dropped')}),"
            f" {numbers}, coalesce({dialect_of(self._db).json_text('report', 'why')}, '')"
            " FROM versions WHERE run = ? ORDER BY round DESC LIMIT ?",
            (run, last),
        )
        return [
            ClosedRound(number, version, bool(moved), *more)
            for number, version, moved, *more in rows
        ]

    def round_counts(
        self, run: int, since: int, length: int, most: int = 50_000
    ) -> list[RoundCounts]:
        """Return a run's closed rounds by slot of time, oldest first.

        Args:
            since: Unix milliseconds.
            length: Length of a slot, milliseconds.
            most: Number of newest rounds that are counted.
        """
        rows = self._db.execute(
            "SELECT time / ?, count(*), sum(moved),"
            " coalesce(max(CASE WHEN moved = 1 THEN round END), max(round))"
            " FROM versions WHERE run = ? AND time >= ?"
            " AND round > (SELECT max(round) FROM versions WHERE run = ?) - ?"
            " GROUP BY 1 ORDER BY 1",
            (length, run, since, run, most),
        )
        return [RoundCounts(*map(int, row)) for row in rows]

    def standstill(self, run: int) -> tuple[int, str]:
        """Return the number of rounds since a run's model last changed, and why the newest did not change it."""
        found = self._db.execute(
            "SELECT round FROM versions WHERE run = ? AND moved = 1 ORDER BY round DESC LIMIT 1",
            (run,),
        ).fetchone()
        after = found[0] if found else 0
        where = "FROM versions WHERE run = ? AND round > ?"
        (count,) = self._db.execute(f"SELECT count(*) {where}", (run, after)).fetchone()
        why = dialect_of(self._db).json_text("report", "why")
        last = self._db.execute(
            f"SELECT coalesce({why}, '') {where} ORDER BY round DESC LIMIT 1", (run, after)
        ).fetchone()
        return int(count), str(last[0]) if last else ""

    def closed_at(self, run: int, last: int) -> dict[int, tuple[int, int]]:
        """Return version and time (Unix ms) of a run's newest closed rounds, by round."""
        rows = self._db.execute(
            "SELECT round, version, time FROM versions WHERE run = ? ORDER BY round DESC LIMIT ?",
            (run, last),
        )
        return {number: (version, time) for number, version, time in rows}

    def version(self, run: int, number: int) -> Version | None:
        """Return one closed round with its whole report, or None."""
        row = self._db.execute(
            "SELECT version, moved, digest, report, time, position FROM versions"
            " WHERE run = ? AND round = ?",
            (run, number),
        ).fetchone()
        if row is None:
            return None
        version, moved, digest, report, time, position = row
        found: dict[str, Any] = json.loads(report)
        return Version(run, number, version, bool(moved), digest, found, time, position)

    def answered(self, run: int, number: int) -> list[str]:
        """Return the devices with a recorded update of a round, sorted."""
        return [
            name
            for (name,) in self._db.execute(
                "SELECT DISTINCT device FROM journal WHERE kind = 'update' AND run = ? AND turn = ?"
                " ORDER BY device",
                (run, number),
            )
        ]

    def suspects(self, run: int, rounds: int, most: int = 50) -> list[SuspectRow]:
        """Return the devices that the rule left out in the newest rounds, the most frequent first."""
        return suspects.rows(self._db, run, rounds, most)

    def fingerprint(self) -> str:
        """Return a text that differs after any change that a page shows."""
        row = self._db.execute(
            "SELECT (SELECT coalesce(max(position), 0) FROM journal),"
            " (SELECT count(*) FROM versions), (SELECT coalesce(sum(cmd), 0) FROM ledgers),"
            " (SELECT count(*) FROM rows)"
        ).fetchone()
        return repr((*row, sorted(self.states().items())))
