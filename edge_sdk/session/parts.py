"""Compose the parts of a session; each owns its state, and none inherits from another."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from edge_sdk.app.clock import Clock
from edge_sdk.app.settings import seconds
from edge_sdk.bundle import SDK_VERSION
from edge_sdk.config import Config
from edge_sdk.limits.resource_limits import limits_of
from edge_sdk.session.agenda import Agenda
from edge_sdk.session.announcements import Announcements
from edge_sdk.session.body_keys import BodyKeys
from edge_sdk.session.command_log import CommandLog
from edge_sdk.session.download import Downloader
from edge_sdk.session.durable_outbox import DurableOutbox
from edge_sdk.session.identity_keys import IdentityKeys
from edge_sdk.session.key_ring import KeyRing
from edge_sdk.session.link_quota import LinkQuota
from edge_sdk.session.metrics_report import MetricsReporter
from edge_sdk.session.model_log import ModelLog
from edge_sdk.session.participation import Participation
from edge_sdk.session.poison_messages import SetAside
from edge_sdk.session.rollout_inbox import RolloutInbox
from edge_sdk.session.run_choice import RunChoice
from edge_sdk.session.server_clock import ServerClock
from edge_sdk.session.signal_inbox import SignalInbox
from edge_sdk.session.signed_link import SignedLink
from edge_sdk.session.task_inbox import TaskInbox
from edge_sdk.session.weather_inbox import WeatherInbox
from edge_sdk.sources.fleet_weather import regions_of
from edge_sdk.store.store import DeviceStore
from edge_sdk.wire.keys import Signer


@dataclass(frozen=True, slots=True)
class SessionParts:
    """The parts of one device's session.

    Attributes:
        store: Store that keeps what must survive a power cut.
        counts: Event counters, by name.
        time: Estimate of server time.
        link: Signed link.
        keys: Key of this device, to which messages to it are encrypted.
        downloads: The download in progress.
        announcements: Keys and the bundle announcement in force.
        log: Log of the run's models.
        inbox: Manifests and tasks.
        signals: Perishable tasks.
        outbox: Releases that wait for their receipts.
        quota: Daily quota of the link.
        participation: Reasons for which nothing is released.
        commands: Executed commands.
        reporter: Hourly metrics.
        set_aside: Messages that are skipped after a defect.
        choice: Runs of the last welcome, and those that the device declines.
        weather: Weather of the regions that the device reads.
        rollouts: The rollout that the device follows.
        identity: Identity key of this device, and the one that is to replace it.
    """

    store: DeviceStore
    counts: Counter[str]
    time: ServerClock
    link: SignedLink
    keys: BodyKeys
    downloads: Downloader
    announcements: Announcements
    log: ModelLog
    inbox: TaskInbox
    signals: SignalInbox
    outbox: DurableOutbox
    quota: LinkQuota
    participation: Participation
    commands: CommandLog
    reporter: MetricsReporter
    set_aside: SetAside
    choice: RunChoice
    weather: WeatherInbox
    rollouts: RolloutInbox
    identity: IdentityKeys

    @classmethod
    def of(
        cls,
        config: Config,
        store: DeviceStore,
        *,
        clock: Clock,
        signer: Signer,
        ring: KeyRing,
        agenda: Agenda,
        rng: random.Random,
    ) -> SessionParts:
        """Create the parts from the saved state.

        Args:
            config: Configuration of the device.
            store: Its store.
            clock: Clocks of the machine.
            signer: Signing key of the device.
            ring: Keys of the configuration.
            agenda: Work that waits on the device.
            rng: Source of the draws that spread load.
        """
        counts, now = Counter[str](), clock.monotonic
        time = ServerClock(store, clock)
        is_trying = config.accept.rollouts
        identity = (
            signer if isinstance(signer, IdentityKeys) else IdentityKeys(config, store, signer)
        )
        keys = BodyKeys.of(store, is_required=config.encryption.required)
        link = SignedLink(
            identity, fleet=config.fleet, device=config.id, reads_rollouts=is_trying, keys=keys
        )
        link.sign_hellos_by(identity.hello_signer)
        downloads = Downloader(link, rng, now, counts)
        announcements = Announcements(store, downloads, ring, config.accept.methods)
        link.encrypt_by(announcements.encryption_key)
        run = announcements.bundle.run if announcements.bundle is not None else 0
        patience, base = seconds(config.timeouts.retained_model), seconds(config.timeouts.reply)
        name = announcements.name
        link.follow_run(name)
        log = ModelLog(
            store,
            config.fleet,
            lambda: announcements.ring.model_keys(time.now()),
            lambda: announcements.bundle.digest if announcements.bundle is not None else b"",
            name=name,
        )
        inbox = TaskInbox(
            config.id,
            store,
            time,
            downloads,
            agenda,
            log=log,
            run=run,
            patience=patience,
            name=name,
        )
        sdk = ".".join(map(str, SDK_VERSION))
        outbox = DurableOutbox(store, link, rng, now, counts, sdk=sdk, base=base)
        outbox.announce(lambda: log.place, keys.announced)
        quota = LinkQuota(store, limits_of(config.limits).daily_link_bytes)
        return cls(
            store=store,
            counts=counts,
            time=time,
            link=link,
            keys=keys,
            downloads=downloads,
            announcements=announcements,
            log=log,
            inbox=inbox,
            signals=SignalInbox(config.id),
            outbox=outbox,
            quota=quota,
            participation=Participation(store, outbox, inbox, quota),
            commands=CommandLog(store),
            reporter=MetricsReporter(store, link, counts, time, outbox),
            set_aside=SetAside(store, counts),
            choice=RunChoice(store),
            weather=WeatherInbox(store, link, regions_of(config.source)),
            rollouts=RolloutInbox(store, downloads, time, is_accepted=is_trying, pause=patience),
            identity=identity,
        )

    def count(self, name: str, number: int = 1) -> None:
        """Count an event."""
        self.counts[name] += number

    def count_bytes(self) -> None:
        """Count the bytes that crossed the link against the quota."""
        crossed = self.link.bytes_up + self.link.bytes_down
        self.quota.count(crossed, self.time.now(), announced=self.outbox.quota)

    def next_due(self, latest: float) -> float:
        """Return the time of the next due action, or the latest one that the caller allows."""
        dues = (self.outbox.next_due, self.downloads.next_due, self.signals.next_due)
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
