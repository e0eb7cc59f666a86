"""Store enrolled devices, and their commands until they are receipted."""

from __future__ import annotations

import json

from aggregator.store.dialect import Database, upsert
from aggregator.store.schema import has_runs
from aggregator.store.types import EnrolledDevice
from edge_sdk.wire.errors import Refused
from edge_sdk.wire.protocol.codec import encode
from edge_sdk.wire.protocol.messages import CommandMessage

_COMMANDS = 64  # receipted commands kept per device


def clients(db: Database, only: str | None = None) -> list[EnrolledDevice]:
    """Return all enrolled devices, by id; only the one with an id, where it is given."""
    labels: dict[str, list[tuple[str, str]]] = {}
    where, values = ("", ()) if only is None else ("WHERE id = ?", (only,))
    if has_runs(db):
        of = where.replace("id", "device")
        for device, name, value in db.execute(
            f"SELECT device, name, value FROM labels {of} ORDER BY device, name",  # noqa: S608 - no value in it
            values,
        ):
            labels.setdefault(device, []).append((name, value))
    return [
        EnrolledDevice(
            name,
            tuple(bytes.fromhex(key) for key in json.loads(sign)),
            generation,
            state,
            why,
            tuple(labels.get(name, ())),
        )
        for name, sign, generation, state, why in db.execute(
            f"SELECT id, sign, generation, state, why FROM clients {where} ORDER BY id",  # noqa: S608 - no value in it
            values,
        )
    ]


def save(db: Database, client: EnrolledDevice) -> None:
    """Insert or replace a device."""
    sign = json.dumps([key.hex() for key in client.sign])
    db.execute(
        upsert("clients", "id", "sign, generation, state, why"),
        (client.id, sign, client.generation, client.state, client.why),
    )
    db.execute("DELETE FROM labels WHERE device = ?", (client.id,))
    db.executemany(
        "INSERT INTO labels VALUES (?, ?, ?)", [(client.id, *pair) for pair in client.labels]
    )


def put_command(db: Database, device: str, command: CommandMessage) -> None:
    """Store a command until the device receipts it.

    Example:
        >>> import sqlite3
        >>> from pathlib import Path
        >>> from aggregator.store.schema import prepare
        >>> db = sqlite3.connect(":memory:", isolation_level=None)
        >>> prepare(db, Path("fleet.db"))
        >>> put_command(db, "meter-1", CommandMessage(1, "stop", {}, None))
        >>> put_command(db, "meter-1", CommandMessage(2, "resume", {}, None))
        >>> finish_command(db, "meter-1", 1, 0), finish_command(db, "meter-1", 1, 0)
        (True, False)
        >>> [command.op for command in open_commands(db, "meter-1")]
        ['resume']
    """
    args = json.dumps(dict(command.args))
    db.execute(
        "DELETE FROM commands WHERE device = ? AND num <= ? AND done > 0",
        (device, command.num - _COMMANDS),
    )
    db.execute(
        "INSERT INTO commands (device, num, op, args, until) VALUES (?, ?, ?, ?, ?)",
        (device, command.num, command.op, args, command.until),
    )


def open_commands(db: Database, device: str) -> list[CommandMessage]:
    """Return a device's unreceipted commands that a message can carry, oldest first."""
    return [command for command in _waiting(db, device) if is_sound(command)]


def unusable(db: Database) -> dict[str, tuple[int, ...]]:
    """Return, by device, the numbers of open commands that no message can carry."""
    devices = [
        name
        for (name,) in db.execute("SELECT DISTINCT device FROM commands WHERE done = 0 ORDER BY 1")
    ]
    found = {
        device: tuple(one.num for one in _waiting(db, device) if not is_sound(one))
        for device in devices
    }
    return {device: numbers for device, numbers in found.items() if numbers}


def is_sound(command: CommandMessage) -> bool:
    """Return whether a command's values fit a message.

    >>> is_sound(CommandMessage(1, "budget", {"releases": 40.0})), is_sound(CommandMessage(2**63, "stop"))
    (True, False)
    """
    try:
        encode(command)
    except Refused:
        return False
    return True


def _waiting(db: Database, device: str) -> list[CommandMessage]:
    return [
        CommandMessage(num, op, json.loads(args), until)
        for num, op, args, until in db.execute(
            "SELECT num, op, args, until FROM commands WHERE device = ? AND done = 0 ORDER BY num",
            (device,),
        )
    ]


def finish_command(db: Database, device: str, num: int, code: int) -> bool:
    """Record a command's receipt; return False if there is no such open command."""
    changed = db.execute(
        "UPDATE commands SET done = 1 + ? WHERE device = ? AND num = ? AND done = 0",
        (code, device, num),
    ).rowcount
    return bool(changed)
