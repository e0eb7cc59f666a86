"""Store the audit log. Rows are only ever inserted; the database refuses a second record of a number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from aggregator.store.audit_record import AuditRecord
from aggregator.store.dialect import has_table
from aggregator.store.transactions import Table

_COLUMNS = (
    "number, time, via, actor, act, subject, reason, detail, order_id, previous, signer, signature"
)


class AuditRecords(Table):
    """Records of the audit log; rows are only ever inserted."""

    def last(self) -> AuditRecord | None:
        """Return the newest record."""
        if not has_table(self._db, "audit_records"):
            return None
        row = self._db.execute(
            f"SELECT {_COLUMNS} FROM audit_records ORDER BY number DESC LIMIT 1"  # noqa: S608 - a constant
        ).fetchone()
        return None if row is None else _record(row)

    def append(self, record: AuditRecord) -> None:
        """Insert a record.

        >>> from aggregator.store.sqlite import in_memory
        >>> log = in_memory().audit_log
        >>> log.append(AuditRecord(1, 0, "command", "anna", "revoke", "meter-1", order="a1"))
        >>> log.last().subject, log.has_order("a1"), log.has_order("")
        ('meter-1', True, False)
        """
        with self._writing() as db:
            db.execute(
                f"INSERT INTO audit_records ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - a constant
                (
                    *(
                        record.number,
                        record.time,
                        record.via,
                        record.actor,
                        record.act,
                        record.subject,
                    ),
                    *(record.reason, record.detail, record.order),
                    *(record.previous, record.signer, record.signature),
                ),
            )

    def records(self, first: int = 1) -> Iterator[AuditRecord]:
        """Return the records from a number on, in order."""
        if not has_table(self._db, "audit_records"):
            return
        found = self._db.execute(
            f"SELECT {_COLUMNS} FROM audit_records WHERE number >= ? ORDER BY number",  # noqa: S608 - a constant
            (first,),
        )
        for row in found:
            yield _record(row)

    def has_order(self, order: str) -> bool:
        """Return whether an order has a record."""
        if not order or not has_table(self._db, "audit_records"):
            return False
        found = self._db.execute(
            "SELECT 1 FROM audit_records WHERE order_id = ? AND order_id <> '' LIMIT 1", (order,)
        )
        return found.fetchone() is not None


def _record(row: Sequence[Any]) -> AuditRecord:
    number, time, via, actor, act, subject, reason, detail, order = row[:9]
    previous, signer, signature = (bytes(one) for one in row[9:])
    return AuditRecord(
        number, time, via, actor, act, subject, reason, detail, order, previous, signer, signature
    )
