"""Drive the pure outbox over link and store: save changes, then send."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Literal

from edge_sdk.app.cli import fields
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.bundle import SDK_VERSION
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import messages as m
from edge_sdk.protocol import outbox, outbox_state
from edge_sdk.protocol.outbox import Outbox, OutboxStep
from edge_sdk.session.signed_link import SignedLink
from edge_sdk.store.store import DeviceStore

logger = logging.getLogger(__name__)

REMEDIES = {
    Reason.TWO_LIVES: "another process uses this name and key: stop it, and enrol this one again",
    Reason.UPGRADE_REQUIRED: "install a newer version",
    Reason.REVOKED: "ask the operator; enrol this device again",
}
"""Remedy for each refusal after which this process takes no further part."""


@dataclass(frozen=True, slots=True)
class BudgetRefused:
    """The aggregator counts no more releases of this device than it has counted."""

    spent: int  # number of releases so far


FromAggregator = (
    m.WelcomeMessage
    | m.FloorMessage
    | m.GrantMessage
    | m.HaveMessage
    | m.ReceiptMessage
    | m.RefusalMessage
)
"""Messages that an outbox processes."""


class DurableOutbox:
    """The outbox of one device. Its numbers and entries are always saved before a byte is sent.

    Attributes:
        state: State of the pure machine.
    """

    def __init__(
        self,
        store: DeviceStore,
        link: SignedLink,
        rng: Random,
        now: Callable[[], float],
        counts: Counter[str],
        *,
        base: float,
    ) -> None:
        self._store, self._link, self._rng = store, link, rng
        self._now, self._counts = now, counts
        self.state = Outbox(
            numbers=store.numbers(),
            entries=tuple(map(link.signing.sign_again, store.outbox())),
            conn=store.fact("conn"),
            sdk=".".join(map(str, SDK_VERSION)),
            retry=outbox_state.RetryPolicy(base, 90 * base),
            is_counted=store.second_count is not None,
        )
        self._saved = self.state.entries
        self._stated: Callable[[], Mapping[str, bytes]] = dict

    @property
    def quota(self) -> int | None:
        """Daily quota of the welcome in bytes, or None before the first."""
        return None if self.state.welcome is None else self.state.welcome.quota

    def inputs(self) -> outbox_state.StepInputs:
        """Return the inputs of a step: the time, a random draw and a nonce."""
        nonce = lambda: secrets.token_bytes(16)  # noqa: E731 - drawn where one is needed
        return outbox_state.StepInputs(self._rng.random, nonce, self._now(), self._stated())

    def state_in_hellos(self, stated: Callable[[], Mapping[str, bytes]]) -> None:
        """State the fields that this function returns in every hello from now on."""
        self._stated = stated

    @property
    def next_due(self) -> float | None:
        return outbox.next_due(self.state)

    def status(self, state: Literal["online", "offline", "lost"]) -> m.StatusMessage:
        life = self.state.welcome.life if self.state.welcome is not None else 0
        return m.StatusMessage(state=state, life=life, conn=self.state.conn)

    # --- events of the machine --------------------------------------------------------------------

    def tick(self) -> tuple[BudgetRefused, ...]:
        return self._apply(outbox.tick(self.state, self.inputs()))

    def propose_life(self) -> tuple[BudgetRefused, ...]:
        """Send a new hello, to learn the present time and numbers."""
        return self._apply(outbox.propose_life(self.state, self.inputs()))

    def link_up(self, max_payload: int) -> tuple[BudgetRefused, ...]:
        """Continue over a new connection."""
        return self._apply(
            outbox.linked(self.state, self.inputs(), max_payload=max_payload, conn=self.state.conn)
        )

    def link_down(self) -> None:
        """Stop sending until the next connection."""
        self.state = outbox.unlinked(self.state)

    def receive(self, message: FromAggregator) -> tuple[BudgetRefused, ...]:
        """Process a message from the aggregator.

        Raises:
            Refused: MALFORMED: a bitmap of the wrong size; the state is unchanged.
        """
        return self._apply(outbox.receive(self.state, message, self.inputs()))

    def check_leap(self, message: FromAggregator) -> None:
        """Refuse a reply to the hello whose counters are implausibly far ahead.

        Raises:
            Refused: MALFORMED; nothing changes, and the hello is sent again.
        """
        numbers = self.state.numbers
        match message:
            case m.WelcomeMessage(spent=found):
                name, known, most = "spent", numbers.spent, m.RELEASES_LEAP
            case m.FloorMessage(life=found):
                name, known, most = "life", numbers.life, m.LIFE_LEAP
            case _:
                return
        if not self._answers(message) or found <= known + most:
            return
        if not self._counts["leaps refused"]:
            numbers_found = {name: found, "own": known, "most": known + most}
            remedy = "enrol this device with a new key"
            logger.error("number rejected %s", fields(**numbers_found, do=remedy))
        self._counts["leaps refused"] += 1
        raise Refused(Reason.MALFORMED, f"{name} {found} is more than {most} above {known}")

    def is_loss(self, message: FromAggregator) -> bool:
        """Return whether a message, or the second count, shows that an earlier store was lost."""
        if not isinstance(message, m.WelcomeMessage) or not self.state.numbers.lost:
            return False
        return self._answers(message) and max(message.spent, self.state.numbers.spent) > 0

    def as_stored(self, entry: outbox_state.OutboxEntry) -> outbox_state.OutboxEntry:
        """Return a new entry as the store is to hold it: as tried once, if ``release`` sends it.

        The attempt is then saved with the entry and needs no transaction of its own (rule D3).
        """
        state = self.state
        is_sent = state.is_linked and state.is_ready and state.transfer is None
        return replace(entry, attempts=1) if is_sent else entry

    def release(
        self, entry: outbox_state.OutboxEntry, stored: outbox_state.OutboxEntry | None = None
    ) -> tuple[BudgetRefused, ...]:
        """Send an entry that the store already holds."""
        self._saved = (*self._saved, stored or entry)
        if stored is not None:
            numbers = replace(self.state.numbers, seq=entry.seq, spent=entry.spent)
            self.state = replace(self.state, numbers=numbers)
        return self._apply(outbox.release(self.state, entry, self.inputs()))

    def sign_again(self) -> None:
        """Sign every entry again: the device has another key now. A restart does so too."""
        entries = tuple(map(self._link.signing.sign_again, self.state.entries))
        self.state = replace(self.state, entries=entries)

    def is_welcome(self, message: FromAggregator) -> bool:
        """Return whether a message is the welcome that the present hello waits for."""
        if not isinstance(message, m.WelcomeMessage) or not self._answers(message):
            return False
        return message.life == self.state.numbers.life

    def _answers(self, message: m.WelcomeMessage | m.FloorMessage) -> bool:
        """Return whether a message answers the present hello."""
        return self.state.hello is not None and message.hello == self.state.hello.ref

    # --- numbers ----------------------------------------------------------------------------------

    def adopt_numbers(self, numbers: outbox_state.UplinkCounters) -> None:
        """Adopt numbers that the store already holds: releases were charged with other data."""
        self.state = replace(self.state, numbers=numbers)

    def limit_inline(self, size: int, ahead: int, single: int) -> None:
        """Set the largest updates sent without an offer, and the chunks sent without a grant."""
        self.state = replace(self.state, inline=size, ahead=ahead, single=single)

    def count_connection(self) -> None:
        self.state = replace(self.state, conn=min(self.state.conn + 1, 2**32 - 1))
        self._store.set_facts(conn=self.state.conn)

    # --- effects ----------------------------------------------------------------------------------

    def _apply(self, step: OutboxStep) -> tuple[BudgetRefused, ...]:
        after = step.outbox
        if after.numbers != self.state.numbers or after.entries != self._saved:
            self._store.keep(after.numbers, before=self._saved, after=after.entries)
            self._saved = after.entries
        welcome, self.state = self.state.welcome, after
        if after.welcome is not None and after.welcome != welcome:
            self._record_welcome(after.welcome)
        for message in step.messages:
            self._send(message)
        return tuple(found for note in step.notes for found in self._note(note))

    def _record_welcome(self, welcome: m.WelcomeMessage) -> None:
        facts = {"refused": 0, "quota announced": welcome.quota}
        if any(self._store.fact(name) != value for name, value in facts.items()):
            self._store.set_facts(**facts)

    def _send(self, message: outbox_state.OutgoingMessage) -> None:
        match message:
            case outbox_state.SendWhole(entry=entry):
                self._counts["sent"] += 1
                self._link.send_sealed(entry.kind, entry.body, entry.proof)
            case outbox_state.SendChunk(chunk=chunk, worker=worker):
                self._link.send(chunk, worker=worker)
            case m.OfferMessage():
                offered = self.state.entry((message.life, message.seq))
                is_repeat = offered is not None and offered.attempts > 1
                self._counts["resent" if is_repeat else "sent"] += 1
                self._link.send(message)
            case m.HelloMessage():
                self._link.send(message)

    def _note(self, note: outbox_state.Note) -> Iterator[BudgetRefused]:
        match note:
            case outbox_state.EntrySettled(code=0):
                self._counts["accepted"] += 1
            case outbox_state.EntrySettled(entry=entry, code=code):
                self._counts["refused"] += 1
                self._counts[f"refused {_name_of(code)}"] += 1
                logger.warning(
                    "update refused %s", fields(round=entry.round, reason=_name_of(code))
                )
                if code == Reason.BUDGET_SPENT:
                    yield BudgetRefused(self.state.numbers.spent)
            case outbox_state.RefusalReceived(code=code, wait=wait):
                self._counts[f"told {_name_of(code)}"] += 1
                if code == Reason.PLAIN_REFUSED and self.state.hello is not None:
                    self._warn_of_missing_key()
                if code in REMEDIES and self._store.fact("refused") != code:
                    self._store.set_facts(refused=code)
                if code in REMEDIES and self._counts[f"told {_name_of(code)}"] == 1:
                    remedy = {"reason": _name_of(code), "do": REMEDIES[Reason(code)]}
                    logger.error("participation stopped %s", fields(**remedy))
                logger.debug("refusal received %s", fields(reason=_name_of(code), wait=wait))

    def _warn_of_missing_key(self) -> None:
        if self._counts["hellos without a key"] == 0:
            remedy = "set encryption.required = true"
            logger.error("hello refused %s", fields(reason="PLAIN_REFUSED", do=remedy))
        self._counts["hellos without a key"] += 1


def _name_of(code: int) -> str:
    return Reason(code).name if code in Reason.__members__.values() else str(code)
