"""Form the bytes by whose signatures a device proves its key, and that the key succeeds another."""

from __future__ import annotations

import hashlib
from typing import Final

CONTEXT: Final = b"gridfed/1/enrol\0"
SUCCESSION: Final = b"gridfed/1/reenrol\0"
NO_KEY: Final = bytes(32)
"""Placeholder for the sealing key of a device without one."""


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
    return CONTEXT + _named(fleet, device) + public + open_ + hashlib.sha256(request).digest()


def succession_statement(fleet: str, device: str, public: bytes, request: bytes = b"") -> bytes:
    """Return the bytes that a device signs with its former key to enrol another one in its place.

    The arguments are those of ``enrolment_statement``; ``public`` is the new key.

    Example:
        >>> len(succession_statement("north", "meter-1", bytes(32)))
        96
    """
    return SUCCESSION + _named(fleet, device) + public + hashlib.sha256(request).digest()


def _named(fleet: str, device: str) -> bytes:
    return b"".join(bytes([len(raw)]) + raw for raw in (fleet.encode(), device.encode()))
