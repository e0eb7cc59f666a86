"""Open the configured database. No other module names the implementation of ``types.Store``."""

from __future__ import annotations

from pathlib import Path

from aggregator.store.connection import alone
from aggregator.store.overview import StoreOverview
from aggregator.store.sqlite import SqliteStore
from aggregator.store.types import Store

__all__ = ["alone", "open_overview", "open_store"]


def open_store(path: Path, *, read_only: bool = False) -> Store:
    """Open a database; create it and its folder if missing.

    Args:
        path: The database file.
        read_only: Read only, beside a running daemon; take no lock and create nothing.

    Raises:
        DatabaseBusyError: Another process holds it.
        DatabaseNewerError: A newer version wrote it.
        DatabaseError: It is no aggregator database, or cannot be opened.
    """
    return SqliteStore.open(path, read_only=read_only)


def open_overview(path: Path) -> StoreOverview:
    """Open a database for an operator's pages: read-only, beside a running daemon.

    Raises:
        DatabaseError: It is no aggregator database, or cannot be opened.
    """
    return StoreOverview.open(path)
