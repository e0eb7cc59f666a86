"""List, show, retry or delete dead letters: messages whose handling met a defect.

The daemon undoes such a message, stores it under STATE/dead-letters and ignores it from then on.
After an upgrade, retry processes it again. clear deletes it. A run that a defect halted continues
after `gridfed-aggregator resume`.

  gridfed-aggregator dead-letters list
  gridfed-aggregator dead-letters retry update-0007
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime

from aggregator import config as configs
from aggregator.audit_log import AuditLog, Initiator, login_name
from aggregator.commands.arguments import add_config_option
from aggregator.ingress.dead_letters import DeadLetters, Letter, LetterError, forget
from aggregator.operations.control_queue import ControlOrder, leave
from aggregator.operations.order_executor import letters_named
from aggregator.operations.signing_keys import signer
from aggregator.store.errors import DatabaseBusyError
from aggregator.store.opener import exists, open_store
from edge_sdk.app.cli import CommandResult

EVERY = "_all"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the action and the dead letter."""
    parser.add_argument("what", choices=("list", "show", "retry", "clear"), help="action")
    parser.add_argument("name", nargs="?", help="one dead letter; retry and clear: default all")
    add_config_option(parser)


def run(args: Namespace) -> CommandResult:
    """List, show, retry or delete dead letters."""
    config = configs.AggregatorConfig.load(args.config)
    letters = DeadLetters(config.state / "dead-letters")
    actions: Mapping[str, Callable[[configs.AggregatorConfig, DeadLetters, str], CommandResult]] = {
        "list": _list,
        "show": _show,
        "retry": _retry,
        "clear": _clear,
    }
    return actions[args.what](config, letters, args.name or EVERY)


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
    who = login_name()[:64]
    for one in names:
        letters.letter(one)
        leave(config.inbox, ControlOrder("retry", one, who=who))
    done = [f"{one}: queued for the daemon" for one in names]
    return CommandResult({"retried": names}, "\n".join(done) or "no dead letters")


def _clear(config: configs.AggregatorConfig, letters: DeadLetters, name: str) -> CommandResult:
    if name != EVERY:
        letters.letter(name)
    who, is_any = login_name()[:64], any(True for _ in letters.letters())
    try:
        is_set_up = exists(config.database)
        with open_store(config.database) if is_set_up else nullcontext() as store:
            if store is not None and is_any:  # letters are files: the record comes first
                log, by = AuditLog(store, config.fleet, signer(config)), Initiator("command", who)
                log.record(by, "clear", letters_named(name), detail="dead letters deleted")
            count = forget(letters, name)
    except DatabaseBusyError:
        leave(config.inbox, ControlOrder("clear", name, who=who))
        return CommandResult({"cleared": name}, "queued for the running daemon")
    return CommandResult({"cleared": name, "count": count}, f"{count} dead letters deleted")


def _named(letters: DeadLetters, name: str) -> Letter:
    if name == EVERY:
        raise LetterError(
            "dead-letters show: expected a name", hint="gridfed-aggregator dead-letters list"
        )
    return letters.letter(name)
