"""Faults of the protocol: invalid content of signed bodies, and changes on a link.

Bodies are changed before they are numbered into the outbox and signed with the device's own key, so
that the aggregator can refuse them by their content only. Links change messages on their way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edge_sdk.protocol.contract.method import Array
from edge_sdk.protocol.messages import UpdateMessage

FLOAT = 4  # bytes of a scalar as updates carry it

# result of one publish: payloads, each with its delay in seconds
Sending = tuple[tuple[float, bytes], ...]


# --- bodies ---------------------------------------------------------------------------------------


def samples(update: UpdateMessage, *, claimed: int = 1_000_000_000) -> UpdateMessage:
    """Claim a number of training samples, which cannot be verified."""
    return replace(update, n=claimed)


def not_a_number(update: UpdateMessage) -> UpdateMessage:
    """Fill the vector with NaN."""
    return _filled(update, float("nan"))


def huge(update: UpdateMessage, *, value: float = 1e38) -> UpdateMessage:
    """Fill the vector with a number that is in float32's range while its square is not.

    >>> from edge_sdk.protocol.messages import UpdateMessage
    >>> spec = bytes(16)
    >>> sent = UpdateMessage(1, 1, 0, 1, 1, 1, spec, "delta", "f4", 9, blob=bytes(8))
    >>> np.frombuffer(huge(sent).blob, "<f4").tolist() == [float(np.float32(1e38))] * 2
    True
    """
    return _filled(update, value)


def wrong_size(update: UpdateMessage, *, more: int = 1) -> UpdateMessage:
    """Send ``more`` scalars more than the layout has; fewer, if negative."""
    size = max(len(update.blob) // FLOAT + more, 0)
    return replace(update, blob=update.blob[: size * FLOAT].ljust(size * FLOAT, b"\0"))


def wrong_version(update: UpdateMessage, *, ahead: int = 1) -> UpdateMessage:
    """Claim a start from a version that does not exist yet; negative: from an old one."""
    return replace(update, base=max(update.base + ahead, 0))


def empty_vector(update: UpdateMessage) -> UpdateMessage:
    """Send the header and no vector."""
    return replace(update, blob=b"")


def _filled(update: UpdateMessage, value: float) -> UpdateMessage:
    return replace(update, blob=np.full(len(update.blob) // FLOAT, value, "<f4").tobytes())


# --- links ----------------------------------------------------------------------------------------


def delay(payload: bytes, rng: np.random.Generator, *, seconds: float = 5.0) -> Sending:  # noqa: ARG001 - one signature for all
    """Delay every upload."""
    return ((seconds, payload),)


def drop(payload: bytes, rng: np.random.Generator, *, share: float = 0.5) -> Sending:
    """Lose a fraction of the messages after the broker has acknowledged them.

    >>> drop(b"x", np.random.default_rng(0), share=1.0), drop(b"x", np.random.default_rng(0))
    ((), ((0.0, b'x'),))
    """
    return () if rng.random() < share else ((0.0, payload),)


def duplicate(payload: bytes, rng: np.random.Generator, *, copies: int = 2) -> Sending:  # noqa: ARG001 - as above
    """Send every message ``copies`` times."""
    return ((0.0, payload),) * copies


def reorder(payload: bytes, rng: np.random.Generator, *, within: float = 3.0) -> Sending:
    """Delay every message by its own draw: later ones overtake earlier ones."""
    return ((float(rng.uniform(0.0, within)), payload),)


def empty_payload(payload: bytes, rng: np.random.Generator) -> Sending:  # noqa: ARG001 - as above
    """Publish an empty payload in place of the message."""
    return ((0.0, b""),)


# --- identities -----------------------------------------------------------------------------------


def twin(ids: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return, for every Byzantine device, two process names that claim its id and hold its key.

    >>> twin(["meter-1"])
    (('meter-1', 'meter-1-twin'),)
    """
    return tuple((name, f"{name}-twin") for name in ids)


# --- signals (split learning) ---------------------------------------------------------------------


def flip_signal(array: Array) -> Array:
    """Return the signal with the opposite sign."""
    return -array


def scale_signal(array: Array, *, factor: float = 10.0) -> Array:
    """Return the signal times a factor."""
    return (factor * array).astype(array.dtype)
