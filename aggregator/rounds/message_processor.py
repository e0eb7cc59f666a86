"""Process messages in transactions; after a defect, set a message aside and refuse it.

Messages that arrive together share one commit. Each of them is a part of that transaction, which a
defect undoes alone. Replies and acknowledgements leave after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from aggregator.ingress.dead_letters import Letter
from aggregator.ingress.message_ingress import AtHand
from aggregator.ingress.replies import IngressResult
from aggregator.rounds.message_isolation import Isolation
from aggregator.rounds.publisher import Publisher
from aggregator.rounds.run_driver import RunDriver
from aggregator.store.errors import DatabaseFullError
from edge_sdk.errors import Reason
from edge_sdk.link.transport import Message
from edge_sdk.protocol import envelope
from edge_sdk.protocol.messages import UpdateMessage


@dataclass(frozen=True, slots=True)
class RunDrivers:
    """Drivers of the runs, in the order of the configuration."""

    drivers: tuple[RunDriver, ...]  # one driver a run; at least one
    publisher: Publisher  # queue of replies

    def __iter__(self) -> Iterator[RunDriver]:
        return iter(self.drivers)

    def accept(self, admitted: IngressResult) -> None:
        """Apply the journalled entries of a message, then queue its replies.

        A membership change concerns the run that the device takes part in.
        """
        for driver in self.drivers:
            driver.append(entry for entry in admitted.entries if entry.run == driver.number)
        self.publisher.reply(admitted.answers)
        for driver in self.drivers:
            if admitted.signal is not None and admitted.run == driver.number:
                driver.receive_signal(admitted.signal)
            member = admitted.member
            if member is not None and driver.cohort.takes(member.client):
                driver.accept_member(member, is_greeting=admitted.greeted is not None)
            if admitted.rekeyed is not None:
                driver.announce_key(admitted.rekeyed)

    def wake(self) -> None:
        for driver in self.drivers:
            driver.wake()

    def report_closed(self) -> None:
        """Pass on the rounds that were closed since."""
        for driver in self.drivers:
            driver.report_closed()

    def forget_closed(self) -> None:
        """Forget the rounds that were closed since: their transaction was rolled back."""
        for driver in self.drivers:
            driver.forget_closed()

    def hurry(self, now: float) -> None:
        """Repeat open tasks soon, after the loss of the link and its queue."""
        for driver in self.drivers:
            driver.tasks.hurry(now)


class MessageProcessor:
    """Admits, journals, applies, saves and answers messages, in a transaction over store and memory."""

    def __init__(self, isolation: Isolation, driver: RunDrivers) -> None:
        self._isolation, self._driver = isolation, driver
        self._ingress, self._letters = isolation.ingress, isolation.letters
        self._store = isolation.store

    def process(self, message: Message) -> None:
        self._attempt(message, partial(self._handle, message))
        self._driver.report_closed()

    def process_together(self, messages: Sequence[Message]) -> None:
        """Process messages in one transaction; if it cannot be committed, each in its own."""
        if len(messages) > 1:
            if self._isolation.together(lambda: self._attempt_each(messages)):
                self._driver.report_closed()
                return
            self._driver.forget_closed()
        for message in messages:
            self.process(message)

    def _attempt_each(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._attempt(message, partial(self._handle, message))

    def _handle(self, message: Message) -> None:
        self._driver.accept(self._ingress.receive(message))

    def process_again(self, letter: Letter) -> None:
        """Process the message of a dead letter again; its number is no longer settled."""
        if letter.number is not None:
            self._store.ledgers.unsettle(letter.device, letter.number)
        message = Message(letter.topic, letter.payload)
        if letter.topic:
            self.process(message)
        elif letter.payload:
            body = _whole(letter)
            self._attempt(message, lambda: self._driver.accept(self._ingress.receive_body(body)))
            self._driver.report_closed()

    def _attempt(self, message: Message, action: Callable[[], None]) -> None:
        attempt, accept = self._isolation.attempt, self._driver.accept
        if self._letters.holds(message.topic, message.payload):
            attempt(lambda: accept(self._ingress.refuse_unseen(message.topic)))
            return
        self._ingress.at_hand = AtHand()
        try:
            error = attempt(action)
        except DatabaseFullError as full:
            self._isolation.note_full(full)
            attempt(lambda: accept(self._ingress.fail(Reason.NO_SPACE)))
            return
        if error is None:
            return
        self._isolation.set_aside(message, error)
        failed = attempt(lambda: accept(self._ingress.fail(Reason.INTERNAL)))
        if failed is not None:  # its number cannot be settled either
            self._ingress.at_hand = self._ingress.at_hand._replace(message=None)
            attempt(lambda: accept(self._ingress.fail(Reason.INTERNAL)))


def _whole(letter: Letter) -> envelope.Sealed:
    digest = envelope.digest(letter.payload)
    return envelope.Sealed(UpdateMessage.kind, letter.device, letter.payload, digest, letter.proof)
