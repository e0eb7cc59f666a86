"""Store each device's software version, last message, encryption key and declined runs."""

from __future__ import annotations

from collections.abc import Mapping

from aggregator.store.dialect import Database, upsert
from aggregator.store.schema import has_contacts, has_device_keys
from aggregator.store.types import AnnouncedKey, Contact, DeclinedRun


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


def device_keys(db: Database) -> dict[str, AnnouncedKey]:
    """Return the encryption keys that devices have announced, by id."""
    if not has_device_keys(db):
        return {}
    return {
        device: AnnouncedKey(bytes(signer), bytes(key))
        for device, signer, key in db.execute("SELECT device, signer, key FROM device_keys")
    }


def save_device_key(db: Database, device: str, found: AnnouncedKey | None) -> None:
    """Insert, replace or delete the encryption key of a device.

    Example:
        >>> import sqlite3
        >>> from pathlib import Path
        >>> from aggregator.store.schema import prepare
        >>> db = sqlite3.connect(":memory:", isolation_level=None)
        >>> prepare(db, Path("fleet.db"))
        >>> save_device_key(db, "meter-1", AnnouncedKey(bytes(8), bytes(32)))
        >>> sorted(device_keys(db))
        ['meter-1']
        >>> save_device_key(db, "meter-1", None)
        >>> device_keys(db)
        {}
    """
    if found is None:
        db.execute("DELETE FROM device_keys WHERE device = ?", (device,))
        return
    db.execute(upsert("device_keys", "device", "signer, key"), (device, found.signer, found.key))


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
