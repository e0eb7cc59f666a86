"""Isolate defects: run each message and each step in a transaction that a defect rolls back.

Rolled back are the store, the run's state and timers, the split driver, the events that wait for
the disk, and queued replies. The message is then kept as a dead letter, so that the same bytes are
never handled again by the same code.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aggregator.audit_log.recorder import AuditLog
from aggregator.ingress.dead_letters import DeadLetters, Letter, arrival_digest, site_of, trace_of
from aggregator.ingress.defect_policy import Faults, is_defect
from aggregator.ingress.message_ingress import MessageIngress
from aggregator.ingress.registry import Registry
from aggregator.metrics import Metrics
from aggregator.rounds.publisher import Publisher
from aggregator.rounds.round_engine import RoundEngine
from aggregator.rounds.split_driver import SplitDriver
from aggregator.store.errors import DatabaseError, DatabaseFullError
from aggregator.store.types import JournalEntry, Store
from edge_sdk.app.cli import fields
from edge_sdk.app.clock import Clock
from edge_sdk.wire.link.transport import Message
from edge_sdk.wire.protocol import topics
from edge_sdk.wire.protocol.messages import ChunkMessage, UpdateMessage

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunParts:
    """State of one run in memory.

    Attributes:
        engine: Round engine, rewound.
        split: Split driver, rewound.
        backlog: Events that wait for disk space, rewound.
    """

    engine: RoundEngine
    split: SplitDriver
    backlog: deque[JournalEntry] = field(default_factory=deque)

    def mark(self) -> tuple[object, ...]:
        """Return a mark for ``rewind``."""
        return self.engine.mark(), self.split.mark(), tuple(self.backlog)

    def rewind(self, mark: tuple[Any, ...]) -> None:
        """Restore the state at the mark."""
        engine, split, backlog = mark
        self.engine.rewind(engine)
        self.split.rewind(split)
        self.backlog.clear()
        self.backlog.extend(backlog)


@dataclass(frozen=True)
class Isolation:
    """Transaction over store and memory, with dead letters for the messages that fail.

    Attributes:
        store: Database, rolled back.
        runs: State of every run, rewound.
        publisher: Publish queue, rewound.
        registry: Enrolled devices, read again.
        ingress: Message ingress, which has the message at hand.
        letters: Dead letters.
        metrics: Counters of defects.
        clock: Server time.
        audit_log: Records what the daemon does by itself.
        faults: Consecutive defects of each step.
    """

    store: Store
    runs: tuple[RunParts, ...]
    publisher: Publisher
    registry: Registry
    ingress: MessageIngress
    letters: DeadLetters
    metrics: Metrics
    clock: Clock
    audit_log: AuditLog
    faults: Faults = field(default_factory=Faults)

    def attempt(self, action: Callable[[], None]) -> Exception | None:
        """Run an action in one transaction; return the defect that rolled it back, or None.

        Raises:
            Exception: An error that is no defect (disk, memory, a broken file), after the rollback.
        """
        marks, length = [one.mark() for one in self.runs], len(self.publisher)
        try:
            with self.store.transaction():
                action()
        except Exception as error:
            for one, mark in zip(self.runs, marks, strict=True):
                one.rewind(mark)
            self.publisher.truncate(length)
            self.registry.reload()
            for one in self.runs:
                self.ingress.open(one.engine.context)
            if not is_defect(error):
                raise
            return error
        return None

    def together(self, actions: Callable[[], None]) -> bool:
        """Run several attempts in one transaction, so that they share one commit.

        Returns:
            False if it could not be committed: nothing has changed, and each is to be attempted in
            a transaction of its own.
        """
        try:
            return self.attempt(actions) is None
        except DatabaseError:
            return False

    def step(
        self,
        name: str,
        action: Callable[[], None],
        *,
        in_transaction: bool = True,
        run: int | None = None,
    ) -> tuple[Exception, int] | None:
        """Run a step of the loop if it is due; after a defect it is delayed, longer each time.

        Args:
            name: Name of the step.
            action: Function that performs it.
            in_transaction: False if the step consists of several complete transactions.
            run: Number of the run that the step is about, for the log.

        Returns:
            The defect and the number of consecutive ones; None if there was none.
        """
        now = self.clock.monotonic()
        if not self.faults.may(name, now):
            return None
        error: Exception | None = None
        try:
            if in_transaction:
                error = self.attempt(action)
            else:
                action()
        except DatabaseFullError as full:
            self.note_full(full)
            return None
        except Exception as met:
            if in_transaction or not is_defect(met):
                raise
            error = met
        if error is None:
            self.faults.worked(name)
            return None
        self.report(name, error, run=run)
        return error, self.faults.failed(name, now)

    def note_full(self, error: DatabaseFullError) -> None:
        """Record that the disk is full, and log it once."""
        if not self.ingress.is_full:
            logger.error("disk full %s", fields(why=error))
        self.ingress.is_full = True

    def set_aside(self, message: Message, error: Exception) -> None:
        """Keep a message whose transaction was rolled back; its bytes are not handled again."""
        at = self.ingress.at_hand
        digests = [arrival_digest(message.topic, message.payload)]
        topic, payload, proof, number = message.topic, message.payload, b"", None
        if at.sealed is not None:
            digests.append(arrival_digest(at.device, at.sealed.digest))
            address = topics.parse(message.topic)
            if address is not None and address.kind == ChunkMessage.kind:  # last chunk of a body
                topic, payload, proof = "", at.sealed.body, at.sealed.proof
                del digests[0]
        if isinstance(at.message, UpdateMessage):
            number = (at.message.life, at.message.seq)
        self.report(
            at.kind or "other",
            error,
            device=at.device,
            topic=topic,
            payload=payload,
            proof=proof,
            number=number,
            digests=tuple(one.hex() for one in digests),
            run=getattr(at.message, "run", None),
        )

    def report(
        self,
        where: str,
        error: Exception,
        *,
        device: str = "",
        topic: str = "",
        payload: bytes = b"",
        proof: bytes = b"",
        number: tuple[int, int] | None = None,
        digests: tuple[str, ...] = (),
        run: int | None = None,
    ) -> None:
        """Count a defect, keep its dead letter, and log the 1st, 2nd, 4th … of a place.

        A message or step that is about no run has none in the log.
        """
        self.metrics.errors.labels(where).inc()
        site, now = site_of(error), self.clock.wall()
        letter = Letter(
            name=f"{now:013d}-{self.faults.sites.total():06d}",
            at=now,
            where=where,
            site=site,
            error=f"{type(error).__name__}: {error}"[:500],
            trace=trace_of(error),
            device=device,
            topic=topic,
            payload=payload,
            proof=proof,
            number=number,
            digests=digests,
        )
        is_kept = self.letters.keep(letter)
        if self.faults.is_news(site):
            about: dict[str, object] = {"where": where, "device": device or "-"}
            about |= {"site": site} if run is None else {"run": run, "site": site}
            about |= {"letter": letter.name if is_kept else "-", "times": self.faults.sites[site]}
            logger.error("internal error %s", fields(**about), exc_info=error)
