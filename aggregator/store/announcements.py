"""Store retained announcements, their serial numbers, and downloadable bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aggregator.store.dialect import upsert
from aggregator.store.schema import fact, put_fact
from aggregator.store.transactions import Table, Transactions
from aggregator.store.types import DownloadBody

_SERIAL = "serial"  # fact: the highest serial ever reserved
_SERIALS = 256  # serials reserved at a time
_CONTENTS = 2  # bodies kept per kind and run for download: the current and the previous one


class RetainedAnnouncements(Table):
    """Retained announcements, and the serial numbers of all that is signed."""

    def __init__(self, transactions: Transactions) -> None:
        super().__init__(transactions)
        self._serials = iter(range(0))
        transactions.on_rollback.append(self._forget)

    def all(self) -> dict[str, bytes]:
        return dict(
            self._db.execute("SELECT topic, payload FROM announcements ORDER BY topic").fetchall()
        )

    def get(self, topic: str) -> bytes:
        """Return the signed payload of one retained topic; empty if it has none."""
        found = self._db.execute(
            "SELECT payload FROM announcements WHERE topic = ?", (topic,)
        ).fetchone()
        return bytes(found[0]) if found else b""

    def save(self, published: Mapping[str, bytes]) -> None:
        """Store published payloads by topic; an empty payload deletes one."""
        with self._writing() as db:
            db.executemany(upsert("announcements", "topic", "payload"), list(published.items()))

    def next_serial(self) -> int:
        """Return the next serial; serials always increase, with gaps.

        Many are reserved at once: a process that opens the database after a crash gets later ones.

        >>> from aggregator.store.sqlite import in_memory
        >>> store = in_memory()
        >>> store.announcements.next_serial(), store.announcements.next_serial()
        (1, 2)
        >>> RetainedAnnouncements(store.transactions).next_serial()
        257
        """
        serial = next(self._serials, None)
        if serial is None:
            with self._writing() as db:
                first = fact(db, _SERIAL) + 1
                put_fact(db, _SERIAL, first + _SERIALS - 1)
            self._serials = iter(range(first, first + _SERIALS))
            serial = next(self._serials)
        return serial

    def leap(self, by: int) -> None:
        """Skip ``by`` serials."""
        with self._writing() as db:
            put_fact(db, _SERIAL, fact(db, _SERIAL) + by)
        self._forget()

    def _forget(self) -> None:
        self._serials = iter(range(0))


class Contents(Table):
    """Downloadable bodies."""

    def get(self, ref: bytes) -> DownloadBody | None:
        """Return a downloadable body by the first 16 bytes of its digest."""
        found = self._db.execute(
            "SELECT kind, id, body, chunk FROM contents WHERE id = ?", (ref,)
        ).fetchone()
        return None if found is None else DownloadBody(*found)

    def save(self, contents: Iterable[DownloadBody]) -> None:
        """Store bodies for download, and delete older ones of their kind that are not needed.

        The last two of a kind and a run are kept, and every one that an open task refers to.
        """
        with self._writing():
            for one in contents:
                if one.kind == "task":
                    self._put_task(one)
                else:
                    self._put_common(one)

    def _put_common(self, content: DownloadBody) -> None:
        rank = (
            int(self._db.execute("SELECT coalesce(max(rank), 0) FROM contents").fetchone()[0]) + 1
        )
        self._db.execute(
            upsert("contents", "id", "kind, rank, chunk, body"),
            (content.id, content.kind, rank, content.chunk, content.body),
        )
        self._db.execute(
            "INSERT INTO content_names VALUES (?, ?) ON CONFLICT DO NOTHING",
            (content.id, content.name),
        )
        self._db.execute(
            "DELETE FROM content_names WHERE name = ?"
            " AND id IN (SELECT id FROM contents WHERE kind = ?)"
            " AND id NOT IN (SELECT id FROM contents JOIN content_names USING (id)"
            " WHERE kind = ? AND name = ? ORDER BY rank DESC LIMIT ?)",
            (content.name, content.kind, content.kind, content.name, _CONTENTS),
        )
        self._db.execute(
            "DELETE FROM contents WHERE kind = ? AND id NOT IN (SELECT id FROM content_names)"
            " AND id NOT IN (SELECT content FROM tasks WHERE state = 'open')",
            (content.kind,),
        )

    def _put_task(self, content: DownloadBody) -> None:
        """Store one body for all tasks with the same content, while one of them is open."""
        self._db.execute(
            "INSERT INTO contents (id, kind, rank, chunk, body) VALUES (?, ?, 0, ?, ?)"
            " ON CONFLICT DO NOTHING",
            (content.id, content.kind, content.chunk, content.body),
        )
        self._db.execute(
            "DELETE FROM contents WHERE kind = 'task'"
            " AND id NOT IN (SELECT content FROM tasks WHERE state = 'open')"
        )
