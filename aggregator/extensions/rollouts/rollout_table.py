"""Store the changes of rollouts, and the results that devices report of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aggregator.store.dialect import has_table
from aggregator.store.transactions import Table

_CHANGE = "of, phase, stage, since, why, who, time"


@dataclass(frozen=True, slots=True)
class RolloutChange:
    """One change of a rollout."""

    of: bytes  # reference of its signed description
    phase: str  # ``run``, ``pause``, ``return`` or ``done``
    stage: int  # number of waves that may serve the version
    since: int  # day since 1970 on which the stage began
    why: str  # reason: ``start``, ``passed``, ``harm`` or the operator's
    who: str  # person who gave the order; empty for the daemon
    time: int  # time of the change, Unix milliseconds


@dataclass(frozen=True, slots=True)
class DeviceTrial:
    """The reports of one device in a rollout."""

    device: str
    state: str  # ``score``, ``serve``, ``returned`` or ``declined``
    day: int  # newest complete day of its reports
    # by day, whether the new version lost it, and whether the device served it
    results: Mapping[int, tuple[bool, bool]]


class RolloutTable(Table):
    """Changes of rollouts, and the results that devices report of them."""

    def changes(self, of: bytes | None = None) -> list[RolloutChange]:
        """Return the changes of a rollout, oldest first; of the newest rollout if none is named."""
        if not has_table(self._db, "rollout_changes"):
            return []
        if of is None:
            newest = self._db.execute(
                "SELECT of FROM rollout_changes ORDER BY change DESC LIMIT 1"
            ).fetchone()
            of = newest[0] if newest else b""
        found = f"SELECT {_CHANGE} FROM rollout_changes WHERE of = ? ORDER BY change"  # noqa: S608 - a constant
        return [RolloutChange(bytes(row[0]), *row[1:]) for row in self._db.execute(found, (of,))]

    def days(self, device: str) -> list[tuple[int, bool, bool]]:
        """Return the days that a device has reported in the newest rollout: lost, serving; newest first."""
        rows = self._db.execute(
            "SELECT day, lost, serving FROM trials WHERE device = ? AND of ="
            " (SELECT of FROM rollout_changes ORDER BY change DESC LIMIT 1) ORDER BY day DESC",
            (device,),
        )
        return [(day, bool(lost), bool(serving)) for day, lost, serving in rows]

    def mark(self) -> str:
        """Return a text that differs after any change and any report."""
        row = self._db.execute(
            "SELECT (SELECT coalesce(max(change), 0) FROM rollout_changes),"
            " (SELECT count(*) FROM trials), (SELECT coalesce(sum(day), 0) FROM trial_states)"
        ).fetchone()
        return repr(row)

    def change(self, new: RolloutChange) -> None:
        """Append a change; results of another rollout than this are deleted."""
        with self._writing() as db:
            row = (new.of, new.phase, new.stage, new.since, new.why, new.who, new.time)
            db.execute(
                f"INSERT INTO rollout_changes (change, {_CHANGE})"  # noqa: S608 - a constant
                " SELECT coalesce(max(change), 0) + 1, ?, ?, ?, ?, ?, ?, ? FROM rollout_changes",
                row,
            )
            db.execute("DELETE FROM trials WHERE of <> ?", (new.of,))
            db.execute("DELETE FROM trial_states WHERE of <> ?", (new.of,))

    def record(self, of: bytes, report: DeviceTrial) -> None:
        """Record a device's report; the first result of a day stays, and its state is the newest.

        >>> from aggregator.store.sqlite import in_memory
        >>> rollouts = in_memory().table(RolloutTable)
        >>> first = {8: (True, False), 7: (False, False)}
        >>> rollouts.record(b"a", DeviceTrial("meter-1", "score", 8, first))
        >>> later = {9: (False, True), 8: (False, True)}
        >>> rollouts.record(b"a", DeviceTrial("meter-1", "serve", 9, later))
        >>> [(one.device, one.state, one.day, one.results) for one in rollouts.trials(b"a")]
        [('meter-1', 'serve', 9, {7: (False, False), 8: (True, False), 9: (False, True)})]
        """
        with self._writing() as db:
            db.execute(
                "INSERT INTO trial_states VALUES (?, ?, ?, ?) ON CONFLICT (of, device)"
                " DO UPDATE SET state = excluded.state, day = excluded.day WHERE excluded.day >= trial_states.day",
                (of, report.device, report.state, report.day),
            )
            rows = [
                (of, report.device, at, int(a), int(b)) for at, (a, b) in report.results.items()
            ]
            db.executemany("INSERT INTO trials VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", rows)

    def trials(self, of: bytes) -> list[DeviceTrial]:
        """Return the reports of a rollout, by device."""
        if not has_table(self._db, "rollout_changes"):
            return []
        results: dict[str, dict[int, tuple[bool, bool]]] = {}
        found = "SELECT device, day, lost, serving FROM trials WHERE of = ? ORDER BY device, day"
        for device, day, lost, serving in self._db.execute(found, (of,)):
            results.setdefault(device, {})[day] = bool(lost), bool(serving)
        states = "SELECT device, state, day FROM trial_states WHERE of = ? ORDER BY device"
        return [
            DeviceTrial(device, state, day, results.get(device, {}))
            for device, state, day in self._db.execute(states, (of,))
        ]
