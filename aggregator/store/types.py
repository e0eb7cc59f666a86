"""What the aggregator keeps, as frozen records, and what it needs of whatever keeps them."""

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
        id: Its name everywhere.
        sign: Raw Ed25519 public keys that may sign for it, at most two.
        generation: How often it was enrolled.
        state: ``enrolled``, ``quarantined`` or ``revoked``.
        why: The reason for a state other than enrolled.
    """

    id: str
    sign: tuple[bytes, ...]
    generation: int = 1
    state: str = "enrolled"
    why: str = ""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One training run: what was configured, and what its saved state looks like.

    Attributes:
        run: Its number; rises, never used again.
        method: Name of the method.
        settings: What else defines it, as JSON text.
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
    """One event of the journal. ``event`` is None where its vector was pruned."""

    position: int
    run: int
    event: Event | None


@dataclass(frozen=True, slots=True)
class Applied:
    """One update of the journal, as the history check sees it.

    Attributes:
        device: Whose.
        life: Its number, with ``seq``.
        seq: Its number within the life.
        run: Run it counts in.
        turn: Round it answers.
        position: Where it is in the journal.
        vector: ``edge_sdk.wire.link.link_trace.vector_digest`` of it; empty where it was pruned.
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
        """Which release it is."""
        return self.device, self.life, self.seq


@dataclass(frozen=True, slots=True)
class Timer:
    """A wake-up a half asked for, at a server time in Unix milliseconds."""

    due: Due
    at: int


@dataclass(frozen=True, slots=True)
class SavedState:
    """A run's state as it was saved.

    Attributes:
        leaves: By path; ``leaves.rebuild`` makes the state of them.
        upto: Journal position they contain; what follows must be applied again.
        timers: Wake-ups that were pending.
    """

    leaves: Mapping[str, Leaf]
    upto: int
    timers: tuple[Timer, ...] = ()


@dataclass(frozen=True, slots=True)
class Version:
    """A closed round, moved or abandoned, and the state it left.

    Attributes:
        run: The run.
        round: The round that closed.
        version: The model's version after it.
        moved: Whether it produced that version.
        digest: ``leaves.digest`` of the state right after the event that closed it.
        report: What the method tells of it; plain JSON values.
        time: Server time in Unix milliseconds.
        position: Journal position of that event; filled in by the store.
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
    """How much of the past is kept: whichever budget is reached first drops the oldest.

    Attributes:
        vectors: Bytes of updates' vectors and of states, from which an audit recomputes.
        journal: Bytes of everything else that is journalled, and of closed rounds.
        rounds: Closed rounds whose vectors are kept.
    """

    vectors: int = 2**31
    journal: int = 2**28
    rounds: int = 1000


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted of one device's updates.

    Attributes:
        life: Of the highest number deleted, with ``seq``.
        seq: Within that life.
        updates: How many in all.
    """

    life: int
    seq: int
    updates: int


@dataclass(frozen=True, slots=True)
class Horizon:
    """What the store no longer has.

    Attributes:
        anchors: By run, the journal position of the state from which it can be recomputed.
        first: Journal position of the oldest event kept.
        pruned: By device, the updates that were deleted.
    """

    anchors: Mapping[int, int] = field(default_factory=dict)
    first: int = 1
    pruned: Mapping[str, Pruned] = field(default_factory=dict)

    @property
    def updates(self) -> int:
        """How many updates were deleted in all."""
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
    """A body that devices may pull: the content of a model or a task, or a bundle's archive.

    Attributes:
        kind: ``model``, ``task`` or ``bundle``. One that is both a model's and a task's is kept
            once, as the model's.
        id: First 16 bytes of its SHA-256.
        body: The bytes.
        chunk: Bytes of one chunk.
    """

    kind: str
    id: bytes
    body: bytes
    chunk: int


@dataclass(frozen=True, slots=True)
class PendingTask:
    """The newest task of one device.

    Attributes:
        device: Who was asked.
        run: The run.
        round: The round it is to answer.
        attempt: How often that round was begun anew.
        step: A turn inside the round.
        base: Version of the model its vectors are of.
        ask: Name of the question in the contract.
        values: Its numbers.
        content: First 16 bytes of the digest of the content with its vectors; empty without.
        state: ``open``, ``answered`` by a recorded update, or ``refused``: answered by one that did
            not count.
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
        """What orders the tasks of a run."""
        return self.round, self.attempt, self.step

    @property
    def is_open(self) -> bool:
        """Return whether it still waits for its answer."""
        return self.state == "open"


class Store(Protocol):
    """What the aggregator needs of a database. Each writing call is one durable transaction."""

    def clients(self) -> list[EnrolledDevice]:
        """Return all enrolled devices, by id."""

    def put_client(self, client: EnrolledDevice) -> None:
        """Enrol a device, or change what is known of it."""

    def ledger(self, device: str) -> Ledger:
        """Return a device's numbers; a new device has empty ones."""

    def save_ledger(self, device: str, ledger: Ledger) -> None:
        """Save a device's numbers and prune the rows they close."""

    def row(self, device: str, key: Key) -> LedgerRow | None:
        """Return how a number was settled."""

    def held(self, device: str) -> int:
        """Return how many settled numbers are kept for a device."""

    def append(
        self, device: str, ledger: Ledger, key: Key, row: LedgerRow, update: Update
    ) -> tuple[LedgerRow, JournalEntry | None]:
        """Settle a number with an update, or TWICE_IN_ROUND if its round has one already (A4).

        The task it answers is answered in the same transaction.
        """

    def refuse(self, device: str, ledger: Ledger, key: Key, row: LedgerRow) -> LedgerRow:
        """Settle a number with a final refusal (A4); an open task of its round is refused."""

    def asked(self, device: str, run: int) -> PendingTask | None:
        """Return a device's newest task in a run, answered or not."""

    def record(self, run: int, event: Event) -> JournalEntry:
        """Write an event that is no update into the journal."""

    def journal(self, run: int, after: int = 0) -> Iterator[JournalEntry]:
        """Return a run's events behind a position, in order."""

    def issued(self, device: str) -> list[CommandMessage]:
        """Return the commands a device has not yet receipted."""

    def reissue(self, device: str, ref: bytes) -> CommandMessage | None:
        """Give an open command of these bytes the next number; None if there is none."""

    def command_done(self, device: str, num: int, code: int) -> bool:
        """Note a command's receipt; False if there is no such open command."""

    def announced(self, topic: str) -> bytes:
        """Return the signed payload of one retained topic; empty if it has none."""

    def content(self, ref: bytes) -> DownloadBody | None:
        """Return a body that may be pulled, by the first 16 bytes of its digest."""


def pack_event(event: Event) -> tuple[bytes, bytes | None]:
    """Return what the journal keeps of an event: its facts, and its vector apart.

    Raises:
        TypeError: A kind of event that is never journalled.
    """
    facts, vector = _facts(event)
    return pack_leaves(facts), vector


def unpack_event(kind: str, device: str | None, facts: bytes, vector: bytes | None) -> Event | None:
    """Return the event again, bit for bit; None if its vector was pruned."""
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
    """Write wake-ups for the store."""
    return pack_leaves(
        {"timers": [[t.due.round, t.due.ask, t.due.step, t.due.after, t.at] for t in timers]}
    )


def unpack_timers(data: bytes) -> tuple[Timer, ...]:
    """Read wake-ups back."""
    return tuple(
        Timer(Due(number, ask, step, after), at)
        for number, ask, step, after, at in unpack_leaves(data)["timers"]
    )
