"""Run ``gridfed-aggregator dead-letters``: list, show, retry or delete dead letters."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime

from aggregator import config as configs
from aggregator.ingress.dead_letters import DeadLetters, Letter, LetterError, forget
from aggregator.operations.control_queue import ControlOrder, leave
from aggregator.store import DatabaseBusyError, SqliteStore
from edge_sdk.app.cli import CommandResult

EVERY = "_all"


def dead_letters(args: Namespace) -> CommandResult:
    """List, show, retry or delete dead letters.

    Raises:
        LetterError: No letter has this name.
    """
    config = configs.AggregatorConfig.load(args.config)
    letters = DeadLetters(config.state / "dead-letters")
    deeds: Mapping[str, Callable[[configs.AggregatorConfig, DeadLetters, str], CommandResult]] = {
        "list": _list,
        "show": _show,
        "retry": _retry,
        "clear": _clear,
    }
    return deeds[args.what](config, letters, args.name or EVERY)


def _list(_config: configs.AggregatorConfig, letters: DeadLetters, _name: str) -> CommandResult:
    found = [letter.summary() for letter in letters.letters()]
    lines = [
        f"{one['name']}  {one['where']:<10} {one['device'] or '-':<16} {one['bytes']:>8} B  "
        f"{one['error']} ({one['site']})"
        for one in found
    ]
    halted = letters.halted
    lines += [f"the run is halted: {halted}"] if halted else []
    data = {"dead_letters": found, "halted": halted, "folder": str(letters.folder)}
    return CommandResult(data, "\n".join(lines) or "no dead letters")


def _show(_config: configs.AggregatorConfig, letters: DeadLetters, name: str) -> CommandResult:
    letter = _named(letters, name)
    when = datetime.fromtimestamp(letter.at / 1000, UTC).isoformat(timespec="seconds")
    head = letter.summary() | {"at": when, "topic": letter.topic, "version": letter.version}
    lines = [f"{key:<8} {value}" for key, value in head.items() if value not in ("", None)]
    data = letter.summary() | {"topic": letter.topic, "version": letter.version}
    data |= {"trace": letter.trace, "payload": letter.payload.hex(), "number": letter.number}
    return CommandResult(data, "\n".join([*lines, "", letter.trace]))


def _retry(config: configs.AggregatorConfig, letters: DeadLetters, name: str) -> CommandResult:
    names = [one.name for one in letters.letters()] if name == EVERY else [name]
    for one in names:
        letters.letter(one)
        leave(config.inbox, ControlOrder("retry", one))
    told = [f"{one}: handed to the daemon, which handles it now or when it starts" for one in names]
    return CommandResult({"retried": names}, "\n".join(told) or "no dead letters")


def _clear(config: configs.AggregatorConfig, letters: DeadLetters, name: str) -> CommandResult:
    if name != EVERY:
        letters.letter(name)
    try:
        exists = config.database.exists()
        with SqliteStore.open(config.database) if exists else nullcontext():
            count = forget(letters, name)
    except DatabaseBusyError:
        leave(config.inbox, ControlOrder("clear", name))
        return CommandResult({"cleared": name}, "handed to the running daemon")
    return CommandResult({"cleared": name, "count": count}, f"{count} dead letters forgotten")


def _named(letters: DeadLetters, name: str) -> Letter:
    if name == EVERY:
        raise LetterError("show: name one", hint="gridfed-aggregator dead-letters list")
    return letters.letter(name)
