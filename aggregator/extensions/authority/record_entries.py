"""Define the entries of an authority's record: certificates, acts for the audit log, reasons of refusals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """An entry of the record."""

    serial: str
    name: str
    role: str  # ``device``, ``aggregator``, ``broker`` or ``est``
    issued: str  # time of issue, ISO 8601 in UTC
    expires: str  # end of its validity, likewise
    revoked: str = ""  # time of its revocation, likewise; empty if it is not revoked
    issuer: str = ""  # identifier of the authority's key; empty for one of before the record had it

    def is_valid(self, now: datetime) -> bool:
        return not self.revoked and now < datetime.fromisoformat(self.expires)


def newest(certificates: Iterable[IssuedCertificate]) -> dict[str, IssuedCertificate]:
    """Return the newest certificate of each name that is not revoked, of some that are oldest first."""
    return {one.name: one for one in certificates if not one.revoked}


# since schema 2: acts that the aggregator's audit log has yet to receive
ACTS_TABLE = """
    CREATE TABLE IF NOT EXISTS acts (
        position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, at TEXT NOT NULL,
        actor TEXT NOT NULL, act TEXT NOT NULL, subject TEXT NOT NULL, detail TEXT NOT NULL);
    """


@dataclass(frozen=True, slots=True)
class AuthorityAct:
    """An act for the aggregator's audit log."""

    id: str  # random id, by which the log takes it once
    at: str  # time, ISO 8601 in UTC
    actor: str  # person or device
    act: str
    subject: str  # name of a certificate, or a serial
    detail: str  # description of the change


# reasons of refusals; each is counted
RefusalReason = Literal[
    "bad request",
    "no credentials",
    "unlisted serial",
    "wrong password",
    "password expired",
    "used twice",
    "foreign common name",
    "identity not proved",
    "identity in use",
    "foreign identity",
    "not a member",
    "revoked",
    "expired past grace",
    "forged authority",
]

# reasons that are answered with HTTP 401; the others with 403, or 400 for a bad request
UNAUTHENTICATED: Final = ("no credentials", "unlisted serial", "wrong password", "password expired")


class RefusedError(Exception):
    """A refused request.

    Attributes:
        reason: One of ``RefusalReason``.
        about: Name or serial of the device, as far as known; it is not authenticated.
        is_pending: True if an operator may approve the device, which should ask again.
    """

    def __init__(self, reason: RefusalReason, about: str, *, is_pending: bool = False) -> None:
        super().__init__(f"{reason}: {about}")
        self.reason: RefusalReason = reason
        self.about, self.is_pending = about, is_pending
