"""Run one device's protocol session: verify arrivals, save state, send what is due.

``Session`` drives the parts of ``SessionParts``. Each part owns its state; what they return as events
goes to the client, which records it in its ``Agenda``.
"""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from edge_sdk.app.clock import Clock
from edge_sdk.config import Config
from edge_sdk.session.agenda import Agenda
from edge_sdk.session.connection import Connection
from edge_sdk.session.dispatcher import Dispatcher
from edge_sdk.session.events import FoundBundle, SessionEvent, SignalTaskReceived
from edge_sdk.session.key_replacement import replace_key
from edge_sdk.session.key_ring import KeyRing
from edge_sdk.session.link_quota import LinkQuota
from edge_sdk.session.manifest_checks import ManifestExpectation, NewestAnnouncements
from edge_sdk.session.participation import Participation
from edge_sdk.session.parts import SessionParts
from edge_sdk.session.poison_messages import SetAside
from edge_sdk.session.resubscription import Resubscription
from edge_sdk.session.rollout_inbox import FollowedRollout
from edge_sdk.session.server_clock import ServerClock
from edge_sdk.session.signal_messages import signal_messages
from edge_sdk.session.signed_link import Will
from edge_sdk.session.verified_message import VerifiedMessage
from edge_sdk.store.store import DeviceStore
from edge_sdk.wire.contract.method import Signal
from edge_sdk.wire.errors import Reason
from edge_sdk.wire.keys import Signer
from edge_sdk.wire.link.transport import LinkDown, LinkUp, Transport
from edge_sdk.wire.protocol import messages as m
from edge_sdk.wire.protocol.envelope import digest, ref
from edge_sdk.wire.protocol.outbox import Outbox
from edge_sdk.wire.protocol.outbox_state import SCORES, OutboxEntry, StepInputs, UplinkCounters

Connect = Callable[[Callable[[], Will | None]], Transport]
"""Make a link from the function that returns the last will."""

Events = Iterator[SessionEvent]

_HOURLY = 3600.0


class Session:
    """The session of one device with its fleet. Single-threaded, driven by ``serve``.

    Args:
        config: Configuration of the device.
        store: Its store.
        clock: Clocks of the machine.
        signer: Signing key of the device.
        ring: Keys of the configuration.
        agenda: Work that waits on the device; read, never changed.
    """

    def __init__(
        self,
        config: Config,
        store: DeviceStore,
        *,
        clock: Clock,
        signer: Signer,
        ring: KeyRing,
        agenda: Agenda,
    ) -> None:
        self._clock, self._agenda = clock, agenda
        self._rng = random.Random(secrets.randbits(64))  # noqa: S311 - spreads load, hides nothing
        self._parts = SessionParts.of(
            config, store, clock=clock, signer=signer, ring=ring, agenda=agenda, rng=self._rng
        )
        self._connection = Connection(self._parts)
        self._arrivals = Dispatcher(self._parts)
        self._resubscription = Resubscription(self.now)
        self._hour = self.now

    # --- state ------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return self._clock.monotonic()

    @property
    def time(self) -> ServerClock:
        """Estimate of server time."""
        return self._parts.time

    @property
    def link(self) -> Transport:
        """The link in use."""
        return self._parts.link.link

    @property
    def counts(self) -> Counter[str]:
        """Event counters, by name."""
        return self._parts.counts

    @property
    def participation(self) -> Participation:
        """Reasons for which nothing is released now."""
        return self._parts.participation

    @property
    def set_aside(self) -> SetAside:
        """Messages and tasks that are skipped after a defect."""
        return self._parts.set_aside

    @property
    def quota(self) -> LinkQuota:
        """Daily quota of the link."""
        return self._parts.quota

    @property
    def outbox(self) -> Outbox:
        """State of the outbox; its numbers and entries are always saved."""
        return self._parts.outbox.state

    @property
    def seen(self) -> NewestAnnouncements:
        """The newest announcements used."""
        return self._parts.inbox.seen

    @property
    def announced(self) -> m.BundleMessage | None:
        """The bundle announcement in force, or None before the first."""
        return self._parts.announcements.bundle

    def encryption_key(self, kind: str) -> bytes | None:
        """Return the key to which messages of a kind must be encrypted; None if they are sent clear.

        Raises:
            Refused: CANNOT_OPEN: they must be encrypted, and no key has been announced.
        """
        return self._parts.announcements.encryption_key(kind)

    @property
    def heard_at(self) -> float:
        """Time of the last verified message."""
        return self._arrivals.heard_at

    @property
    def linked_at(self) -> float:
        """Time at which the link last came up."""
        return self._connection.linked_at

    @property
    def declined(self) -> Mapping[str, str]:
        """Reason for which this device declined each run of the last welcome, by its name."""
        return self._parts.choice.declined

    @property
    def has_other_run(self) -> bool:
        """Return whether the welcome names another run, for the case that this one is declined."""
        return not self._parts.choice.is_last(self._parts.announcements.name)

    @property
    def may_request(self) -> bool:
        """Return whether a request may be sent to the aggregator now."""
        is_free = not self.participation.is_rationed and self.may_sign
        return self.is_linked and self.outbox.is_ready and is_free

    @property
    def may_sign(self) -> bool:
        """Return whether the signing key can be used, as far as is known."""
        return not self._parts.link.signing.why_away

    def note_signer(self, why: str) -> None:
        """Note that the signing key is away."""
        self._parts.link.signing.note_away(why)

    @property
    def is_linked(self) -> bool:
        """Return whether the broker has accepted the connection."""
        return self._parts.link.is_up

    @property
    def is_done(self) -> bool:
        """Return whether the present run has ended, its model is in use and the outbox is empty.

        A retained manifest may belong to an earlier run; the welcome, bound to this process's own
        hello, names the present run.
        """
        inbox, welcome = self._parts.inbox, self.outbox.welcome
        return (
            inbox.manifest is not None
            and welcome is not None
            and self._parts.welcome_run in (None, inbox.manifest.run)
            and inbox.is_ending
            and inbox.manifest.version <= self.seen.version
            and self._agenda.waiting is None
            and not self.outbox.entries
        )

    def inputs(self) -> StepInputs:
        """Return the inputs of a pure step: the time, a random draw and a nonce."""
        return self._parts.outbox.inputs()

    def traffic(self) -> dict[str, int]:
        """Return payload bytes and refused arrivals since the start."""
        link = self._parts.link
        refused = {f"arrived {reason.name}": number for reason, number in link.refused.items()}
        unsigned = {"not signed": link.signing.unsigned} if link.signing.unsigned else {}
        return {"bytes_up": link.bytes_up, "bytes_down": link.bytes_down, **unsigned, **refused}

    # --- changes by the client --------------------------------------------------------------------

    def count(self, name: str, number: int = 1) -> None:
        """Count an event."""
        self._parts.count(name, number)

    def expect(self, wanted: ManifestExpectation, *, installed: bytes) -> None:
        """Set the required properties of a manifest, and the digest of the installed bundle."""
        self._parts.inbox.expect(wanted)
        self._parts.announcements.record_installed(installed)

    def adopt(self, found: FoundBundle) -> None:
        """Set the announcement in force; a new run begins without anything received."""
        if found.announced.run != self.seen.run:
            self._parts.inbox.begin_run(found.announced.run)
            self._parts.downloads.abandon()
            self._parts.signals.clear()
        self._parts.announcements.adopt(found)
        self._parts.choice.accept(self._parts.announcements.name)

    def reconsider(self) -> Events:
        """Check the newest manifest and task again, after their prerequisites have arrived."""
        return self._arrivals.reconsider()

    def record_trained(self, turn: tuple[int, int, int], version: int) -> None:
        """Set the last task trained; the store holds it already."""
        self._parts.inbox.record_trained(turn, version)

    def adopt_numbers(self, numbers: UplinkCounters) -> None:
        """Adopt numbers that the store already holds."""
        self._parts.outbox.adopt_numbers(numbers)

    def as_stored(self, entry: OutboxEntry) -> OutboxEntry:
        """Return a new entry as the store is to hold it before ``release``."""
        return self._parts.outbox.as_stored(entry)

    def release(self, entry: OutboxEntry, stored: OutboxEntry) -> None:
        """Send an entry that the store already holds with its numbers."""
        self.participation.follow(self._parts.outbox.release(entry, stored))

    def refuse_round(self, reason: Reason) -> None:
        """Tell the aggregator why this device sends no update for the round of the newest model.

        It is sent once and never repeated: it is information for the operator.
        """
        manifest = self._parts.inbox.manifest
        if manifest is not None and self.is_linked and not self.participation.is_rationed:
            self._parts.link.send(m.RefusalMessage(code=reason, wait=0, id=manifest.digest[:16]))

    def refuse_bundle(self, found: FoundBundle, reason: Reason) -> Events:
        """Tell the aggregator that this device does not follow a bundle; choose another run."""
        refused = ref(digest(found.body))
        yield from self._arrivals.refuse_bundle(found.announced, refused, reason)

    def send_signal(self, signal: Signal, enc: str) -> None:
        """Send a perishable signal; what cannot be sent is dropped.

        Raises:
            Refused: BAD_TENSOR: a scalar is not finite; nothing is sent.
        """
        if self.participation.is_rationed or not self.is_linked:
            self.count("signals not sent")
            return
        messages = signal_messages(signal, enc, run=self.seen.run)
        size = sum(self._parts.link.send(message) for message in messages)
        self.count("signals")
        self.count(f"bytes up {signal.ask}", size)

    def clear_signals(self) -> None:
        """Discard incomplete and early perishable tasks."""
        self._parts.signals.clear()

    def accept_peers(self, peers: Mapping[str, bytes], keys: Mapping[str, bytes]) -> None:
        """Accept messages from these peers only.

        Args:
            peers: Their raw public keys by id.
            keys: Raw X25519 keys of those to which messages are encrypted, by id.
        """
        self._arrivals.accept_peers(peers, keys)

    def send_to_peer(self, peer: str, message: m.PeerMessage | m.SettleMessage) -> None:
        """Send a message to a peer; one that cannot be sent now is requested again."""
        size = self._parts.link.send_to_peer(peer, message)
        self.count(f"bytes to neighbours {message.kind}", size)

    def weather(self, region: str) -> m.WeatherMessage | None:
        """Return the newest weather of a region, or None; an empty text is the assigned region."""
        return self._parts.weather.newest(region)

    @property
    def rollout(self) -> FollowedRollout | None:
        """Return the rollout that the device follows, or None."""
        return self._parts.rollouts.followed

    def request_rollout(self) -> None:
        """Download the archive of the rollout's version while nothing else is downloaded."""
        self._parts.rollouts.request()

    def send_trial(self, trial: m.TrialMessage) -> bool:
        """Send the results of a rollout, or return False if nothing may be sent now."""
        if not self.may_request:
            return False
        self.count("bytes up trial", self._parts.link.send(trial))
        return True

    def send_forecast(self, forecast: m.ForecastMessage) -> bool:
        """Send a forecast to the fleet, or return False if nothing may be sent now."""
        if not self.may_request:
            return False
        size = self._parts.link.send(forecast)
        self.count("bytes up forecast", size)
        return True

    @property
    def may_report_scores(self) -> bool:
        """Return whether messages may be sent, and the aggregator collects scores."""
        welcome = self.outbox.welcome
        is_collected = welcome is not None and SCORES in welcome.caps
        return self.may_request and is_collected and not self.participation.is_held

    def send_score(self, answer: m.ScoreMessage) -> bool:
        """Send an answer about a score, or return False if nothing may be sent now."""
        if not self.may_report_scores:
            return False
        self.count("bytes up score", self._parts.link.send(answer))
        return True

    def record_exchange(self, counters: Mapping[str, int]) -> None:
        """Set the counters of the exchange with peers, for the hourly report."""
        self._parts.reporter.record_exchange(counters)

    def count_new_rows(self, new: Callable[[], int]) -> None:
        """Report the number of rows recorded since the last update every hour."""
        self._parts.reporter.count_new_rows(new)

    # --- the link ---------------------------------------------------------------------------------

    def connect(self, make: Connect) -> None:
        """Make the link and start connecting."""
        self._parts.link.connect(make(self._connection.will))

    def close(self) -> None:
        """Publish the offline status and close the link."""
        self._parts.link.close(self._parts.outbox.status("offline"))
        self._parts.count_bytes()
        self._parts.quota.save()

    def serve(self, timeout: float) -> Events:
        """Process every arrival, then send every message that is due.

        Yields:
            The events for the client. Each is to be recorded before the next is requested.
        """
        parts = self._parts
        self._connection.watch_signer()
        wait = timeout
        if not self.participation.is_rationed:
            wait = max(0.0, min(timeout, parts.next_due(self.now + timeout) - self.now))
        for arrival in parts.link.poll(wait, self._arrivals.key_of, self._arrivals.may_sign):
            match arrival:
                case LinkUp():
                    self._connection.link_up(arrival)
                case LinkDown():
                    self._connection.link_down(arrival)
                case VerifiedMessage():
                    yield from self._arrivals.receive(arrival)
        if not self.participation.is_rationed:
            self.participation.follow(parts.outbox.tick())
            parts.downloads.advance()
            replace_key(parts, self.now)
            if parts.outbox.state.is_ready and parts.keys.is_hello_due(self.now):
                self.count("keys announced again")
                self.participation.follow(parts.outbox.propose_life())
            is_missing = self.is_linked and parts.is_missing_announcements
            if self._resubscription.is_due(self.now, is_missing=is_missing):
                self.count("subscribed again")
                parts.link.subscribe()
        yield from map(SignalTaskReceived, parts.signals.tick(self.now))
        if self.now - self._hour >= _HOURLY:
            self._hour = self.now
            parts.time.save()
            parts.quota.save()
            parts.reporter.send()
        parts.link.flush()
        parts.count_bytes()
