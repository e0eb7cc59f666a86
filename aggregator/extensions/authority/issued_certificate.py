"""Define the record's entry of a certificate, and find who holds one of another authority."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """An entry of the record."""

    serial: str
    name: str
    role: str  # ``device``, ``aggregator``, ``broker``, ``est`` or ``claim``
    issued: str  # time of issue, ISO 8601 in UTC
    expires: str  # end of its validity, likewise
    revoked: str = ""  # time of its revocation, likewise; empty if it is not revoked
    issuer: str = ""  # identifier of the authority's key; empty for one of before the record had it

    def is_valid(self, now: datetime) -> bool:
        return not self.revoked and now < datetime.fromisoformat(self.expires)


def newest(certificates: Iterable[IssuedCertificate]) -> dict[str, IssuedCertificate]:
    """Return the newest certificate of each name that is not revoked.

    Args:
        certificates: Certificates, oldest first.
    """
    return {one.name: one for one in certificates if not one.revoked}
