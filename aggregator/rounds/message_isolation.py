"""Isolate defects: run each message and each step in a transaction that a defect rolls back.

Rolled back are the store, the run's state and timers, the steps of its rounds, the events that wait for
the disk, and queued replies. The message is then kept as a dead letter, so that the same bytes are
never handled again by the same code.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aggregator.audit_log import AuditLog
from aggregator.ingress.dead_letters import DeadLetters, Letter, arrival_digest, site_of, trace_of
from aggregator.ingress.message_ingress import MessageIngress
from aggregator.ingress.registry import Registry
from aggregator.metrics import Metrics
from aggregator.rounds.publisher import Publisher
from aggregator.rounds.round_engine import RoundEngine
from aggregator.rounds.round_steps import RoundSteps
from aggregator.store.errors import (
    DatabaseError,
    DatabaseFullError,
    is_about_values,
    is_from_database,
)
from aggregator.store.store import Store
from aggregator.store.types import JournalEntry
from edge_sdk.app.cli import fields
from edge_sdk.app.clock import Clock
from edge_sdk.errors import SignerUnavailable
from edge_sdk.link.transport import Message
from edge_sdk.protocol import topics
from edge_sdk.protocol.messages import ChunkMessage, UpdateMessage

logger = logging.getLogger(__name__)

FIRST_WAIT = 1.0  # s before a step that met a defect is retried; doubles
LONGEST_WAIT = 60.0  # s
ATTEMPTS = 3  # consecutive defects after which the run is halted


def is_defect(error: BaseException) -> bool:
    """Return whether an error is a defect of this program, not of disk, memory, token or operator.

    >>> is_defect(ZeroDivisionError()), is_defect(MemoryError()), is_defect(OSError())
    (True, False, False)
    >>> is_defect(SignerUnavailable("the token is away"))
    False
    """
    cause = error.__cause__ if isinstance(error, DatabaseError) else error
    if cause is None or is_from_database(cause):
        return cause is not None and is_about_values(cause)
    outside = (OSError, MemoryError, SignerUnavailable)
    return isinstance(error, Exception) and not isinstance(error, outside)


@dataclass(slots=True)
class Faults:
    """Consecutive defects of each step of the daemon's loop, and the time of its next attempt.

    >>> faults = Faults()
    >>> faults.failed("upkeep", now=10.0), faults.may("upkeep", now=10.5)
    (1, False)
    >>> faults.may("upkeep", now=11.0), faults.failed("upkeep", now=11.0)
    (True, 2)
    >>> faults.may("upkeep", now=12.0), faults.is_waiting(now=12.0)
    (False, True)
    >>> faults.worked("upkeep")
    >>> faults.may("upkeep", now=12.0), faults.is_waiting(now=12.0)
    (True, False)
    """

    sites: Counter[str] = field(default_factory=Counter)  # number of defects by place in the code
    _failures: Counter[str] = field(default_factory=Counter)
    _until: dict[str, float] = field(default_factory=dict)

    def may(self, step: str, now: float) -> bool:
        return now >= self._until.get(step, now)

    def failed(self, step: str, now: float) -> int:
        """Record a defect of a step; return the number of consecutive ones."""
        self._failures[step] += 1
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (self._failures[step] - 1))
        self._until[step] = now + wait
        return self._failures[step]

    def worked(self, step: str) -> None:
        """Record that a step succeeded."""
        if step in self._failures:
            del self._failures[step]
            self._until.pop(step, None)

    def is_waiting(self, now: float) -> bool:
        return any(until > now for until in self._until.values())

    def is_news(self, site: str) -> bool:
        """Record a defect at a place; return True for the 1st, 2nd, 4th, 8th and so on."""
        self.sites[site] += 1
        count = self.sites[site]
        return count & (count - 1) == 0


@dataclass(frozen=True, slots=True)
class RunParts:
    """State of one run in memory."""

    engine: RoundEngine
    steps: RoundSteps  # those inside its rounds
    # events that wait for disk space, rewound
    backlog: deque[JournalEntry] = field(default_factory=deque)

    def mark(self) -> tuple[object, ...]:
        return self.engine.mark(), self.steps.mark(), tuple(self.backlog)

    def rewind(self, mark: tuple[Any, ...]) -> None:
        engine, steps, backlog = mark
        self.engine.rewind(engine)
        self.steps.rewind(steps)
        self.backlog.clear()
        self.backlog.extend(backlog)


@dataclass(frozen=True)
class Isolation:
    """Transaction over store and memory, with dead letters for the messages that fail."""

    store: Store  # database, rolled back
    runs: tuple[RunParts, ...]  # state of every run, rewound
    publisher: Publisher  # publish queue, rewound
    registry: Registry  # enrolled devices, read again
    ingress: MessageIngress
    letters: DeadLetters
    metrics: Metrics  # counters of defects
    clock: Clock  # server time
    audit_log: AuditLog  # records the daemon's own acts
    faults: Faults = field(default_factory=Faults)  # consecutive defects of each step

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
