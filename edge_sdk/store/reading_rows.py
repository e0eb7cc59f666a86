"""Read and write the rows of readings."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

import numpy as np

from edge_sdk.forecasting.series import SeriesColumn, SeriesRow

_BATCH = 4096  # rows read at a time


def write_readings(db: sqlite3.Connection, rows: Iterable[SeriesRow]) -> None:
    """Write readings; the last write of a slot wins."""
    db.executemany("INSERT OR REPLACE INTO readings VALUES (?, ?, ?, ?)", rows)


def drop_readings(db: sqlite3.Connection, before: int) -> bool:
    """Drop the readings before a slot, and the noise on them; return whether there was noise."""
    db.execute("DELETE FROM readings WHERE slot < ?", (before,))
    return db.execute("DELETE FROM noised WHERE slot < ?", (before,)).rowcount > 0


def read_readings(db: sqlite3.Connection) -> Iterator[SeriesRow]:
    """Return the readings in order of time."""
    rows = db.execute("SELECT stream, slot, value, flags FROM readings ORDER BY slot")
    return (SeriesRow(*row) for row in rows)


def read_columns(db: sqlite3.Connection, streams: Iterable[str]) -> Iterator[SeriesColumn]:
    """Return the readings of streams in pieces: one stream after the other, each in order of time."""
    query = "SELECT slot, value FROM readings WHERE stream = ? ORDER BY slot"
    for stream in streams:
        rows = db.execute(query, (stream,))
        while batch := rows.fetchmany(_BATCH):
            slots, values = zip(*batch, strict=True)
            yield SeriesColumn(stream, np.array(slots, np.int64), np.array(values, np.float64))


def count_readings(db: sqlite3.Connection) -> int:
    """Return the number of stored readings."""
    return int(db.execute("SELECT count(*) FROM readings").fetchone()[0])


def span_readings(db: sqlite3.Connection) -> tuple[int, int] | None:
    """Return the oldest and the newest stored slot; None without any."""
    oldest, newest = db.execute("SELECT min(slot), max(slot) FROM readings").fetchone()
    return None if oldest is None else (int(oldest), int(newest))
