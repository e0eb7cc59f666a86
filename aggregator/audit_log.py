"""Record acts in the transaction that carries them out."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from aggregator.store.audit_record import FIRST, AuditRecord, signed
from aggregator.store.store import Store
from edge_sdk.app.clock import SystemClock
from edge_sdk.protocol.keys import Signer

# way by which an act came: a command, the console, the certificate authority, the daemon by itself
Via = Literal["command", "console", "authority", "daemon"]
SHORT, LONG = 128, 1000  # most characters of an actor or subject, and of a reason or detail


@dataclass(frozen=True, slots=True)
class Initiator:
    """Person or program that began an act."""

    via: Via  # way by which it came
    actor: str  # name of the person or device
    order: str = ""  # id of the order; empty without one


DAEMON = Initiator("daemon", "daemon")  # the daemon, acting by itself


class AuditLog:
    """The audit log of an opened database.

    Args:
        signer: The aggregator's key, which signs each record.
        wall: Returns the time, Unix milliseconds.
    """

    def __init__(
        self, store: Store, fleet: str, signer: Signer, wall: Callable[[], int] | None = None
    ) -> None:
        self._store, self._fleet, self._signer = store, fleet, signer
        self._wall = wall or SystemClock().wall

    def record(
        self, by: Initiator, act: str, subject: str, *, reason: str = "", detail: str = ""
    ) -> AuditRecord:
        """Append a record. Call it in the transaction of the act: both are saved, or neither.

        >>> from edge_sdk.protocol.keys import SigningKey
        >>> from aggregator.store.opener import open_store
        >>> from tempfile import TemporaryDirectory
        >>> from pathlib import Path
        >>> with TemporaryDirectory() as folder, open_store(Path(folder) / "fleet.db") as store:
        ...     log = AuditLog(store, "north", SigningKey.from_seed(bytes(32)))
        ...     first = log.record(Initiator("command", "anna"), "revoke", "meter-1", reason="sold")
        ...     second = log.record(DAEMON, "quarantine", "meter-2")
        >>> second.number, second.previous == first.digest("north")
        (2, True)
        """
        last = self._store.audit_log.last()
        unsigned = AuditRecord(
            number=1 if last is None else last.number + 1,
            time=self._wall(),
            via=by.via,
            actor=_printable(by.actor, SHORT),
            act=act,
            subject=_printable(subject, SHORT),
            reason=_printable(reason, LONG),
            detail=_printable(detail, LONG),
            order=by.order,
            previous=FIRST if last is None else last.digest(self._fleet),
        )
        record = signed(unsigned, self._fleet, self._signer)
        self._store.audit_log.append(record)
        return record

    def has(self, order: str) -> bool:
        """Return whether an order has a record, so that it has been carried out."""
        return self._store.audit_log.has_order(order)


def login_name() -> str:
    """Return the name of the user of this process, or the number where the system has no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _printable(text: str, most: int) -> str:
    r"""Return a text with its unprintable characters replaced, cut to a length.

    >>> _printable("a\nb\x00", 10), _printable("abcdef", 4)
    ('a?b?', 'abc…')
    """
    clean = "".join(one if one.isprintable() else "?" for one in text[: most + 1])
    return clean if len(clean) <= most else f"{clean[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
