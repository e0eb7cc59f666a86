"""Define a record of the audit log: its fields, the bytes that are signed, and the chain of digests.

Each record has the digest of the one before it, so a record cannot be changed, removed or moved without a
change of every later one, and each is signed, so only a holder of the aggregator's key can write them again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from edge_sdk.protocol.keys import Signer, kid_of

DIGEST_SIZE = 32
FIRST = bytes(DIGEST_SIZE)  # digest that the first record has in place of the one before it


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One act and who did it."""

    number: int  # number of the record, from 1, without gaps
    time: int  # time of the act by the aggregator's clock, Unix milliseconds
    via: str  # ``command``, ``console``, ``authority`` or ``daemon``
    actor: str  # name of the person, of the device, or ``daemon``
    act: str
    subject: str  # what it changed: a device, a run, a bundle, a key
    reason: str = ""  # reason as the actor gave it
    detail: str = ""  # what was changed, in words
    order: str = ""  # id of the order that caused it; empty without one
    previous: bytes = FIRST  # digest of the record before it (32 bytes)
    signer: bytes = b""  # id of the key that signed it (8 bytes)
    # Ed25519 signature of ``statement`` (64 bytes); empty before it is signed
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
    named = replace(record, signer=kid_of(signer.public), signature=b"")
    return replace(named, signature=signer.sign(named.statement(fleet)))


def canonical(fields: dict[str, Any]) -> str:
    r"""Return JSON in its only form here: sorted names, no spaces, ASCII.

    >>> canonical({"b": 1, "a": "é"})
    '{"a":"\\u00e9","b":1}'
    """
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))
