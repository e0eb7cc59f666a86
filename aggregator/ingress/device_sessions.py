"""Process the messages about a device itself: hello, status, metrics, and replies to commands."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from aggregator.ingress.admission_context import AdmissionContext, WelcomeTerms, welcome
from aggregator.ingress.content_server import ContentServer
from aggregator.ingress.replies import IngressParts, IngressResult
from aggregator.ingress.update_admission import UpdateAdmission
from aggregator.ingress.uploads import Uploads
from aggregator.store.ledgers import after_hello
from aggregator.store.types import DeclinedRun
from edge_sdk.app.cli import fields
from edge_sdk.errors import ABILITIES, Reason, Refused
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.contract import method
from edge_sdk.protocol.envelope import Sealed

logger = logging.getLogger(__name__)

# completes the welcome that answers a device's hello
Welcomed = Callable[[str, m.HelloMessage, m.WelcomeMessage], m.WelcomeMessage]
RENUMBERED = 16  # commands that are renumbered for a device in one life


class DeviceSessions:
    """Sessions of the devices: their lives, presence and metrics, and their replies to commands.

    Args:
        admission: Receives the device of a new life.
        uploads: Transfers that end with a life, or when the device leaves or aborts.
        downloads: Transfers that a refusal ends.
        contexts: Admission context of each run, always up to date.
    """

    def __init__(
        self,
        parts: IngressParts,
        *,
        admission: UpdateAdmission,
        uploads: Uploads,
        downloads: ContentServer,
        contexts: Iterable[AdmissionContext],
        welcomed: Welcomed,
    ) -> None:
        self._store, self._registry, self._sealer = parts.store, parts.registry, parts.sealer
        self._clock, self._counts = parts.clock, parts.counts
        self._admission, self._uploads, self._downloads = admission, uploads, downloads
        self._contexts, self._welcomed = contexts, welcomed
        self._renumbered: dict[str, tuple[int, int]] = {}

    def hello(self, sealed: Sealed, hello: m.HelloMessage, terms: WelcomeTerms) -> IngressResult:
        """Answer a hello: welcome and commands, or the floor; raise Refused for a wrong version, life or count."""
        device = sealed.sender
        if not hello.wire[0] <= m.WIRE <= hello.wire[1]:
            raise Refused(
                Reason.UPGRADE_REQUIRED,
                f"{device}: wire versions {hello.wire[0]} to {hello.wire[1]}, expected {m.WIRE}",
            )
        self._registry.check_one_life(device)
        self._registry.record_version(device, hello.sdk)
        before = self._store.ledgers.get(device)
        self._sealer.bodies.check_hello(device, hello)
        ledger, is_welcome = after_hello(before, hello, sealed.digest, terms.hold)
        if not is_welcome:
            floor = m.FloorMessage(sealed.ref, ledger.top)
            return IngressResult((self._sealer.seal(device, floor, hello.key),))
        self._registry.refusals.record_root(device, hello.refuses)
        rekeyed = device if self._sealer.bodies.record(sealed, hello) else None
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
            terms, hello, sealed.ref, ledger, run=run, time=now, names=names, region=region
        )
        reply = self._welcomed(device, hello, reply)
        messages: list[m.ProtocolMessage] = [reply, *self._store.commands.open(device)]
        answers = tuple(self._sealer.seal(device, message) for message in messages)
        member = method.Member(device, True)
        return IngressResult(answers, member=member, greeted=device, rekeyed=rekeyed)

    def status(self, sealed: Sealed, status: m.StatusMessage) -> IngressResult:
        """Record a device's presence; a device that leaves loses its uploads."""
        top = self._store.ledgers.get(sealed.sender).top  # highest confirmed life
        status = replace(status, life=min(status.life, top))
        known = self._registry.presence(sealed.sender)
        if (status.life, status.conn) < (known.life, known.conn):
            self._counts["STALE_STATUS"] += 1
        member = self._registry.follow(sealed.sender, status)
        if member is not None and not member.present:
            self._uploads.leave(sealed.sender)
        is_early = member is not None and member.present and not status.life  # before its hello
        return IngressResult(member=None if is_early else member)

    def metrics(self, sealed: Sealed, metrics: m.MetricsMessage) -> IngressResult:
        self._registry.metrics[sealed.sender] = metrics
        return IngressResult()

    def receipt(self, sealed: Sealed, receipt: m.ReceiptMessage) -> IngressResult:
        """Record that a device has executed a command; its receipts of life 0 are commands."""
        if receipt.life == 0:
            is_new = self._store.commands.finish(sealed.sender, receipt.seq, receipt.code)
            if is_new and receipt.code:
                _log_refused(sealed.sender, receipt)
        return IngressResult()

    def refusal(self, sealed: Sealed, refusal: m.RefusalMessage) -> IngressResult:
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
            self._registry.refusals.record_bundle(sealed.sender, reason, number)
            if reason in ABILITIES:
                for context in its:
                    run = DeclinedRun(sealed.sender, context.name, reason.name, context.announced)
                    self._registry.decline(run)
        if refusal.code == Reason.SUPERSEDED and refusal.ref is not None:
            return self._renumber(sealed.sender, refusal.ref)
        return IngressResult()

    def _is_bundle(self, ref: bytes) -> bool:
        content = self._store.contents.get(ref)
        return content is not None and content.kind == "bundle"

    def _renumber(self, device: str, ref: bytes) -> IngressResult:
        """Renumber a command that the device refused as old, at most ``RENUMBERED`` times a life."""
        life = self._store.ledgers.get(device).top
        last, count = self._renumbered.get(device, (life, 0))
        count = count if last == life else 0
        command = self._store.commands.reissue(device, ref) if count < RENUMBERED else None
        if command is None:
            return IngressResult()
        about = {"device": device, "num": command.num, "op": command.op}
        logger.warning("command renumbered %s", fields(**about))
        self._renumbered[device] = life, count + 1
        return IngressResult((self._sealer.seal(device, command),))


def _log_refused(device: str, receipt: m.ReceiptMessage) -> None:
    reason = next((one for one in Reason if one == receipt.code), Reason.BAD_COMMAND)
    about = {"device": device, "num": receipt.seq, "reason": reason.name}
    logger.warning("command refused %s", fields(**about))
