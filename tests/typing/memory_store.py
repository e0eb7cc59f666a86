"""A second implementation of the store, in memory: nothing of the aggregator changes for it.

``mypy --strict`` proves that it has every method; ``tests/aggregator/rounds/test_second_store.py``
runs whole rounds of the daemon on it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aggregator.store.audit_record import AuditRecord
from aggregator.store.errors import DatabaseError
from aggregator.store.sequence_ledger import Key, Ledger, LedgerRow, renewed
from aggregator.store.types import (
    AnnouncedKey,
    Applied,
    Contact,
    DeclinedRun,
    DeviceTrial,
    DownloadBody,
    EnrolledDevice,
    Horizon,
    JournalEntry,
    LogLeaf,
    PendingTask,
    Retention,
    RolloutChange,
    RunRecord,
    SavedState,
    Store,
    Timer,
    Version,
)
from edge_sdk.app.clock import Clock, SystemClock
from edge_sdk.wire import merkle_tree
from edge_sdk.wire.contract.method import Event, Update
from edge_sdk.wire.errors import Reason
from edge_sdk.wire.protocol import envelope
from edge_sdk.wire.protocol.codec import Leaf, encode
from edge_sdk.wire.protocol.messages import CommandMessage


@dataclass
class Tables:
    """Everything that a transaction saves or not."""

    clients: dict[str, EnrolledDevice] = field(default_factory=dict)
    contacts: dict[str, Contact] = field(default_factory=dict)
    declined: dict[tuple[str, str], DeclinedRun] = field(default_factory=dict)
    device_keys: dict[str, AnnouncedKey] = field(default_factory=dict)
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    rows: dict[tuple[str, int, int], LedgerRow] = field(default_factory=dict)
    commands: dict[tuple[str, int], CommandMessage] = field(default_factory=dict)
    journal: list[tuple[JournalEntry, str, Key]] = field(default_factory=list)
    tasks: dict[str, PendingTask] = field(default_factory=dict)
    runs: dict[int, tuple[RunRecord, SavedState, SavedState]] = field(default_factory=dict)
    versions: list[Version] = field(default_factory=list)
    announcements: dict[str, bytes] = field(default_factory=dict)
    contents: dict[bytes, DownloadBody] = field(default_factory=dict)
    changes: list[RolloutChange] = field(default_factory=list)
    logged: list[LogLeaf] = field(default_factory=list)
    nodes: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    audited: list[AuditRecord] = field(default_factory=list)
    trials: dict[tuple[bytes, str], DeviceTrial] = field(default_factory=dict)
    serial: int = 0


class MemoryStore:
    """A store that forgets everything with its process."""

    def __init__(self) -> None:
        self.path = Path("memory")
        self._tables = Tables()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        pass

    @contextmanager
    def transaction(self) -> Iterator[None]:
        before = {name: copy.copy(table) for name, table in vars(self._tables).items()}
        try:
            yield
        except BaseException:
            self._tables = Tables(**before)
            raise

    def check_lease(self) -> None:
        pass

    def clock(self) -> Clock:
        return SystemClock()

    def backup(self, path: Path) -> None:
        raise DatabaseError(f"{path}: nothing to copy")

    was_restored = False

    def adopt(self) -> None:
        pass

    def integrity(self) -> list[str]:
        return []

    def size(self) -> int:
        return 0

    # --- devices and their numbers

    def clients(self) -> list[EnrolledDevice]:
        return [one for _, one in sorted(self._tables.clients.items())]

    def client(self, device: str) -> EnrolledDevice | None:
        return self._tables.clients.get(device)

    def put_client(self, client: EnrolledDevice) -> None:
        self._tables.clients[client.id] = client

    def renew(self, client: EnrolledDevice, *, spent: int = 0) -> Ledger:
        before = self.ledger(client.id)
        self.put_client(client)
        self._tables.ledgers[client.id] = renewed(before, life=0, cmd=before.cmd, spent=spent)
        return before

    def contacts(self) -> dict[str, Contact]:
        return dict(self._tables.contacts)

    def save_contacts(self, found: Mapping[str, Contact]) -> None:
        self._tables.contacts.update(found)

    def device_keys(self) -> dict[str, AnnouncedKey]:
        return dict(self._tables.device_keys)

    def save_device_key(self, device: str, found: AnnouncedKey | None) -> None:
        if found is None:
            self._tables.device_keys.pop(device, None)
        else:
            self._tables.device_keys[device] = found

    def declined(self) -> list[DeclinedRun]:
        return [one for _, one in sorted(self._tables.declined.items())]

    def decline(self, run: DeclinedRun) -> None:
        self._tables.declined[run.device, run.name] = run

    def forget_declined(self, device: str) -> None:
        for key in [key for key in self._tables.declined if key[0] == device]:
            del self._tables.declined[key]

    def unusable(self) -> dict[str, list[str]]:
        return {}

    def ledger(self, device: str) -> Ledger:
        return self._tables.ledgers.get(device, Ledger())

    def save_ledger(self, device: str, ledger: Ledger) -> None:
        self._tables.ledgers[device] = ledger

    def row(self, device: str, key: Key) -> LedgerRow | None:
        return self._tables.rows.get((device, *key))

    def held(self, device: str) -> int:
        return sum(name == device for name, _, _ in self._tables.rows)

    def settled(self) -> dict[tuple[str, int, int], LedgerRow]:
        return dict(self._tables.rows)

    def issue(
        self,
        device: str,
        op: str,
        args: Mapping[str, float] | None = None,
        until: int | None = None,
    ) -> CommandMessage:
        ledger = self.ledger(device)
        command = CommandMessage(ledger.cmd + 1, op, dict(args or {}), until)
        self.save_ledger(device, replace(ledger, cmd=command.num))
        self._tables.commands[device, command.num] = command
        return command

    def reissue(self, device: str, ref: bytes) -> CommandMessage | None:
        for before in self.issued(device):
            if envelope.ref(envelope.digest(encode(before))) == ref:
                self.command_done(device, before.num, Reason.SUPERSEDED)
                return self.issue(device, before.op, before.args, before.until)
        return None

    def issued(self, device: str) -> list[CommandMessage]:
        return [one for (name, _), one in sorted(self._tables.commands.items()) if name == device]

    def command_done(self, device: str, num: int, code: int) -> bool:
        del code
        return self._tables.commands.pop((device, num), None) is not None

    # --- updates, and the tasks they answer

    def append(
        self, device: str, ledger: Ledger, key: Key, row: LedgerRow, update: Update
    ) -> tuple[LedgerRow, JournalEntry | None]:
        entry = None
        if any(
            name == device and one.run == row.run and _round(one) == update.round
            for one, name, _ in self._tables.journal
        ):
            row = LedgerRow(row.digest, Reason.TWICE_IN_ROUND, row.run, row.round)
        else:
            entry = self._entered(row.run, update, device, key)
            self._finish(device, row, "answered")
        self.save_ledger(device, ledger)
        self._tables.rows[(device, *key)] = row
        return row, entry

    def unsettle(self, device: str, key: Key) -> None:
        found = self.row(device, key)
        if found is not None and found.code == Reason.INTERNAL:
            del self._tables.rows[(device, *key)]

    def refuse(self, device: str, ledger: Ledger, key: Key, row: LedgerRow) -> LedgerRow:
        self._finish(device, row, "refused")
        self.save_ledger(device, ledger)
        self._tables.rows[(device, *key)] = row
        return row

    def asked(self, device: str, run: int) -> PendingTask | None:
        found = self._tables.tasks.get(device)
        return found if found is not None and found.run == run else None

    def tasks(self, run: int, state: str = "open") -> list[PendingTask]:
        found = sorted(self._tables.tasks.items())
        return [one for _, one in found if (one.run, one.state) == (run, state)]

    def ever_asked(self, run: int) -> set[str]:
        return {one.device for one in self._tables.tasks.values() if one.run == run}

    def _finish(self, device: str, row: LedgerRow, state: str) -> None:
        found = self.asked(device, row.run)
        if found is not None and found.is_open and found.round == row.round:
            self._tables.tasks[device] = replace(found, state=state)

    # --- the journal

    def record(self, run: int, event: Event) -> JournalEntry:
        return self._entered(run, event)

    def _entered(self, run: int, event: Event, device: str = "", key: Key = (0, 0)) -> JournalEntry:
        entry = JournalEntry(len(self._tables.journal) + 1, run, event)
        self._tables.journal.append((entry, device, key))
        return entry

    def journal(self, run: int, after: int = 0) -> Iterator[JournalEntry]:
        return iter([e for e, _, _ in self._tables.journal if e.run == run and e.position > after])

    def applied(self) -> Iterator[Applied]:
        return iter(
            Applied(device, *key, entry.run, _round(entry), entry.position)
            for entry, device, key in self._tables.journal
            if isinstance(entry.event, Update)
        )

    def waiting(self, run: int, number: int) -> int:
        return sum(one.run == run and one.turn == number for one in self.applied())

    # --- runs and their state

    def run(self, name: str | None = None) -> RunRecord | None:
        every = (self._tables.runs[number][0] for number in sorted(self._tables.runs, reverse=True))
        return next((run for run in every if name in (None, run.name)), None)

    def runs(self) -> list[int]:
        return sorted(self._tables.runs)

    def records(self) -> list[RunRecord]:
        return [self._tables.runs[number][0] for number in sorted(self._tables.runs, reverse=True)]

    def versions(self, run: int, last: int | None = None) -> list[Version]:
        found = [one for one in self._tables.versions if one.run == run]
        return found if last is None else found[-last:]

    def closed_by(self, run: int, position: int) -> int:
        return max((v.round for v in self.versions(run) if v.position <= position), default=0)

    def load(self, run: int) -> SavedState:
        return self._of(run)[2]

    def first(self, run: int) -> SavedState:
        return self._of(run)[1]

    def _of(self, run: int) -> tuple[RunRecord, SavedState, SavedState]:
        if run not in self._tables.runs:
            raise DatabaseError(f"{self.path}: there is no run {run}")
        return self._tables.runs[run]

    def begin(
        self,
        run: RunRecord,
        leaves: Mapping[str, Leaf],
        published: Mapping[str, bytes] | None = None,
    ) -> None:
        saved = SavedState(dict(leaves), len(self._tables.journal))
        self._tables.runs[run.run] = (run, saved, saved)
        self._tables.tasks.clear()
        self.announce(published or {})

    def commit(
        self,
        run: int,
        leaves: Mapping[str, Leaf],
        upto: int,
        *,
        closed: Version | None = None,
        timers: Sequence[Timer] = (),
        published: Mapping[str, bytes] | None = None,
        contents: Sequence[DownloadBody] = (),
        asked: Sequence[PendingTask] = (),
        keep: Retention | None = None,
        logged: LogLeaf | None = None,
    ) -> None:
        del keep
        record, first, saved = self._of(run)
        merged: dict[str, Any] = {**saved.leaves, **leaves}
        merged = {path: leaf for path, leaf in merged.items() if leaf is not None}
        self._tables.runs[run] = (record, first, SavedState(merged, upto, tuple(timers)))
        self._tables.tasks.update({one.device: one for one in asked})
        self.announce(published or {}, contents, logged=logged)
        if closed is not None:
            self._tables.versions.append(replace(closed, position=upto))

    def horizon(self) -> Horizon:
        return Horizon()

    def oldest_round(self, run: int) -> int:
        del run
        return 0

    def used(self) -> Mapping[str, int]:
        return {"vectors": 0, "journal": 0}

    kept: Mapping[str, int] = {}

    # --- rollouts

    def rollout_changes(self, of: bytes | None = None) -> list[RolloutChange]:
        found = self._tables.changes
        of = found[-1].of if of is None and found else of
        return [one for one in found if one.of == of]

    def change_rollout(
        self,
        new: RolloutChange,
        published: Mapping[str, bytes],
        contents: Sequence[DownloadBody] = (),
    ) -> None:
        self._tables.changes.append(new)
        kept = {key: one for key, one in self._tables.trials.items() if key[0] == new.of}
        self._tables.trials = kept
        self.announce(published, contents)

    def record_trial(self, of: bytes, report: DeviceTrial) -> None:
        before = self._tables.trials.get((of, report.device), report)
        newest = report if report.day >= before.day else before
        results = {**report.results, **before.results}
        self._tables.trials[of, report.device] = replace(newest, results=results)

    def trials(self, of: bytes) -> list[DeviceTrial]:
        return [one for (found, _), one in sorted(self._tables.trials.items()) if found == of]

    # --- announcements

    def announcements(self) -> dict[str, bytes]:
        return dict(self._tables.announcements)

    def announced(self, topic: str) -> bytes:
        return self._tables.announcements.get(topic, b"")

    def announce(
        self,
        published: Mapping[str, bytes],
        contents: Sequence[DownloadBody] = (),
        *,
        logged: LogLeaf | None = None,
    ) -> None:
        if logged is not None:
            self._tables.logged.append(logged)
            found = merkle_tree.completed(
                logged.index,
                merkle_tree.leaf_hash(logged.data),
                lambda level, place: self.log_node(logged.run, level, place),
            )
            self._tables.nodes.update(
                {(logged.run, level, place): value for level, place, value in found}
            )
        self._tables.announcements.update(published)
        self._tables.contents.update({one.id: one for one in contents})

    def log_size(self, run: int) -> int:
        return len(list(self.log_leaves(run)))

    def log_node(self, run: int, level: int, place: int) -> bytes:
        return self._tables.nodes[run, level, place]

    def log_leaves(self, run: int, first: int = 0, last: int | None = None) -> Iterator[LogLeaf]:
        yield from [one for one in self._tables.logged if one.run == run][first:last]

    def last_audit_record(self) -> AuditRecord | None:
        return self._tables.audited[-1] if self._tables.audited else None

    def append_audit_record(self, record: AuditRecord) -> None:
        if record.number != len(self._tables.audited) + 1:
            raise DatabaseError(f"record {record.number} is not the next one")
        self._tables.audited.append(record)

    def audit_records(self, first: int = 1) -> Iterator[AuditRecord]:
        return iter(self._tables.audited[first - 1 :])

    def has_audit_order(self, order: str) -> bool:
        return bool(order) and any(one.order == order for one in self._tables.audited)

    def content(self, ref: bytes) -> DownloadBody | None:
        return self._tables.contents.get(ref)

    def next_serial(self) -> int:
        self._tables.serial += 1
        return self._tables.serial


def _round(entry: JournalEntry) -> int:
    return entry.event.round if isinstance(entry.event, Update) else 0


def opened() -> Store:
    """Return one as the aggregator sees it."""
    return MemoryStore()
