"""Form the bytes by whose signatures a device proves its key, and that the key succeeds another."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from edge_sdk.protocol.envelope import named

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

    >>> len(enrolment_statement("north", "meter-1", bytes(32)))
    126
    """
    return CONTEXT + named(fleet, device) + public + open_ + hashlib.sha256(request).digest()


def succession_statement(fleet: str, device: str, public: bytes, request: bytes = b"") -> bytes:
    """Return the bytes that a device signs with its former key to enrol another one in its place.

    The arguments are those of ``enrolment_statement``; ``public`` is the new key.

    >>> len(succession_statement("north", "meter-1", bytes(32)))
    96
    """
    return SUCCESSION + named(fleet, device) + public + hashlib.sha256(request).digest()


COMMANDS: Final[Mapping[str, bool]] = MappingProxyType(
    {
        "stop": False,
        "resume": False,
        "reenrol": True,
        "report": False,
        "budget": False,
        "hello": False,
        "wipe": True,
    }
)
"""True for each command, by its name, that needs the statement of the root."""

COMMAND: Final = b"gridfed/1/command\0"


def command_statement(fleet: str, device: str, public: bytes, op: str, until: int) -> bytes:
    """Return the bytes that the root's keys sign to allow one command to one device.

    Args:
        public: Raw public identity key of the device: Ed25519 (32 bytes) or P-256 (33 bytes).
        until: Server time after which the statement is void, Unix milliseconds.

    >>> len(command_statement("north", "meter-1", bytes(32), "wipe", 1_800_000_000_000))
    77
    """
    return COMMAND + named(fleet, device, op) + public + until.to_bytes(8, "big")
