"""Each message and each step of the loop in one transaction, undone whole where it meets a defect.

What is undone: the store, the run's state and timers, the turns inside its round, the events that
wait for the disk, and what was queued to be said. What a message brought is then kept as a dead
letter, so that the same bytes are never handled again by the same code.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from aggregator.ingress.dead_letters import DeadLetters, Letter, arrival_digest, site_of, trace_of
from aggregator.ingress.defect_policy import Faults, is_defect
from aggregator.ingress.message_ingress import MessageIngress
from aggregator.ingress.registry import Registry
from aggregator.metrics import Metrics
from aggregator.rounds.publish_queue import PublishQueue
from aggregator.rounds.round_engine import RoundEngine
from aggregator.rounds.split_driver import SplitDriver
from aggregator.store import DatabaseFullError, SqliteStore
from aggregator.store.types import JournalEntry
from edge_sdk.app.cli import fields
from edge_sdk.app.clock import Clock
from edge_sdk.wire.link.transport import Message
from edge_sdk.wire.protocol import topics
from edge_sdk.wire.protocol.messages import ChunkMessage, UpdateMessage

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Isolation:
    """What is undone together, and where the evidence goes.

    Attributes:
        store: Rolled back.
        fold: Set back; so are the five below, of which the registry is read again.
        stage: The turns.
        outgoing: What waits to be said.
        backlog: What waits for space on the disk.
        registry: The devices.
        intake: The door, which knows what is being handled.
        letters: Where messages are set aside.
        metrics: Where defects are counted.
        clock: Server time.
        faults: Which steps of the loop failed, and when.
    """

    store: SqliteStore
    fold: RoundEngine
    stage: SplitDriver
    outgoing: PublishQueue
    backlog: deque[JournalEntry]
    registry: Registry
    intake: MessageIngress
    letters: DeadLetters
    metrics: Metrics
    clock: Clock
    faults: Faults = field(default_factory=Faults)

    def attempt(self, action: Callable[[], None]) -> Exception | None:
        """Do something in one transaction; return the defect for which it was undone, if any.

        Raises:
            Exception: What is no defect (disk, memory, a broken file), after the same undoing.
        """
        fold, stage, length = self.fold.mark(), self.stage.mark(), len(self.outgoing)
        backlog = tuple(self.backlog)
        try:
            with self.store.transaction():
                action()
        except Exception as error:
            self.fold.rewind(fold)
            self.stage.rewind(stage)
            self.outgoing.rewind(length)
            self.backlog.clear()
            self.backlog.extend(backlog)
            self.registry.reload()
            self.intake.open(self.fold.turn)
            if not is_defect(error):
                raise
            return error
        return None

    def step(
        self, name: str, action: Callable[[], None], *, in_transaction: bool = True
    ) -> tuple[Exception, int] | None:
        """Do a step of the loop if it is due; after a defect it waits, longer each time.

        Args:
            name: Of the step.
            action: Does it.
            in_transaction: False where it does several things that are each complete.

        Returns:
            The defect and how many times in a row it was met; None if there was none.
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
        self.report(name, error)
        return error, self.faults.failed(name, now)

    def note_full(self, error: DatabaseFullError) -> None:
        """Note that the disk is full, and log it once."""
        if not self.intake.is_full:
            logger.error("store full %s", fields(why=error))
        self.intake.is_full = True

    def set_aside(self, message: Message, error: Exception) -> None:
        """Keep the message whose handling was undone: its bytes are not handled again."""
        at = self.intake.at_hand
        digests = [arrival_digest(message.topic, message.payload)]
        topic, payload, proof, number = message.topic, message.payload, b"", None
        if at.sealed is not None:
            digests.append(arrival_digest(at.device, at.sealed.digest))
            address = topics.parse(message.topic)
            if address is not None and address.kind == ChunkMessage.kind:  # the last one of a body
                topic, payload, proof = "", at.sealed.body, at.sealed.proof
                del digests[0]
        if isinstance(at.said, UpdateMessage):
            number = (at.said.life, at.said.seq)
        self.report(
            at.kind or "other",
            error,
            device=at.device,
            topic=topic,
            payload=payload,
            proof=proof,
            number=number,
            digests=tuple(one.hex() for one in digests),
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
    ) -> None:
        """Count a defect, keep what it was met with, and log it: the 1st, 2nd, 4th … of a place."""
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
            told: dict[str, object] = {"where": where, "device": device or "-", "site": site}
            told |= {"letter": letter.name if is_kept else "-", "times": self.faults.sites[site]}
            logger.error("internal error %s", fields(**told), exc_info=error)
