"""Store retained announcements, their serial numbers, and downloadable bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aggregator.store.dialect import Database, upsert
from aggregator.store.schema import fact, put_fact
from aggregator.store.types import DownloadBody

_SERIAL = "serial"  # fact: the highest serial ever reserved
_SERIALS = 256  # serials reserved at a time
_CONTENTS = 2  # bodies kept per kind and run for download: the current and the previous one


def retained(db: Database) -> dict[str, bytes]:
    """Return every retained topic and its signed payload."""
    return dict(db.execute("SELECT topic, payload FROM announcements ORDER BY topic").fetchall())


def get(db: Database, topic: str) -> bytes:
    """Return the signed payload of one retained topic; empty if it has none."""
    found = db.execute("SELECT payload FROM announcements WHERE topic = ?", (topic,)).fetchone()
    return bytes(found[0]) if found else b""


def save(db: Database, published: Mapping[str, bytes]) -> None:
    """Store published payloads by topic; an empty payload deletes one."""
    db.executemany(upsert("announcements", "topic", "payload"), list(published.items()))


def reserve(db: Database) -> range:
    """Reserve the next serials; a process that opens the file after a crash gets later ones.

    Example:
        >>> import sqlite3
        >>> from pathlib import Path
        >>> from aggregator.store.schema import prepare
        >>> db = sqlite3.connect(":memory:", isolation_level=None)
        >>> prepare(db, Path("fleet.db"))
        >>> reserve(db), reserve(db)
        (range(1, 257), range(257, 513))
    """
    first = fact(db, _SERIAL) + 1
    put_fact(db, _SERIAL, first + _SERIALS - 1)
    return range(first, first + _SERIALS)


def leap(db: Database, by: int) -> None:
    """Skip ``by`` serials."""
    put_fact(db, _SERIAL, fact(db, _SERIAL) + by)


def content(db: Database, ref: bytes) -> DownloadBody | None:
    """Return a downloadable body by the first 16 bytes of its digest."""
    found = db.execute("SELECT kind, id, body, chunk FROM contents WHERE id = ?", (ref,)).fetchone()
    return None if found is None else DownloadBody(*found)


def put_contents(db: Database, contents: Iterable[DownloadBody]) -> None:
    """Store bodies for download, and delete older ones of their kind that are not needed.

    The last two of a kind and a run are kept, and every one that an open task refers to.
    """
    for one in contents:
        if one.kind == "task":
            _put_task(db, one)
        else:
            _put_common(db, one)


def _put_common(db: Database, content: DownloadBody) -> None:
    rank = int(db.execute("SELECT coalesce(max(rank), 0) FROM contents").fetchone()[0]) + 1
    db.execute(
        upsert("contents", "id", "kind, rank, chunk, body"),
        (content.id, content.kind, rank, content.chunk, content.body),
    )
    db.execute(
        "INSERT INTO content_names VALUES (?, ?) ON CONFLICT DO NOTHING", (content.id, content.name)
    )
    db.execute(
        "DELETE FROM content_names WHERE name = ?"
        " AND id IN (SELECT id FROM contents WHERE kind = ?)"
        " AND id NOT IN (SELECT id FROM contents JOIN content_names USING (id)"
        " WHERE kind = ? AND name = ? ORDER BY rank DESC LIMIT ?)",
        (content.name, content.kind, content.kind, content.name, _CONTENTS),
    )
    db.execute(
        "DELETE FROM contents WHERE kind = ? AND id NOT IN (SELECT id FROM content_names)"
        " AND id NOT IN (SELECT content FROM tasks WHERE state = 'open')",
        (content.kind,),
    )


def _put_task(db: Database, content: DownloadBody) -> None:
    """Store one body for all tasks with the same content, while one of them is open."""
    db.execute(
        "INSERT INTO contents (id, kind, rank, chunk, body) VALUES (?, ?, 0, ?, ?)"
        " ON CONFLICT DO NOTHING",
        (content.id, content.kind, content.chunk, content.body),
    )
    db.execute(
        "DELETE FROM contents WHERE kind = 'task'"
        " AND id NOT IN (SELECT content FROM tasks WHERE state = 'open')"
    )
