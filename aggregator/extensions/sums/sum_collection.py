"""Collect masked numbers, close periods into sets, and verify the witness's answers.

A message is receipted in the transaction that stores it. When a period is closed, its messages become one
set for each value of the cohort's label, which never changes afterwards. The set's file is written to the
folder ``sums`` of the state folder; an answer is taken from there. What was opened can be computed again
from the masked vectors and the answer (``recomputed``).
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggregator.config import AggregatorConfig
from aggregator.extensions.sums.opened_sum import SumTable, WaitingSet, is_large_enough
from aggregator.extensions.sums.sum_set import (
    MEMBERS_LIMIT,
    AnswerFile,
    SetFile,
    SumAnswer,
    SumMember,
    SumSet,
    opened_total,
    read_answer,
)
from aggregator.ingress.message_ingress import Receiver
from aggregator.ingress.replies import IngressResult
from aggregator.operations.commands import OrderError
from aggregator.operations.control_queue import ControlOrder
from aggregator.operations.order_executor import record_once
from aggregator.operations.server_extensions import Order, ServerExtension, ServerParts
from aggregator.rounds.announcements import Publication
from aggregator.store.store import Store
from edge_sdk.app.cli import fields
from edge_sdk.app.clock import DAY
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.sums.masked_sum import (
    FollowedContract,
    SumContext,
    contracts_of,
    packed,
    unpacked,
)
from edge_sdk.extensions.sums.messages import SumMessage, SumReceiptMessage, SumsMessage
from edge_sdk.protocol import topics
from edge_sdk.protocol.codec import decode, encode
from edge_sdk.protocol.envelope import Sealed, unproved
from edge_sdk.protocol.keys import verify, write_atomically

logger = logging.getLogger(__name__)

MARGIN = 60_000  # ms after a period's end in which messages that were underway still count
AGAIN = 60.0  # s after which a set that waits is sent to the witness again
MOST = 60_000  # bytes of a set, and of its answer, over the broker; larger ones go as files
TURN = 5.0  # s between two looks at deadlines and answers
SET, ANSWER = ".set", ".opened"


def announced_contracts(store: Store, fleet: str) -> tuple[FollowedContract, ...]:
    """Return the contracts that are announced, and keep their bytes; none before the first."""
    payload = store.announcements.get(topics.common(fleet, SumsMessage.kind))
    if not payload:
        return ()
    found = contracts_of(decode(SumsMessage, unproved(payload)))
    for one in found:
        store.table(SumTable).add_contract(one, encode(one.terms))
    return found


def close_period(
    store: Store, fleet: str, contract: FollowedContract, period: int, now: int
) -> list[SumSet]:
    """Store the sets of a period, one for each value of the cohort's label; return those to open.

    Devices without the label, revoked ones, and further ids of one key are in none; one beyond
    ``MEMBERS_LIMIT`` is left out.
    """
    terms, cohorts = contract.terms, dict[str, str]()
    known: set[bytes] = set()
    for device in store.devices.all():
        value = dict(device.labels).get(terms.cohort) if terms.cohort else ""
        is_other = known.isdisjoint(device.sign)  # a device with several ids counts once
        if value is not None and device.state == "enrolled" and is_other:
            cohorts[device.id] = value
            known.update(device.sign)
    expected = Counter(cohorts.values())
    members: dict[str, list[SumMember]] = {}
    table = store.table(SumTable)
    for name, sent in table.messages(contract, period):
        if name in cohorts:
            digest = hashlib.sha256(sent.blob).digest()
            members.setdefault(cohorts[name], []).append(
                SumMember(name, digest, sent.enc, sent.proof)
            )
    sets = [
        SumSet(fleet, contract, table.body(contract), period, value, tuple(found[:MEMBERS_LIMIT]))
        for value, found in sorted(members.items())
    ]
    table.add_sets(((one, expected[one.value]) for one in sets), now)
    for one in sets:
        about = {"contract": terms.name, "period": period, "cohort": one.value or "-"}
        count = {"members": len(one.members), "expected": expected[one.value]}
        logger.info("sum closed %s", fields(**about, **count, opens=is_large_enough(one)))
    return [one for one in sets if is_large_enough(one)]


def open_sum(store: Store, data: bytes, witness: bytes, now: int) -> SumSet | None:
    """Verify an answer, and store its sum; return its set, or None if it was opened before.

    Args:
        data: The answer's file.
        witness: Public key of the witness's signatures.

    Raises:
        Refused: It is no answer of this witness to a set of this aggregator, or a masked vector of the
            set is not stored any more.
    """
    answer, table = read_answer(data), store.table(SumTable)
    answer.require_from(witness)
    found = table.find_set(answer.of)
    if found is None or len(found.members) != answer.members:
        raise Refused(
            Reason.NOT_FOUND, f"no set {answer.of.hex()[:16]} of {answer.members} members"
        )
    total = opened_total(_vectors(table, found), answer)
    is_new = table.add_opened(answer.of, answer.members, total, data, now)
    return found if is_new else None


def _vectors(table: SumTable, found: SumSet) -> Iterator[Any]:
    """Yield the masked vectors of a set, each compared with the digest that its device signed."""
    terms = found.contract.terms
    for one in found.members:
        message = table.message(found.contract, one.device, found.period)
        if message is None or hashlib.sha256(message.blob).digest() != one.masked:
            text = f"the masked numbers of {one.device} are not those of the set"
            raise Refused(Reason.BAD_DIGEST, text)
        yield unpacked(message.blob, terms.length)


@dataclass(frozen=True, slots=True)
class RecomputedSum:
    """An opened sum, computed again."""

    contract: str
    value: str
    period: int
    why: str  # difference, or why it cannot be computed; empty if it is equal bit for bit
    is_past: bool = False  # its masked vectors were deleted after keep_days: it cannot be computed


def recomputed(store: Store, witness: bytes) -> list[RecomputedSum]:
    """Compute every opened sum again from masked vectors and answer, and compare it bit for bit."""
    table, found = store.table(SumTable), []
    kept: dict[bytes, set[int]] = {}
    for digest, total, data in table.answers():
        of, why = table.find_set(digest), ""
        if of is None:
            found.append(RecomputedSum("", "", 0, f"no set {digest.hex()[:16]}"))
            continue
        name = of.contract.terms.name
        if of.period not in kept.setdefault(of.contract.digest, table.kept_periods(of.contract)):
            found.append(RecomputedSum(name, of.value, of.period, "", is_past=True))
            continue
        try:
            answer: SumAnswer = read_answer(data)
            answer.require_from(witness)
            if packed(opened_total(_vectors(table, of), answer)) != total or answer.of != digest:
                why = "the stored sum is another one"
        except Refused as refused:
            why = str(refused)
        found.append(RecomputedSum(name, of.value, of.period, why))
    return found


class SumCollection(ServerExtension):
    """The sums of a running daemon."""

    def __init__(self, parts: ServerParts, config: AggregatorConfig) -> None:
        super().__init__(parts, config)
        self._contracts: tuple[FollowedContract, ...] = ()
        self._turn_at = parts.isolation.clock.monotonic()
        self._send_at = self._turn_at
        self._refused: set[str] = set()

    def open(self) -> None:
        """Collect for the announced contracts, and write the sets that wait for a witness."""
        self._read()
        self._write_sets()

    def receivers(self) -> Mapping[str, Receiver]:
        return {
            SumMessage.kind: (SumMessage, self._receive),
            AnswerFile.kind: (AnswerFile, self._answered),
        }

    def orders(self) -> Mapping[str, Order]:
        """Announce contracts that the root has signed."""
        return {"sums": self._announce}

    def on_tick(self, now: float) -> None:
        """Close periods, take answers, and delete old masked numbers."""
        if now < self._turn_at:
            return
        self._turn_at = now + TURN
        self._close()
        self._take_answers()
        if now >= self._send_at:
            self._send_at = now + AGAIN
            self._send_sets()

    def status(self) -> Mapping[str, Any]:
        """Return the sets that wait for the witness, by name."""
        waiting = [path.name for path in sorted(self.folder.glob(f"*{SET}"))]
        return {"sums": {"waiting": waiting}} if waiting else {}

    @property
    def folder(self) -> Path:
        """Folder of sets and answers."""
        return self.config.state / "sums"

    @property
    def _table(self) -> SumTable:
        return self.parts.isolation.store.table(SumTable)

    def _read(self) -> None:
        isolation = self.parts.isolation
        with isolation.store.transaction():
            self._contracts = announced_contracts(isolation.store, self.parts.ends.fleet)

    # --- messages ---------------------------------------------------------------------------------

    def _receive(self, sealed: Sealed, sent: SumMessage) -> IngressResult:
        """Store masked numbers and receipt them; the same bytes again are receipted again."""
        isolation, device = self.parts.isolation, sealed.sender
        contract = next((one for one in self._contracts if one.ref == sent.of), None)
        if contract is None:
            raise Refused(Reason.NOT_FOUND, "no announced contract")
        before = self._table.message(contract, device, sent.period)
        if before is not None and before != sent:
            raise Refused(Reason.TWICE_IN_ROUND, "other numbers of this period are stored")
        if before is None:
            self._judge(device, contract, sent)
            self._table.add_message(contract, device, sent, isolation.clock.wall())
        isolation.ingress.counts["SUMS" if before is None else "REPEATED_SUMS"] += 1
        receipt = SumReceiptMessage(sealed.clear_ref)
        return IngressResult((isolation.ingress.sealer.seal(device, receipt),))

    def _judge(self, device: str, contract: FollowedContract, sent: SumMessage) -> None:
        terms, now = contract.terms, self.parts.isolation.clock.wall()
        unpacked(sent.blob, terms.length)
        if not terms.begins(sent.period) or sent.period > now + terms.period:
            raise Refused(Reason.FROM_FUTURE, f"period {sent.period} of {terms.name}")
        if now > sent.period + terms.due + MARGIN:
            raise Refused(Reason.LATE, f"period {sent.period} of {terms.name} is closed")
        context = SumContext(self.parts.ends.fleet, device, contract.digest, sent.period)
        signed = context.signed(sent.enc, hashlib.sha256(sent.blob).digest())
        client = self.parts.isolation.store.devices.get(device)
        if client is None or not any(verify(key, sent.proof, signed) for key in client.sign):
            raise Refused(Reason.BAD_SIGNATURE, f"the numbers of {device} for the witness")

    # --- deadlines --------------------------------------------------------------------------------

    def _close(self) -> None:
        isolation = self.parts.isolation
        now, store = isolation.clock.wall(), isolation.store
        due = [
            (one, period)
            for one in self._table.contracts()
            for period in self._table.periods(one)
            if now > period + one.terms.due + MARGIN
        ]
        if not due:
            return
        with store.transaction():
            for one, period in due:
                close_period(store, self.parts.ends.fleet, one, period, now)
            kept = self.config.section("sums").keep_days
            self._table.drop_messages(now - kept * DAY)
        self._write_sets()

    def _write_sets(self) -> None:
        """Write the file of each set that waits; one that is there already is the same."""
        for one in self._waiting():
            path = self.folder / f"{one.name}{SET}"
            if not path.exists():
                make_private_folder(self.folder)
                write_atomically(path, one.data, 0o640)

    def _waiting(self) -> list[WaitingSet]:
        """Return the sets that wait for the witness, while their masked numbers are kept."""
        kept = self.config.section("sums").keep_days
        return self._table.waiting(self.parts.isolation.clock.wall() - kept * DAY)

    def _send_sets(self) -> None:
        """Send each set that waits to the witness over the broker, if it is one message."""
        witness, isolation = self.config.section("sums").witness, self.parts.isolation
        if not witness:
            return
        sets = [
            decode(SetFile, one.data)
            for one in self._waiting()
            if len(one.data) <= MOST and 8 * one.of.contract.terms.length <= MOST
        ]
        isolation.publisher.reply(isolation.ingress.sealer.seal(witness, one) for one in sets)

    def _answered(self, sealed: Sealed, _: AnswerFile) -> str:
        """Take an answer that arrives over the broker."""
        isolation, section = self.parts.isolation, self.config.section("sums")
        witness, now = bytes.fromhex(section.witness_sign), isolation.clock.wall()
        found = open_sum(isolation.store, sealed.content, witness, now)
        if found is not None:
            self._opened(found)
        return "SUMS_OPENED"

    def _opened(self, found: SumSet) -> None:
        about = {"contract": found.contract.terms.name, "cohort": found.value or "-"}
        logger.info("sum opened %s", fields(**about, period=found.period))
        waiting = {f"{one.name}{SET}" for one in self._waiting()}
        for path in self.folder.glob(f"*{SET}"):
            if path.name not in waiting:
                path.unlink(missing_ok=True)

    def _take_answers(self) -> None:
        witness = bytes.fromhex(self.config.section("sums").witness_sign)
        store, now = self.parts.isolation.store, self.parts.isolation.clock.wall()
        for path in sorted(self.folder.glob(f"*{ANSWER}")):
            if path.name in self._refused:
                continue
            try:
                with store.transaction():
                    found = open_sum(store, path.read_bytes(), witness, now)
            except (Refused, OSError) as error:
                self._refused.add(path.name)
                logger.warning("sum not opened %s", fields(file=path.name, why=error))
                continue
            path.unlink()
            if found is not None:
                self._opened(found)

    # --- orders -----------------------------------------------------------------------------------

    def _announce(self, order: ControlOrder, inbox: Path) -> str:
        parts, path = self.parts, inbox / CONTRACTS
        try:
            payload = path.read_bytes()
        except OSError as error:
            raise OrderError(f"sums: {error}") from error
        topic, store = topics.common(parts.ends.fleet, SumsMessage.kind), parts.isolation.store
        result = "contracts of sums are announced"
        with store.transaction():
            store.announce({topic: payload})
            record_once(order, parts.isolation.audit_log, "sums", result)
        path.unlink()
        self._read()
        parts.isolation.publisher.announce([Publication(topic, payload)])
        return result


CONTRACTS = "contracts.sums"
"""Name of the signed contracts in the folder of orders."""
