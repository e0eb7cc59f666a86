"""Everything the aggregator must not forget, in one SQLite file with one journal order.

``SqliteStore`` is the door: it alone begins and ends a transaction. Behind it are the file
(``file``, ``schema``) and what is written in it, a module for each concept: functions of a
connection, none of which knows another. What belongs together is said where the transaction is.
"""

from __future__ import annotations

from aggregator.store.connection import alone
from aggregator.store.errors import (
    DatabaseBusyError,
    DatabaseError,
    DatabaseFullError,
    DatabaseNewerError,
    is_about_values,
    is_from_database,
)
from aggregator.store.sqlite import SqliteStore

__all__ = [
    "DatabaseBusyError",
    "DatabaseError",
    "DatabaseFullError",
    "DatabaseNewerError",
    "SqliteStore",
    "alone",
    "is_about_values",
    "is_from_database",
]
