"""Read what an operator's pages show: devices, refusals, closed rounds and commands, in small parts.

Every query is bounded, so that a page of a large fleet reads little. Nothing here writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aggregator.store import connection, journal, runs, suspects, tasks
from aggregator.store.audit_record import AuditRecord
from aggregator.store.dialect import (
    Database,
    json_items,
    json_length,
    json_number,
    json_text,
)
from aggregator.store.overview_rows import (
    ClosedRound,
    CommandRow,
    DeviceFilter,
    DeviceSummary,
    DeviceTrialDay,
    SettledUpdate,
    TimelineEntry,
)
from aggregator.store.schema import has_audit_log, has_contacts, has_rollouts, has_runs
from aggregator.store.types import PendingTask, RunRecord, SuspectRow, Version


class StoreOverview:
    """Read-only view of a database. Open it with ``open``; close it, or use ``with``."""

    def __init__(self, db: Database, closing: Callable[[], None]) -> None:
        """Take over a read-only connection and the function that closes it; use ``open``."""
        self._db, self._closing = db, closing
        self._has_runs = has_runs(db)

    @classmethod
    def open(cls, path: Path) -> StoreOverview:
        """Open a database for reading, beside a running daemon.

        Raises:
            DatabaseError: It is no aggregator database, or cannot be opened.
        """
        db = connection.connect(path, read_only=True)
        return cls(db, db.close)

    def __enter__(self) -> Self:
        """Return the view itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self._closing()

    # --- devices

    def states(self) -> dict[str, int]:
        """Return the number of devices by state."""
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
        """Return selected devices, by id or by releases, largest first.

        Args:
            wanted: The selection.
            limit: Largest number of devices.
            offset: Number of devices to leave out at the beginning.
            by_spent: Sort by releases.
        """
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
        """Return the releases of every enrolled device."""
        rows = self._db.execute(
            "SELECT coalesce(ledgers.spent, 0) FROM clients LEFT JOIN ledgers"
            " ON ledgers.device = clients.id WHERE state = 'enrolled'"
        )
        return [spent for (spent,) in rows]

    def contacts(self, names: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Return software and time of the last message (Unix ms) of devices, as the daemon saved them.

        The daemon saves them every few minutes, and when it stops.
        """
        if not names or not has_contacts(self._db):
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
        if names and has_contacts(self._db):
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
        """Return the newest records of the audit log about a device, newest first.

        Args:
            device: The device.
            most: Largest number of records.
            searched: Number of newest records that are searched.
        """
        if not has_audit_log(self._db):
            return []
        last = self._db.execute("SELECT coalesce(max(number), 0) FROM audit_records").fetchone()[0]
        rows = self._db.execute(
            "SELECT number, time, via, actor, act, subject, reason, detail FROM audit_records"
            " WHERE number > ? AND subject = ? ORDER BY number DESC LIMIT ?",
            (last - searched, device, most),
        )
        return [AuditRecord(*row) for row in rows]

    def trial_days(self, device: str) -> list[DeviceTrialDay]:
        """Return the days that a device has reported in the newest rollout, newest first."""
        if not has_rollouts(self._db):
            return []
        rows = self._db.execute(
            "SELECT day, lost, serving FROM trials WHERE device = ? AND of ="
            " (SELECT of FROM rollout_changes ORDER BY change DESC LIMIT 1) ORDER BY day DESC",
            (device,),
        )
        return [DeviceTrialDay(day, bool(lost), bool(serving)) for day, lost, serving in rows]

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
        dropped_of = json_items(self._db, "v.report", "dropped")
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

    def run(self, name: str) -> RunRecord | None:
        """Return the latest run of a name."""
        return runs.latest(self._db, name)

    def run_numbers(self) -> list[int]:
        """Return the numbers of all runs, oldest first."""
        return runs.numbers(self._db)

    def rounds(self, run: int, last: int) -> list[ClosedRound]:
        """Return a run's newest closed rounds, newest first."""
        db = self._db
        numbers = ", ".join(
            json_number(db, "report", key)
            for key in ("loss", "step", "seconds", "received", "sent")
        )
        rows = db.execute(
            "SELECT round, version, moved, time,"  # noqa: S608 - fixed text
            f" coalesce({json_length(db, 'report', 'cohort')}, 0),"
            f" (SELECT count(*) FROM {json_items(db, 'versions.report', 'dropped')}),"
            f" {numbers}, coalesce({json_text(db, 'report', 'why')}, '')"
            " FROM versions WHERE run = ? ORDER BY round DESC LIMIT ?",
            (run, last),
        )
        return [
            ClosedRound(number, version, bool(moved), *more)
            for number, version, moved, *more in rows
        ]

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

    def oldest_whole_round(self, run: int) -> int:
        """Return the first round of a run whose updates are all kept."""
        return journal.oldest_round(self._db, run)

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

    def open_tasks(self, run: int) -> Sequence[PendingTask]:
        """Return the open tasks of single devices, by device."""
        return tasks.of_run(self._db, run, "open")

    def suspects(self, run: int, rounds: int, most: int = 50) -> list[SuspectRow]:
        """Return the devices that the rule left out in the newest rounds, the most frequent first.

        Args:
            run: The run.
            rounds: Number of newest closed rounds.
            most: Largest number of devices.
        """
        return suspects.rows(self._db, run, rounds, most)

    def fingerprint(self) -> str:
        """Return a text that differs after any change that a page shows."""
        row = self._db.execute(
            "SELECT (SELECT coalesce(max(position), 0) FROM journal),"
            " (SELECT count(*) FROM versions), (SELECT coalesce(sum(cmd), 0) FROM ledgers),"
            " (SELECT count(*) FROM rows)"
        ).fetchone()
        rollout = ()
        if has_rollouts(self._db):
            rollout = self._db.execute(
                "SELECT (SELECT coalesce(max(change), 0) FROM rollout_changes),"
                " (SELECT count(*) FROM trials), (SELECT coalesce(sum(day), 0) FROM trial_states)"
            ).fetchone()
        return repr((*row, sorted(self.states().items()), *rollout))
