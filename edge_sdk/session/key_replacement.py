"""Continue the replacement of the identity key over the link: hellos by the new key, and its adoption."""

from __future__ import annotations

from typing import Final

from edge_sdk.session.certificate_renewal import RenewableLink
from edge_sdk.session.parts import SessionParts
from edge_sdk.wire.protocol.messages import FloorMessage, WelcomeMessage

REPLACED: Final = "replaced identity key"
"""Reason of the reconnection after a replacement."""


def replace_key(parts: SessionParts, now: float) -> None:
    """Make the key that was ordered, and send the hello that is due for it.

    Args:
        parts: Parts of the session.
        now: Seconds of the monotonic clock.
    """
    identity, hello = parts.identity, parts.outbox.state.hello
    identity.advance(now)
    is_over = (
        identity.has_trial
        and hello is not None  # whose reference is computed for a trial only: it is a digest
        and identity.is_trial_over(hello.ref, hello.attempts)
    )
    if is_over or (parts.outbox.state.is_ready and identity.begin_trial(now)):
        parts.participation.follow(parts.outbox.propose_life())
    if identity.take_reconnection() and isinstance(parts.link.link, RenewableLink):
        parts.link.link.reconnect(REPLACED)


def receive_trial(parts: SessionParts, answer: WelcomeMessage | FloorMessage) -> None:
    """Use the new key from now on, if this welcomes a hello that it has signed."""
    if not parts.identity.is_trial(answer.hello):
        return
    if parts.outbox.is_welcome(answer):
        parts.identity.adopt()
        parts.outbox.sign_again()
    elif isinstance(answer, FloorMessage):
        parts.identity.try_next()
