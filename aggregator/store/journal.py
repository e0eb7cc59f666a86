"""Store the journal: the events of all runs, in order, under increasing positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from aggregator.store.dialect import dialect_of, has_table, last_position
from aggregator.store.ledgers import Key
from aggregator.store.schema import fact, put_fact
from aggregator.store.transactions import Table
from aggregator.store.types import Applied, JournalEntry, Pruned, Timer
from edge_sdk.protocol.codec import Leaf, pack_leaves, unpack_leaves, vector_digest
from edge_sdk.protocol.contract import method


def pack_event(event: method.Event) -> tuple[bytes, bytes | None]:
    """Encode an event for the journal; return its facts, and its vector separately."""
    facts, vector = _facts(event)
    return pack_leaves(facts), vector


def unpack_event(
    kind: str, device: str | None, facts: bytes, vector: bytes | None
) -> method.Event | None:
    """Decode a journalled event bit for bit; return None if its vector was pruned."""
    return _event(kind, device, unpack_leaves(facts), vector)


def _facts(event: method.Event) -> tuple[dict[str, Leaf], bytes | None]:
    if isinstance(event, method.Update):
        vector = np.ascontiguousarray(event.vector)
        dtype = vector.dtype.newbyteorder("<")
        values = {name: float(value) for name, value in event.values.items()}
        facts = {"round": event.round, "base": event.base, "values": values, "dtype": dtype.str}
        if event.check:
            facts["check"] = event.check
        return facts, vector.astype(dtype).tobytes()
    if isinstance(event, method.Due):
        return {
            "round": event.round,
            "ask": event.ask,
            "step": event.step,
            "after": event.after,
        }, None
    if isinstance(event, method.Member):
        return {"client": event.client, "present": event.present}, None
    if isinstance(event, method.Played):
        facts = {"round": event.round, "attempt": event.attempt, "record": event.record}
        facts["values"] = {name: float(value) for name, value in event.values.items()}
        return facts, pack_leaves(dict(event.arrays))
    if isinstance(event, method.Unlearned):
        return {"client": event.client}, None
    if isinstance(event, method.ParentModel):
        names = ("run", "number", "attempt", "step", "version", "is_last")
        arrays = {"vector": event.vector, "carry": event.carry}
        return {name: getattr(event, name) for name in names}, pack_leaves(arrays)
    raise TypeError(f"a {type(event).__name__} is never journalled")


# events without a vector, by kind
_PLAIN: Mapping[str, Callable[..., method.Event]] = {
    "due": method.Due,
    "member": method.Member,
    "unlearned": method.Unlearned,
}


def _event(
    kind: str, device: str | None, facts: Mapping[str, Leaf], vector: bytes | None
) -> method.Event | None:
    if (plain := _PLAIN.get(kind)) is not None:
        return plain(**facts)
    if vector is None:
        return None
    if kind == "parent":
        return method.ParentModel(**unpack_leaves(vector), **facts)
    if kind == "played":
        return method.Played(arrays=unpack_leaves(vector), **facts)
    return method.Update(
        sender=device or "",
        round=facts["round"],
        base=facts["base"],
        vector=np.frombuffer(vector, np.dtype(facts["dtype"])),
        values=facts["values"],
        check=facts.get("check", b""),
    )


def pack_timers(timers: Sequence[Timer]) -> bytes:
    """Encode timers for the store."""
    return pack_leaves(
        {"timers": [[t.due.round, t.due.ask, t.due.step, t.due.after, t.at] for t in timers]}
    )


def unpack_timers(data: bytes) -> tuple[Timer, ...]:
    """Decode stored timers."""
    return tuple(
        Timer(method.Due(number, ask, step, after), at)
        for number, ask, step, after, at in unpack_leaves(data)["timers"]
    )


NONE_HELD: Mapping[int, int] = MappingProxyType({})
_PAGE = 64  # events read at a time, so that memory does not grow with the journal
_BARE = "bare"  # fact: position up to which no event has a vector
_TURN_OF = "pruned round of"  # fact, by run: the highest round with deleted updates
_ROUND = "pruned run"  # fact of schema 3: the newest run with deleted updates
_TURN = "pruned round"  # fact of schema 3: the highest round among those updates

_KINDS: dict[type[Any], str] = {
    method.Due: "due",
    method.Member: "member",
    method.ParentModel: "parent",
    method.Played: "played",
    method.Unlearned: "unlearned",
}


class Journal(Table):
    """Events of all runs, in order, under increasing positions."""

    def append(self, run: int, event: method.Event) -> JournalEntry:
        """Append an event that is no update.

        >>> from aggregator.store.sqlite import in_memory
        >>> journal = in_memory().journal
        >>> events = [method.Due(0, "open"), method.Member("meter-1", present=True)]
        >>> [journal.append(run, event).position for run, event in zip((1, 2), events)]
        [1, 2]
        >>> [entry.event == events[1] for entry in journal.entries(run=2)]
        [True]
        """
        with self._writing():
            return self._write(_KINDS[type(event)], run, event)

    def put_update(
        self, run: int, update: method.Update, *, device: str, key: Key
    ) -> JournalEntry | None:
        """Append an update under its number; return None if the device has one in that round (A4)."""
        with self._writing() as db:
            taken = db.execute(
                "SELECT 1 FROM journal WHERE kind = 'update' AND device = ? AND run = ? AND turn = ?",
                (device, run, update.round),
            ).fetchone()
            if taken:
                return None
            return self._write("update", run, update, device=device, key=key, turn=update.round)

    def entries(self, run: int, after: int = 0) -> Iterator[JournalEntry]:
        """Return a run's entries after a position, in order."""
        query = (
            "SELECT position, kind, device, facts, vector FROM journal"
            " WHERE run = ? AND position > ? ORDER BY position LIMIT ?"
        )
        while page := self._db.execute(query, (run, after, _PAGE)).fetchall():
            for position, kind, device, facts, vector in page:
                yield JournalEntry(position, run, unpack_event(kind, device, facts, vector))
            after = page[-1][0]

    def applied(self) -> Iterator[Applied]:
        """Return every update of all runs, in order."""
        query, after = (
            (
                "SELECT position, run, turn, device, life, seq, facts, vector FROM journal"
                " WHERE kind = 'update' AND position > ? ORDER BY position LIMIT ?"
            ),
            0,
        )
        while page := self._db.execute(query, (after, _PAGE)).fetchall():
            for position, run, turn, device, life, seq, facts, vector in page:
                event = unpack_event("update", device, facts, vector)
                known = vector_digest(event.vector) if isinstance(event, method.Update) else ""
                yield Applied(device, life, seq, run, turn, position, known)
            after = page[-1][0]

    def waiting(self, run: int, number: int) -> int:
        """Return the number of updates of a round."""
        found = self._db.execute(
            "SELECT count(*) FROM journal WHERE kind = 'update' AND run = ? AND round = ?",
            (run, number),
        ).fetchone()
        return int(found[0])

    def end(self) -> int:
        """Return the position of the last event; 0 before the first."""
        return last_position(self._db)

    def forget(self, upto: int, held: Mapping[int, int] = NONE_HELD) -> None:
        """Delete the vectors up to a position; the events remain.

        Args:
            held: Runs that still need vectors before it, each with its own, lower position.
        """
        with self._writing() as db:
            db.execute(
                "UPDATE journal SET vector = NULL WHERE position > ? AND position <= ?"  # noqa: S608 - numbers
                f" AND vector IS NOT NULL{_but(held)}",
                (fact(db, _BARE), upto),
            )
            put_fact(db, _BARE, max(fact(db, _BARE), min((upto, *held.values()))))

    def drop(self, upto: int, held: Mapping[int, int] = NONE_HELD) -> None:
        """Delete the events up to a position; keep each device's highest number and a count.

        Args:
            held: Runs that still need events before it, each with its own, lower position.

        >>> import numpy as np
        >>> from aggregator.store.sqlite import in_memory
        >>> journal = in_memory().journal
        >>> for seq in (1, 2, 3):
        ...     update = method.Update("meter-1", seq, 0, np.zeros(2, np.float32), {})
        ...     entry = journal.put_update(1, update, device="meter-1", key=(1, seq))
        >>> journal.drop(2)
        >>> dict(journal.pruned()), journal.oldest_round(1), journal.first()
        ({'meter-1': Pruned(life=1, seq=2, updates=2)}, 3, 3)
        """
        with self._writing() as db:
            chosen = f"position <= ?{_but(held)}"
            updates = f"FROM journal WHERE {chosen} AND kind = 'update'"
            for device, life, seq, count in db.execute(
                f"SELECT device, life, max(seq), count(*) {updates} GROUP BY device, life", (upto,)
            ).fetchall():
                db.execute(
                    "INSERT INTO pruned VALUES (?, ?, ?, ?) ON CONFLICT (device) DO UPDATE SET"
                    " updates = pruned.updates + excluded.updates,"
                    " seq = CASE WHEN (excluded.life, excluded.seq) > (pruned.life, pruned.seq)"
                    " THEN excluded.seq ELSE pruned.seq END,"
                    " life = CASE WHEN excluded.life > pruned.life THEN excluded.life ELSE pruned.life END",
                    (device, life, seq, count),
                )
            for run, turn in db.execute(
                f"SELECT run, max(turn) {updates} GROUP BY run", (upto,)
            ).fetchall():
                put_fact(db, f"{_TURN_OF} {run}", int(turn))
            db.execute(f"DELETE FROM journal WHERE {chosen}", (upto,))  # noqa: S608 - numbers

    def pruned(self) -> Iterator[tuple[str, Pruned]]:
        """Return the deleted updates of each device."""
        if not has_table(self._db, "pruned"):
            return
        for device, *rest in self._db.execute("SELECT device, life, seq, updates FROM pruned"):
            yield device, Pruned(*rest)

    def oldest_round(self, run: int) -> int:
        """Return the first round of a run without deleted updates."""
        before = fact(self._db, _TURN) if fact(self._db, _ROUND) == run else 0
        last = max(before, fact(self._db, f"{_TURN_OF} {run}"))
        return last + 1 if last else 0

    def first(self) -> int:
        """Return the position of the oldest event kept; one past the last if none is."""
        found = self._db.execute("SELECT min(position) FROM journal").fetchone()[0]
        return int(found) if found is not None else self.end() + 1

    def sizes(self, after: int = 0, upto: int = 2**62) -> Iterator[tuple[int, int, int]]:
        """Return position, vector size, and size of facts and names of every event, in bytes."""
        yield from self._db.execute(
            "SELECT position, coalesce(length(vector), 0),"
            " length(facts) + 3 * coalesce(length(device), 0) FROM journal"
            " WHERE position > ? AND position <= ? ORDER BY position",
            (after, upto),
        )

    def _write(
        self,
        kind: str,
        run: int,
        event: method.Event,
        *,
        device: str | None = None,
        key: Key | None = None,
        turn: int | None = None,
    ) -> JournalEntry:
        facts, vector = pack_event(event)
        number = getattr(event, "round", 0)
        position = self.end() + 1
        self._db.execute(
            "INSERT INTO journal (position, kind, run, round, device, life, seq, turn, facts, vector)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (position, kind, run, number, device, *(key or (None, None)), turn, facts, vector),
        )
        dialect_of(self._db).use_position(self._db, position)
        return JournalEntry(position, run, event)


def _but(held: Mapping[int, int]) -> str:
    return "".join(f" AND NOT (run = {run} AND position > {at})" for run, at in held.items())
