"""Define the errors of the SDK, the exit codes of the programs, and the protocol's numbered reasons.

    Exception
    ├── Failure              a sentence for the operator, with a hint and an exit code
    │   └── EdgeError        raised by the device SDK on purpose
    │       ├── ConfigError
    │       └── StoreError
    │           ├── StoreFull
    │           ├── StoreNewer
    │           └── StoreBusy
    └── WireError            between two ends
        ├── Refused          bytes or content that are not accepted, with a Reason
        ├── LinkError
        ├── SignerUnavailable
        └── TokenRefused

Classes below EdgeError and WireError that one module raises stand in that module.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

OK, RUNTIME, USAGE, MIGRATION, TEMPORARY = 0, 1, 2, 3, 75
"""Exit codes: success; failure; wrong usage or configuration; state needs migration; retry."""


class Failure(Exception):  # noqa: N818 - base of every program's own errors
    """An error for the operator: one sentence, a hint where there is a remedy, an exit code."""

    exit_code: ClassVar[int] = RUNTIME

    def __init__(self, sentence: str, *, hint: str = "") -> None:
        super().__init__(sentence)
        self.hint = hint


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
    ROOT_REQUIRED = 89
    DECLINED_BY_OWNER = 90

    @property
    def is_final(self) -> bool:
        """Return whether this reason is final for a numbered entry (it travels in a receipt).

        >>> Reason.TOO_STALE.is_final, Reason.BUSY.is_final
        (True, False)
        """
        return self == 0 or 20 <= self < 40 or self in _OF_COMMANDS


_OF_COMMANDS = frozenset((Reason.BAD_COMMAND, Reason.ROOT_REQUIRED, Reason.DECLINED_BY_OWNER))

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
    """An error: these bytes, or their content, are not accepted."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.name}{': ' if detail else ''}{detail}")
        self.reason = reason  # the protocol's reason; also the metric's label
        self.detail = detail  # Explanation for the operator; never sent to the peer


class LinkError(WireError):
    """An error: the broker could not be reached, or refused the connection."""


class SignerUnavailable(WireError):  # noqa: N818 - a state of the token rather than a fault in it
    """An error: the private key cannot be used now; the same call may succeed later."""


class TokenRefused(WireError):  # noqa: N818 - as above
    """An error: a key in a token that cannot be used until the operator has acted."""


class EdgeError(Failure):
    """Base of every error that the device SDK raises on purpose.

    Attributes:
        hint: Remedy for the operator, or empty.
        exit_code: Exit code of a command that fails with this error.
    """


class ConfigError(EdgeError):
    """Invalid configuration, key, or other file written by the operator."""

    exit_code = 2


class StoreError(EdgeError):
    """Error while reading or writing the store; the failed attempt lost nothing."""


class StoreFull(StoreError):  # noqa: N818 - what an operator calls it
    """No disk space left. The outbox is kept; nothing new is released."""


class StoreNewer(StoreError):  # noqa: N818 - a state of the file rather than a fault in it
    """Store written by a newer version of this software."""

    exit_code = 3


class StoreBusy(StoreError):  # noqa: N818 - as StoreNewer
    """Store held by another process."""

    exit_code = 75
