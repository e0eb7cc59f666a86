"""Store the commands and tasks of devices."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, fields
from typing import Any

from aggregator.store.dialect import has_table
from aggregator.store.errors import DatabaseError
from aggregator.store.ledgers import Ledgers
from aggregator.store.transactions import Table, Transactions
from aggregator.store.types import PendingTask
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import envelope
from edge_sdk.protocol.codec import encode
from edge_sdk.protocol.messages import CommandMessage

_COMMANDS = 64  # receipted commands kept per device


class Commands(Table):
    """Commands of devices, until they are receipted.

    Args:
        ledgers: Ledgers, which have each device's highest command number.
    """

    def __init__(self, transactions: Transactions, ledgers: Ledgers) -> None:
        super().__init__(transactions)
        self._ledgers = ledgers

    def issue(
        self,
        device: str,
        op: str,
        args: Mapping[str, float] | None = None,
        until: int | None = None,
        root: bytes = b"",
    ) -> CommandMessage:
        """Store a device's next command, which is sent until the device receipts it.

        Args:
            args: Numbers that it needs.
            until: Server time after which it is void, Unix milliseconds.
            root: Signatures of the root, which a command that destroys needs.

        >>> from aggregator.store.sqlite import in_memory
        >>> commands = in_memory().commands
        >>> [commands.issue("meter-1", op).num for op in ("stop", "resume")]
        [1, 2]
        >>> commands.finish("meter-1", 1, 0), commands.finish("meter-1", 1, 0)
        (True, False)
        >>> [command.op for command in commands.open("meter-1")]
        ['resume']
        """
        with self._writing():
            self._ledgers.raise_commands((device,), 1)
            num = self._ledgers.get(device).cmd
            command = CommandMessage(num, op, dict(args or {}), until, root)
            if not is_sound(command):
                raise DatabaseError(f"{self._transactions.path}: no message can carry {command}")
            self._put(device, command)
        return command

    def reissue(self, device: str, ref: bytes) -> CommandMessage | None:
        """Renumber the open command with this reference; return None if there is none.

        A device that has lost its record of commands refuses one whose number is too low.
        """
        for before in self.open(device):
            if envelope.ref(envelope.digest(encode(before))) == ref:
                self.finish(device, before.num, Reason.SUPERSEDED)
                return self.issue(device, before.op, before.args, before.until, before.root)
        return None

    def _put(self, device: str, command: CommandMessage) -> None:
        with self._writing() as db:
            args = json.dumps(dict(command.args))
            db.execute(
                "DELETE FROM commands WHERE device = ? AND num <= ? AND done > 0",
                (device, command.num - _COMMANDS),
            )
            db.execute(
                "DELETE FROM command_roots WHERE device = ? AND num NOT IN"
                " (SELECT num FROM commands WHERE device = ?)",
                (device, device),
            )
            db.execute(
                "INSERT INTO commands (device, num, op, args, until) VALUES (?, ?, ?, ?, ?)",
                (device, command.num, command.op, args, command.until),
            )
            if command.root:
                row = (device, command.num, command.root)
                db.execute("INSERT INTO command_roots (device, num, root) VALUES (?, ?, ?)", row)

    def open(self, device: str) -> list[CommandMessage]:
        """Return a device's unreceipted commands that a message can carry, oldest first."""
        return [command for command in self._waiting(device) if is_sound(command)]

    def unusable(self) -> dict[str, tuple[int, ...]]:
        """Return, by device, the numbers of open commands that no message can carry."""
        devices = [
            name
            for (name,) in self._db.execute(
                "SELECT DISTINCT device FROM commands WHERE done = 0 ORDER BY 1"
            )
        ]
        found = {
            device: tuple(one.num for one in self._waiting(device) if not is_sound(one))
            for device in devices
        }
        return {device: numbers for device, numbers in found.items() if numbers}

    def _waiting(self, device: str) -> list[CommandMessage]:
        found = self._db.execute(
            "SELECT num, op, args, until FROM commands WHERE device = ? AND done = 0 ORDER BY num",
            (device,),
        ).fetchall()
        of_root = "SELECT num, root FROM command_roots WHERE device = ?"
        is_any = bool(found) and has_table(self._db, "command_roots")
        roots = dict(self._db.execute(of_root, (device,)).fetchall()) if is_any else {}
        return [
            CommandMessage(num, op, json.loads(args), until, bytes(roots.get(num, b"")))
            for num, op, args, until in found
        ]

    def finish(self, device: str, num: int, code: int) -> bool:
        """Record a command's receipt; return False if there is no such open command."""
        with self._writing() as db:
            changed = db.execute(
                "UPDATE commands SET done = 1 + ? WHERE device = ? AND num = ? AND done = 0",
                (code, device, num),
            ).rowcount
            return bool(changed)


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


_NAMES = tuple(f.name for f in fields(PendingTask))


class Tasks(Table):
    """Newest task of every device, and its outcome."""

    def get(self, device: str, run: int) -> PendingTask | None:
        """Return a device's newest task in a run, answered or not."""
        found = self._db.execute(
            "SELECT device, run, round, attempt, step, base, ask, vals, content, state FROM tasks"
            " WHERE device = ? AND run = ?",
            (device, run),
        ).fetchone()
        return None if found is None else _asked(found)

    def of_run(self, run: int, state: str = "open") -> list[PendingTask]:
        """Return the devices' newest tasks that are in a state, sorted by device."""
        found = self._db.execute(
            "SELECT device, run, round, attempt, step, base, ask, vals, content, state FROM tasks"
            " WHERE run = ? AND state = ? ORDER BY device",
            (run, state),
        ).fetchall()
        return [_asked(row) for row in found]

    def devices(self, run: int) -> set[str]:
        return {
            device
            for (device,) in self._db.execute("SELECT device FROM tasks WHERE run = ?", (run,))
        }

    def save(self, asked: Iterable[PendingTask]) -> None:
        """Store newer tasks; a task that is already stored keeps its outcome.

        >>> from aggregator.store.sqlite import in_memory
        >>> tasks = in_memory().tasks
        >>> task = PendingTask("meter-1", 1, 7, 0, 0, 6, "step")
        >>> tasks.save([task])
        >>> tasks.finish("meter-1", 1, 7, "answered")
        >>> tasks.save([task])
        >>> tasks.get("meter-1", 1).state
        'answered'
        """
        with self._writing() as db:
            db.executemany(
                "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (device, run) DO UPDATE"
                " SET round = excluded.round, attempt = excluded.attempt,"
                " step = excluded.step, base = excluded.base, ask = excluded.ask, vals = excluded.vals,"
                " content = excluded.content, state = excluded.state WHERE"
                " (excluded.round, excluded.attempt, excluded.step) <> (tasks.round, tasks.attempt, tasks.step)",
                [
                    (*astuple(one)[:7], json.dumps(dict(one.values)), one.content, one.state)
                    for one in asked
                ],
            )

    def finish(self, device: str, run: int, number: int, state: str) -> None:
        """Close a device's open task of a round."""
        with self._writing() as db:
            db.execute(
                "UPDATE tasks SET state = ? WHERE device = ? AND run = ? AND round = ? AND state = 'open'",
                (state, device, run, number),
            )

    def forget(self, *, but: Iterable[int]) -> None:
        """Delete the tasks of all runs except these."""
        with self._writing() as db:
            kept = (
                ", ".join(str(int(run)) for run in but) or "-1"
            )  # PostgreSQL refuses an empty list
            db.execute(f"DELETE FROM tasks WHERE run NOT IN ({kept})")  # noqa: S608 - numbers


def _asked(row: Sequence[Any]) -> PendingTask:
    found = dict(zip(_NAMES, row, strict=True))
    return PendingTask(**found | {"values": json.loads(found["values"])})
