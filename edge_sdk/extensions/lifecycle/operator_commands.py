"""Execute the commands of an operator, each once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Annotated

from edge_sdk.app.cli import fields
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Length
from edge_sdk.errors import Reason, Refused, WireError
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.codec import pack_leaves, unpack_leaves
from edge_sdk.protocol.envelope import PROOF_SIZE
from edge_sdk.protocol.keys import KID_SIZE, kid_of, verify
from edge_sdk.protocol.messages import COMMAND_LEAP
from edge_sdk.protocol.statements import COMMANDS, command_statement
from edge_sdk.session.agenda import SessionEvent, TaskWithdrawn
from edge_sdk.session.identity import STEP
from edge_sdk.session.parts import SessionParts
from edge_sdk.session.signed_link import VerifiedMessage
from edge_sdk.store import WIPE_ORDERED
from edge_sdk.store.store import DeviceStore

logger = logging.getLogger(__name__)

Events = Iterator[SessionEvent]


@dataclass(frozen=True, slots=True)
class OperatorSection:
    """Commands of the operator. The root's keys have to sign reenrol and wipe in any case."""

    commands: Annotated[tuple[str, ...], Length(0, 16)] = tuple(
        COMMANDS
    )  # that this device follows

    def __post_init__(self) -> None:
        if unknown := [name for name in self.commands if name not in COMMANDS]:
            raise ValueError(f"commands: unknown {unknown[0]!r}; known: {', '.join(COMMANDS)}")


class OperatorCommands:
    """The commands of one device, from the first one that arrives; ``log`` has the executed ones."""

    def __init__(self, parts: SessionParts, reconsider: Callable[[], Events]) -> None:
        self._parts, self._reconsider = parts, reconsider
        self._section: OperatorSection = parts.config.extensions.get("operator", OperatorSection())
        self.log = CommandLog(parts.store)

    def receive(self, verified: VerifiedMessage) -> Events:
        """Execute a verified command, or raise ``Refused``."""
        if isinstance(verified.message, m.CommandMessage):
            yield from self._receive(verified.message, verified.ref)

    def welcomed(self, welcome: m.WelcomeMessage) -> None:
        """Discard a number that the aggregator has not issued."""
        if (lowered := self.log.lower(welcome.cmd)) is not None:
            numbers = {"issued": welcome.cmd, "now": lowered}
            logger.warning("command number lowered %s", fields(**numbers))

    def _receive(self, command: m.CommandMessage, ref: bytes) -> Events:
        """Execute an operator's command once; a repeat is only receipted again.

        A command that may be a replay is refused, so that the aggregator can number it again.
        """
        parts, log = self._parts, self.log
        welcome, code = parts.outbox.state.welcome, log.code(command.num, ref)
        if code is not None:
            if command.op == "hello":  # this process has not sent one, or it was lost
                parts.identity.replacement.try_next()
        elif command.num <= log.highest:
            parts.count("commands superseded")
            details = {"op": command.op, "num": command.num, "done": log.highest}
            logger.warning("command refused %s", fields(**details))
            parts.link.send(m.RefusalMessage(code=Reason.SUPERSEDED, wait=0, ref=ref))
            return
        else:
            log.refuse_leap(command.num, issued=0 if welcome is None else welcome.cmd)
            code = yield from self._execute(command)
            step = parts.identity.replacement.step
            facts = {"stopped": int(parts.participation.is_held), STEP: step}
            if parts.participation.is_wipe_ordered:
                facts[WIPE_ORDERED] = 1
            log.add(command.num, ref, code, **facts)
        receipt = m.ReceiptMessage(life=0, seq=command.num, ref=ref, code=code, run=0, round=0)
        parts.link.send(receipt)

    def _execute(self, command: m.CommandMessage) -> Generator[SessionEvent, None, int]:
        if (reason := self._why_not(command)) is not None:
            details = {"op": command.op, "num": command.num, "reason": reason.name}
            logger.warning("command refused %s", fields(**details))
            return int(reason)
        logger.info("command executed %s", fields(op=command.op))
        match command.op:
            case "stop" | "resume" if not self._parts.participation.is_wipe_ordered:
                self._parts.participation.hold(is_held=command.op == "stop")
                yield TaskWithdrawn()
                if not self._parts.participation.is_held:
                    yield from self._reconsider()
            case "wipe":
                self._parts.participation.order_wipe()
                yield TaskWithdrawn()
            case "reenrol" if (
                not self._parts.participation.is_wipe_ordered and self._parts.identity.order()
            ):
                pass
            case "report":
                self._parts.reporter.send()
            case "budget" if 0 <= command.args.get("releases", -1.0) <= m.RELEASES_LIMIT:
                self._parts.participation.allow(int(command.args["releases"]))
            case "hello":
                self._parts.identity.replacement.try_next()
                self._parts.participation.follow(self._parts.outbox.propose_life())
            case _:
                return int(Reason.BAD_COMMAND)
        return int(Reason.ACCEPTED)

    def _why_not(self, command: m.CommandMessage) -> Reason | None:
        if command.op not in COMMANDS:
            return None
        if command.op not in self._section.commands:
            return Reason.DECLINED_BY_OWNER
        if command.until is not None and command.until < self._parts.time.latest_signed:
            return Reason.LATE
        if COMMANDS[command.op] and not self._is_of_root(command):
            return Reason.ROOT_REQUIRED
        return None

    def _is_of_root(self, command: m.CommandMessage) -> bool:
        if command.until is None:
            return False
        config, root = self._parts.config, self._parts.announcements.ring.root
        public = self._parts.identity.public
        statement = command_statement(config.fleet, config.id, public, command.op, command.until)
        return root.is_enough(statement_signers(statement, command.root, root.keys))


def statement_signers(
    statement: bytes, proofs: bytes, candidates: Iterable[bytes]
) -> frozenset[bytes]:
    """Return the public keys with a valid signature among the proofs.

    >>> from edge_sdk.protocol.keys import from_seed
    >>> one, other = from_seed(bytes(32)), from_seed(b"o" * 32)
    >>> proofs = kid_of(one.public) + one.sign(b"statement")
    >>> found = statement_signers(b"statement", proofs, [one.public, other.public])
    >>> found == {one.public}, statement_signers(b"another", proofs, [one.public])
    (True, frozenset())
    """
    pieces = [proofs[at : at + PROOF_SIZE] for at in range(0, len(proofs), PROOF_SIZE)]
    by_kid = {piece[:KID_SIZE]: piece[KID_SIZE:] for piece in pieces}
    return frozenset(
        key for key in candidates if verify(key, by_kid.get(kid_of(key), b""), statement)
    )


REMEMBERED = 32
"""Number of executed commands that are recognised if repeated."""

_PAPER, _HIGHEST = "commands", "command"


class CommandLog:
    """The latest executed commands, kept in the device's store.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with DeviceStore.open(Path(tempfile.mkdtemp())) as store:
    ...     log = CommandLog(store)
    ...     log.add(9, bytes(16), 0)
    ...     log.code(9, bytes(16)), log.code(9, b"other bytes"), log.highest
    (0, None, 9)
    """

    def __init__(self, store: DeviceStore) -> None:
        self._store = store

    @property
    def highest(self) -> int:
        """Highest command number executed; 0 before the first."""
        return self._store.fact(_HIGHEST)

    def code(self, number: int, ref: bytes) -> int | None:
        """Return the result code of an executed command, or None if it is not in the log."""
        found = [code for num, which, code in self._done() if (num, which) == (number, ref)]
        return found[0] if found else None

    def refuse_leap(self, number: int, *, issued: int) -> None:
        """Refuse a new number implausibly far above the highest one of the last welcome."""
        if number > max(self.highest, issued) + COMMAND_LEAP:
            why = f"command {number} is more than {COMMAND_LEAP} above {self.highest}"
            raise Refused(Reason.FROM_FUTURE, why)

    def add(self, number: int, ref: bytes, code: int, **facts: int) -> None:
        """Save an executed command together with the facts it changed, in one transaction."""
        done = [*self._done(), (number, ref, code)][-REMEMBERED:]
        self._store.file_paper(_PAPER, pack_leaves({"done": done}), **{_HIGHEST: number}, **facts)

    def lower(self, issued: int) -> int | None:
        """Discard a number above all issued numbers, because it would block later commands.

        Returns:
            The new highest number, or None if nothing was discarded.
        """
        if self.highest <= issued:
            return None
        lower = max((num for num, *_ in self._done() if num <= issued), default=issued)
        self._store.set_facts(**{_HIGHEST: lower})
        return lower

    def _done(self) -> list[tuple[int, bytes, int]]:
        paper = self._store.paper(_PAPER)
        try:
            return [] if paper is None else [tuple(one) for one in unpack_leaves(paper)["done"]]
        except (WireError, KeyError):
            return []
