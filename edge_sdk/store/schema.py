"""Open a device's store file: tables, migrations and bounds of stored values."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import astuple
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edge_sdk.app import sqlite_file
from edge_sdk.app.permissions import make_private_file, make_private_folder
from edge_sdk.errors import StoreBusy, StoreError, StoreNewer
from edge_sdk.privacy.event import UNBOUNDED, PrivacyCharge
from edge_sdk.wire.protocol.messages import LARGEST, LIFE_LEAP, RELEASES_LIMIT, TIME_LIMIT

FILE = "device.db"
APPLICATION = 0x47464544  # "GFED"
SCHEMA = 2

_TABLES = """
CREATE TABLE numbers (one INTEGER PRIMARY KEY CHECK (one = 1),
    life INTEGER NOT NULL, seq INTEGER NOT NULL, spent INTEGER NOT NULL, lost INTEGER NOT NULL);
CREATE TABLE outbox (life INTEGER NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL,
    body BLOB NOT NULL, proof BLOB NOT NULL, run INTEGER NOT NULL, round INTEGER NOT NULL,
    base INTEGER NOT NULL, spec BLOB NOT NULL, spent INTEGER NOT NULL, attempts INTEGER NOT NULL,
    PRIMARY KEY (life, seq));
CREATE TABLE learned (one INTEGER PRIMARY KEY CHECK (one = 1),
    run INTEGER NOT NULL, round INTEGER NOT NULL, version INTEGER NOT NULL, spec BLOB NOT NULL,
    leaves BLOB NOT NULL);
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE papers (name TEXT PRIMARY KEY, bytes BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE readings (stream TEXT NOT NULL, slot INTEGER NOT NULL, value REAL NOT NULL,
    flags INTEGER NOT NULL, PRIMARY KEY (stream, slot)) WITHOUT ROWID;
"""

_PRIVACY = """
CREATE TABLE ledger (line INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER NOT NULL,
    unit TEXT NOT NULL, point TEXT NOT NULL, mechanism TEXT NOT NULL, multiplier REAL NOT NULL,
    rate REAL NOT NULL, count INTEGER NOT NULL, releases INTEGER NOT NULL);
CREATE TRIGGER ledger_is_not_rewritten BEFORE UPDATE ON ledger
    BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
CREATE TRIGGER ledger_is_not_shortened BEFORE DELETE ON ledger
    BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
CREATE TABLE noised (stream TEXT NOT NULL, slot INTEGER NOT NULL, value REAL NOT NULL,
    PRIMARY KEY (stream, slot)) WITHOUT ROWID;
"""
"""Tables since schema 2: the charges, and the perturbed readings, each perturbed only once."""

_FORMAT = sqlite_file.FileFormat(APPLICATION, SCHEMA, f"{_TABLES} {_PRIVACY}")

SET_ASIDE = "unusable rows"
"""Name of the stored record that lists unusable values found on disk."""

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
        name: Name of the fact.
        value: Value on disk.
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

    Example:
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
    """Return the numbers of the ledger's unusable lines."""
    rows = db.execute(f"SELECT line, {CHARGE} FROM ledger ORDER BY line")  # noqa: S608 - a constant
    return [number for number, *row in rows if usable_charge(tuple(row)) is None]


CHARGE = "time, unit, point, mechanism, multiplier, rate, count, releases"
"""The columns of the ledger, as ``PrivacyCharge`` has them."""


def opened(folder: Path, *, read_only: bool) -> tuple[sqlite3.Connection, Path, ExitStack]:
    """Open the file in a folder; create both if they are missing.

    Returns:
        The connection, the file's path, and what closes it and releases its lock.

    Raises:
        StoreBusy: Another process uses this folder.
        StoreNewer: A newer version of this software wrote the file.
        StoreError: It cannot be opened, or is not a device store.
        PermissionsError: Other users can read it, and that cannot be changed.
    """
    path = folder / FILE
    if read_only and not path.exists():
        raise StoreError(
            f"{folder}: no state of a device yet",
            hint="run the device first: gridfed-edge run CONFIG",
        )
    with _refusing(path), ExitStack() as held:
        if not read_only:
            make_private_folder(folder)
            held.enter_context(sqlite_file.locked(folder / "lock"))
        db = held.enter_context(closing(sqlite_file.connect(path, read_only=read_only)))
        schema = sqlite_file.prepare(db, _FORMAT, read_only=read_only)
        if schema < SCHEMA and not read_only:
            _migrate(db, path, schema)
        return db, path, held.pop_all()


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Translate the reasons for which a file cannot be opened."""
    try:
        yield
    except BlockingIOError as error:
        raise StoreBusy(
            f"{path.parent} is in use by another process",
            hint="two processes must not share one device's state; stop the other one",
        ) from error
    except sqlite_file.ForeignFileError as error:
        raise StoreError(
            f"{path} is not a device's state", hint="check 'state' in the config"
        ) from error
    except sqlite_file.NewerFileError as error:
        raise StoreNewer(
            f"{path} was written by a newer version "
            f"(schema {error.schema}, this one supports {SCHEMA})",
            hint="install that version again, or restore a backup from before the upgrade",
        ) from error
    except sqlite3.Error as error:
        raise StoreError(
            f"{path}: {error}", hint="check that the path is this device's state and is readable"
        ) from error
    except OSError as error:
        raise StoreError(f"{path.parent}: {error.strerror or error}") from error


def write_charges(db: sqlite3.Connection, charges: Iterable[PrivacyCharge]) -> None:
    """Add lines to the ledger."""
    rows = [astuple(charge) for charge in charges]
    places = ", ".join("?" * len(CHARGE.split(",")))
    db.executemany(f"INSERT INTO ledger ({CHARGE}) VALUES ({places})", rows)  # noqa: S608 - constants


def before_the_ledger(spent: int) -> list[PrivacyCharge]:
    """Return the charge for releases before there was a ledger; its cost is unbounded."""
    if not spent:
        return []
    return [PrivacyCharge(0, "device", "none", "none", 0.0, count=spent, releases=spent)]


def _migrate(db: sqlite3.Connection, path: Path, schema: int) -> None:
    """Migrate an older file to this schema in one transaction; keep a copy of it beside."""
    copy = path.with_name(f"{FILE}.schema-{schema}")
    copy.unlink(missing_ok=True)
    make_private_file(copy)
    db.execute("VACUUM INTO ?", (str(copy),))
    db.executescript(f"BEGIN IMMEDIATE; {_PRIVACY}")
    spent = db.execute("SELECT spent FROM numbers").fetchone()
    write_charges(db, before_the_ledger(spent[0] if spent else 0))
    db.execute(f"PRAGMA user_version = {SCHEMA}")
    db.execute("COMMIT")
