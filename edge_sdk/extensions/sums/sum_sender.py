"""Send one masked vector of each contract and period, and send it again until it is receipted.

A message is made once, saved with the end of its period in one transaction, and then sent; the same bytes
are sent again after a restart. No period of a source is sent twice, and no two that overlap, also not under
another contract: whoever could announce a second contract would learn one device from the difference.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from edge_sdk.app.cli import fields
from edge_sdk.errors import Reason, Refused, SignerUnavailable
from edge_sdk.extensions.sums.masked_sum import (
    Floats,
    FollowedContract,
    SumContext,
    contracts_of,
    masked_message,
)
from edge_sdk.extensions.sums.messages import (
    SumContract,
    SumMessage,
    SumReceiptMessage,
    SumsMessage,
)
from edge_sdk.extensions.sums.period_numbers import numbers_of
from edge_sdk.extensions.sums.sum_checks import CONTRACTS, POINT, saved_contracts
from edge_sdk.forecasting.forecast import Forecast
from edge_sdk.forecasting.series import Series
from edge_sdk.privacy.ledger import BudgetSpent, PrivacyCharge
from edge_sdk.protocol import messages
from edge_sdk.protocol.codec import decode, encode
from edge_sdk.protocol.contract.method import Task
from edge_sdk.protocol.envelope import AGGREGATOR, digest, prove, ref
from edge_sdk.protocol.messages import CHUNK_LIMIT, ChunkMessage, GrantMessage, HaveMessage
from edge_sdk.protocol.outbox_state import OutboxEntry, PendingTransfer
from edge_sdk.session.signed_link import VerifiedMessage
from edge_sdk.training.extension import DeviceExtension, DeviceParts

logger = logging.getLogger(__name__)

RETRY: Final = 600.0
"""Seconds after which a message that was not receipted is sent again over the same link."""
OFFER_AGAIN: Final = 60.0
"""Seconds without a request for chunks after which a long message is offered again: an update may go first."""
MINUTE: Final = 60_000
"""Milliseconds after which numbers that are of no part of a period are asked for again."""
STATISTIC: Final = "statistic"
"""Source of contracts under which no statistic leaves the device but in a sum."""
SERIAL: Final = "sum serial"
"""Fact with the serial of the followed announcement."""
NumbersOf = Callable[[DeviceParts, str, int], Floats | None]
"""Numbers of a source that a row ``sums`` of the index names: of the device's parts, the contract's
``stream`` and the begin of a period; None while they are unknown, or of another ``stream``."""


class SumSender(DeviceExtension):
    """The sums of one device."""

    kinds = (SumsMessage.kind, SumReceiptMessage.kind, GrantMessage.kind, HaveMessage.kind)

    def __init__(self, device: DeviceParts) -> None:
        super().__init__(device)
        self._store, self._session = device.store, device.session
        self._contracts = saved_contracts(device.store)
        self._sent: dict[str, tuple[float, float]] = {}  # by source: begin of the link, time
        self._offered: dict[str, tuple[OutboxEntry, PendingTransfer]] = {}
        self._tried: dict[str, tuple[object, ...]] = {}
        self._declined: set[bytes] = set()
        self._sources = device.config.index.loaders("sums")

    def start(self) -> None:
        parts = self._session.parts
        parts.link.subscribe_further((SumsMessage.kind,))
        parts.announcements.serials.append(SERIAL)

    def on_message(self, message: VerifiedMessage) -> None:
        """Follow newer contracts; note a receipt.

        Raises:
            Refused: ROLLBACK, or MALFORMED for contracts that cannot be kept.
        """
        match message.message:
            case SumsMessage() as announced:
                self._follow(announced, message.body)
            case GrantMessage() | HaveMessage() as request:
                self._send_chunks(request)
            case SumReceiptMessage() as receipt:
                for one in self._contracts:
                    waiting = self._waiting(one.terms.source)
                    if waiting is not None and ref(digest(encode(waiting))) == receipt.of:
                        self._store.set_facts(
                            **{f"sum {one.terms.source} receipted": waiting.period}
                        )

    def on_tick(self) -> None:
        """Make the message of a complete period, and send messages without a receipt.

        Raises:
            StoreFull: No space; it is tried again.
        """
        now, session = self._session.time.now(), self._session
        if now is None or not session.may_request or session.participation.is_held:
            return
        for one in self._contracts:
            self._make(one, now)
            self._send(one, now)

    def on_task(self, task: Task) -> bool:
        """Leave a task unanswered that asks for a statistic which this device gives to sums alone."""
        asked = self.device.active.contract.get(task.ask)
        is_own = asked is not None and asked.has_statistic and not task.values.get("period")
        if not is_own or all(one.terms.source != STATISTIC for one in self._contracts):
            return False
        logger.warning("statistic not sent alone %s", fields(round=task.round, base=task.base))
        return True

    def status(self) -> dict[str, Any]:
        """Return the contracts, each with its last message."""
        found = {}
        for one in self._contracts:
            waiting, source = self._waiting(one.terms.source), one.terms.source
            found[one.terms.name] = {
                "source": source,
                "least": one.terms.least,
                "declined": one.digest in self._declined,
                "period": None if waiting is None else waiting.period,
                "digest": None if waiting is None else digest(waiting.blob).hex(),
                "receipted": waiting is not None and self._is_receipted(source, waiting),
                "sent": self._store.fact(f"sum {source} count"),
            }
        return {"sums": found}

    # --- contracts --------------------------------------------------------------------------------

    def _follow(self, announced: SumsMessage, body: bytes) -> None:
        floor = self._store.fact(SERIAL)
        if announced.serial == floor and body == self._store.paper(CONTRACTS):
            return
        if announced.serial <= floor:
            raise Refused(Reason.ROLLBACK, f"serial {announced.serial} is not above {floor}")
        found = contracts_of(announced)
        self._store.file_paper(CONTRACTS, body, **{SERIAL: announced.serial})
        self._contracts = found
        self._tried.clear()
        for one in found:
            about = {"contract": one.terms.name, "least": one.terms.least}
            logger.info("sum contract followed %s", fields(**about, length=one.terms.length))

    def _fits(self, one: FollowedContract, series: Series) -> bool:
        """Return whether this device has the numbers of a contract; if not, decline it and log that once."""
        terms, target = one.terms, self.device.active.learner.manifest.target
        does_fit = terms.source in self._sources
        if terms.is_timed:
            is_known = (terms.stream, terms.unit) == (target.stream, target.unit)
            does_fit = is_known and not terms.step % (1000 * series.step)
        if not does_fit and one.digest not in self._declined:
            self._declined.add(one.digest)
            about = {"contract": terms.name, "source": terms.source, "stream": terms.stream}
            logger.warning("sum contract declined %s", fields(**about, own=target.stream))
        return does_fit

    # --- messages ---------------------------------------------------------------------------------

    def _make(self, one: FollowedContract, now: int) -> None:
        terms, learner = one.terms, self.device.active.learner
        series, floor = learner.series, self._store.fact(f"sum {terms.source} until")
        at = now // (terms.step if terms.is_timed else MINUTE)
        mark = (len(series) and series.newest, at, id(self.device.active.latest))
        if not len(series) or self._tried.get(terms.name) == mark or not self._fits(one, series):
            return
        self._tried[terms.name] = mark
        last = terms.last_begin(now)
        first, ahead = terms.last_begin(max(0, now - terms.due)) + terms.period, 0
        if terms.source != "history":  # never of a past period, and of the next one if it is ahead
            first = max(first, last)
            ahead = terms.period if terms.source == "tomorrow" else 0
        found: Forecast | None = None
        for period in range(first, last + ahead + 1, terms.period):
            if period < floor:
                continue
            if terms.source == "tomorrow" and found is None:
                found = learner.forecast(self.device.active.latest)
            values = self._numbers(terms, period, series, found)
            if values is not None:
                self._save(one, period, values)
                return

    def _numbers(
        self, terms: SumContract, period: int, series: Series, forecast: Forecast | None
    ) -> Floats | None:
        """Return the numbers of a period by its source; None while they are unknown."""
        if terms.is_timed:
            return numbers_of(terms, period, series, forecast)
        source: NumbersOf = self._sources[terms.source]()
        values = source(self.device, terms.stream, period)
        return values if values is not None and values.shape == (terms.length,) else None

    def _save(self, one: FollowedContract, period: int, values: Floats) -> None:
        config, source = self.device.config, one.terms.source
        beyond = int(((values < one.terms.lowest) | (values > one.terms.highest)).sum())
        if beyond and not one.terms.is_timed:
            logger.warning("sum clipped %s", fields(contract=one.terms.name, numbers=beyond))
        context = SumContext(config.fleet, config.id, one.digest, period)
        try:
            message = masked_message(values, one, context, self.device.identity)
        except SignerUnavailable as error:
            self._session.note_signer(str(error))
            self._tried.pop(one.terms.name, None)
            return
        facts = {
            f"sum {source} until": period + one.terms.period,
            f"sum {source} count": self._store.fact(f"sum {source} count") + 1,
        }
        try:
            self._file(one.terms, encode(message), **facts)
        except BudgetSpent as error:
            logger.warning("sum not sent %s", fields(contract=one.terms.name, why=error))
            return
        self._sent.pop(source, None)
        self._offered.pop(source, None)
        self._session.count("sums made")

    def _file(self, terms: SumContract, body: bytes, **facts: int) -> None:
        """Save a message, with the charge of the sum's noise; raise BudgetSpent if it does not fit."""
        name, accountant = f"sum {terms.source}", self.device.active.accountant
        if not terms.Noise:
            self._store.file_paper(name, body, **facts)
            return
        now = self._session.time.now() or 0
        charge = PrivacyCharge(now, "device", POINT, "gaussian", terms.multiplier)
        after = accountant.current().charge(charge)
        self._store.save_answer(name, body, charge, **facts)
        accountant.adopt_account(after)

    def _send(self, one: FollowedContract, now: int) -> None:
        terms, session = one.terms, self._session
        waiting, linked_at = self._waiting(terms.source), session.connection.linked_at
        if waiting is None or waiting.of != one.ref or now > waiting.period + terms.due:
            return
        at_link, at = self._sent.get(terms.source, (-1.0, -RETRY))
        again = OFFER_AGAIN if terms.source in self._offered else RETRY
        is_due = at_link != linked_at or session.now >= at + again
        if not is_due or self._is_receipted(terms.source, waiting):
            return
        send = session.send if len(waiting.blob) <= CHUNK_LIMIT else self._offer
        if send(waiting):
            self._sent[terms.source] = linked_at, session.now

    def _offer(self, message: SumMessage) -> bool:
        """Offer a message that is too long for one payload, while no update waits for its turn.

        The aggregator has one transfer of a device at a time. A message that must be encrypted has the same
        bytes until the process ends.
        """
        source = next(one.terms.source for one in self._contracts if one.ref == message.of)
        if self._session.outbox.entries:
            return False
        entry, _ = self._offered.get(source) or (self._entry(message), None)
        if entry is None:
            return False
        self._offered[source] = entry, PendingTransfer(entry.key, b"")
        return self._session.send(entry.offer(self._session.outbox.chunk))

    def _entry(self, message: SumMessage) -> OutboxEntry | None:
        config, session = self.device.config, self._session
        about = {"kind": message.kind, "sender": config.id, "recipient": AGGREGATOR}
        try:
            body = session.encryption(message.kind)(encode(message))
            proof = prove(digest(body), fleet=config.fleet, signer=self.device.identity, **about)
        except SignerUnavailable as error:
            session.note_signer(str(error))
            return None
        except Refused as refused:
            logger.warning("sum not sent %s", fields(why=refused))
            return None
        return OutboxEntry(1, 1, body, proof, 1, 0, 0, message.of, 0, message.kind)

    def _send_chunks(self, request: GrantMessage | HaveMessage) -> None:
        """Send the chunks that an answer to an offer asks for."""
        session = self._session
        for source, (entry, before) in self._offered.items():
            if entry.id == request.id:
                size = session.outbox.chunk
                transfer, chosen = before.asked(
                    request, messages.count_of(len(entry.body), size), session.now
                )
                self._offered[source] = entry, transfer
                self._sent[source] = session.connection.linked_at, session.now
                for i in chosen:
                    piece = entry.body[i * size : (i + 1) * size]
                    session.send(ChunkMessage(entry.id, i, blob=piece))

    def _waiting(self, source: str) -> SumMessage | None:
        """Return the last message of a source."""
        body = self._store.paper(f"sum {source}")
        try:
            return None if body is None else decode(SumMessage, body)
        except Refused as refused:
            logger.warning("stored value rejected %s", fields(what=f"sum {source}", why=refused))
            return None

    def _is_receipted(self, source: str, message: SumMessage) -> bool:
        return self._store.fact(f"sum {source} receipted", -1) == message.period
