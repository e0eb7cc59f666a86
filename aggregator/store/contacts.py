"""Store each device's software version and last message, and the runs that it has declined."""

from __future__ import annotations

from collections.abc import Mapping

from aggregator.store.dialect import Database, upsert
from aggregator.store.schema import has_contacts
from aggregator.store.types import Contact, DeclinedRun


def contacts(db: Database) -> dict[str, Contact]:
    """Return version and last message of the devices, by id."""
    if not has_contacts(db):
        return {}
    return {
        device: Contact(sdk, seen)
        for device, sdk, seen in db.execute("SELECT device, sdk, seen FROM contacts")
    }


def save(db: Database, found: Mapping[str, Contact]) -> None:
    """Insert or replace version and last message of some devices."""
    rows = [(device, one.sdk, one.seen) for device, one in found.items()]
    db.executemany(upsert("contacts", "device", "sdk, seen"), rows)


def declined(db: Database) -> list[DeclinedRun]:
    """Return the runs that devices have declined, by device and name."""
    if not has_contacts(db):
        return []
    found = "SELECT device, name, reason, ref FROM declined ORDER BY device, name"
    rows = db.execute(found)
    return [DeclinedRun(device, name, why, bytes(ref)) for device, name, why, ref in rows]


def decline(db: Database, run: DeclinedRun) -> None:
    """Record that a device cannot take part in a run.

    Example:
        >>> import sqlite3
        >>> from pathlib import Path
        >>> from aggregator.store.schema import prepare
        >>> db = sqlite3.connect(":memory:", isolation_level=None)
        >>> prepare(db, Path("fleet.db"))
        >>> decline(db, DeclinedRun("meter-1", "cells", "UNKNOWN_KIND", bytes(16)))
        >>> [(one.device, one.name, one.reason) for one in declined(db)]
        [('meter-1', 'cells', 'UNKNOWN_KIND')]
        >>> forget(db, "meter-1")
        >>> declined(db)
        []
    """
    row = (run.device, run.name, run.reason, run.ref)
    db.execute(upsert("declined", "device, name", "reason, ref"), row)


def forget(db: Database, device: str) -> None:
    """Delete the declined runs of a device."""
    db.execute("DELETE FROM declined WHERE device = ?", (device,))
