"""Persistent state of the aggregator, in one SQLite file with one ordered journal.

``SqliteStore`` is the interface, and alone begins and ends transactions. Behind it are the file
(``connection``, ``schema``) and one module per table group: functions of a connection, which do not
import each other. ``SqliteStore`` defines the writes that form one transaction.
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
