"""Define the record's entry of a certificate, and find who holds one of another authority."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """An entry of the record.

    Attributes:
        serial: Serial number, hexadecimal.
        name: Common name.
        role: ``device``, ``aggregator``, ``broker``, ``est`` or ``claim``.
        issued: Time of issue, ISO 8601 in UTC.
        expires: End of its validity, likewise.
        revoked: Time of its revocation, likewise; empty if it is not revoked.
        issuer: Identifier of the authority's key; empty for one of before the record had it.
    """

    serial: str
    name: str
    role: str
    issued: str
    expires: str
    revoked: str = ""
    issuer: str = ""

    def is_valid(self, now: datetime) -> bool:
        """Return True if it is neither revoked nor expired."""
        return not self.revoked and now < datetime.fromisoformat(self.expires)


def newest(certificates: Iterable[IssuedCertificate]) -> dict[str, IssuedCertificate]:
    """Return the newest certificate of each name that is not revoked.

    Args:
        certificates: Certificates, oldest first.
    """
    return {one.name: one for one in certificates if not one.revoked}
