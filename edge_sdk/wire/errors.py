"""Define the protocol's reasons with their stable numbers, and the wire's errors."""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """Reason for a receipt or a refusal. The numbers are part of the protocol and never change.

    Codes below 20 and from 40 on travel in a ``refusal`` (nothing was recorded, the sender may try
    again); 0 and 20 to 36 travel in a ``receipt`` (recorded, final). ``is_final`` distinguishes
    them. INTERNAL also travels in a ``refusal``, for errors without a number.
    """

    ACCEPTED = 0
    MALFORMED = 1
    UNKNOWN_WIRE = 2
    UNKNOWN_KIND = 3
    WRONG_SENDER = 4
    UNKNOWN_CLIENT = 5
    BAD_SIGNATURE = 6
    REVOKED = 7
    CANNOT_OPEN = 8
    TOO_LARGE = 9
    PLAIN_REFUSED = 10
    UNKNOWN_FIELD = 11
    CLOSED = 20
    FORK = 21
    TWICE_IN_ROUND = 22
    WRONG_RUN = 23
    TOO_STALE = 24
    FROM_FUTURE = 25
    WRONG_SPEC = 26
    WRONG_SIZE = 27
    NOT_FINITE = 28
    NORM_EXCEEDED = 29
    BAD_SCALAR = 30
    BUDGET_SPENT = 31
    WRONG_ENCODING = 32
    LATE = 33
    NOT_IN_COHORT = 34
    QUARANTINED = 35
    INTERNAL = 36
    BUSY = 40
    QUOTA = 41
    SAY_HELLO = 42
    PAUSED = 43
    NO_SPACE = 44
    NOT_FOUND = 60
    BAD_CHUNK = 61
    BAD_DIGEST = 62
    EXPIRED = 63
    SUPERSEDED = 64
    ABORTED = 65
    BAD_TENSOR = 66
    UPGRADE_REQUIRED = 80
    BAD_COMMAND = 81
    TWO_LIVES = 82
    ROLLBACK = 83
    UNUSABLE_LINK = 84
    NO_WINDOWS = 85
    LOG_FORK = 86
    NOT_LOGGED = 87
    ANNOUNCEMENT_EXPIRED = 88

    @property
    def is_final(self) -> bool:
        """Return whether this reason is final for a numbered entry (it travels in a receipt).

        >>> Reason.TOO_STALE.is_final, Reason.BUSY.is_final
        (True, False)
        """
        return self == 0 or 20 <= self < 40 or self == Reason.BAD_COMMAND


ABILITIES = frozenset(
    (
        Reason.UNKNOWN_KIND,  # the method is not accepted
        Reason.WRONG_ENCODING,  # no allowed encoding is one that the device writes
        Reason.PLAIN_REFUSED,  # messages would have to be encrypted
        Reason.UPGRADE_REQUIRED,  # the bundle's operators, or the device's site and privacy settings
        Reason.NO_WINDOWS,  # a channel that the bundle needs has no source
    )
)
"""Reasons for which a device cannot take part in a run; it declines the run with one of them."""


class WireError(Exception):
    """Base class of every error between two ends."""


class Refused(WireError):  # noqa: N818 - the protocol's own word, and the one the metric uses
    """An error: these bytes, or their content, are not accepted.

    Attributes:
        reason: The protocol's reason; also the metric's label.
        detail: Explanation for the operator; never sent to the peer.
    """

    def __init__(self, reason: Reason, detail: str = "") -> None:
        """Store the reason and its explanation."""
        super().__init__(f"{reason.name}{': ' if detail else ''}{detail}")
        self.reason = reason
        self.detail = detail


class LinkError(WireError):
    """An error: the broker could not be reached, or refused the connection."""


class SignerUnavailable(WireError):  # noqa: N818 - a state of the token rather than a fault in it
    """An error: the private key cannot be used now; the same call may succeed later."""


class TokenRefused(WireError):  # noqa: N818 - as above
    """An error: a key in a token that cannot be used until the operator has acted."""
