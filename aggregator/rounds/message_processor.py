"""Process messages in transactions; after a defect, set a message aside and refuse it.

Messages that arrive together share one commit. Each of them is a part of that transaction, which a
defect undoes alone. Replies and acknowledgements leave after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from aggregator.ingress.dead_letters import Letter
from aggregator.ingress.message_ingress import AtHand
from aggregator.rounds.message_isolation import Isolation
from aggregator.rounds.run_drivers import RunDrivers
from aggregator.store.errors import DatabaseFullError
from edge_sdk.wire.errors import Reason
from edge_sdk.wire.link.transport import Message
from edge_sdk.wire.protocol import envelope
from edge_sdk.wire.protocol.messages import UpdateMessage


class MessageProcessor:
    """Admits, journals, applies, saves and answers messages.

    Args:
        isolation: Transaction over store and memory, with the message ingress.
        driver: Drivers of the runs.
    """

    def __init__(self, isolation: Isolation, driver: RunDrivers) -> None:
        self._isolation, self._driver = isolation, driver
        self._ingress, self._letters = isolation.ingress, isolation.letters
        self._store = isolation.store

    def process(self, message: Message) -> None:
        """Process a message."""
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
            self._store.unsettle(letter.device, letter.number)
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
    """Return the complete body of a dead letter that was sent in chunks."""
    digest = envelope.digest(letter.payload)
    return envelope.Sealed(UpdateMessage.kind, letter.device, letter.payload, digest, letter.proof)
