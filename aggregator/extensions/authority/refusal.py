"""Define why a request for a certificate is refused."""

from __future__ import annotations

from typing import Final, Literal

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
