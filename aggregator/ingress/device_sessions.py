"""Process the messages about a device itself: hello, status, metrics, and replies to commands."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from aggregator.ingress.admission_context import AdmissionContext, WelcomeTerms, welcome
from aggregator.ingress.content_server import ContentServer
from aggregator.ingress.log_continuation import LogProver
from aggregator.ingress.registry import Registry
from aggregator.ingress.replies import IngressResult, ReplySealer
from aggregator.ingress.update_admission import UpdateAdmission
from aggregator.ingress.uploads import Uploads
from aggregator.store.sequence_ledger import after_hello
from aggregator.store.types import DeclinedRun, Store
from edge_sdk.app.cli import fields
from edge_sdk.app.clock import Clock
from edge_sdk.wire.contract import method
from edge_sdk.wire.errors import ABILITIES, Reason, Refused
from edge_sdk.wire.keys import Signer
from edge_sdk.wire.protocol.envelope import Sealed
from edge_sdk.wire.protocol.messages import (
    WIRE,
    FloorMessage,
    ForecastMessage,
    HelloMessage,
    Message,
    MetricsMessage,
    ReceiptMessage,
    RefusalMessage,
    ScoreMessage,
    StatusMessage,
    TrialMessage,
)

logger = logging.getLogger(__name__)

RENUMBERED = 16  # commands that are renumbered for a device in one life


class DeviceSessions:
    """Sessions of the devices: their lives, presence and metrics, and their replies to commands.

    Args:
        store: Store of ledgers and commands.
        registry: Enrolled devices.
        sealer: Signer of replies.
        clock: Wall time of welcomes.
        admission: Receives the device of a new life.
        uploads: Transfers that end with a life, or when the device leaves or aborts.
        downloads: Transfers that a refusal ends.
        counts: Counters of the ingress.
        contexts: Admission context of each run, always up to date.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        sealer: ReplySealer,
        model_signer: Signer,
        clock: Clock,
        admission: UpdateAdmission,
        uploads: Uploads,
        downloads: ContentServer,
        counts: Counter[str],
        contexts: Iterable[AdmissionContext],
    ) -> None:
        self._store, self._registry, self._sealer, self._clock = store, registry, sealer, clock
        self._admission, self._uploads, self._downloads = admission, uploads, downloads
        self._counts, self._contexts = counts, contexts
        self._prover = LogProver(store, sealer.fleet, model_signer, counts)
        self._renumbered: dict[str, tuple[int, int]] = {}

    def hello(
        self,
        sealed: Sealed,
        hello: HelloMessage,
        terms: WelcomeTerms,
    ) -> IngressResult:
        """Answer a hello with a welcome and the open commands, or with the floor of its life.

        Raises:
            Refused: UPGRADE_REQUIRED, or the life or a count is invalid.
        """
        device = sealed.sender
        if not hello.wire[0] <= WIRE <= hello.wire[1]:
            raise Refused(
                Reason.UPGRADE_REQUIRED,
                f"{device}: wire versions {hello.wire[0]} to {hello.wire[1]}, expected {WIRE}",
            )
        self._registry.check_one_life(device)
        self._registry.record_version(device, hello.sdk)
        before = self._store.ledger(device)
        self._registry.encryption.refuse_missing(device, hello.key)
        ledger, is_welcome = after_hello(before, hello, sealed.digest, terms.hold)
        if not is_welcome:
            floor = FloorMessage(sealed.ref, ledger.top)
            return IngressResult((self._sealer.seal(device, floor, hello.key),))
        rekeyed = device if self._registry.encryption.record(sealed, hello.key) else None
        if ledger != before:
            self._registry.forget_bundle_refusal(device)
            self._admission.greeted(device, hello, ledger)
            self._uploads.leave(device)  # the device repeats its open offers
        its = [context for context in self._contexts if context.holds(device)]
        run = its[0].opened.run if its else 0
        names = tuple(one.name for one in its if one.name) if its and its[0].name else ()
        now = self._clock.wall()
        region = self._registry.labels(device).get("region", "")
        reply = welcome(
            terms,
            hello,
            sealed.ref,
            ledger,
            run=run,
            time=now,
            names=names,
            region=region,
            proof=self._prover.continuation(device, hello.log + hello.root),
        )
        messages: list[Message] = [reply, *self._store.issued(device)]
        answers = tuple(self._sealer.seal(device, message) for message in messages)
        member = method.Member(device, True)
        return IngressResult(answers, member=member, greeted=device, rekeyed=rekeyed)

    def status(self, sealed: Sealed, status: StatusMessage) -> IngressResult:
        """Record a device's presence; a device that leaves loses its uploads."""
        top = self._store.ledger(sealed.sender).top  # highest confirmed life
        status = replace(status, life=min(status.life, top))
        known = self._registry.presence(sealed.sender)
        if (status.life, status.conn) < (known.life, known.conn):
            self._counts["STALE_STATUS"] += 1
        member = self._registry.follow(sealed.sender, status)
        if member is not None and not member.present:
            self._uploads.leave(sealed.sender)
        is_early = member is not None and member.present and not status.life  # before its hello
        return IngressResult(member=None if is_early else member)

    def metrics(self, sealed: Sealed, metrics: MetricsMessage) -> IngressResult:
        """Record a device's metrics."""
        self._registry.metrics[sealed.sender] = metrics
        return IngressResult()

    @property
    def opted_in(self) -> dict[str, tuple[type[Any], Callable[[Sealed, Any], IngressResult]]]:
        """Return class and handler of the kinds that are sent only where both sides opt in."""
        return {
            ForecastMessage.kind: (ForecastMessage, self.forecast),
            ScoreMessage.kind: (ScoreMessage, self.score),
            TrialMessage.kind: (TrialMessage, self.trial),
        }

    def forecast(self, sealed: Sealed, forecast: ForecastMessage) -> IngressResult:
        """Store a device's forecast; one that is not newer is counted only.

        Raises:
            Refused: UNKNOWN_KIND: the operator stores no forecasts.
        """
        if self._registry.forecasts is None:
            raise Refused(Reason.UNKNOWN_KIND, "forecasts.store is false")
        is_newer = self._registry.forecasts.record(sealed.sender, forecast, sealed.content)
        self._counts["FORECASTS" if is_newer else "STALE_FORECASTS"] += 1
        return IngressResult()

    def trial(self, sealed: Sealed, trial: TrialMessage) -> IngressResult:
        """Record a report of a rollout's member; one of another device is counted only."""
        is_member = self._registry.record_trial(sealed.sender, trial)
        self._counts["TRIALS" if is_member else "STRAY_TRIALS"] += 1
        return IngressResult()

    def score(self, sealed: Sealed, answer: ScoreMessage) -> IngressResult:
        """Store a device's answer about its score; a second one of its day is counted only.

        Raises:
            Refused: UNKNOWN_KIND: the operator collects no scores; or as ``ScoreBook.record``.
        """
        if self._registry.scores is None:
            raise Refused(Reason.UNKNOWN_KIND, "scores.collect is false")
        is_first = self._registry.scores.record(sealed.sender, answer, self._clock.wall())
        self._counts["SCORES" if is_first else "REPEATED_SCORES"] += 1
        return IngressResult()

    def receipt(self, sealed: Sealed, receipt: ReceiptMessage) -> IngressResult:
        """Record that a device has executed a command; its receipts of life 0 are commands."""
        if receipt.life == 0:
            self._store.command_done(sealed.sender, receipt.seq, receipt.code)
        return IngressResult()

    def refusal(self, sealed: Sealed, refusal: RefusalMessage) -> IngressResult:
        """End the transfer that a device refuses; renumber a command that it refuses as old.

        A device that lacks an ability that a bundle needs leaves the run's cohort.
        """
        if refusal.code == Reason.ABORTED:
            self._uploads.abort(sealed.sender, refusal.id)
        self._downloads.stop(sealed.sender, refusal.id)
        self._counts["REFUSED_BY_DEVICE"] += 1
        if refusal.code == Reason.NO_WINDOWS:
            self._counts["NO_WINDOWS_ON_DEVICE"] += 1
        if refusal.id is not None and self._is_bundle(refusal.id):
            reason = next((one for one in Reason if one == refusal.code), Reason.INTERNAL)
            its = [one for one in self._contexts if one.announced == refusal.ref]
            number = its[0].opened.run if its else None
            self._registry.record_bundle_refusal(sealed.sender, reason, number)
            if reason in ABILITIES:
                for context in its:
                    run = DeclinedRun(sealed.sender, context.name, reason.name, context.announced)
                    self._registry.decline(run)
        if refusal.code == Reason.SUPERSEDED and refusal.ref is not None:
            return self._renumber(sealed.sender, refusal.ref)
        return IngressResult()

    def _is_bundle(self, ref: bytes) -> bool:
        content = self._store.content(ref)
        return content is not None and content.kind == "bundle"

    def _renumber(self, device: str, ref: bytes) -> IngressResult:
        """Renumber a command that the device refused as old, at most ``RENUMBERED`` times a life."""
        life = self._store.ledger(device).top
        last, count = self._renumbered.get(device, (life, 0))
        count = count if last == life else 0
        command = self._store.reissue(device, ref) if count < RENUMBERED else None
        if command is None:
            return IngressResult()
        about = {"device": device, "num": command.num, "op": command.op}
        logger.warning("command renumbered %s", fields(**about))
        self._renumbered[device] = life, count + 1
        return IngressResult((self._sealer.seal(device, command),))
