"""Records of the store, as frozen dataclasses, and the interface of a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from aggregator.store.sequence_ledger import Key, Ledger, LedgerRow
from edge_sdk.wire.contract.method import Due, Event, Member, Played, Update
from edge_sdk.wire.protocol.codec import Leaf, pack_leaves, unpack_leaves
from edge_sdk.wire.protocol.messages import CommandMessage


@dataclass(frozen=True, slots=True)
class EnrolledDevice:
    """One enrolled device.

    Attributes:
        id: Id of the device in every place.
        sign: Raw Ed25519 public keys that may sign for it, at most two.
        generation: Number of its enrolments.
        state: ``enrolled``, ``quarantined`` or ``revoked``.
        why: Reason for a state other than enrolled.
    """

    id: str
    sign: tuple[bytes, ...]
    generation: int = 1
    state: str = "enrolled"
    why: str = ""


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
    """

    run: int
    method: str
    settings: str
    bundle: str
    spec: bytes
    layout: bytes


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
        gone = self.pruned.get(device)
        return gone is not None and (life, seq) <= (gone.life, gone.seq)


@dataclass(frozen=True, slots=True)
class DownloadBody:
    """A downloadable body: the content of a model or a task, or a bundle's archive.

    Attributes:
        kind: ``model``, ``task`` or ``bundle``. A body of both a model and a task is stored once,
            as the model's.
        id: First 16 bytes of its SHA-256.
        body: The bytes.
        chunk: Size of one chunk, bytes.
    """

    kind: str
    id: bytes
    body: bytes
    chunk: int


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
    """Interface of the aggregator's database. Each writing call is one durable transaction."""

    def clients(self) -> list[EnrolledDevice]:
        """Return all enrolled devices, by id."""

    def put_client(self, client: EnrolledDevice) -> None:
        """Insert or replace a device."""

    def ledger(self, device: str) -> Ledger:
        """Return a device's ledger, which is empty for a new device."""

    def save_ledger(self, device: str, ledger: Ledger) -> None:
        """Save a device's ledger and prune the rows that it closes."""

    def row(self, device: str, key: Key) -> LedgerRow | None:
        """Return the verdict of a number, or None."""

    def held(self, device: str) -> int:
        """Return the number of verdicts kept for a device."""

    def append(
        self, device: str, ledger: Ledger, key: Key, row: LedgerRow, update: Update
    ) -> tuple[LedgerRow, JournalEntry | None]:
        """Settle a number with an update, or with TWICE_IN_ROUND if the round has one (A4).

        Its task is marked as answered in the same transaction.
        """

    def refuse(self, device: str, ledger: Ledger, key: Key, row: LedgerRow) -> LedgerRow:
        """Settle a number with a final refusal (A4); mark an open task of its round as refused."""

    def asked(self, device: str, run: int) -> PendingTask | None:
        """Return a device's newest task in a run, answered or not."""

    def record(self, run: int, event: Event) -> JournalEntry:
        """Append an event that is no update to the journal."""

    def journal(self, run: int, after: int = 0) -> Iterator[JournalEntry]:
        """Return a run's journal entries after a position, in order."""

    def issued(self, device: str) -> list[CommandMessage]:
        """Return a device's unreceipted commands."""

    def reissue(self, device: str, ref: bytes) -> CommandMessage | None:
        """Renumber the open command with this reference; return None if there is none."""

    def command_done(self, device: str, num: int, code: int) -> bool:
        """Record a command's receipt; return False if there is no such open command."""

    def announced(self, topic: str) -> bytes:
        """Return the signed payload of one retained topic; empty if it has none."""

    def content(self, ref: bytes) -> DownloadBody | None:
        """Return a downloadable body by the first 16 bytes of its digest."""


def pack_event(event: Event) -> tuple[bytes, bytes | None]:
    """Encode an event for the journal; return its facts, and its vector separately.

    Raises:
        TypeError: Events of this type are never journalled.
    """
    facts, vector = _facts(event)
    return pack_leaves(facts), vector


def unpack_event(kind: str, device: str | None, facts: bytes, vector: bytes | None) -> Event | None:
    """Decode a journalled event bit for bit; return None if its vector was pruned."""
    return _event(kind, device, unpack_leaves(facts), vector)


def _facts(event: Event) -> tuple[dict[str, Leaf], bytes | None]:
    if isinstance(event, Update):
        vector = np.ascontiguousarray(event.vector)
        dtype = vector.dtype.newbyteorder("<")
        values = {name: float(value) for name, value in event.values.items()}
        facts = {"round": event.round, "base": event.base, "values": values, "dtype": dtype.str}
        if event.check:
            facts["check"] = event.check
        return facts, vector.astype(dtype).tobytes()
    if isinstance(event, Due):
        return {
            "round": event.round,
            "ask": event.ask,
            "step": event.step,
            "after": event.after,
        }, None
    if isinstance(event, Member):
        return {"client": event.client, "present": event.present}, None
    if isinstance(event, Played):
        facts = {"round": event.round, "attempt": event.attempt, "record": event.record}
        facts["values"] = {name: float(value) for name, value in event.values.items()}
        return facts, pack_leaves(dict(event.arrays))
    raise TypeError(f"a {type(event).__name__} is never journalled")


def _event(
    kind: str, device: str | None, facts: Mapping[str, Leaf], vector: bytes | None
) -> Event | None:
    if kind == "due":
        return Due(**facts)
    if kind == "member":
        return Member(**facts)
    if vector is None:
        return None
    if kind == "played":
        return Played(arrays=unpack_leaves(vector), **facts)
    return Update(
        sender=device or "",
        round=facts["round"],
        base=facts["base"],
        vector=np.frombuffer(vector, np.dtype(facts["dtype"])),
        values=facts["values"],
        check=facts.get("check", b""),
    )


def pack_timers(timers: Sequence[Timer]) -> bytes:
    """Encode timers for the store."""
    return pack_leaves(
        {"timers": [[t.due.round, t.due.ask, t.due.step, t.due.after, t.at] for t in timers]}
    )


def unpack_timers(data: bytes) -> tuple[Timer, ...]:
    """Decode stored timers."""
    return tuple(
        Timer(Due(number, ask, step, after), at)
        for number, ask, step, after, at in unpack_leaves(data)["timers"]
    )
