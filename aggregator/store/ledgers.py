"""Store the sequence ledgers of devices, and a row for every settled number."""

from __future__ import annotations

import json
from collections.abc import Iterable

from aggregator.store.dialect import Database, upsert
from aggregator.store.sequence_ledger import Key, Ledger, LedgerRow, renewed, usable
from edge_sdk.wire.protocol.messages import LARGEST, LIFE_LEAP


def get(db: Database, device: str) -> Ledger:
    """Return a device's ledger: empty for a new device; an unusable number becomes the largest."""
    return usable(_stored(db, device))[0]


def unusable(db: Database) -> dict[str, tuple[str, ...]]:
    """Return, by device, the names of stored numbers that do not fit a message."""
    devices = [name for (name,) in db.execute("SELECT device FROM ledgers ORDER BY device")]
    found = {device: usable(_stored(db, device))[1] for device in devices}
    return {device: names for device, names in found.items() if names}


def renew(db: Database, device: str, spent: int = 0) -> Ledger:
    """Start a new ledger for a device's new key; return the previous one.

    Rows of lives that no device can have reached are deleted; the others still detect repeats.

    Example:
        >>> import sqlite3
        >>> from pathlib import Path
        >>> from aggregator.store.schema import prepare
        >>> db = sqlite3.connect(":memory:", isolation_level=None)
        >>> prepare(db, Path("fleet.db"))
        >>> save(db, "meter-1", Ledger(cur=2**63 - 1, hid_life=2**63 - 1, spent=2**63 - 1, cmd=3))
        >>> _ = renew(db, "meter-1")
        >>> get(db, "meter-1")
        Ledger(cur=0, hid=b'', hid_life=0, hid_open=(), open=(), spent=0, cmd=3)
    """
    before = get(db, device)
    (life,) = db.execute(
        "SELECT coalesce(max(life), 0) FROM journal"
        " WHERE kind = 'update' AND device = ? AND life <= ?",
        (device, LIFE_LEAP),
    ).fetchone()
    (num,) = db.execute(
        "SELECT coalesce(max(num), 0) FROM commands WHERE device = ? AND num <= ?",
        (device, LARGEST // 2),
    ).fetchone()
    after = renewed(before, life=life, cmd=num, spent=spent)
    save(db, device, after)
    db.execute("DELETE FROM rows WHERE device = ? AND life > ?", (device, after.top))
    return before


def _stored(db: Database, device: str) -> Ledger:
    found = db.execute(
        "SELECT cur, hid, hid_life, hid_open, open, spent, cmd FROM ledgers WHERE device = ?",
        (device,),
    ).fetchone()
    if found is None:
        return Ledger()
    cur, hid, life, listed, still, spent, cmd = found
    return Ledger(cur, hid, life, _keys(listed), _keys(still), spent, cmd)


def save(db: Database, device: str, ledger: Ledger) -> None:
    """Save a device's ledger; prune the rows that the end of a life closes.

    Example:
        >>> import sqlite3
        >>> from pathlib import Path
        >>> from aggregator.store.schema import prepare
        >>> db = sqlite3.connect(":memory:", isolation_level=None)
        >>> prepare(db, Path("fleet.db"))
        >>> save(db, "meter-1", Ledger(cur=1))
        >>> for seq in (1, 2, 3):
        ...     settle(db, "meter-1", (1, seq), LedgerRow(bytes(32), 0, 1, seq))
        >>> save(db, "meter-1", Ledger(cur=2, open=((1, 3),)))
        >>> [row(db, "meter-1", (1, seq)) is None for seq in (1, 2, 3)]
        [True, True, False]
    """
    before = db.execute("SELECT cur FROM ledgers WHERE device = ?", (device,)).fetchone()
    db.execute(
        upsert("ledgers", "device", "cur, hid, hid_life, hid_open, open, spent, cmd"),
        (device, *_columns(ledger)),
    )
    if before is not None and before[0] != ledger.cur:
        _prune(db, device, ledger)


def raise_commands(db: Database, devices: Iterable[str], by: int) -> None:
    """Increase the highest command number of devices; create missing ledgers."""
    db.executemany(
        "INSERT INTO ledgers (device, cur, hid, hid_life, hid_open, open, spent, cmd)"
        " VALUES (?, 0, ?, 0, '[]', '[]', 0, ?) ON CONFLICT (device) DO UPDATE SET"
        " cmd = CASE WHEN ledgers.cmd > ? THEN ? ELSE ledgers.cmd END + excluded.cmd",
        [(device, b"", by, LARGEST - by, LARGEST - by) for device in devices],
    )


def settle(db: Database, device: str, key: Key, row: LedgerRow) -> None:
    """Store the verdict of a number; the database refuses a second one."""
    db.execute(
        "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?)",
        (device, *key, row.digest, row.code, row.run, row.round),
    )


def unsettle(db: Database, device: str, key: Key) -> None:
    """Delete the verdict of a number."""
    db.execute("DELETE FROM rows WHERE device = ? AND life = ? AND seq = ?", (device, *key))


def row(db: Database, device: str, key: Key) -> LedgerRow | None:
    """Return the verdict of a number, or None."""
    found = db.execute(
        "SELECT digest, code, run, round FROM rows WHERE device = ? AND life = ? AND seq = ?",
        (device, *key),
    ).fetchone()
    return None if found is None else LedgerRow(*found)


def held(db: Database, device: str) -> int:
    """Return the number of verdicts kept for a device."""
    return int(db.execute("SELECT count(*) FROM rows WHERE device = ?", (device,)).fetchone()[0])


def settled(db: Database) -> dict[tuple[str, int, int], LedgerRow]:
    """Return all verdicts, by device, life and sequence number."""
    found = db.execute("SELECT device, life, seq, digest, code, run, round FROM rows")
    return {(device, life, seq): LedgerRow(*rest) for device, life, seq, *rest in found}


def _prune(db: Database, device: str, ledger: Ledger) -> None:
    """Delete the rows that no repeat can refer to after the end of a life."""
    for life, seq in db.execute(
        "SELECT life, seq FROM rows WHERE device = ?", (device,)
    ).fetchall():
        if (life, seq) not in ledger.open and life < ledger.cur:
            db.execute(
                "DELETE FROM rows WHERE device = ? AND life = ? AND seq = ?",
                (device, life, seq),
            )


def _columns(ledger: Ledger) -> tuple[object, ...]:
    return (
        ledger.cur,
        ledger.hid,
        ledger.hid_life,
        json.dumps(ledger.hid_open),
        json.dumps(ledger.open),
        ledger.spent,
        ledger.cmd,
    )


def _keys(text: str) -> tuple[Key, ...]:
    return tuple((life, seq) for life, seq in json.loads(text))
