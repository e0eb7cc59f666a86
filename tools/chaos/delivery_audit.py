"""Audit deliveries: find updates that were lost, applied twice, or missing from the ledger.

Pure functions: they compare the link traces of the devices with the aggregator's database and
return the differences. ``recompute`` checks the models; both together are the whole audit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aggregator.store.ledgers import LedgerRow
from aggregator.store.store import Store
from aggregator.store.types import Applied, Horizon, Version
from tools.chaos.link_trace import Line, Number, Receipted, Sent, read

SHOWN = 20  # faults of one kind that are listed in full


@dataclass(frozen=True, slots=True)
class Books:
    """Records of the aggregator's database."""

    # verdict of each number. Numbers of past lives may have been pruned.
    rows: Mapping[Number, LedgerRow] = field(default_factory=dict)
    # every update in the journal, in order. Vectors of old rounds may have been pruned.
    applied: Sequence[Applied] = ()
    versions: Sequence[Version] = ()  # closed rounds of all runs, by run and round
    # the second privacy ledger: releases charged, by device
    spent: Mapping[str, int] = field(default_factory=dict)
    # extent of the entries deleted from the journal
    horizon: Horizon = field(default_factory=Horizon)


@dataclass(frozen=True, slots=True)
class DeliveryVerdict:
    """Counts and faults of a delivery audit."""

    devices: int = 0
    sent: int = 0  # Distinct updates sent
    repeats: int = 0  # repeated transmissions of them
    receipted: int = 0  # Distinct updates receipted as accepted
    # Distinct updates with a final refusal, by code
    refused: Mapping[int, int] = field(default_factory=dict)
    unsettled: int = 0  # Distinct updates sent without a receipt
    applied: int = 0  # updates in the journal
    # updates receipted as accepted whose journal entries were deleted, so that they cannot be
    # compared
    pruned: int = 0
    # applied updates that could not be compared with the sent bytes, because only an offer was
    # recorded or the vector was pruned
    unproved: int = 0
    faults: tuple[str, ...] = ()  # differences, a sentence each; empty if there are none

    @property
    def is_sound(self) -> bool:
        """Return whether no update was lost, applied twice, altered or added."""
        return not self.faults


def judge(lines: Iterable[Line], books: Books) -> DeliveryVerdict:
    """Compare link traces with the database's records.

    The order of the lines and repeated lines do not matter.

    Example: a receipt of an accepted update, and an empty journal.
        >>> sent = Sent("m", 1, 1, "ab" * 32, run=1, round=1, spent=1)
        >>> judge([sent, Receipted("m", 1, 1, "ab" * 16, code=0)], Books(spent={"m": 1})).faults
        ('lost: update 1/1 of m was receipted and is not in the journal',)
        >>> judge([sent], Books()).is_sound  # never receipted, so not lost
        True
    """
    sent: dict[Number, list[Sent]] = defaultdict(list)
    receipts: dict[Number, list[Receipted]] = defaultdict(list)
    for line in lines:
        if isinstance(line, Sent):
            sent[line.number].append(line)
        elif line.life:
            receipts[line.number].append(line)
    counted = {
        number for number, lines_of in receipts.items() if any(r.code == 0 for r in lines_of)
    }
    kept = {one.number for one in books.applied}
    faults = [
        *_sent_twice(sent),
        *_receipts(sent, receipts),
        *_lost(counted, books),
        *_journal(sent, books),
        *_rows(sent, books),
        *_rounds(books.versions),
        *_spent(sent, counted, books),
    ]
    refused = Counter(
        lines_of[0].code for number, lines_of in receipts.items() if number not in counted
    )
    return DeliveryVerdict(
        devices=len({device for device, _, _ in sent}),
        sent=len(sent),
        repeats=sum(len(lines) - 1 for lines in sent.values()),
        receipted=len(counted),
        refused=dict(sorted(refused.items())),
        unsettled=len(sent.keys() - receipts.keys()),
        applied=len(books.applied),
        pruned=sum(books.horizon.covers(number) for number in counted - kept),
        unproved=sum(not _proofs(sent.get(a.number, []), a) for a in books.applied),
        faults=tuple(_few(faults)),
    )


def _named(number: Number) -> str:
    device, life, seq = number
    return f"update {life}/{seq} of {device}"


def _sent_twice(sent: Mapping[Number, list[Sent]]) -> Iterator[str]:
    for number, lines in sorted(sent.items()):
        if len({line.digest for line in lines}) > 1:
            yield f"forked: {_named(number)} was sent with two different bodies"


def _receipts(
    sent: Mapping[Number, list[Sent]], receipted: Mapping[Number, list[Receipted]]
) -> Iterator[str]:
    """Find receipts that contradict each other, or are for bytes that were not sent."""
    for number, receipts in sorted(receipted.items()):
        if len({receipt.code for receipt in receipts}) > 1:
            codes = sorted({receipt.code for receipt in receipts})
            yield f"contradicted: {_named(number)} was receipted with codes {codes}"
        bodies = {line.digest[:32] for line in sent.get(number, ())}
        if not all(receipt.ref in bodies for receipt in receipts):
            yield f"altered: {_named(number)} was receipted for bytes that were not sent"


def _lost(counted: Iterable[Number], books: Books) -> Iterator[str]:
    kept = {applied.number for applied in books.applied}
    for number in sorted(counted):
        if number not in kept and not books.horizon.covers(number):
            yield f"lost: {_named(number)} was receipted and is not in the journal"


def _journal(sent: Mapping[Number, list[Sent]], books: Books) -> Iterator[str]:
    """Find journal entries that were not sent, were altered, or occur twice."""
    numbers = Counter(applied.number for applied in books.applied)
    rounds = Counter((a.device, a.run, a.turn) for a in books.applied)
    for number, count in sorted(numbers.items()):
        if count > 1:
            yield f"twice: {_named(number)} is in the journal {count} times"
    for (device, run, turn), count in sorted(rounds.items()):
        if count > 1:
            yield f"twice: {device} counts {count} times in round {turn} of run {run}"
    for applied in books.applied:
        if applied.number not in sent:
            yield f"journal entry without matching upload: {_named(applied.number)}"
            continue
        if (applied.run, applied.turn) not in {(s.run, s.round) for s in sent[applied.number]}:
            yield f"altered: {_named(applied.number)} is in another round than it was sent for"
        if any(applied.vector != digest for digest in _proofs(sent[applied.number], applied)):
            yield f"altered: {_named(applied.number)} is in the journal with another vector"


def _proofs(lines: Iterable[Sent], applied: Applied) -> set[str]:
    """Return the vector digests of the sent bytes, where both sides can still be compared."""
    return {line.vector for line in lines if line.vector} if applied.vector else set()


def _rows(sent: Mapping[Number, list[Sent]], books: Books) -> Iterator[str]:
    kept = {applied.number for applied in books.applied}
    for number, row in sorted(books.rows.items()):
        if row.digest.hex() not in {line.digest for line in sent.get(number, ())}:
            what = "other bytes than were sent" if number in sent else "what was never sent"
            yield f"altered: {_named(number)} was settled for {what}"
        if row.code == 0 and number not in kept and not books.horizon.covers(number):
            yield f"lost: {_named(number)} was settled as counting and is not in the journal"
        if row.code != 0 and number in kept:
            yield f"contradicted: {_named(number)} was refused and is in the journal"


def _rounds(versions: Iterable[Version]) -> Iterator[str]:
    """Find rounds that do not increase, and versions that do not match the rounds."""
    before: dict[int, Version] = {}
    for one in sorted(versions, key=lambda v: (v.run, v.position)):
        last = before.get(one.run)
        if last is not None and one.round <= last.round:
            yield f"rounds: {one.round} closed after {last.round} in run {one.run}"
        expected = (last.version if last else 0) + one.moved
        if last is not None and one.version != expected:
            where = f"round {one.round} of run {one.run}"
            yield f"rounds: {where} left version {one.version}, not {expected}"
        before[one.run] = one


def _spent(
    sent: Mapping[Number, list[Sent]], counted: Iterable[Number], books: Books
) -> Iterator[str]:
    receipted: dict[str, int] = defaultdict(int)
    for number in counted:
        for line in sent.get(number, ()):
            receipted[number[0]] = max(receipted[number[0]], line.spent)
    for device, spent in sorted(receipted.items()):
        if books.spent.get(device, 0) < spent:
            known = books.spent.get(device, 0)
            yield f"account: {device} has charged {spent}, the aggregator knows of {known}"


def _few(faults: Iterable[str]) -> Iterator[str]:
    """Yield the first ``SHOWN`` faults, and the number of the others."""
    kinds: Counter[str] = Counter()
    for fault in faults:
        kind = fault.partition(":")[0]
        kinds[kind] += 1
        if kinds[kind] <= SHOWN:
            yield fault
    for kind, count in sorted(kinds.items()):
        if count > SHOWN:
            yield f"{kind}: and {count - SHOWN} more"


def books(store: Store) -> Books:
    """Read the records of every number from a database."""
    return Books(
        store.ledgers.settled(),
        list(store.journal.applied()),
        [version for run in store.runs.numbers() for version in store.runs.versions(run)],
        {client.id: store.ledgers.get(client.id).spent for client in store.devices.all()},
        store.retention.horizon(),
    )


def lines(folder: Path) -> Iterator[Line]:
    """Read link traces: every ``*.jsonl`` of a folder."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise ValueError(f"{folder} contains no link trace (*.jsonl)")
    for path in files:
        with path.open(encoding="utf-8") as text:
            yield from read(text)
