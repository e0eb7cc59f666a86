"""Provide the store on a database of SQL, with all its transactions.

Every public method that writes is one transaction, durable before it returns, or part of the one that
``transaction`` holds open. A single process writes. ``types.Store`` describes every method in full;
``sqlite`` and ``postgres`` open a database, copy it and check it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Self

from aggregator.store import (
    announcements,
    audit_log,
    contacts,
    devices,
    journal,
    ledgers,
    model_log,
    retention,
    rollouts,
    runs,
    states,
    tasks,
)
from aggregator.store.audit_record import AuditRecord
from aggregator.store.dialect import Database
from aggregator.store.errors import DatabaseError
from aggregator.store.location import Location
from aggregator.store.runs import Reach
from aggregator.store.schema import RESTORED, fact, put_fact
from aggregator.store.sequence_ledger import Key, Ledger, LedgerRow
from aggregator.store.transactions import Transactions
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
    Timer,
    Version,
)
from edge_sdk.wire.contract.method import Event, Update
from edge_sdk.wire.errors import Reason
from edge_sdk.wire.protocol import envelope
from edge_sdk.wire.protocol.codec import Leaf, encode
from edge_sdk.wire.protocol.messages import CommandMessage

SERIAL_LEAP = 2**20  # step of the serial after a restore, beyond every earlier announcement


class SqlStore:
    """Database of one fleet. Close it, or use ``with``."""

    def __init__(self, db: Database, path: Location, held: ExitStack) -> None:
        """Take over an open connection and its resources."""
        self._db = db
        self._held = held
        self._serials = iter(range(0))
        self._kept: retention.Kept | None = None
        self._transactions = Transactions(db, path, self._forget_cached)
        self.path = path

    # --- closing

    def close(self) -> None:
        """Close and unlock the database."""
        self._held.close()

    def __enter__(self) -> Self:
        """Return the store itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self.close()

    def transaction(self) -> AbstractContextManager[None]:
        """Combine all writes inside into one transaction: all of them or none."""
        return self._transactions.joined()

    def _forget_cached(self) -> None:
        """Forget serials that may not be on disk, and sizes that must be measured again."""
        self._serials = iter(range(0))
        self._kept = None

    # --- the file

    @property
    def was_restored(self) -> bool:
        """Return whether this file is a backup that is not yet adopted (A9)."""
        return bool(fact(self._db, RESTORED))

    def adopt(self) -> None:
        """Continue from a backup: increase the numbers that devices may have seen since."""
        with self._transactions.writing() as db:
            announcements.leap(db, SERIAL_LEAP)
            ids = [client.id for client in devices.clients(db)]
            ledgers.raise_commands(db, ids, SERIAL_LEAP)
            put_fact(db, RESTORED, 0)
        self._serials = iter(range(0))

    # --- devices and their numbers

    def clients(self) -> list[EnrolledDevice]:
        """Return all enrolled devices, by id."""
        return devices.clients(self._db)

    def client(self, device: str) -> EnrolledDevice | None:
        """Return an enrolled device; None if no device has the id."""
        return next(iter(devices.clients(self._db, device)), None)

    def put_client(self, client: EnrolledDevice) -> None:
        """Insert or replace a device."""
        with self._transactions.writing() as db:
            devices.save(db, client)

    def renew(self, client: EnrolledDevice, *, spent: int = 0) -> Ledger:
        """Enrol a device under a new key with a new ledger; return the previous ledger."""
        with self._transactions.writing() as db:
            devices.save(db, client)
            for num in devices.unusable(db).get(client.id, ()):
                devices.finish_command(db, client.id, num, Reason.BAD_COMMAND)
            return ledgers.renew(db, client.id, spent)

    def contacts(self) -> dict[str, Contact]:
        """Return software and last message of the devices, by id."""
        return contacts.contacts(self._db)

    def save_contacts(self, found: Mapping[str, Contact]) -> None:
        """Insert or replace software and last message of some devices."""
        with self._transactions.writing() as db:
            contacts.save(db, found)

    def device_keys(self) -> dict[str, AnnouncedKey]:
        """Return the encryption keys that devices have announced, by id."""
        return contacts.device_keys(self._db)

    def save_device_key(self, device: str, found: AnnouncedKey | None) -> None:
        """Insert, replace or delete the encryption key of a device."""
        with self._transactions.writing() as db:
            contacts.save_device_key(db, device, found)

    def declined(self) -> list[DeclinedRun]:
        """Return the runs that devices have declined, by device and name."""
        return contacts.declined(self._db)

    def decline(self, run: DeclinedRun) -> None:
        """Record that a device cannot take part in a run."""
        with self._transactions.writing() as db:
            contacts.decline(db, run)

    def forget_declined(self, device: str) -> None:
        """Delete the declined runs of a device."""
        with self._transactions.writing() as db:
            contacts.forget(db, device)

    def rollout_changes(self, of: bytes | None = None) -> list[RolloutChange]:
        """Return the changes of a rollout, oldest first; of the newest rollout if none is named."""
        return rollouts.changes(self._db, of)

    def change_rollout(
        self,
        new: RolloutChange,
        published: Mapping[str, bytes],
        contents: Sequence[DownloadBody] = (),
    ) -> None:
        """Append a change together with the announcements that follow from it."""
        with self._transactions.writing() as db:
            rollouts.change(db, new)
            announcements.save(db, published)
            announcements.put_contents(db, contents)

    def record_trial(self, of: bytes, report: DeviceTrial) -> None:
        """Record a device's report of a rollout; the first result of a day stays."""
        with self._transactions.writing() as db:
            rollouts.record(db, of, report)

    def trials(self, of: bytes) -> list[DeviceTrial]:
        """Return what devices have reported of a rollout, by device."""
        return rollouts.trials(self._db, of)

    def unusable(self) -> dict[str, list[str]]:
        """Return, by device, the stored values that do not fit a message."""
        found: dict[str, list[str]] = {}
        for device, names in ledgers.unusable(self._db).items():
            found.setdefault(device, []).extend(names)
        for device, numbers in devices.unusable(self._db).items():
            found.setdefault(device, []).extend(f"command {num}" for num in numbers)
        return found

    def ledger(self, device: str) -> Ledger:
        """Return a device's ledger, which is empty for a new device."""
        return ledgers.get(self._db, device)

    def save_ledger(self, device: str, ledger: Ledger) -> None:
        """Save a device's ledger and prune the rows that it closes."""
        with self._transactions.writing() as db:
            ledgers.save(db, device, ledger)

    def row(self, device: str, key: Key) -> LedgerRow | None:
        """Return the verdict of a number, or None."""
        return ledgers.row(self._db, device, key)

    def held(self, device: str) -> int:
        """Return the number of verdicts kept for a device."""
        return ledgers.held(self._db, device)

    def settled(self) -> dict[tuple[str, int, int], LedgerRow]:
        """Return all verdicts, by device, life and sequence number."""
        return ledgers.settled(self._db)

    def issue(
        self,
        device: str,
        op: str,
        args: Mapping[str, float] | None = None,
        until: int | None = None,
    ) -> CommandMessage:
        """Store a device's next command, which is sent until the device receipts it."""
        with self._transactions.writing() as db:
            ledgers.raise_commands(db, (device,), 1)
            num = ledgers.get(db, device).cmd
            command = CommandMessage(num, op, dict(args or {}), until)
            if not devices.is_sound(command):
                raise DatabaseError(f"{self.path}: no message can carry {command}")
            devices.put_command(db, device, command)
        return command

    def reissue(self, device: str, ref: bytes) -> CommandMessage | None:
        """Renumber the open command with this reference; return None if there is none."""
        for before in self.issued(device):
            if envelope.ref(envelope.digest(encode(before))) == ref:
                self.command_done(device, before.num, Reason.SUPERSEDED)
                return self.issue(device, before.op, before.args, before.until)
        return None

    def issued(self, device: str) -> list[CommandMessage]:
        """Return a device's unreceipted commands."""
        return devices.open_commands(self._db, device)

    def command_done(self, device: str, num: int, code: int) -> bool:
        """Record a command's receipt; return False if there is no such open command."""
        with self._transactions.writing() as db:
            return devices.finish_command(db, device, num, code)

    # --- updates, and the tasks they answer

    def append(
        self, device: str, ledger: Ledger, key: Key, row: LedgerRow, update: Update
    ) -> tuple[LedgerRow, JournalEntry | None]:
        """Settle a number with an update, or with TWICE_IN_ROUND if the round has one (A4)."""
        with self._transactions.writing() as db:
            entry = journal.put_update(db, row.run, update, device=device, key=key)
            if entry is None:
                row = LedgerRow(row.digest, Reason.TWICE_IN_ROUND, row.run, row.round)
            else:
                tasks.finish(db, device, row.run, row.round, "answered")
            ledgers.save(db, device, ledger)
            ledgers.settle(db, device, key, row)
        return row, entry

    def unsettle(self, device: str, key: Key) -> None:
        """Delete the INTERNAL verdict of a number, so that it is checked again."""
        with self._transactions.writing() as db:
            row = ledgers.row(db, device, key)
            if row is not None and row.code == Reason.INTERNAL:
                ledgers.unsettle(db, device, key)

    def refuse(self, device: str, ledger: Ledger, key: Key, row: LedgerRow) -> LedgerRow:
        """Settle a number with a final refusal (A4)."""
        with self._transactions.writing() as db:
            tasks.finish(db, device, row.run, row.round, "refused")
            ledgers.save(db, device, ledger)
            ledgers.settle(db, device, key, row)
        return row

    def asked(self, device: str, run: int) -> PendingTask | None:
        """Return a device's newest task in a run, answered or not."""
        return tasks.get(self._db, device, run)

    def tasks(self, run: int, state: str = "open") -> list[PendingTask]:
        """Return the devices' newest tasks that are in a state, sorted by device."""
        return tasks.of_run(self._db, run, state)

    def ever_asked(self, run: int) -> set[str]:
        """Return the devices that have or had a task in a run."""
        return tasks.devices(self._db, run)

    # --- the journal

    def record(self, run: int, event: Event) -> JournalEntry:
        """Append an event that is no update to the journal."""
        with self._transactions.writing() as db:
            return journal.append(db, run, event)

    def journal(self, run: int, after: int = 0) -> Iterator[JournalEntry]:
        """Return a run's journal entries after a position, in order."""
        return journal.entries(self._db, run, after)

    def applied(self) -> Iterator[Applied]:
        """Return every update of the journal, of all runs, in order."""
        return journal.applied(self._db)

    def waiting(self, run: int, number: int) -> int:
        """Return the number of recorded updates of a round."""
        return journal.waiting(self._db, run, number)

    # --- runs and their state

    def run(self, name: str | None = None) -> RunRecord | None:
        """Return the latest run of this name; None asks for the latest of all."""
        return runs.latest(self._db, name)

    def runs(self) -> list[int]:
        """Return the numbers of all runs, oldest first."""
        return runs.numbers(self._db)

    def records(self) -> list[RunRecord]:
        """Return the definitions of all runs, newest first."""
        return runs.records(self._db)

    def versions(self, run: int, last: int | None = None) -> list[Version]:
        """Return a run's closed rounds, oldest first; at most the newest ``last`` if given."""
        return runs.versions(self._db, run, last)

    def closed_by(self, run: int, position: int) -> int:
        """Return the last round of a run closed at or before a position; 0 before the first."""
        return runs.closed_by(self._db, run, position)

    def load(self, run: int) -> SavedState:
        """Return the last committed state of a run."""
        _, upto, timers = self._reach(run)
        return SavedState(states.at(self._db, run, upto), upto, timers)

    def first(self, run: int) -> SavedState:
        """Return the oldest state of a run after which the journal is complete."""
        anchor, _, _ = self._reach(run)
        return SavedState(states.at(self._db, run, anchor), anchor)

    def _reach(self, run: int) -> Reach:
        found = runs.reach(self._db, run)
        if found is None:
            raise DatabaseError(f"{self.path}: there is no run {run}")
        return found

    def begin(
        self,
        run: RunRecord,
        leaves: Mapping[str, Leaf],
        published: Mapping[str, bytes] | None = None,
    ) -> None:
        """Insert a run with its initial state, before its first journal entry."""
        with self._transactions.writing() as db:
            at = journal.end(db)
            runs.begin(db, run, at)
            states.save(db, run.run, at, leaves)
            announcements.save(db, published or {})
            tasks.forget(db, but=runs.live(db))

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
        """Save the changes of an event together with the announcements that follow from it."""
        with self._transactions.writing() as db, self._retained(keep) as kept:
            saved = states.save(db, run, upto, leaves)
            runs.advance(db, run, upto, timers)
            announcements.save(db, published or {})
            if logged is not None:
                model_log.append(db, logged)
            tasks.save(db, asked)
            announcements.put_contents(db, contents)
            if kept is not None:
                kept.unclosed += saved
            if closed is not None:
                report = runs.close(db, closed, upto)
                if kept is not None:
                    retention.keep(db, kept, closed, upto, report)

    @contextmanager
    def _retained(self, keep: Retention | None) -> Iterator[retention.Kept | None]:
        """Yield the measured sizes; measure again after a failed transaction."""
        if keep is not None and (self._kept is None or self._kept.limits != keep):
            self._kept = retention.read(self._db, keep)
        try:
            yield self._kept if keep is not None else None
        except BaseException:
            self._kept = None
            raise

    def horizon(self) -> Horizon:
        """Return the extent of everything deleted so far."""
        return retention.horizon(self._db)

    def oldest_round(self, run: int) -> int:
        """Return the first round of a run without deleted updates."""
        return journal.oldest_round(self._db, run)

    def used(self) -> Mapping[str, int]:
        """Return the sizes of ``vectors`` and ``journal`` in bytes; reads the whole journal."""
        return retention.used(self._db)

    @property
    def kept(self) -> Mapping[str, int]:
        """Return the sizes as of the last closed round, and the round after which an audit begins."""
        kept = self._kept
        if kept is None:
            return {}
        return {"vectors": kept.vectors, "journal": kept.facts, "audit after": kept.since}

    # --- announcements

    def announcements(self) -> dict[str, bytes]:
        """Return every retained topic and its signed payload, published on each connection."""
        return announcements.retained(self._db)

    def announced(self, topic: str) -> bytes:
        """Return the signed payload of one retained topic; empty if it has none."""
        return announcements.get(self._db, topic)

    def announce(
        self,
        published: Mapping[str, bytes],
        contents: Sequence[DownloadBody] = (),
        *,
        logged: LogLeaf | None = None,
    ) -> None:
        """Save announcements that follow from no event; an empty payload clears a topic."""
        with self._transactions.writing() as db:
            announcements.save(db, published)
            if logged is not None:
                model_log.append(db, logged)
            announcements.put_contents(db, contents)

    def log_size(self, run: int) -> int:
        """Return the number of leaves of the log of a run's models."""
        return model_log.size(self._db, run)

    def log_node(self, run: int, level: int, place: int) -> bytes:
        """Return the hash of a complete subtree of the log of a run's models."""
        return model_log.node(self._db, run, level, place)

    def log_leaves(self, run: int, first: int = 0, last: int | None = None) -> Iterator[LogLeaf]:
        """Return the leaves of the log of a run's models from a number on."""
        return model_log.leaves(self._db, run, first, last)

    def last_audit_record(self) -> AuditRecord | None:
        """Return the newest record of the audit log."""
        return audit_log.last(self._db)

    def append_audit_record(self, record: AuditRecord) -> None:
        """Append a record to the audit log."""
        with self._transactions.writing() as db:
            audit_log.append(db, record)

    def audit_records(self, first: int = 1) -> Iterator[AuditRecord]:
        """Return the records of the audit log from a number on, in order."""
        return audit_log.records(self._db, first)

    def has_audit_order(self, order: str) -> bool:
        """Return whether the audit log has a record of an order."""
        return audit_log.has_order(self._db, order)

    def content(self, ref: bytes) -> DownloadBody | None:
        """Return a downloadable body by the first 16 bytes of its digest."""
        return announcements.content(self._db, ref)

    def next_serial(self) -> int:
        """Return the next serial; serials always increase, with gaps."""
        serial = next(self._serials, None)
        if serial is None:
            with self._transactions.writing() as db:
                taken = announcements.reserve(db)
            self._serials = iter(taken)
            serial = next(self._serials)
        return serial
