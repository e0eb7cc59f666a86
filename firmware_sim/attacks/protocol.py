"""Faults of the protocol: what a signed body may say wrongly, and what a link may do to a message.

Bodies are spoilt before they are numbered into the outbox and signed with the device's own key, so
that the aggregator has nothing but their content to judge them by. Links spoil what is on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edge_sdk.wire.contract.method import Array
from edge_sdk.wire.protocol.messages import UpdateMessage

FLOAT = 4  # bytes of a scalar as updates carry it

Sending = tuple[tuple[float, bytes], ...]
"""What becomes of one publish: payloads, each with the seconds it is held back."""


# --- bodies ---------------------------------------------------------------------------------------


def samples(update: UpdateMessage, *, claimed: int = 1_000_000_000) -> UpdateMessage:
    """Claim a number of training samples that nobody can check."""
    return replace(update, n=claimed)


def not_a_number(update: UpdateMessage) -> UpdateMessage:
    """Fill the vector with NaN."""
    return _filled(update, float("nan"))


def huge(update: UpdateMessage, *, value: float = 1e38) -> UpdateMessage:
    """Fill the vector with a number that float32 can just say, and its square cannot.

    >>> from edge_sdk.wire.protocol.messages import UpdateMessage
    >>> spec = bytes(16)
    >>> sent = UpdateMessage(1, 1, 0, 1, 1, 1, spec, "delta", "f4", 9, blob=bytes(8))
    >>> np.frombuffer(huge(sent).blob, "<f4").tolist() == [float(np.float32(1e38))] * 2
    True
    """
    return _filled(update, value)


def wrong_size(update: UpdateMessage, *, more: int = 1) -> UpdateMessage:
    """Send so many scalars more than the layout has; fewer, if negative."""
    size = max(len(update.blob) // FLOAT + more, 0)
    return replace(update, blob=update.blob[: size * FLOAT].ljust(size * FLOAT, b"\0"))


def wrong_version(update: UpdateMessage, *, ahead: int = 1) -> UpdateMessage:
    """Claim to have started from a version that does not exist yet; negative: from an old one."""
    return replace(update, base=max(update.base + ahead, 0))


def empty_vector(update: UpdateMessage) -> UpdateMessage:
    """Send the header and no vector."""
    return replace(update, blob=b"")


def _filled(update: UpdateMessage, value: float) -> UpdateMessage:
    return replace(update, blob=np.full(len(update.blob) // FLOAT, value, "<f4").tobytes())


# --- links ----------------------------------------------------------------------------------------


def delay(payload: bytes, rng: np.random.Generator, *, seconds: float = 5.0) -> Sending:  # noqa: ARG001 - one signature for all
    """Hold every upload back."""
    return ((seconds, payload),)


def drop(payload: bytes, rng: np.random.Generator, *, share: float = 0.5) -> Sending:
    """Lose that share of what is sent; the broker said that it had it.

    >>> drop(b"x", np.random.default_rng(0), share=1.0), drop(b"x", np.random.default_rng(0))
    ((), ((0.0, b'x'),))
    """
    return () if rng.random() < share else ((0.0, payload),)


def duplicate(payload: bytes, rng: np.random.Generator, *, copies: int = 2) -> Sending:  # noqa: ARG001 - as above
    """Send everything so often."""
    return ((0.0, payload),) * copies


def reorder(payload: bytes, rng: np.random.Generator, *, within: float = 3.0) -> Sending:
    """Hold every message back by a draw of its own: later ones overtake earlier ones."""
    return ((float(rng.uniform(0.0, within)), payload),)


def empty_payload(payload: bytes, rng: np.random.Generator) -> Sending:  # noqa: ARG001 - as above
    """Publish no bytes at all in place of the message."""
    return ((0.0, b""),)


# --- identities -----------------------------------------------------------------------------------


def twin(ids: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return, for every liar, the names of two processes that both claim its id and hold its key.

    >>> twin(["meter-1"])
    (('meter-1', 'meter-1-twin'),)
    """
    return tuple((name, f"{name}-twin") for name in ids)


# --- signals (split learning) ---------------------------------------------------------------------


def flip_signal(array: Array) -> Array:
    """Return the negative of what the device would have said for these activations."""
    return -array


def scale_signal(array: Array, *, factor: float = 10.0) -> Array:
    """Return a multiple of it, in its own dtype."""
    return (factor * array).astype(array.dtype)
