"""Provide the store: a database of SQL as one object for each table, with the transactions of several.

Every method that writes is one transaction, durable before it returns, or part of the one that
``transaction`` holds open. A single process writes. An engine derives its own class, which says how a
database is copied and checked: ``sqlite`` is the core's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Self, TypeVar

from aggregator.store import types
from aggregator.store.announcements import Contents, RetainedAnnouncements
from aggregator.store.audit_log import AuditRecords
from aggregator.store.commands import Commands, Tasks
from aggregator.store.devices import Contacts, DeclinedRuns, Devices
from aggregator.store.dialect import Database, Location, has_table
from aggregator.store.journal import Journal
from aggregator.store.ledgers import Key, Ledger, LedgerRow, Ledgers
from aggregator.store.retention import RetainedData
from aggregator.store.runs import Runs, States
from aggregator.store.schema import RESTORED, fact, put_fact
from aggregator.store.transactions import Table, Transactions
from edge_sdk.app.clock import Clock
from edge_sdk.errors import Reason
from edge_sdk.protocol.codec import Leaf
from edge_sdk.protocol.contract.method import Update

T = TypeVar("T", bound=Table)

SERIAL_LEAP = 2**20  # step of the serial after a restore, beyond every earlier announcement


class Store(ABC):
    """Database of one fleet. Close it, or use ``with``.

    Args:
        db: Open connection, which it takes over.
        held: What closes the connection and unlocks the database.
    """

    def __init__(self, db: Database, path: Location, held: ExitStack) -> None:
        self._db, self.path, self.close = db, path, held.close
        self.transactions = transactions = Transactions(db, path)
        self.devices = Devices(transactions)
        self.contacts = Contacts(transactions)
        self.declined = DeclinedRuns(transactions)
        self.ledgers = Ledgers(transactions)
        self.commands = Commands(transactions, self.ledgers)
        self.tasks = Tasks(transactions)
        self.journal = Journal(transactions)
        self.runs = Runs(transactions)
        self.states = States(transactions, self.runs)
        self.retention = RetainedData(transactions, self.journal, self.runs, self.states)
        self.announcements = RetainedAnnouncements(transactions)
        self.contents = Contents(transactions)
        self.audit_log = AuditRecords(transactions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def transaction(self) -> AbstractContextManager[None]:
        """Combine all writes inside into one transaction: all of them or none.

        The transaction begins with the first write, so a block that only reads costs nothing.

        Raises:
            DatabaseError: It could not be committed, and nothing of it was saved.
        """
        return self.transactions.joined()

    def table(self, kind: type[T]) -> T:
        """Return a table that an extension brings; ``index.toml`` has the statements that create it."""
        return kind(self.transactions)

    def has_rows(self, name: str) -> bool:
        """Return whether a table that an extension brings has any row."""
        found = has_table(self._db, name) and self._db.execute(f"SELECT 1 FROM {name} LIMIT 1")  # noqa: S608 - a name of the index
        return bool(found and found.fetchone())

    # --- the engine

    @abstractmethod
    def clock(self) -> Clock:
        """Return the clock of this store's dates and deadlines.

        All processes that may write share its wall clock: that of the server, or of this machine for a file.
        """

    @abstractmethod
    def check_lease(self) -> None:
        """Raise DatabaseLostError if this process may not write any more."""

    @abstractmethod
    def backup(self, path: Path) -> None:
        """Write a consistent copy while the daemon runs.

        The copy is marked: ``was_restored`` is true for the process that opens it.
        """

    @abstractmethod
    def integrity(self) -> list[str]:
        """Return the faults that the engine finds in its data; empty if they are sound."""

    @abstractmethod
    def size(self) -> int:
        """Return the size of the database in bytes; of a file with its write-ahead log."""

    # --- what concerns several tables

    @property
    def was_restored(self) -> bool:
        """Return whether this file is a backup that is not yet adopted (A9)."""
        return bool(fact(self._db, RESTORED))

    def adopt(self) -> None:
        """Continue from a backup: increase the numbers that devices may have seen since.

        These are the numbers of announcements and of commands; the caller begins a new run.
        """
        with self.transactions.writing() as db:
            self.announcements.leap(SERIAL_LEAP)
            ids = [device.id for device in self.devices.all()]
            self.ledgers.raise_commands(ids, SERIAL_LEAP)
            put_fact(db, RESTORED, 0)

    def renew(self, device: types.EnrolledDevice, *, spent: int = 0) -> Ledger:
        """Enrol a device under a new key with a new ledger; return the previous ledger.

        Commands that do not fit a message are deleted.

        Args:
            spent: Initial count of releases in the new ledger.
        """
        with self.transactions.writing():
            self.devices.save(device)
            for num in self.commands.unusable().get(device.id, ()):
                self.commands.finish(device.id, num, Reason.BAD_COMMAND)
            return self.ledgers.renew(device.id, spent)

    def unusable(self) -> dict[str, list[str]]:
        """Return, by device, the stored values that do not fit a message."""
        found: dict[str, list[str]] = {}
        for device, names in self.ledgers.unusable().items():
            found.setdefault(device, []).extend(names)
        for device, numbers in self.commands.unusable().items():
            found.setdefault(device, []).extend(f"command {num}" for num in numbers)
        return found

    def append(
        self, device: str, ledger: Ledger, key: Key, row: LedgerRow, update: Update
    ) -> tuple[LedgerRow, types.JournalEntry | None]:
        """Settle a number with an update, or with TWICE_IN_ROUND if the round has one (A4).

        Its task is marked as answered in the same transaction.
        """
        with self.transactions.writing():
            entry = self.journal.put_update(row.run, update, device=device, key=key)
            if entry is None:
                row = LedgerRow(row.digest, Reason.TWICE_IN_ROUND, row.run, row.round)
            else:
                self.tasks.finish(device, row.run, row.round, "answered")
            self.ledgers.save(device, ledger)
            self.ledgers.settle(device, key, row)
        return row, entry

    def refuse(self, device: str, ledger: Ledger, key: Key, row: LedgerRow) -> LedgerRow:
        """Settle a number with a final refusal (A4); mark an open task of its round as refused."""
        with self.transactions.writing():
            self.tasks.finish(device, row.run, row.round, "refused")
            self.ledgers.save(device, ledger)
            self.ledgers.settle(device, key, row)
        return row

    def begin(
        self,
        run: types.RunRecord,
        leaves: Mapping[str, Leaf],
        published: Mapping[str, bytes] | None = None,
    ) -> None:
        """Insert a run with its initial state, before its first journal entry."""
        with self.transactions.writing():
            at = self.journal.end()
            self.runs.begin(run, at)
            self.states.save(run.run, at, leaves)
            self.announcements.save(published or {})
            self.tasks.forget(but=self.runs.live())

    def commit(
        self,
        run: int,
        leaves: Mapping[str, Leaf],
        upto: int,
        *,
        closed: types.Version | None = None,
        timers: Sequence[types.Timer] = (),
        published: Mapping[str, bytes] | None = None,
        contents: Sequence[types.DownloadBody] = (),
        asked: Sequence[types.PendingTask] = (),
        keep: types.Retention | None = None,
        also: Iterable[Callable[[], None]] = (),
    ) -> None:
        """Save the changes of an event together with the announcements that follow from it.

        Args:
            leaves: Changed leaves by path; None deletes one (``state_codec.changed``).
            upto: Journal position of the event.
            published: Retained topics and their signed payloads; an empty payload clears one.
            contents: Bodies downloadable from now on; the previous one is kept.
            asked: Tasks of single devices, which replace their previous ones; a content is kept
                until the last task with it is answered.
            keep: Budgets, applied after a closed round by deleting the oldest data; None keeps all.
            also: Further writes that belong to the announcements.
        """
        with self.transactions.writing(), self.retention.measured(keep) as kept:
            saved = self.states.save(run, upto, leaves)
            self.runs.advance(run, upto, timers)
            self.announcements.save(published or {})
            for write in also:
                write()
            self.tasks.save(asked)
            self.contents.save(contents)
            if kept is not None:
                kept.unclosed += saved
            if closed is not None:
                report = self.runs.close(closed, upto)
                if kept is not None:
                    self.retention.keep(kept, closed, upto, report)

    def announce(
        self,
        published: Mapping[str, bytes],
        contents: Sequence[types.DownloadBody] = (),
        *,
        also: Iterable[Callable[[], None]] = (),
    ) -> None:
        """Save announcements that follow from no event, and ``also``; an empty payload clears a topic."""
        with self.transactions.writing():
            self.announcements.save(published)
            for write in also:
                write()
            self.contents.save(contents)
