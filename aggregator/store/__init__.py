"""Everything the aggregator must not forget, in one SQLite file with one journal order.

``SqliteStore`` is the door: it alone begins and ends a transaction. Behind it are the file
(``file``, ``schema``) and what is written in it, a module for each concept: functions of a
connection, none of which knows another. What belongs together is said where the transaction is.
"""

from __future__ import annotations

from aggregator.store.errors import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreNewerError,
    is_about_values,
    is_from_database,
)
from aggregator.store.file import alone
from aggregator.store.sqlite import SqliteStore

__all__ = [
    "SqliteStore",
    "StoreBusyError",
    "StoreError",
    "StoreFullError",
    "StoreNewerError",
    "alone",
    "is_about_values",
    "is_from_database",
]
