"""Records of the store, as frozen dataclasses, and the interface of a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from aggregator.store.audit_record import AuditRecord
from aggregator.store.location import Location
from aggregator.store.sequence_ledger import Key, Ledger, LedgerRow
from edge_sdk.app.clock import Clock
from edge_sdk.wire.contract.method import Due, Event, Update
from edge_sdk.wire.protocol.codec import Leaf
from edge_sdk.wire.protocol.messages import CommandMessage


@dataclass(frozen=True, slots=True)
class EnrolledDevice:
    """One enrolled device.

    Attributes:
        id: Id of the device in every place.
        sign: Raw public keys that may sign for it, Ed25519 or P-256, at most two.
        generation: Number of its enrolments.
        state: ``enrolled``, ``quarantined`` or ``revoked``.
        why: Reason for a state other than enrolled.
        labels: Pairs of name and value, sorted, by which runs choose their cohorts.
    """

    id: str
    sign: tuple[bytes, ...]
    generation: int = 1
    state: str = "enrolled"
    why: str = ""
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Contact:
    """Software and last message of a device.

    Attributes:
        sdk: Version of its software, from its last hello; empty before the first.
        seen: Server time of its last verified message, Unix milliseconds; 0 before the first.
    """

    sdk: str = ""
    seen: int = 0


@dataclass(frozen=True, slots=True)
class AnnouncedKey:
    """Encryption key that a device announced.

    Attributes:
        signer: Key id of the signing key of the hello that announced it (8 bytes).
        key: Raw X25519 public key (32 bytes).
    """

    signer: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class RolloutChange:
    """One change of a rollout.

    Attributes:
        of: Reference of its signed description.
        phase: ``run``, ``pause``, ``return`` or ``done``.
        stage: Number of waves that may serve the version.
        since: Day since 1970 on which the stage began.
        why: Reason: ``start``, ``passed``, ``harm`` or the operator's.
        who: Person who gave the order; empty for the daemon.
        time: Time of the change, Unix milliseconds.
    """

    of: bytes
    phase: str
    stage: int
    since: int
    why: str
    who: str
    time: int


@dataclass(frozen=True, slots=True)
class DeviceTrial:
    """The reports of one device in a rollout.

    Attributes:
        device: Id of the device.
        state: ``score``, ``serve``, ``returned`` or ``declined``.
        day: Newest complete day of its reports.
        results: By day, whether the new version lost it, and whether the device served it.
    """

    device: str
    state: str
    day: int
    results: Mapping[int, tuple[bool, bool]]


@dataclass(frozen=True, slots=True)
class DeclinedRun:
    """A run that a device cannot take part in.

    Attributes:
        device: Id of the device.
        name: Name of the run; empty for the one announced to all.
        reason: Name of the reason (``edge_sdk.wire.errors.ABILITIES``).
        ref: First 16 bytes of the digest of the bundle announcement that it refuses.
    """

    device: str
    name: str
    reason: str
    ref: bytes


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One training run: its definition, and the layout of its saved state.

    Attributes:
        run: Number of the run; increasing, never reused.
        method: Name of the method.
        settings: Rest of the definition, as JSON text.
        bundle: Name of the bundle.
        spec: Digest of the shared layout (16 bytes).
        layout: Digest of the state's leaves (16 bytes).
        name: Name of the run in the configuration, which its successors continue; empty for the
            run of a ``[run]`` table without a name.
    """

    run: int
    method: str
    settings: str
    bundle: str
    spec: bytes
    layout: bytes
    name: str = ""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One event of the journal. ``event`` is None if its vector was pruned."""

    position: int
    run: int
    event: Event | None


@dataclass(frozen=True, slots=True)
class Applied:
    """One update of the journal, as the delivery audit reads it.

    Attributes:
        device: Id of the device.
        life: Life of its number.
        seq: Sequence number within the life.
        run: Run in which it counts.
        turn: Round that it answers.
        position: Journal position.
        vector: ``edge_sdk.wire.link.link_trace.vector_digest`` of it; empty if it was pruned.
    """

    device: str
    life: int
    seq: int
    run: int
    turn: int
    position: int
    vector: str = ""

    @property
    def number(self) -> tuple[str, int, int]:
        """Return device, life and sequence number."""
        return self.device, self.life, self.seq


@dataclass(frozen=True, slots=True)
class Timer:
    """Timer requested by a half, due at a server time in Unix milliseconds."""

    due: Due
    at: int


@dataclass(frozen=True, slots=True)
class SavedState:
    """Saved state of a run.

    Attributes:
        leaves: Leaves by path, from which ``state_codec.rebuild`` makes the state.
        upto: Journal position of the state; later entries must be applied again.
        timers: Pending timers.
    """

    leaves: Mapping[str, Leaf]
    upto: int
    timers: tuple[Timer, ...] = ()


@dataclass(frozen=True, slots=True)
class Version:
    """A closed round, completed or abandoned, and the state after it.

    Attributes:
        run: Number of the run.
        round: Number of the round.
        version: Version of the model after it.
        moved: True if it produced that version.
        digest: ``state_codec.digest`` of the state right after the event that closed it.
        report: Report of the method; plain JSON values.
        time: Server time in Unix milliseconds.
        position: Journal position of that event; set by the store.
    """

    run: int
    round: int
    version: int
    moved: bool
    digest: bytes
    report: Mapping[str, Any] = field(default_factory=dict)
    time: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention budgets: the first one exceeded deletes the oldest data.

    Attributes:
        vectors: Size of update vectors and states, which an audit needs, bytes.
        journal: Size of the other journal data and of closed rounds, bytes.
        rounds: Number of closed rounds whose vectors are kept.
    """

    vectors: int = 2**31
    journal: int = 2**28
    rounds: int = 1000


@dataclass(frozen=True, slots=True)
class Pruned:
    """Deleted updates of one device.

    Attributes:
        life: Life of the highest number deleted.
        seq: Sequence number of the highest number deleted.
        updates: Number of updates deleted.
    """

    life: int
    seq: int
    updates: int


@dataclass(frozen=True, slots=True)
class Horizon:
    """Extent of the data deleted from the store.

    Attributes:
        anchors: By run, the journal position of the oldest state from which it can be recomputed.
        first: Journal position of the oldest event kept.
        pruned: By device, the updates that were deleted.
    """

    anchors: Mapping[int, int] = field(default_factory=dict)
    first: int = 1
    pruned: Mapping[str, Pruned] = field(default_factory=dict)

    @property
    def updates(self) -> int:
        """Return the total number of deleted updates."""
        return sum(one.updates for one in self.pruned.values())

    def covers(self, number: tuple[str, int, int]) -> bool:
        """Return whether an update of this number may have been deleted.

        >>> Horizon(pruned={"m": Pruned(2, 5, 9)}).covers(("m", 2, 6))
        False
        """
        device, life, seq = number
        pruned = self.pruned.get(device)
        return pruned is not None and (life, seq) <= (pruned.life, pruned.seq)


@dataclass(frozen=True, slots=True)
class LogLeaf:
    """A leaf of the log of a run's models.

    Attributes:
        run: Number of the run.
        index: Number of the leaf, from 0.
        data: Its bytes (``wire.protocol.model_log.LoggedModel``).
        time: Time of its announcement, Unix milliseconds.
    """

    run: int
    index: int
    data: bytes
    time: int


@dataclass(frozen=True, slots=True)
class DownloadBody:
    """A downloadable body: the content of a model or a task, or a bundle's archive.

    Attributes:
        kind: ``model``, ``task`` or ``bundle``. A body of both a model and a task is stored once,
            as the model's.
        id: First 16 bytes of its SHA-256.
        body: The bytes.
        chunk: Size of one chunk, bytes.
        name: Name of the run that it is of. The newest bodies of each run are kept.
    """

    kind: str
    id: bytes
    body: bytes
    chunk: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class PendingTask:
    """The newest task of one device.

    Attributes:
        device: Id of the device.
        run: Number of the run.
        round: Round that it belongs to.
        attempt: Number of restarts of that round.
        step: Step inside the round.
        base: Version of the model in its vectors.
        ask: Name of the question in the contract.
        values: Scalars of the task.
        content: First 16 bytes of the digest of the content with its vectors; empty without.
        state: ``open``, ``answered`` by a recorded update, or ``refused``: answered by an update
            that does not count.
    """

    device: str
    run: int
    round: int
    attempt: int
    step: int
    base: int
    ask: str
    values: Mapping[str, float] = field(default_factory=dict)
    content: bytes = b""
    state: str = "open"

    @property
    def turn(self) -> tuple[int, int, int]:
        """Return the sort key of the tasks of a run."""
        return self.round, self.attempt, self.step

    @property
    def is_open(self) -> bool:
        """Return whether it is not yet answered."""
        return self.state == "open"


class Store(Protocol):
    """Interface of the aggregator's database: all that the rest of the aggregator knows of it.

    Each writing call is one durable transaction, or part of the one that ``transaction`` holds open.
    """

    @property
    def path(self) -> Location:
        """Return the place of the database, for messages."""

    def __enter__(self) -> Self:
        """Return the store itself."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the store."""

    def close(self) -> None:
        """Close and unlock the database."""

    def clock(self) -> Clock:
        """Return the clock by which what is written here is dated and due.

        All processes that may write share its wall clock: that of the server, or of this machine for a file.
        """

    def check_lease(self) -> None:
        """Check that this process may still write.

        Raises:
            DatabaseLostError: The connection ended, or another process has taken over.
        """

    def transaction(self) -> AbstractContextManager[None]:
        """Combine all writes inside into one transaction: all of them or none.

        The transaction begins with the first write, so a block that only reads costs nothing.

        Raises:
            DatabaseError: It could not be committed, and nothing of it was saved.
        """

    # --- the file

    def backup(self, path: Path) -> None:
        """Write a consistent copy while the daemon runs.

        The copy is marked: ``was_restored`` is true for the process that opens it.
        """

    @property
    def was_restored(self) -> bool:
        """Return whether this file is a backup that is not yet adopted (A9)."""

    def adopt(self) -> None:
        """Continue from a backup: increase the numbers that devices may have seen since.

        These are the numbers of announcements and of commands; the caller begins a new run.
        """

    def integrity(self) -> list[str]:
        """Return the faults that the engine finds in its data; empty if they are sound."""

    def size(self) -> int:
        """Return the size of the database in bytes; of a file with its write-ahead log."""

    # --- devices and their numbers

    def clients(self) -> list[EnrolledDevice]:
        """Return all enrolled devices, by id."""

    def client(self, device: str) -> EnrolledDevice | None:
        """Return an enrolled device; None if no device has the id."""

    def put_client(self, client: EnrolledDevice) -> None:
        """Insert or replace a device."""

    def renew(self, client: EnrolledDevice, *, spent: int = 0) -> Ledger:
        """Enrol a device under a new key with a new ledger; return the previous ledger.

        Commands that do not fit a message are deleted.

        Args:
            client: The new record of the device.
            spent: Initial count of releases in the new ledger.
        """

    def contacts(self) -> dict[str, Contact]:
        """Return software and last message of the devices, by id."""

    def save_contacts(self, found: Mapping[str, Contact]) -> None:
        """Insert or replace software and last message of some devices."""

    def device_keys(self) -> dict[str, AnnouncedKey]:
        """Return the encryption keys that devices have announced, by id."""

    def save_device_key(self, device: str, found: AnnouncedKey | None) -> None:
        """Insert, replace or delete the encryption key of a device."""

    def declined(self) -> list[DeclinedRun]:
        """Return the runs that devices have declined, by device and name."""

    def decline(self, run: DeclinedRun) -> None:
        """Record that a device cannot take part in a run."""

    def forget_declined(self, device: str) -> None:
        """Delete the declined runs of a device."""

    # --- rollouts

    def rollout_changes(self, of: bytes | None = None) -> list[RolloutChange]:
        """Return the changes of a rollout, oldest first; of the newest rollout if none is named."""

    def change_rollout(
        self,
        new: RolloutChange,
        published: Mapping[str, bytes],
        contents: Sequence[DownloadBody] = (),
    ) -> None:
        """Append a change together with the announcements that follow from it."""

    def record_trial(self, of: bytes, report: DeviceTrial) -> None:
        """Record a device's report of a rollout; the first result of a day stays."""

    def trials(self, of: bytes) -> list[DeviceTrial]:
        """Return what devices have reported of a rollout, by device."""

    # --- stored values that do not fit

    def unusable(self) -> dict[str, list[str]]:
        """Return, by device, the stored values that do not fit a message."""

    def ledger(self, device: str) -> Ledger:
        """Return a device's ledger, which is empty for a new device."""

    def save_ledger(self, device: str, ledger: Ledger) -> None:
        """Save a device's ledger and prune the rows that it closes."""

    def row(self, device: str, key: Key) -> LedgerRow | None:
        """Return the verdict of a number, or None."""

    def held(self, device: str) -> int:
        """Return the number of verdicts kept for a device."""

    def settled(self) -> dict[tuple[str, int, int], LedgerRow]:
        """Return all verdicts, by device, life and sequence number."""

    def issue(
        self,
        device: str,
        op: str,
        args: Mapping[str, float] | None = None,
        until: int | None = None,
    ) -> CommandMessage:
        """Store a device's next command, which is sent until the device receipts it."""

    def reissue(self, device: str, ref: bytes) -> CommandMessage | None:
        """Renumber the open command with this reference; return None if there is none.

        A device that has lost its record of commands refuses one whose number is too low.
        """

    def issued(self, device: str) -> list[CommandMessage]:
        """Return a device's unreceipted commands."""

    def command_done(self, device: str, num: int, code: int) -> bool:
        """Record a command's receipt; return False if there is no such open command."""

    # --- updates, and the tasks they answer

    def append(
        self, device: str, ledger: Ledger, key: Key, row: LedgerRow, update: Update
    ) -> tuple[LedgerRow, JournalEntry | None]:
        """Settle a number with an update, or with TWICE_IN_ROUND if the round has one (A4).

        Its task is marked as answered in the same transaction.
        """

    def unsettle(self, device: str, key: Key) -> None:
        """Delete the INTERNAL verdict of a number, so that it is checked again."""

    def refuse(self, device: str, ledger: Ledger, key: Key, row: LedgerRow) -> LedgerRow:
        """Settle a number with a final refusal (A4); mark an open task of its round as refused."""

    def asked(self, device: str, run: int) -> PendingTask | None:
        """Return a device's newest task in a run, answered or not."""

    def tasks(self, run: int, state: str = "open") -> list[PendingTask]:
        """Return the devices' newest tasks that are in a state, sorted by device."""

    def ever_asked(self, run: int) -> set[str]:
        """Return the devices that have or had a task in a run."""

    # --- the journal

    def record(self, run: int, event: Event) -> JournalEntry:
        """Append an event that is no update to the journal."""

    def journal(self, run: int, after: int = 0) -> Iterator[JournalEntry]:
        """Return a run's journal entries after a position, in order."""

    def applied(self) -> Iterator[Applied]:
        """Return every update of the journal, of all runs, in order."""

    def waiting(self, run: int, number: int) -> int:
        """Return the number of recorded updates of a round."""

    # --- runs and their state

    def run(self, name: str | None = None) -> RunRecord | None:
        """Return the latest run of this name; None asks for the latest of all."""

    def runs(self) -> list[int]:
        """Return the numbers of all runs, oldest first."""

    def records(self) -> list[RunRecord]:
        """Return the definitions of all runs, newest first."""

    def versions(self, run: int, last: int | None = None) -> list[Version]:
        """Return a run's closed rounds, oldest first; at most the newest ``last`` if given."""

    def closed_by(self, run: int, position: int) -> int:
        """Return the last round of a run closed at or before a position; 0 before the first."""

    def load(self, run: int) -> SavedState:
        """Return the last committed state of a run.

        Raises:
            DatabaseError: There is no such run.
        """

    def first(self, run: int) -> SavedState:
        """Return the oldest state of a run after which the journal is complete.

        Raises:
            DatabaseError: There is no such run.
        """

    def begin(
        self,
        run: RunRecord,
        leaves: Mapping[str, Leaf],
        published: Mapping[str, bytes] | None = None,
    ) -> None:
        """Insert a run with its initial state, before its first journal entry."""

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
        """Save the changes of an event together with the announcements that follow from it.

        Args:
            run: The run.
            leaves: Changed leaves by path; None deletes one (``state_codec.changed``).
            upto: Journal position of the event.
            closed: The round it closed.
            timers: All pending timers.
            published: Retained topics and their signed payloads; an empty payload clears one.
            contents: Bodies downloadable from now on; the previous one is kept.
            asked: Tasks of single devices, which replace their previous ones; a content is kept
                until the last task with it is answered.
            keep: Budgets, applied after a closed round by deleting the oldest data; None keeps all.
            logged: Leaf of the manifest among the announcements, if there is one.
        """

    def horizon(self) -> Horizon:
        """Return the extent of everything deleted so far."""

    def oldest_round(self, run: int) -> int:
        """Return the first round of a run without deleted updates."""

    def used(self) -> Mapping[str, int]:
        """Return the sizes of ``vectors`` and ``journal`` in bytes; reads the whole journal."""

    @property
    def kept(self) -> Mapping[str, int]:
        """Return the sizes as of the last closed round, and the round after which an audit begins.

        Read from memory; empty before the first closed round.
        """

    # --- announcements

    def announcements(self) -> dict[str, bytes]:
        """Return every retained topic and its signed payload, published on each connection."""

    def announced(self, topic: str) -> bytes:
        """Return the signed payload of one retained topic; empty if it has none."""

    def announce(
        self,
        published: Mapping[str, bytes],
        contents: Sequence[DownloadBody] = (),
        *,
        logged: LogLeaf | None = None,
    ) -> None:
        """Save announcements that follow from no event; an empty payload clears a topic.

        A leaf of the log of models is appended in the same transaction.
        """

    def log_size(self, run: int) -> int:
        """Return the number of leaves of the log of a run's models."""

    def log_node(self, run: int, level: int, place: int) -> bytes:
        """Return the hash of a complete subtree of the log of a run's models.

        Raises:
            LookupError: It is not complete.
        """

    def log_leaves(self, run: int, first: int = 0, last: int | None = None) -> Iterator[LogLeaf]:
        """Return the leaves of the log of a run's models from a number on, up to the one before ``last``."""

    # --- the audit log

    def last_audit_record(self) -> AuditRecord | None:
        """Return the newest record of the audit log; None if it is empty."""

    def append_audit_record(self, record: AuditRecord) -> None:
        """Append a record to the audit log; a second one of its number is refused."""

    def audit_records(self, first: int = 1) -> Iterator[AuditRecord]:
        """Return the records of the audit log from a number on, in order."""

    def has_audit_order(self, order: str) -> bool:
        """Return whether the audit log has a record of the order with this id; False for an empty id."""

    # --- downloads and serials

    def content(self, ref: bytes) -> DownloadBody | None:
        """Return a downloadable body by the first 16 bytes of its digest."""

    def next_serial(self) -> int:
        """Return the next serial; serials always increase, with gaps."""


@dataclass(frozen=True, slots=True)
class SuspectRow:
    """Count of the recent rounds in which a rule left a device out.

    Attributes:
        device: Id of the device.
        excluded: Number of rounds in which it was left out or had weight 0.
        rounds: Number of rounds in which it answered.
        last: Last round in which it was left out.
        reasons: Reasons, sorted.
        when: Rounds in which it was left out, newest first.
    """

    device: str
    excluded: int
    rounds: int
    last: int
    reasons: tuple[str, ...]
    when: tuple[int, ...] = ()
