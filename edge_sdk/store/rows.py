"""Read and write the rows of a store; a value that is out of bounds is replaced."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple
from types import MappingProxyType
from typing import Any

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import Refused
from edge_sdk.forecasting.series import SeriesColumn, SeriesRow
from edge_sdk.privacy.ledger import UNBOUNDED, PrivacyCharge
from edge_sdk.protocol.codec import Leaf, encode, pack_leaves, unpack_leaves
from edge_sdk.protocol.messages import CHUNK_LIMIT, LARGEST, LIFE_LEAP, RELEASES_LIMIT, TIME_LIMIT
from edge_sdk.protocol.outbox_state import OutboxEntry, UplinkCounters

SCHEMA = 2
"""Number of the tables' form."""

_DAYS = TIME_LIMIT // 86_400_000
_DRAWS = RELEASES_LIMIT * 65_536  # noise draws in so many releases
FACTS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        "floor": (0, TIME_LIMIT, 0),
        "floor before": (0, TIME_LIMIT, 0),
        "serial": (0, LARGEST, 0),
        "conn": (0, 2**32 - 1, 0),
        "command": (0, LARGEST, LARGEST),  # the next welcome lowers it
        "releases allowed": (0, RELEASES_LIMIT, 0),  # too large a value is cut to the largest
        "noised since": (0, TIME_LIMIT // 1000, TIME_LIMIT // 1000),  # as above: the clock's time
        "day": (0, _DAYS, 0),
        "flash day": (0, _DAYS, 0),
        "wake day": (0, _DAYS, 0),
    }
)
"""Lowest and highest value of a fact, and the replacement for a value out of bounds."""

ANY_FACT = (0, LARGEST, 0)


def usable_fact(name: str, value: object) -> int | None:
    """Return a fact's value, or None if it is out of bounds.

    >>> usable_fact("floor", 1_700_000_000_000), usable_fact("floor", 2**63 - 1)
    (1700000000000, None)
    """
    low, high, _ = FACTS.get(name, ANY_FACT)
    return value if isinstance(value, int) and low <= value <= high else None


def instead_of(name: str, value: object, now: int) -> int:
    """Return the replacement for a fact that is out of bounds.

    Args:
        now: Unix seconds of this machine's clock.

    Example:
        An operator's limit that is too large becomes the largest possible count, and so grants no
        more than was set; a negative one grants nothing.

        >>> instead_of("releases allowed", 2**62, 0), instead_of("releases allowed", -7, 0)
        (2147483647, 0)
    """
    low, high, instead = FACTS.get(name, ANY_FACT)
    if name == "releases allowed" and isinstance(value, (int, float)) and value > high:
        return high
    return max(low, min(high, now)) if name == "noised since" else instead


def usable_numbers(
    life: object, seq: object, spent: object, *, released: int
) -> tuple[tuple[int, int, int], dict[str, object]]:
    """Return life, seq and spent as usable values, and those that were not usable.

    A life out of bounds restarts at 0: the aggregator then names the number above which to propose.
    A release count out of bounds is taken from the ledger, which records every release of this
    device; the aggregator's welcome adds the releases that it knows beyond those.

    >>> usable_numbers(3, 2, 20, released=20)
    ((3, 2, 20), {})
    >>> usable_numbers(2**63 - 1, 2, 2**63 - 1, released=20)[0]
    (0, 0, 20)
    """
    wrong: dict[str, object] = {}
    if not (_is_within(life, LARGEST - LIFE_LEAP) and _is_within(seq, LARGEST - LIFE_LEAP)):
        wrong |= {"life": life, "seq": seq}
        life = seq = 0
    if not _is_within(spent, RELEASES_LIMIT):
        wrong["spent"] = spent
        spent = min(released, RELEASES_LIMIT)
    return (life, seq, spent), wrong  # type: ignore[return-value]


def _is_within(value: object, highest: int) -> bool:
    return isinstance(value, int) and 0 <= value <= highest


def usable_charge(row: tuple[Any, ...]) -> PrivacyCharge | None:
    """Return a line of the ledger, or None if a number in it is impossible for a release.

    >>> usable_charge((0, "device", "none", "none", 0.0, 1.0, 2**63 - 1, 1)) is None
    True
    """
    charge = PrivacyCharge(*row)
    is_sound = (
        _is_within(charge.count, _DRAWS)
        and _is_within(charge.releases, RELEASES_LIMIT)
        and isinstance(charge.multiplier, float)
        and charge.multiplier >= 0.0
    )
    return charge if is_sound else None


_COLUMNS = "life, seq, kind, body, proof, run, round, base, spec, spent, attempts"
_FIELDS = tuple(_COLUMNS.split(", "))


def read_numbers(db: sqlite3.Connection) -> tuple[UplinkCounters, dict[str, object]]:
    """Return the numbers, and the values on disk that are out of bounds."""
    row = db.execute("SELECT life, seq, spent, lost FROM numbers").fetchone()
    if row is None:
        return UplinkCounters(), {}
    life, seq, spent = row[:3]
    found, wrong = usable_numbers(life, seq, spent, released=0)
    if "spent" in wrong:
        found, wrong = usable_numbers(life, seq, spent, released=_releases(db))
    return UplinkCounters(*found, bool(row[3])), wrong


def _releases(db: sqlite3.Connection) -> int:
    return sum(charge.releases for charge in charges(db, LARGEST))


def write_numbers(db: sqlite3.Connection, numbers: UplinkCounters) -> None:
    row = (numbers.life, numbers.seq, numbers.spent, int(numbers.lost))
    db.execute("INSERT OR REPLACE INTO numbers VALUES (1, ?, ?, ?, ?)", row)


def read_entries(db: sqlite3.Connection) -> tuple[OutboxEntry, ...]:
    """Return every entry of the outbox, oldest first."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM outbox ORDER BY life, seq")  # noqa: S608 - a constant
    return tuple(OutboxEntry(**dict(zip(_FIELDS, row, strict=True))) for row in rows)


def write_entry(db: sqlite3.Connection, entry: OutboxEntry) -> None:
    """Add an entry to the outbox."""
    places = ", ".join("?" * len(_FIELDS))
    row = [getattr(entry, name) for name in _FIELDS]
    db.execute(f"INSERT INTO outbox ({_COLUMNS}) VALUES ({places})", row)  # noqa: S608 - constants


def can_be_sent(entry: OutboxEntry) -> bool:
    """Return whether a message can carry the numbers of an entry."""
    try:
        encode(entry.offer(CHUNK_LIMIT))
    except (Refused, TypeError):
        return False
    return True


def read_fact(db: sqlite3.Connection, name: str, default: int = 0) -> int:
    """Return a stored integer by name; a value out of bounds is replaced."""
    row = db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    if row is None:
        return default
    value = usable_fact(name, row[0])
    return instead_of(name, row[0], int(time.time())) if value is None else value


def write_facts(db: sqlite3.Connection, values: Mapping[str, int]) -> None:
    db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", values.items())


CHARGE = "time, unit, point, mechanism, multiplier, rate, count, releases"
"""The columns of the ledger, as ``PrivacyCharge`` has them."""


def charges(db: sqlite3.Connection, ignored: int) -> Iterator[PrivacyCharge]:
    """Read the ledger; an unusable line is replaced by an unbounded charge.

    The cost of such a line is unknown. So it exhausts every budget, rather than grant one, until a
    new key is in use: then lines up to ``ignored`` are left out.
    """
    for number, *row in db.execute(f"SELECT line, {CHARGE} FROM ledger ORDER BY line"):  # noqa: S608 - a constant
        charge = usable_charge(tuple(row))
        if charge is not None:
            yield charge
        elif number > ignored:
            yield UNBOUNDED


def unusable_lines(db: sqlite3.Connection) -> list[int]:
    rows = db.execute(f"SELECT line, {CHARGE} FROM ledger ORDER BY line")  # noqa: S608 - a constant
    return [number for number, *row in rows if usable_charge(tuple(row)) is None]


def write_charges(db: sqlite3.Connection, charges: Iterable[PrivacyCharge]) -> None:
    """Add lines to the ledger."""
    rows = [astuple(charge) for charge in charges]
    places = ", ".join("?" * len(CHARGE.split(",")))
    db.executemany(f"INSERT INTO ledger ({CHARGE}) VALUES ({places})", rows)  # noqa: S608 - constants


_BATCH = 4096  # rows read at a time


class ReadingRows:
    """Readings of a device's store; who writes them holds a transaction open."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __iter__(self) -> Iterator[SeriesRow]:
        """Return the readings in order of time."""
        rows = self._db.execute("SELECT stream, slot, value, flags FROM readings ORDER BY slot")
        return (SeriesRow(*row) for row in rows)

    def __len__(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM readings").fetchone()[0])

    def columns(self, streams: Iterable[str]) -> Iterator[SeriesColumn]:
        """Return the readings of streams in pieces: one stream after the other, each in order of time."""
        query = "SELECT slot, value FROM readings WHERE stream = ? ORDER BY slot"
        for stream in streams:
            rows = self._db.execute(query, (stream,))
            while batch := rows.fetchmany(_BATCH):
                slots, values = zip(*batch, strict=True)
                yield SeriesColumn(stream, np.array(slots, np.int64), np.array(values, np.float64))

    def span(self) -> tuple[int, int] | None:
        """Return the oldest and the newest stored slot; None without any."""
        oldest, newest = self._db.execute("SELECT min(slot), max(slot) FROM readings").fetchone()
        return None if oldest is None else (int(oldest), int(newest))

    def write(self, rows: Iterable[SeriesRow]) -> None:
        """Write readings; the last write of a slot wins."""
        self._db.executemany("INSERT OR REPLACE INTO readings VALUES (?, ?, ?, ?)", rows)

    def drop(self, before: int) -> bool:
        """Drop the readings before a slot, and the noise on them; return whether there was noise."""
        self._db.execute("DELETE FROM readings WHERE slot < ?", (before,))
        return self._db.execute("DELETE FROM noised WHERE slot < ?", (before,)).rowcount > 0


@dataclass(frozen=True, slots=True)
class LearnedState:
    """The state of the device half, and the last round it was trained in."""

    run: int  # training run of the state; 0 before the first
    round: int  # last round trained in that run; -1 before the first
    version: int  # version of the common model adopted last; -1 before the first
    spec: bytes  # digest of the whole layout of the arrays
    leaves: Mapping[str, Leaf]  # state of the half as named arrays and numbers


def read_learned(db: sqlite3.Connection) -> LearnedState | None:
    """Return the learned state, or None before the first round.

    Raises:
        WireError: The bytes are damaged.
    """
    row = db.execute(
        "SELECT run, round, version, spec, leaves FROM learned WHERE one = 1"
    ).fetchone()
    if row is None:
        return None
    run, round_, version, spec, leaves = row
    if not all(-1 <= number <= LARGEST for number in (run, round_, version)):
        run, round_, version = 0, -1, -1  # the weights are usable in any run
    return LearnedState(run, round_, version, spec, unpack_leaves(leaves))


def write_learned(db: sqlite3.Connection, learned: LearnedState) -> None:
    row = (learned.run, learned.round, learned.version, learned.spec, pack_leaves(learned.leaves))
    db.execute("INSERT OR REPLACE INTO learned VALUES (1, ?, ?, ?, ?, ?)", row)


def find_unusable(db: sqlite3.Connection) -> dict[str, str]:
    """Return the values on disk that are out of bounds, by name."""
    rows = db.execute("SELECT name, value FROM facts ORDER BY name")
    found = {name: value for name, value in rows if usable_fact(name, value) is None}
    found |= read_numbers(db)[1]
    for entry in read_entries(db):
        if not can_be_sent(entry):
            found[f"outbox {entry.life}, {entry.seq}"] = "a number that no message can carry"
    row = db.execute("SELECT run, round, version FROM learned").fetchone()
    if row is not None and not all(-1 <= number <= LARGEST for number in row):
        found["learned"] = row
    ignored = read_fact(db, "ledger set aside")
    lines = [line for line in unusable_lines(db) if line > ignored]
    found |= {f"ledger line {line}": "not a charge; no budget is left" for line in lines}
    return {name: str(value) for name, value in found.items()}


def replace_unusable(db: sqlite3.Connection) -> None:
    """Replace the values that ``find_unusable`` reports, inside the caller's transaction.

    Lines of the ledger stay: the ledger is never rewritten, and they count as unbounded charges.
    """
    numbers, wrong = read_numbers(db)
    if wrong:
        write_numbers(db, numbers)
    unsendable = [entry.key for entry in read_entries(db) if not can_be_sent(entry)]
    db.executemany("DELETE FROM outbox WHERE life = ? AND seq = ?", unsendable)
    now = int(time.time())
    rows = db.execute("SELECT name, value FROM facts").fetchall()
    wrong_facts = [(name, value) for name, value in rows if usable_fact(name, value) is None]
    write_facts(db, {name: instead_of(name, value, now) for name, value in wrong_facts})
    row = db.execute("SELECT run, round, version FROM learned").fetchone()
    if row is not None and not all(-1 <= number <= LARGEST for number in row):
        db.execute("UPDATE learned SET run = 0, round = -1, version = -1")
