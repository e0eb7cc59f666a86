"""Admit numbered messages against the ledger: check once, record, then receipt (A2 to A5).

The receipt of a settled number is repeated, whatever round is open; only a new number is checked.
A final refusal is recorded like an update, so that a number never gets two verdicts.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from aggregator.ingress.admission_context import AdmissionContext, wanted
from aggregator.ingress.admission_policy import admit_update
from aggregator.ingress.replies import IngressParts, IngressResult
from aggregator.store.ledgers import Key, Ledger, LedgerRow, Standing, charged, standing, used
from aggregator.store.types import PendingTask
from edge_sdk.app.cli import fields
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol.contract import method
from edge_sdk.protocol.envelope import Sealed
from edge_sdk.protocol.messages import HelloMessage, RefusalMessage, UpdateMessage, takes_part

logger = logging.getLogger(__name__)

SIGNS = 3  # signs after which an identity counts as cloned
MEMORY = 7 * 86_400.0  # s after which a sign is forgotten


@dataclass(frozen=True, slots=True)
class _Greeted:
    """State of a device after its newest accepted hello."""

    life: int
    spent: int  # releases charged by then
    # times at which an older life outlived a newer one, monotonic seconds; one per life
    signs: tuple[float, ...] = ()
    has_sign: bool = False  # true if this life is one of them


class CloneDetector:
    """Signs of cloned identities, by device. In memory only: two live processes give new signs.

    Example:
        Life 2 began with 5 releases, so a sixth one in life 1 comes from another process; the
        fifth one may have been in flight for an hour.

        >>> twins = CloneDetector()
        >>> twins.greeted("meter-1", life=2, spent=5)
        >>> [twins.outlived("meter-1", life=1, spent=n, now=0.0) for n in (5, 6, 7)]
        [0, 1, 0]
    """

    def __init__(self) -> None:
        self._known: dict[str, _Greeted] = {}

    def greeted(self, device: str, *, life: int, spent: int) -> None:
        before = self._known.get(device)
        self._known[device] = _Greeted(life, spent, before.signs if before else ())

    def outlived(self, device: str, *, life: int, spent: int, now: float) -> int:
        """Check a release; return the number of signs if it adds one, else 0."""
        known = self._known.get(device)
        if known is None or known.has_sign or life >= known.life or spent <= known.spent:
            return 0
        signs = (*(at for at in known.signs if now - at < MEMORY), now)
        self._known[device] = replace(known, signs=signs, has_sign=True)
        return len(signs)

    def forget(self, device: str) -> None:
        """Delete the signs of a device, after its quarantine."""
        self._known.pop(device, None)


ROWS = 4096  # settled numbers kept per device; above, a new hello is required, which prunes them


class UpdateAdmission:
    """Admission of updates against the store's ledgers, with the detection of cloned identities.

    In memory are only signs of clones and the last number of each device; both reappear after a
    crash.
    """

    def __init__(self, parts: IngressParts) -> None:
        self._store, self._registry, self._sealer = parts.store, parts.registry, parts.sealer
        self._clock, self._counts = parts.clock, parts.counts
        self._last: dict[str, Key] = {}
        self._twins = CloneDetector()

    def greeted(self, device: str, hello: HelloMessage, ledger: Ledger) -> None:
        """Save the ledger after an accepted hello."""
        self._store.ledgers.save(device, ledger)
        self._last.pop(device, None)
        charged_so_far = ledger.spent if hello.lost else hello.spent
        self._twins.greeted(device, life=hello.life, spent=charged_so_far)

    def number(self, sealed: Sealed, key: Key, spent: int) -> Ledger | IngressResult:
        """Return the ledger to check a number with, or its receipt if it is settled (A2, A3).

        Args:
            sealed: The whole message, or the proof of an offered one.
            spent: Count of releases stated with it.

        Raises:
            Refused: SAY_HELLO for an unknown life, or if too many numbers are kept; TWO_LIVES.
        """
        device = sealed.sender
        self._registry.check_one_life(device)
        before = self._store.ledgers.get(device)
        ledger = used(before, key[0])
        row = self._store.ledgers.row(device, key)
        meaning = standing(ledger, key, sealed.digest, row)
        if row is None:
            self._watch(device, key, spent)
        if meaning is Standing.NEW:
            self._make_room(device, before, ledger)
            return charged(ledger, spent)
        if meaning is Standing.UNKNOWN_LIFE:
            raise Refused(Reason.SAY_HELLO, f"{device}: life {key[0]} is unknown; send a hello")
        if ledger != before:
            self._store.ledgers.save(device, ledger)
        if meaning is Standing.REPEAT and row is not None:
            return self.repeat(device, key, row)
        code = Reason.CLOSED
        if meaning is Standing.FORK:
            self._registry.quarantine(device, f"FORK: two bodies under number {key}")
            code = Reason.FORK
        self._counts[code.name] += 1
        return IngressResult(
            (self._sealer.receipt(device, key, LedgerRow(sealed.digest, code, 0, 0)),)
        )

    def update(
        self, sealed: Sealed, update: UpdateMessage, context: AdmissionContext | None
    ) -> IngressResult:
        """Check a whole update, inline or from chunks, and record the verdict.

        Raises:
            Refused: Nothing was recorded: PAUSED, or as ``number``.
        """
        device, key = sealed.sender, (update.life, update.seq)
        ledger = self.number(sealed, key, update.spent)
        if isinstance(ledger, IngressResult):
            return ledger
        now = wanted(context)
        is_its_run = update.run == now.opened.run
        row = LedgerRow(sealed.digest, Reason.ACCEPTED, update.run, update.round)
        try:
            self._check_sender(device, ledger, now)
            if is_its_run and not now.holds(device):
                log_outsider(device, now)
                raise Refused(Reason.NOT_IN_COHORT, device)  # noqa: TRY301 - one place records
            admitted = admit_update(
                update, sender=device, limits=now.limits, round_state=now.opened
            )
            if why := now.fault(admitted):
                raise Refused(Reason.NORM_EXCEEDED, why)  # noqa: TRY301 - one place records
            if not now.keeps(update.round):
                raise Refused(  # noqa: TRY301 - one place records
                    Reason.TOO_STALE, f"round {update.round}, the oldest round kept is {now.oldest}"
                )
            if now.is_personal:
                check_asked(update, device, self._store.tasks.get(device, now.opened.run))
        except Refused as refused:
            refusal = self.refuse(device, ledger, key, replace(row, code=refused.reason))
            if refused.reason is Reason.NOT_IN_COHORT and is_its_run and not now.holds(device):
                again = self._sealer.seal(device, RefusalMessage(Reason.SAY_HELLO, 0))
                return replace(refusal, answers=(*refusal.answers, again))
            return refusal
        row, entry = self._store.append(device, ledger, key, row, compact(admitted))
        taken = self._receipted(device, key, row)
        return taken if entry is None else replace(taken, entries=(entry,))

    def set_aside(self, sealed: Sealed, update: UpdateMessage) -> IngressResult:
        """Settle an update whose handling met a defect, without checking it again."""
        key = (update.life, update.seq)
        ledger = self.number(sealed, key, update.spent)
        if isinstance(ledger, IngressResult):
            return ledger
        row = LedgerRow(sealed.digest, Reason.INTERNAL, update.run, update.round)
        return self.refuse(sealed.sender, ledger, key, row)

    def refuse(self, device: str, ledger: Ledger, key: Key, row: LedgerRow) -> IngressResult:
        self._store.refuse(device, ledger, key, row)
        return self._receipted(device, key, row)

    def repeat(self, device: str, key: Key, row: LedgerRow) -> IngressResult:
        """Return the receipt of a settled number again."""
        self._counts["REPLAYED"] += 1
        return IngressResult((self._sealer.receipt(device, key, row),))

    def _receipted(self, device: str, key: Key, row: LedgerRow) -> IngressResult:
        self._counts[Reason(row.code).name] += 1
        self._note_gap(device, key)
        return IngressResult((self._sealer.receipt(device, key, row),))

    def _make_room(self, device: str, before: Ledger, ledger: Ledger) -> None:
        if self._store.ledgers.held(device) < ROWS:
            return
        if ledger != before:
            self._store.ledgers.save(device, ledger)  # the first use of a new life prunes
        if self._store.ledgers.held(device) >= ROWS:
            raise Refused(Reason.SAY_HELLO, f"{device} holds {ROWS} numbers")

    def _watch(self, device: str, key: Key, spent: int) -> None:
        life = key[0]
        signs = self._twins.outlived(device, life=life, spent=spent, now=self._clock.monotonic())
        if not signs:
            return
        self._counts["OUTLIVED"] += 1
        about = {"device": device, "life": life, "signs": f"{signs} of {SIGNS}"}
        logger.warning("cloned identity suspected %s", fields(**about))
        if signs >= SIGNS:
            self._twins.forget(device)
            self._registry.quarantine_clone(
                device, f"life {life} sends updates although a newer life has begun"
            )
            self._registry.check_one_life(device)

    def _check_sender(self, device: str, ledger: Ledger, context: AdmissionContext) -> None:
        if self._registry.is_quarantined(device):
            raise Refused(Reason.QUARANTINED, device)
        if context.releases is not None and ledger.spent > context.releases:
            raise Refused(Reason.BUDGET_SPENT, f"{device}: {ledger.spent} releases")
        if context.cohort is not None and not takes_part(context.cohort, device, context.share):
            raise Refused(Reason.NOT_IN_COHORT, device)

    def _note_gap(self, device: str, key: Key) -> None:
        """Count a gap in the numbers; it has no effect on training, but indicates loss (A7)."""
        life, seq = self._last.get(device, (key[0], 0))
        if key[0] == life and key[1] > seq + 1:
            self._counts["SEQ_GAPS"] += 1
        self._last[device] = max(key, (life, seq))


def log_outsider(device: str, context: AdmissionContext) -> None:
    run = {"run": context.opened.run, "name": context.name or "-"}
    logger.warning("update from outside the cohort %s", fields(device=device, **run))


def check_asked(update: UpdateMessage, device: str, asked: PendingTask | None) -> None:
    """Refuse an update that does not answer the newest task of its device.

    A repeat under another number passes, and is receipted as TWICE_IN_ROUND.

    Raises:
        Refused: LATE.
    """
    due = None if asked is None else (asked.round, asked.base)
    if due != (update.round, update.base):
        answered = f"round {update.round} of version {update.base}"
        raise Refused(Reason.LATE, f"{device}: update of {answered}, the open task is {due}")


def compact(update: method.Update) -> method.Update:
    """Return the update with its vector in float32, if the conversion is exact.

    >>> wide = method.Update("meter-1", 1, 0, np.array([0.5, 2.0]))
    >>> str(compact(wide).vector.dtype)
    'float32'
    >>> third = method.Update("meter-1", 1, 0, np.array([1 / 3]))
    >>> compact(third) is third
    True
    """
    single = np.asarray(update.vector, np.float32)
    return replace(update, vector=single) if np.array_equal(single, update.vector) else update
