"""Run one device's protocol session: verify arrivals, save state, send pending messages.

``Session`` drives the parts of ``SessionParts``. Each part owns its state; what they return as events
goes to the client, which records it in its ``Agenda``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from edge_sdk.errors import Reason
from edge_sdk.link.transport import LinkDown, LinkUp, Transport
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.envelope import AGGREGATOR, digest, ref
from edge_sdk.protocol.outbox import Outbox
from edge_sdk.protocol.outbox_state import OutboxEntry
from edge_sdk.session.agenda import FoundBundle, SessionEvent
from edge_sdk.session.connection import Connection, Resubscription
from edge_sdk.session.dispatcher import Dispatcher
from edge_sdk.session.manifest_checks import ManifestExpectation, NewestAnnouncements
from edge_sdk.session.parts import SessionParts
from edge_sdk.session.signed_link import VerifiedMessage, Will

Connect = Callable[[Callable[[], Will | None]], Transport]
"""Make a link from the function that returns the last will."""

Events = Iterator[SessionEvent]

_HOURLY = 3600.0


class Session:
    """The session of one device with its fleet. Single-threaded, driven by ``serve``."""

    def __init__(self, parts: SessionParts) -> None:
        self.parts = parts
        self.time, self.participation = parts.time, parts.participation
        self.counts, self.count, self.set_aside = parts.counts, parts.count, parts.set_aside
        self.connection, self.arrivals = Connection(parts), Dispatcher(parts)
        self._resubscription = Resubscription(self.now)
        self._hour = self.now

    # --- state ------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return self.time.uptime

    @property
    def outbox(self) -> Outbox:
        """State of the outbox; its numbers and entries are always saved."""
        return self.parts.outbox.state

    @property
    def seen(self) -> NewestAnnouncements:
        return self.parts.inbox.seen

    @property
    def announced(self) -> m.BundleMessage | None:
        """The bundle announcement in force, or None before the first."""
        return self.parts.announcements.bundle

    def encryption(self, kind: str) -> Callable[[bytes], bytes]:
        """Return the function from a clear body of a kind to the one that the aggregator is sent.

        Raises:
            Refused: CANNOT_OPEN: it must be encrypted, and no key has been announced.
        """
        config = self.parts.config
        return self.parts.bodies.encryption((config.fleet, kind, config.id, AGGREGATOR))

    @property
    def has_other_run(self) -> bool:
        return not self.parts.choice.is_last(self.parts.announcements.name)

    @property
    def may_request(self) -> bool:
        """Return whether a request may be sent to the aggregator now."""
        is_free = not self.participation.is_rationed and self.may_sign
        return self.is_linked and self.outbox.is_ready and is_free

    @property
    def may_sign(self) -> bool:
        """Return whether the signing key can be used, as far as is known."""
        return not self.parts.link.signing.why_away

    def note_signer(self, why: str) -> None:
        self.parts.link.signing.note_away(why)

    @property
    def is_linked(self) -> bool:
        return self.parts.link.is_up

    @property
    def is_done(self) -> bool:
        """Return whether the present run has ended, its model is in use and the outbox is empty.

        A retained manifest may belong to an earlier run; the welcome, bound to this process's own
        hello, names the present run.
        """
        inbox, welcome = self.parts.inbox, self.outbox.welcome
        return (
            inbox.manifest is not None
            and welcome is not None
            and self.parts.welcome_run in (None, inbox.manifest.run)
            and inbox.is_ending
            and inbox.manifest.version <= self.seen.version
            and self.parts.agenda.waiting is None
            and not self.outbox.entries
        )

    def traffic(self) -> dict[str, int]:
        """Return payload bytes and refused arrivals since the start."""
        link = self.parts.link
        refused = {f"arrived {reason.name}": number for reason, number in link.refused.items()}
        unsigned = {"not signed": link.signing.unsigned} if link.signing.unsigned else {}
        return {"bytes_up": link.bytes_up, "bytes_down": link.bytes_down, **unsigned, **refused}

    # --- changes by the client --------------------------------------------------------------------

    def expect(self, wanted: ManifestExpectation, *, installed: bytes) -> None:
        self.parts.inbox.expect(wanted)
        self.parts.announcements.record_installed(installed)

    def adopt(self, found: FoundBundle) -> None:
        """Set the announcement in force; a new run begins without anything received."""
        if found.announced.run != self.seen.run:
            self.parts.inbox.begin_run(found.announced.run)
            self.parts.downloads.abandon()
        self.parts.announcements.adopt(found)
        self.parts.choice.accept(self.parts.announcements.name)

    def release(self, entry: OutboxEntry, stored: OutboxEntry) -> None:
        self.participation.follow(self.parts.outbox.release(entry, stored))

    def refuse_round(self, reason: Reason) -> None:
        """Report to the aggregator why this device sends no update for the round of the newest model.

        It is sent once and never repeated: it is information for the operator.
        """
        manifest = self.parts.inbox.manifest
        if manifest is not None and self.is_linked and not self.participation.is_rationed:
            self.parts.link.send(m.RefusalMessage(code=reason, wait=0, id=manifest.digest[:16]))

    def refuse_bundle(self, found: FoundBundle, reason: Reason) -> Events:
        """Report to the aggregator that this device does not follow a bundle; choose another run."""
        refused = ref(digest(found.body))
        yield from self.arrivals.refuse_bundle(found.announced, refused, reason)

    def send(self, message: m.ProtocolMessage) -> bool:
        """Send a message to the aggregator, or return False if nothing may be sent now."""
        if not self.may_request:
            return False
        self.count(f"bytes up {message.kind}", self.parts.link.send(message))
        return True

    # --- the link ---------------------------------------------------------------------------------

    def connect(self, make: Connect) -> None:
        self.parts.link.connect(make(self.connection.will))

    def close(self) -> None:
        """Publish the offline status and close the link."""
        self.parts.link.close(self.parts.outbox.status("offline"))
        self.parts.count_bytes()
        self.parts.quota.save()

    def serve(self, timeout: float) -> Events:
        """Process every arrival, then send every message that is due.

        Yields:
            The events for the client. Each is to be recorded before the next is requested.
        """
        parts = self.parts
        self.connection.watch_signer()
        wait = timeout
        if not self.participation.is_rationed:
            wait = max(0.0, min(timeout, parts.next_due(self.now + timeout) - self.now))
        for arrival in parts.link.poll(wait, self.arrivals.key_of, self.arrivals.may_sign):
            match arrival:
                case LinkUp():
                    self.connection.link_up(arrival)
                case LinkDown():
                    self.connection.link_down(arrival)
                case VerifiedMessage():
                    yield from self.arrivals.receive(arrival)
        if not self.participation.is_rationed:
            self.participation.follow(parts.outbox.tick())
            parts.downloads.advance()
            self.connection.replace_key(self.now)
            self.connection.state_again(self.now)
            is_missing = self.is_linked and parts.is_missing_announcements
            if self._resubscription.is_due(self.now, is_missing=is_missing):
                self.count("subscribed again")
                parts.link.subscribe()
        if self.now - self._hour >= _HOURLY:
            self._hour = self.now
            parts.time.save()
            parts.quota.save()
            parts.reporter.send()
        parts.link.flush()
        parts.count_bytes()
