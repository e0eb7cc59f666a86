"""Follow the connections of a device: count them, and announce the device on each."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from edge_sdk.app.cli import fields
from edge_sdk.errors import StoreFull
from edge_sdk.link.transport import LinkDown, LinkUp, RenewableLink
from edge_sdk.session.parts import SessionParts
from edge_sdk.session.signed_link import Will

logger = logging.getLogger(__name__)

SIGNER_AWAY = "signer away"
"""Saved fact: Unix seconds since when the token of the key is away; 0 while it is there."""

REPLACED: Final = "replaced identity key"
"""Reason of the reconnection after a replacement of the identity key."""

_REASONS_LOGGED = 16
"""Most reasons that are remembered; a further one is logged at each attempt."""


class Connection:
    """The connection of one device to its broker."""

    def __init__(self, parts: SessionParts) -> None:
        self._parts = parts
        self.linked_at = parts.time.uptime  # time at which the link last came up
        self._is_counted = False
        self._max_payload = 0
        self._is_signer_away: bool | None = None  # None until the store was read
        self._logged: set[str] = set()  # reasons logged since the link last came up

    def will(self) -> Will | None:
        """Return the last will and count the connection; called before every CONNECT.

        It is None while the key is away, since an unsigned one would be refused.
        """
        self._parts.outbox.count_connection()
        self._is_counted = True
        return self._parts.link.will(self._parts.outbox.status("lost"))

    def link_up(self, link: LinkUp) -> None:
        """Subscribe, announce the device, and send pending messages on a new connection."""
        parts = self._parts
        if not self._is_counted:
            parts.outbox.count_connection()
        self._is_counted, self.linked_at = False, parts.time.uptime
        self._max_payload = link.max_payload
        self._logged.clear()
        dates = {"certificate_dates_by": link.dates_by} if link.dates_by else {}
        logger.info("link up %s", fields(conn=parts.outbox.state.conn, **dates))
        if link.is_limited:
            logger.warning("connection limited %s", fields(until="the aggregator's time is known"))
        parts.link.subscribe()
        parts.downloads.reconnected()
        parts.link.publish_status(parts.outbox.status("online"))
        parts.participation.follow(parts.outbox.link_up(link.max_payload))

    def watch_signer(self) -> None:
        """Detect the removal of the key's token; when it is back, send the messages that waited for it."""
        parts = self._parts
        link = parts.link
        if self._is_signer_away is None:
            self._is_signer_away = parts.store.fact(SIGNER_AWAY) > 0
        is_back = link.signing.reach()
        is_away = bool(link.signing.why_away)
        if is_away != self._is_signer_away and (is_away or link.signing.has_signed):
            self._is_signer_away = is_away
            with suppress(StoreFull):
                parts.store.set_facts(**{SIGNER_AWAY: int(parts.time.best_time()) * is_away})
            if is_away:
                logger.warning("token unreachable %s", fields(why=link.signing.why_away))
            else:
                logger.info("token reached again")
        if is_back and link.is_up:
            link.publish_status(parts.outbox.status("online"))
            parts.participation.follow(parts.outbox.link_up(self._max_payload))

    def replace_key(self, now: float) -> None:
        """Run the due work of a key replacement; ``now`` is in seconds of the monotonic clock."""
        parts, identity = self._parts, self._parts.identity
        if identity.replacement.advance(now, parts.outbox.state):
            parts.participation.follow(parts.outbox.propose_life())
        if identity.take_reconnection() and isinstance(parts.link.link, RenewableLink):
            parts.link.link.reconnect(REPLACED)

    def state_again(self, now: float) -> None:
        """Send another hello after a change of the keys, or of the refused root, in the last hello."""
        parts = self._parts
        root = parts.announcements.ring.root
        is_due = parts.refused_root.follow(parts.link.refusals, root, now)
        if parts.outbox.state.is_ready and parts.bodies.is_hello_due(now):
            parts.count("keys announced again")
            is_due = True
        if is_due:
            parts.participation.follow(parts.outbox.propose_life())

    def link_down(self, link: LinkDown) -> None:
        """Stop sending; log each reason once, and its repetitions at debug level."""
        level = logging.DEBUG if link.why in self._logged else logging.INFO
        logger.log(level, "link down %s", fields(why=link.why))
        if len(self._logged) < _REASONS_LOGGED:
            self._logged.add(link.why)
        self._parts.outbox.link_down()
        self._parts.link.discard_queue()


_FIRST = 30.0  # seconds without a required announcement before it is requested again; doubles
_LONGEST = 900.0


class Resubscription:
    """The retry timer of missing announcements.

    >>> timer = Resubscription(0.0)
    >>> [timer.is_due(now, is_missing=True) for now in (29.0, 30.0, 89.0, 90.0)]
    [False, True, False, True]
    >>> timer.is_due(91.0, is_missing=False), timer.is_due(120.0, is_missing=True)
    (False, False)
    """

    def __init__(self, now: float) -> None:
        self._due, self._wait = now + _FIRST, _FIRST

    def is_due(self, now: float, *, is_missing: bool) -> bool:
        """Return whether to subscribe again now; the timer restarts while nothing is missing."""
        if not is_missing:
            self._due, self._wait = now + _FIRST, _FIRST
        elif now >= self._due:
            self._wait = min(2 * self._wait, _LONGEST)
            self._due = now + self._wait
            return True
        return False
