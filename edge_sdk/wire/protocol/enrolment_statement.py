"""Form the bytes by whose signature a device proves its key when it is enrolled."""

from __future__ import annotations

import hashlib
from typing import Final

CONTEXT: Final = b"gridfed/1/enrol\0"
NO_KEY: Final = bytes(32)
"""Placeholder for the sealing key of a device without one."""


SUCCESSION: Final = b"gridfed/1/succession\0"


def succession_statement(fleet: str, device: str, former: bytes, public: bytes) -> bytes:
    """Return the bytes that a device signs by its present key to name the key that follows it.

    Args:
        fleet: Id of the fleet.
        device: Id of the device.
        former: Raw public key that signs.
        public: Raw public key that follows it.

    Example:
        >>> len(succession_statement("north", "meter-1", bytes(32), bytes(33)))
        102
    """
    named = b"".join(
        bytes([len(raw)]) + raw for raw in (fleet.encode(), device.encode(), former, public)
    )
    return SUCCESSION + named


def enrolment_statement(
    fleet: str, device: str, public: bytes, open_: bytes = NO_KEY, request: bytes = b""
) -> bytes:
    """Return the bytes that a device signs to prove possession of its key.

    Args:
        fleet: Id of the fleet to join.
        device: Requested id.
        public: Raw public signing key: Ed25519 (32 bytes) or P-256 (33 bytes).
        open_: Raw public sealing key; 32 zero bytes without one.
        request: Public key of the certificate request (DER, SubjectPublicKeyInfo); empty without
            one.

    Example:
        >>> len(enrolment_statement("north", "meter-1", bytes(32)))
        126
    """
    named = b"".join(bytes([len(raw)]) + raw for raw in (fleet.encode(), device.encode()))
    return CONTEXT + named + public + open_ + hashlib.sha256(request).digest()
