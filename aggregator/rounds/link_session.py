"""Maintain subscriptions, retained announcements and server time while the link is up."""

from __future__ import annotations

import logging

from aggregator.ingress.flood_control import FloodControl, Subscriptions
from aggregator.rounds import announcements as announce
from aggregator.rounds.announcements import Ends, Publication
from aggregator.rounds.message_isolation import Isolation
from aggregator.rounds.message_processor import RunDrivers
from edge_sdk.app.cli import fields, notify
from edge_sdk.link.transport import Transport
from edge_sdk.protocol.messages import chunk_size

logger = logging.getLogger(__name__)

TIME_EVERY = 60.0  # s between two announcements of server time
TIME_BETWEEN = 3600.0  # s, while the next round waits for its start
REMIND_AFTER = 1.0  # s after a new connection until open tasks are sent again


class LinkSession:
    """The aggregator's side of one link, over all its connections.

    Args:
        subscriptions: Subscriptions to the devices' topics.
        isolation: Transaction over store and memory.
        ends: Signer and fleet of announcements.
    """

    def __init__(
        self,
        transport: Transport,
        subscriptions: Subscriptions,
        isolation: Isolation,
        driver: RunDrivers,
        ends: Ends,
    ) -> None:
        self._transport, self._subscriptions = transport, subscriptions
        self._isolation, self._driver, self._ends = isolation, driver, ends
        self._clock = isolation.clock
        self._max_payload: int | None = None
        self._timed_at = -TIME_BETWEEN
        self.was_up = False  # true after the steps of the first connection

    def connected(self, max_payload: int) -> None:
        """Start the steps after a new connection."""
        self._max_payload = max_payload
        self.retry()

    def retry(self) -> None:
        """Run the steps after a new connection, if any are left; one with a defect is retried."""
        if (largest := self._max_payload) is None or not self._transport.is_up:
            return
        is_due = self._isolation.faults.may("link", self._clock.monotonic())
        if is_due and self._isolation.step("link", lambda: self._begin(largest)) is None:
            self._max_payload = None

    def announce_time(self) -> None:
        """Announce server time if it is due."""
        is_waiting = all(driver.engine.is_waiting for driver in self._driver)
        every = TIME_BETWEEN if is_waiting else TIME_EVERY
        if self._clock.monotonic() >= self._timed_at + every and self._transport.is_up:
            self._isolation.step("time", self._announce_time)

    def exclude(self, floods: FloodControl) -> None:
        """Unsubscribe from devices that flood, and from those revoked since.

        Messages that the broker had queued before are in front of all others, and fill the queue. If
        they cannot be read soon, the broker discards them with the session; devices send again.
        """
        flooding = floods.excluded(self._clock.monotonic())
        if not self._transport.is_up or not (flooding or self._subscriptions.is_partial):
            return
        enrolled = self._isolation.registry.enrolled()
        revoked = self._subscriptions.excluded - enrolled
        self._subscriptions.follow(enrolled, flooding | revoked)
        if floods.consume_backlog() and self._subscriptions.excluded:
            self._transport.renew_session("messages of an excluded device fill the broker's queue")

    def _begin(self, largest: int) -> None:
        """Subscribe and publish all retained messages again, whatever the broker has kept."""
        publisher = self._isolation.publisher
        self._subscriptions.renew(self._isolation.registry.enrolled())
        publisher.clear()
        chunk = chunk_size(largest)
        for driver in self._driver:
            if chunk != driver.engine.chunk:
                driver.engine.chunk = chunk
                driver.engine.announced()
        kept = self._isolation.store.announcements.all()
        order = sorted(kept, key=lambda topic: (topic.endswith("/model"), topic))  # parts first
        publisher.announce(Publication(topic, kept[topic]) for topic in order)
        self._announce_time()
        self._send_commands()
        self._driver.hurry(self._clock.monotonic() + REMIND_AFTER)
        logger.info("link up %s", fields(announcements=len(kept)))
        self.was_up = True
        notify("READY=1")

    def _send_commands(self) -> None:
        driver, isolation = next(iter(self._driver)), self._isolation
        for device in sorted(isolation.registry.enrolled()):
            isolation.publisher.reply(
                driver.sealed(device, command) for command in isolation.store.commands.open(device)
            )

    def _announce_time(self) -> None:
        serial, now = self._isolation.store.announcements.next_serial(), self._clock.wall()
        self._isolation.publisher.announce([announce.time(self._ends, serial=serial, now=now)])
        self._timed_at = self._clock.monotonic()
