"""``gridfed-aggregator dead-letters``: look at what was set aside, handle it again or forget it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime

from aggregator import config as configs
from aggregator.dead_letters import DeadLetters, Letter, LetterError, forget
from aggregator.orders import Order, leave
from aggregator.store import SqliteStore, StoreBusyError
from edge_sdk.program import Answer

EVERY = "_all"


def dead_letters(args: Namespace) -> Answer:
    """List or show dead letters, handle them again, or forget them.

    Raises:
        LetterError: There is none of this name.
    """
    config = configs.Config.load(args.config)
    letters = DeadLetters(config.state / "dead-letters")
    deeds: Mapping[str, Callable[[configs.Config, DeadLetters, str], Answer]] = {
        "list": _list,
        "show": _show,
        "retry": _retry,
        "clear": _clear,
    }
    return deeds[args.what](config, letters, args.name or EVERY)


def _list(_config: configs.Config, letters: DeadLetters, _name: str) -> Answer:
    found = [letter.summary() for letter in letters.letters()]
    lines = [
        f"{one['name']}  {one['where']:<10} {one['device'] or '-':<16} {one['bytes']:>8} B  "
        f"{one['error']} ({one['site']})"
        for one in found
    ]
    halted = letters.halted
    lines += [f"the run is halted: {halted}"] if halted else []
    data = {"dead_letters": found, "halted": halted, "folder": str(letters.folder)}
    return Answer(data, "\n".join(lines) or "no dead letters")


def _show(_config: configs.Config, letters: DeadLetters, name: str) -> Answer:
    letter = _named(letters, name)
    when = datetime.fromtimestamp(letter.at / 1000, UTC).isoformat(timespec="seconds")
    head = letter.summary() | {"at": when, "topic": letter.topic, "version": letter.version}
    lines = [f"{key:<8} {value}" for key, value in head.items() if value not in ("", None)]
    data = letter.summary() | {"topic": letter.topic, "version": letter.version}
    data |= {"trace": letter.trace, "payload": letter.payload.hex(), "number": letter.number}
    return Answer(data, "\n".join([*lines, "", letter.trace]))


def _retry(config: configs.Config, letters: DeadLetters, name: str) -> Answer:
    names = [one.name for one in letters.letters()] if name == EVERY else [name]
    for one in names:
        letters.letter(one)
        leave(config.inbox, Order("retry", one))
    told = [f"{one}: handed to the daemon, which handles it now or when it starts" for one in names]
    return Answer({"retried": names}, "\n".join(told) or "no dead letters")


def _clear(config: configs.Config, letters: DeadLetters, name: str) -> Answer:
    if name != EVERY:
        letters.letter(name)
    try:
        exists = config.database.exists()
        with SqliteStore.open(config.database) if exists else nullcontext():
            count = forget(letters, name)
    except StoreBusyError:
        leave(config.inbox, Order("clear", name))
        return Answer({"cleared": name}, "handed to the running daemon")
    return Answer({"cleared": name, "count": count}, f"{count} dead letters forgotten")


def _named(letters: DeadLetters, name: str) -> Letter:
    if name == EVERY:
        raise LetterError("show: name one", hint="gridfed-aggregator dead-letters list")
    return letters.letter(name)
