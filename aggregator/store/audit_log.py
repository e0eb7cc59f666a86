"""Store the audit log. Rows are only ever inserted; the database refuses a second record of a number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from aggregator.store.audit_record import AuditRecord
from aggregator.store.dialect import Database
from aggregator.store.schema import has_audit_log

_COLUMNS = (
    "number, time, via, actor, act, subject, reason, detail, order_id, previous, signer, signature"
)


def last(db: Database) -> AuditRecord | None:
    """Return the newest record."""
    if not has_audit_log(db):
        return None
    row = db.execute(
        f"SELECT {_COLUMNS} FROM audit_records ORDER BY number DESC LIMIT 1"  # noqa: S608 - a constant
    ).fetchone()
    return None if row is None else _record(row)


def append(db: Database, record: AuditRecord) -> None:
    """Insert a record.

    Example:
        >>> import sqlite3
        >>> from pathlib import Path
        >>> from aggregator.store.schema import prepare
        >>> db = sqlite3.connect(":memory:", isolation_level=None)
        >>> prepare(db, Path("fleet.db"))
        >>> append(db, AuditRecord(1, 0, "command", "anna", "revoke", "meter-1", order="a1"))
        >>> last(db).subject, has_order(db, "a1"), has_order(db, "")
        ('meter-1', True, False)
    """
    db.execute(
        f"INSERT INTO audit_records ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - a constant
        (
            *(record.number, record.time, record.via, record.actor, record.act, record.subject),
            *(record.reason, record.detail, record.order),
            *(record.previous, record.signer, record.signature),
        ),
    )


def records(db: Database, first: int = 1) -> Iterator[AuditRecord]:
    """Return the records from a number on, in order."""
    if not has_audit_log(db):
        return
    found = db.execute(
        f"SELECT {_COLUMNS} FROM audit_records WHERE number >= ? ORDER BY number",  # noqa: S608 - a constant
        (first,),
    )
    for row in found:
        yield _record(row)


def has_order(db: Database, order: str) -> bool:
    """Return whether an order has a record."""
    if not order or not has_audit_log(db):
        return False
    found = db.execute(
        "SELECT 1 FROM audit_records WHERE order_id = ? AND order_id <> '' LIMIT 1", (order,)
    )
    return found.fetchone() is not None


def _record(row: Sequence[Any]) -> AuditRecord:
    number, time, via, actor, act, subject, reason, detail, order = row[:9]
    previous, signer, signature = (bytes(one) for one in row[9:])
    return AuditRecord(
        number, time, via, actor, act, subject, reason, detail, order, previous, signer, signature
    )
