"""Admit updates that arrive inline, and grant, collect and settle those that arrive in chunks."""

from __future__ import annotations

from collections.abc import Callable

from aggregator.ingress.admission_context import AdmissionContext, foreseen, wanted
from aggregator.ingress.replies import IngressParts, IngressResult, Reply
from aggregator.ingress.update_admission import UpdateAdmission, log_outsider
from aggregator.ingress.uploads import Uploads
from aggregator.store.ledgers import LedgerRow
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import envelope
from edge_sdk.protocol.envelope import AGGREGATOR, Sealed
from edge_sdk.protocol.messages import ChunkMessage, OfferMessage, UpdateMessage

GRANTED_AT_ONCE = 64  # offers that one iteration of the loop takes from the queue


class UpdateIngress:
    """Entry of updates: inline bodies, offers and chunks.

    Args:
        uploads: Transfers in progress and offers that wait.
        refuse: Answers a waiting offer that is refused.
        is_offered: Returns whether bodies of another kind may be offered.
    """

    def __init__(
        self,
        parts: IngressParts,
        *,
        admission: UpdateAdmission,
        uploads: Uploads,
        refuse: Callable[[str, Reason, OfferMessage], IngressResult],
        is_offered: Callable[[str], bool],
    ) -> None:
        self._store, self._registry, self._sealer = parts.store, parts.registry, parts.sealer
        self._counts, self._is_set_aside = parts.counts, parts.is_set_aside
        self._admission, self._uploads, self._refuse = admission, uploads, refuse
        self._is_offered = is_offered
        self._contexts: dict[int, AdmissionContext] = {}
        self._is_more_waiting = False

    def open(self, context: AdmissionContext) -> None:
        self._contexts[context.opened.run] = context

    def context_of(self, run: int) -> AdmissionContext | None:
        """Return the context of a run; for an unknown run any context, which refuses it."""
        return self._contexts.get(run) or next(iter(self._contexts.values()), None)

    @property
    def next_due(self) -> float | None:
        """Return the time of the next transfer that is due, monotonic seconds; None if none is."""
        return float("-inf") if self._is_more_waiting else self._uploads.next_due

    def offer(self, sealed: Sealed, offer: OfferMessage, now: float) -> IngressResult:
        """Answer an offer: a receipt, a refusal, a grant, or nothing while it is queued.

        Raises:
            Refused: The kind, the proof or the number is invalid; PAUSED; BUSY.
        """
        device = sealed.sender
        if offer.of != UpdateMessage.kind and not self._is_offered(offer.of):
            raise Refused(Reason.UNKNOWN_KIND, offer.of)
        settled = self._settled(device, offer)
        if settled is not None:
            return settled
        grant = self._uploads.offered(device, offer, now)
        return (
            IngressResult() if grant is None else IngressResult((self._sealer.seal(device, grant),))
        )

    def chunk(self, device: str, chunk: ChunkMessage, now: float) -> IngressResult | Sealed:
        """Add a chunk to its upload; return the reply, or the body now complete; raise Refused if it does not fit."""
        result = self._uploads.add(device, chunk, now)
        if isinstance(result, Sealed):
            return result
        return (
            IngressResult()
            if result is None
            else IngressResult((self._sealer.seal(device, result),))
        )

    def settled_chunk(self, device: str, chunk: ChunkMessage) -> IngressResult:
        """Return the receipt of a chunk whose body is settled; raise Refused, EXPIRED, if its grant has expired."""
        if self._uploads.is_queued(device, chunk):  # sent with its offer; the grant asks again
            return IngressResult()
        if chunk.life and chunk.seq:
            key = (chunk.life, chunk.seq)
            row = self._store.ledgers.row(device, key)
            if row is not None and envelope.ref(row.digest) == chunk.id:
                self._counts["REPLAYED"] += 1
                return IngressResult((self._sealer.receipt(device, key, row),))
        raise Refused(Reason.EXPIRED, f"{device}: chunk without a grant; offer the body again")

    def tick(self, now: float) -> tuple[Reply, ...]:
        """Request overdue chunks, drop timed-out transfers, and grant waiting offers."""
        requests = [self._sealer.seal(device, have) for device, have in self._uploads.due(now)]
        return (*requests, *self._grant_waiting(now))

    def _settled(self, device: str, offer: OfferMessage) -> IngressResult | None:
        """Return the receipt of an offer with a settled number; None if it may be granted."""
        key, proved = (offer.life, offer.seq), self._proved(device, offer)
        if offer.of != UpdateMessage.kind:
            return None
        ledger = self._admission.number(proved, key, offer.spent)
        if isinstance(ledger, IngressResult):
            self._uploads.drop(device)
            return ledger
        is_set_aside = self._is_set_aside(device, offer.digest)
        reason = Reason.INTERNAL if is_set_aside else self._foreseen(device, offer)
        if reason is None:
            return None
        row = LedgerRow(offer.digest, reason, offer.run, offer.round)
        return self._admission.refuse(device, ledger, key, row)

    def _foreseen(self, device: str, offer: OfferMessage) -> Reason | None:
        context = wanted(self.context_of(offer.run))
        reason = foreseen(device, offer, context)
        if reason is Reason.NOT_IN_COHORT:
            log_outsider(device, context)
        return reason

    def _grant_waiting(self, now: float) -> list[Reply]:
        """Grant waiting offers while there is room, after checking each again."""
        answers: list[Reply] = []
        self._is_more_waiting = False
        for _ in range(GRANTED_AT_ONCE):
            found = self._uploads.next_waiting(now)
            if found is None:
                return answers
            answers += self._grant_one(*found, now).answers
        self._is_more_waiting = True
        return answers

    def _grant_one(self, device: str, offer: OfferMessage, now: float) -> IngressResult:
        try:
            settled = self._settled(device, offer)
        except Refused as refused:
            return self._refuse(device, refused.reason, offer)
        if settled is not None:
            return settled
        return IngressResult((self._sealer.seal(device, self._uploads.grant(device, offer, now)),))

    def _proved(self, device: str, offer: OfferMessage) -> Sealed:
        envelope.check_proof(
            offer.digest,
            offer.sig,
            kind=offer.of,
            sender=device,
            recipient=AGGREGATOR,
            fleet=self._sealer.bodies.fleet,
            key_of=self._registry.key_of,
        )
        return Sealed(offer.of, device, b"", offer.digest, offer.sig)
