"""Define a record of the audit log: its fields, the bytes that are signed, and the chain of digests.

Each record has the digest of the one before it, so a record cannot be changed, removed or moved without a
change of every later one, and each is signed, so only a holder of the aggregator's key can write them anew.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from edge_sdk.wire.keys import Signer, kid_of

DIGEST_SIZE = 32
FIRST = bytes(DIGEST_SIZE)
"""Digest that the first record has in place of the one before it."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One act and who did it.

    Attributes:
        number: Number of the record, from 1, without gaps.
        time: Time of the act by the aggregator's clock, Unix milliseconds.
        via: ``command``, ``console``, ``authority`` or ``daemon``.
        actor: Name of the person, of the device, or ``daemon``.
        act: Name of the act.
        subject: What it changed: a device, a run, a bundle, a key.
        reason: Reason as the actor gave it.
        detail: What was changed, in words.
        order: Id of the order that caused it; empty without one.
        previous: Digest of the record before it (32 bytes).
        signer: Id of the key that signed it (8 bytes).
        signature: Ed25519 signature of ``statement`` (64 bytes); empty before it is signed.
    """

    number: int
    time: int
    via: str
    actor: str
    act: str
    subject: str
    reason: str = ""
    detail: str = ""
    order: str = ""
    previous: bytes = FIRST
    signer: bytes = b""
    signature: bytes = b""

    def statement(self, fleet: str) -> bytes:
        r"""Return the bytes that are signed: a line that names the format and the fleet, then JSON.

        >>> AuditRecord(1, 0, "daemon", "daemon", "halt", "north").statement("north")[:41]
        b'gridfed audit record/1 north\n{"act":"halt'
        """
        fields = self.fields()
        del fields["signature"]
        return f"gridfed audit record/1 {fleet}\n{canonical(fields)}".encode()

    def digest(self, fleet: str) -> bytes:
        """Return the SHA-256 of its statement and signature, which the next record has."""
        return hashlib.sha256(self.statement(fleet) + b"\n" + self.signature).digest()

    def fields(self) -> dict[str, Any]:
        """Return all fields, bytes in hexadecimal digits."""
        found = asdict(self)
        return {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in found.items()
        }


def signed(record: AuditRecord, fleet: str, signer: Signer) -> AuditRecord:
    """Return a record with its signature."""
    named = replace(record, signer=kid_of(signer.public), signature=b"")
    return replace(named, signature=signer.sign(named.statement(fleet)))


def canonical(fields: dict[str, Any]) -> str:
    r"""Return JSON in its only form here: sorted names, no spaces, ASCII.

    >>> canonical({"b": 1, "a": "é"})
    '{"a":"\\u00e9","b":1}'
    """
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))
