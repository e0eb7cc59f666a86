"""Define the messages of membership: presence, ledger sessions, commands and counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from edge_sdk.wire.protocol.messages.fields import (
    CHUNK_LIMIT,
    U32,
    Checkpoint,
    EncryptionKey,
    LogPlace,
    LogProof,
    LogRoot,
    Major,
    Moment,
    Ordinal,
    Ref,
    Release,
    Releases,
    Scalars,
    Whole,
    Window,
    Word,
    Words,
)
from edge_sdk.wire.schema import Between, Length


@dataclass(frozen=True, slots=True)
class StatusMessage:
    """Presence of a device. Retained; the broker publishes it with ``lost`` as the will."""

    kind: ClassVar[str] = "status"
    state: Literal["online", "sleeping", "draining", "offline", "lost"]  # lost: by the will only
    life: Whole  # last confirmed life; 0 before the first welcome
    conn: U32  # session counter, persisted, one more per connection; the larger (life, conn) wins


@dataclass(frozen=True, slots=True)
class HelloMessage:
    """Propose a ledger session. Sent once per process start and repeated unchanged."""

    kind: ClassVar[str] = "hello"
    life: Ordinal  # number proposed for the session, saved before it is sent
    nonce: Ref  # 16 random bytes that bind the answer to this very hello
    spent: Releases  # releases charged so far
    lost: bool  # whether the device's store is new
    open: Annotated[tuple[tuple[Ordinal, Ordinal], ...], Length(0, 8)]  # (life, seq) in the outbox
    wire: tuple[Major, Major]  # lowest and highest major version the device supports
    caps: Words  # optional abilities, such as f2
    sdk: Release  # version of the device's software
    conn: U32  # the same counter as in status
    log: LogPlace = b""  # run and size of the last checkpoint of the log of models: 8 + 8 bytes
    root: LogRoot = b""  # root of that checkpoint
    key: EncryptionKey = b""  # X25519 key to which messages to this device are encrypted

    def __post_init__(self) -> None:
        """Refuse a checkpoint or a key that is not as long as one."""
        if (len(self.log), len(self.root)) not in {(0, 0), (16, 32)}:
            raise ValueError("log, root: expected 16 and 32 bytes, or neither")
        if len(self.key) not in {0, 32}:
            raise ValueError("key: expected 32 bytes, or none")


@dataclass(frozen=True, slots=True)
class WelcomeMessage:
    """The aggregator confirms a life, once per hello; its signature makes ``time`` trustworthy."""

    kind: ClassVar[str] = "welcome"
    hello: Ref  # which hello is answered
    life: Ordinal  # the life, confirmed
    spent: Releases  # the aggregator's own count of releases: the device continues from the larger
    time: Moment  # server time now
    wire: Major  # major version chosen
    caps: Words  # abilities that may be used; what is missing here must not be sent
    run: Whole  # current training run; 0 before the first
    inline: Annotated[int, Between(0, CHUNK_LIMIT)]  # largest body sent unasked; 0 = always offer
    window: Window  # chunks the aggregator can have in flight to the device
    quota: Whole  # bytes a day the device may use, both directions
    hold: Annotated[int, Between(1, 8)]  # most entries that may wait for a receipt
    cmd: Whole  # highest command number issued to this device
    runs: Words = ()  # names of the runs that the device takes part in; ``run`` is the first one's
    region: Annotated[str, Length(0, 64)] = ""  # label ``region``: whose weather the device reads
    note: Checkpoint | None = None  # signed checkpoint of the log of the run in the hello's ``log``
    path: LogProof = b""  # proof that it continues the checkpoint in the hello


@dataclass(frozen=True, slots=True)
class FloorMessage:
    """Refuse a used life: the device proposes a larger one, with a new nonce."""

    kind: ClassVar[str] = "floor"
    hello: Ref  # which hello is answered
    life: Whole  # the device proposes a larger one than this


@dataclass(frozen=True, slots=True)
class CommandMessage:
    """An operator's command to one device, repeated after each hello until receipted."""

    kind: ClassVar[str] = "command"
    num: Ordinal  # rises per device; the device stores the highest number executed
    op: Word  # stop, resume, reenrol, report, budget, hello, wipe
    args: Scalars = field(default_factory=dict)  # numbers the command needs
    until: Moment | None = None  # server time after which the command expires


@dataclass(frozen=True, slots=True)
class MetricsMessage:
    """Counters since the process started; no measured and no learnt values."""

    kind: ClassVar[str] = "metrics"
    up: Whole  # seconds since the start
    sent: Whole  # updates sent
    resent: Whole  # offers repeated
    refused: Whole  # updates refused for good
    bytes_up: Whole  # payload bytes published
    bytes_down: Whole  # payload bytes received
    outbox: Whole  # entries without a receipt
    flash: Whole  # kilobytes of the store
    rss: Whole  # kilobytes of memory
    step: Whole | None = None  # exchanges with neighbours so far, where there are any
    mixed: Whole | None = None  # links that counted in the exchanges
    missed: Whole | None = None  # links that did not count
    new: Whole | None = None  # rows recorded since the last update
