"""Execute the commands of an operator, each once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator

from edge_sdk.app.cli import fields
from edge_sdk.session.command_log import CommandRepeated, CommandSuperseded
from edge_sdk.session.events import SessionEvent, TaskWithdrawn
from edge_sdk.session.identity_keys import STEP
from edge_sdk.session.parts import SessionParts
from edge_sdk.store.erasure import WIPE_ORDERED
from edge_sdk.wire.errors import Reason
from edge_sdk.wire.protocol import messages as m

logger = logging.getLogger(__name__)

Events = Iterator[SessionEvent]


class OperatorCommands:
    """The commands of one device.

    Args:
        parts: Parts of its session.
        reconsider: Checks the newest manifest and task again.
    """

    def __init__(self, parts: SessionParts, reconsider: Callable[[], Events]) -> None:
        self._parts, self._reconsider = parts, reconsider

    def receive(self, command: m.CommandMessage, ref: bytes) -> Events:
        """Execute an operator's command once; a repeat is only receipted again.

        A command that may be a replay is refused, so that the aggregator can number it again.
        """
        issued = (
            self._parts.outbox.state.welcome.cmd
            if self._parts.outbox.state.welcome is not None
            else 0
        )
        match self._parts.commands.receive(command, ref, issued=issued):
            case CommandSuperseded(highest=highest):
                self._parts.count("commands superseded")
                details = {"op": command.op, "num": command.num, "done": highest}
                logger.warning("command refused %s", fields(**details))
                self._parts.link.send(m.RefusalMessage(code=Reason.SUPERSEDED, wait=0, ref=ref))
                return
            case CommandRepeated(code=code):
                if command.op == "hello":  # this process has not sent one, or it was lost
                    self._parts.identity.try_next()
            case _:
                code = yield from self._execute(command)
                participation = self._parts.participation
                facts = {"stopped": int(participation.is_held), STEP: self._parts.identity.step}
                if participation.is_wipe_ordered:
                    facts[WIPE_ORDERED] = 1
                self._parts.commands.add(command.num, ref, code, **facts)
        receipt = m.ReceiptMessage(life=0, seq=command.num, ref=ref, code=code, run=0, round=0)
        self._parts.link.send(receipt)

    def _execute(self, command: m.CommandMessage) -> Generator[SessionEvent, None, int]:
        """Execute a command; return its result code."""
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
                self._parts.identity.try_next()
                self._parts.participation.follow(self._parts.outbox.propose_life())
            case _:
                return int(Reason.BAD_COMMAND)
        return int(Reason.ACCEPTED)
