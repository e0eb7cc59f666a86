"""Records of the store, as frozen dataclasses, and the interface of a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edge_sdk.protocol.codec import Leaf
from edge_sdk.protocol.contract.method import Due, Event


@dataclass(frozen=True, slots=True)
class EnrolledDevice:
    """One enrolled device."""

    id: str
    sign: tuple[bytes, ...]  # raw public keys that may sign for it, Ed25519 or P-256, at most two
    generation: int = 1
    state: str = "enrolled"  # ``enrolled``, ``quarantined`` or ``revoked``
    why: str = ""  # reason for a state other than enrolled
    # pairs of name and value, sorted, by which runs choose their cohorts
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Contact:
    """Software and last message of a device."""

    sdk: str = ""  # version of its software, from its last hello; empty before the first
    seen: int = 0  # server time of its last verified message, Unix milliseconds; 0 before the first


@dataclass(frozen=True, slots=True)
class DeclinedRun:
    """A run that a device cannot take part in."""

    device: str
    name: str  # name of the run; empty for the one announced to all
    reason: str  # name of the reason (``edge_sdk.errors.ABILITIES``)
    ref: bytes  # first 16 bytes of the digest of the bundle announcement that it refuses


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One training run: its definition, and the layout of its saved state."""

    run: int  # number of the run; increasing, never reused
    method: str
    settings: str  # rest of the definition, as JSON text
    bundle: str
    spec: bytes  # digest of the shared layout (16 bytes)
    layout: bytes  # digest of the state's leaves (16 bytes)
    # name of the run in the configuration, which its successors continue; empty for the run of a
    # ``[run]`` table without a name
    name: str = ""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One event of the journal. ``event`` is None if its vector was pruned."""

    position: int
    run: int
    event: Event | None


@dataclass(frozen=True, slots=True)
class Applied:
    """One update of the journal."""

    device: str
    life: int
    seq: int  # sequence number within the life
    run: int
    turn: int  # round that it answers
    position: int
    vector: str = ""  # ``codec.vector_digest`` of it; empty if it was pruned

    @property
    def number(self) -> tuple[str, int, int]:
        return self.device, self.life, self.seq


@dataclass(frozen=True, slots=True)
class Timer:
    """Timer requested by a half, due at a server time in Unix milliseconds."""

    due: Due
    at: int


@dataclass(frozen=True, slots=True)
class SavedState:
    """Saved state of a run."""

    leaves: Mapping[str, Leaf]  # leaves by path, from which ``state_codec.rebuild`` makes the state
    upto: int  # journal position of the state; later entries must be applied again
    timers: tuple[Timer, ...] = ()


@dataclass(frozen=True, slots=True)
class Version:
    """A closed round, completed or abandoned, and the state after it."""

    run: int
    round: int
    version: int  # version of the model after it
    moved: bool
    digest: bytes  # ``state_codec.digest`` of the state right after the event that closed it
    # report of the method; plain JSON values
    report: Mapping[str, Any] = field(default_factory=dict)
    time: int = 0  # server time in Unix milliseconds
    position: int = 0  # journal position of that event; set by the store


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention budgets: the first one exceeded deletes the oldest data."""

    vectors: int = 2**31  # size of update vectors and states, which an audit needs, bytes
    journal: int = 2**28  # size of the other journal data and of closed rounds, bytes
    rounds: int = 1000  # number of closed rounds whose vectors are kept


@dataclass(frozen=True, slots=True)
class Pruned:
    """Deleted updates of one device."""

    life: int  # life of the highest number deleted
    seq: int  # sequence number of the highest number deleted
    updates: int


@dataclass(frozen=True, slots=True)
class Horizon:
    """Extent of the data deleted from the store."""

    # by run, the journal position of the oldest state from which it can be recomputed
    anchors: Mapping[int, int] = field(default_factory=dict)
    first: int = 1  # journal position of the oldest event kept
    # by device, the updates that were deleted
    pruned: Mapping[str, Pruned] = field(default_factory=dict)

    @property
    def updates(self) -> int:
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
class DownloadBody:
    """A downloadable body: the content of a model or a task, or a bundle's archive."""

    # ``model``, ``task`` or ``bundle``. A body of both a model and a task is stored once, as the
    # model's.
    kind: str
    id: bytes  # first 16 bytes of its SHA-256
    body: bytes  # the bytes
    chunk: int  # size of one chunk, bytes
    name: str = ""  # name of the run that it is of. The newest bodies of each run are kept.


@dataclass(frozen=True, slots=True)
class PendingTask:
    """The newest task of one device."""

    device: str
    run: int
    round: int
    attempt: int  # number of restarts of that round
    step: int  # step inside the round
    base: int  # version of the model in its vectors
    ask: str  # name of the question in the contract
    values: Mapping[str, float] = field(default_factory=dict)
    # first 16 bytes of the digest of the content with its vectors; empty without
    content: bytes = b""
    # ``open``, ``answered`` by a recorded update, or ``refused``: answered by an update that does
    # not count
    state: str = "open"

    @property
    def turn(self) -> tuple[int, int, int]:
        return self.round, self.attempt, self.step

    @property
    def is_open(self) -> bool:
        """Return whether it is not yet answered."""
        return self.state == "open"
