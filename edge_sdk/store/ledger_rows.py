"""Read and write the rows of the privacy ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import astuple

from edge_sdk.privacy.event import UNBOUNDED, PrivacyCharge
from edge_sdk.store.bounds import usable_charge

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
    """Return the numbers of the ledger's unusable lines."""
    rows = db.execute(f"SELECT line, {CHARGE} FROM ledger ORDER BY line")  # noqa: S608 - a constant
    return [number for number, *row in rows if usable_charge(tuple(row)) is None]


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
