"""Follow the connections of a device: count them, and announce the device on each."""

from __future__ import annotations

import logging

from edge_sdk.app.cli import fields
from edge_sdk.session.parts import SessionParts
from edge_sdk.session.signed_link import Will
from edge_sdk.wire.link.transport import LinkDown, LinkUp

logger = logging.getLogger(__name__)

_REASONS_LOGGED = 16
"""Most reasons that are remembered; a further one is logged at each attempt."""


class Connection:
    """The connection of one device to its broker.

    Args:
        parts: Parts of its session.

    Attributes:
        linked_at: Time at which the link last came up.
    """

    def __init__(self, parts: SessionParts) -> None:
        self._parts = parts
        self.linked_at = parts.time.uptime
        self._is_counted = False
        self._logged: set[str] = set()  # reasons logged since the link last came up

    def will(self) -> Will:
        """Return the last will and count the connection; called before every CONNECT."""
        self._parts.outbox.count_connection()
        self._is_counted = True
        return self._parts.link.will(self._parts.outbox.status("lost"))

    def link_up(self, link: LinkUp) -> None:
        """Subscribe, announce the device, and send what is due on a new connection."""
        parts = self._parts
        if not self._is_counted:
            parts.outbox.count_connection()
        self._is_counted, self.linked_at = False, parts.time.uptime
        self._logged.clear()
        dates = {"certificate_dates_by": link.dates_by} if link.dates_by else {}
        logger.info("link up %s", fields(conn=parts.outbox.state.conn, **dates))
        parts.link.is_limited = link.is_limited
        if link.is_limited:
            logger.warning("connection limited %s", fields(until="the aggregator's time is known"))
        parts.link.subscribe()
        parts.downloads.reconnected()
        parts.link.publish_status(parts.outbox.status("online"))
        parts.participation.follow(parts.outbox.link_up(link.max_payload))

    def link_down(self, link: LinkDown) -> None:
        """Stop sending; log each reason once, and its repetitions at debug level."""
        level = logging.DEBUG if link.why in self._logged else logging.INFO
        logger.log(level, "link down %s", fields(why=link.why))
        if len(self._logged) < _REASONS_LOGGED:
            self._logged.add(link.why)
        self._parts.outbox.link_down()
        self._parts.link.discard_queue()
