"""Compose the parts of a session; each owns its state, and none inherits from another."""

from __future__ import annotations

import random
import resource
import secrets
from collections import Counter
from collections.abc import Callable, Mapping

from edge_sdk.app.clock import Clock
from edge_sdk.app.settings import seconds
from edge_sdk.config import Config
from edge_sdk.limits import limits_of
from edge_sdk.protocol.keys import Signer
from edge_sdk.protocol.messages import MetricsMessage
from edge_sdk.session.agenda import Agenda, SetAside
from edge_sdk.session.announcements import Announcements
from edge_sdk.session.bodies import Bodies
from edge_sdk.session.download import Downloader
from edge_sdk.session.durable_outbox import DurableOutbox
from edge_sdk.session.identity import IdentityKeys
from edge_sdk.session.key_ring import KeyRing, RefusedRoot
from edge_sdk.session.participation import LinkQuota, Participation, RunChoice
from edge_sdk.session.server_clock import ServerClock
from edge_sdk.session.signed_link import SignedLink
from edge_sdk.session.task_inbox import TaskInbox
from edge_sdk.store.store import DeviceStore


class SessionParts:
    """The parts of one device's session, made from the saved state."""

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
        self.config, self.store, self.agenda = config, store, agenda
        self.rng = random.Random(secrets.randbits(64))  # noqa: S311 - spreads load, hides nothing
        self.counts, now = Counter[str](), clock.monotonic
        self.time = ServerClock(store, clock)
        self.identity = (
            signer if isinstance(signer, IdentityKeys) else IdentityKeys(config, store, signer)
        )
        self.bodies = Bodies.of(config, store)
        self.link = SignedLink(
            self.identity,
            fleet=config.fleet,
            device=config.id,
            bodies=self.bodies,
            hello_signer=lambda ref: self.identity.replacement.hello_signer(ref),  # noqa: PLW0108 - another may be loaded
        )
        self.downloads = Downloader(self.link, self.rng, now, self.counts)
        announcements = self.announcements = Announcements(
            store, self.downloads, ring, config.accept.methods
        )
        self.bodies.encrypt_by(announcements.encryption_key)
        self.link.follow_run(announcements.name)
        inbox = self.inbox = TaskInbox(
            config, store, self.time, self.downloads, agenda, announcements=announcements
        )
        self.refused_root = RefusedRoot(store, announcements.ring.root)
        base = seconds(config.timeouts.reply)
        self.outbox = DurableOutbox(store, self.link, self.rng, now, self.counts, base=base)
        self.outbox.state_in_hellos(
            lambda: {
                "log": inbox.log.place[:16],
                "root": inbox.log.place[16:],
                "key": self.bodies.announced,
                "refuses": self.refused_root.pair,
            }
        )
        self.quota = LinkQuota(store, limits_of(config.limits).daily_link_bytes)
        self.participation = Participation(store, self.outbox, inbox, self.quota)
        self.reporter = MetricsReporter(store, self.link, self.counts, self.time, self.outbox)
        self.set_aside = SetAside(store, self.counts)
        self.choice = RunChoice(store)

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] += number

    def count_bytes(self) -> None:
        """Count the bytes that crossed the link against the quota."""
        crossed = self.link.bytes_up + self.link.bytes_down
        self.quota.count(crossed, self.time.now(), announced=self.outbox.quota)

    def next_due(self, latest: float) -> float:
        dues = (self.outbox.next_due, self.downloads.next_due)
        return min((due for due in dues if due is not None), default=latest)

    @property
    def welcome_run(self) -> int | None:
        """Number of the run in the welcome; None if this device has declined that run."""
        welcome, first = self.outbox.state.welcome, self.choice.names[:1]
        if welcome is None or (first and first[0] != self.announcements.name):
            return None
        return welcome.run

    @property
    def is_missing_announcements(self) -> bool:
        """Return whether keys, a bundle announcement or a manifest is missing that must exist."""
        welcome, manifest = self.outbox.state.welcome, self.inbox.manifest
        if welcome is None:
            return self.announcements.ring.announced is None and self.link.is_refusing_unknown
        bundle = self.announcements.bundle
        run = max(self.welcome_run or 0, manifest.run if manifest is not None else 0)
        announced = bundle.run if bundle is not None else 0
        return min(announced, manifest.run if manifest is not None else 0) < run


class MetricsReporter:
    """The metrics of one device."""

    def __init__(
        self,
        store: DeviceStore,
        link: SignedLink,
        counts: Mapping[str, int],
        time: ServerClock,
        outbox: DurableOutbox,
    ) -> None:
        self._store, self._link, self._counts = store, link, counts
        self._time, self._outbox = time, outbox
        self._further: list[Callable[[], Mapping[str, int]]] = []

    def include(self, counters: Callable[[], Mapping[str, int]]) -> None:
        """Report further fields, which this function returns, from now on."""
        self._further.append(counters)

    def send(self) -> None:
        """Send the present counters; a report that is lost is not repeated."""
        counts = self._counts
        report = MetricsMessage(
            up=int(self._time.seconds_running),
            sent=counts["sent"],
            resent=counts["resent"],
            refused=counts["refused"],
            bytes_up=self._link.bytes_up,
            bytes_down=self._link.bytes_down,
            outbox=len(self._outbox.state.entries),
            flash=self._store.size() // 1024,
            rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            **{name: value for one in self._further for name, value in one().items()},
        )
        self._link.send(report, qos=0)
