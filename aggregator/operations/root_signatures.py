"""Warn before what the root has signed expires: the daemon cannot sign it again."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from aggregator.store.types import Store
from edge_sdk.app.cli import fields
from edge_sdk.app.clock import DAY, Clock
from edge_sdk.wire.errors import Refused
from edge_sdk.wire.protocol import topics
from edge_sdk.wire.protocol.codec import decode
from edge_sdk.wire.protocol.envelope import unproved
from edge_sdk.wire.protocol.messages import BundleMessage, KeysMessage

logger = logging.getLogger(__name__)

HORIZON = 30 * DAY
"""Time before the end from which the daemon warns, milliseconds."""


@dataclass(frozen=True, slots=True)
class RootSignature:
    """An announcement that the root has signed.

    Attributes:
        topic: Its topic.
        until: Time from which devices refuse it, Unix milliseconds.
    """

    topic: str
    until: int

    def is_near(self, now: int, horizon: int = HORIZON) -> bool:
        """Return whether the end is at most ``horizon`` milliseconds away.

        >>> one = RootSignature("gf/1/north/_all/keys", 400 * DAY)
        >>> one.is_near(0), one.is_near(371 * DAY)
        (False, True)
        """
        return self.until - now <= horizon


def root_signatures(announced: Mapping[str, bytes], online: bytes) -> Iterator[RootSignature]:
    """Return the announcements of the root that have an end.

    Args:
        announced: Signed payloads by topic, as the store has them.
        online: Raw public key of the aggregator; a list of keys ends for it when this key does.
    """
    for topic, payload in announced.items():
        address = topics.parse(topic)
        kind = address.kind if address is not None and payload else ""
        try:
            if kind == KeysMessage.kind:
                keys = decode(KeysMessage, unproved(payload))
                ends = [
                    end for key, end in zip(keys.sign, keys.until, strict=True) if key == online
                ]
                yield RootSignature(topic, max(ends, default=0))
            elif kind == BundleMessage.kind:
                bundle = decode(BundleMessage, unproved(payload))
                if bundle.expires is not None:
                    yield RootSignature(topic, bundle.expires)
        except Refused:  # another version's; it is signed again before the daemon starts
            continue


@dataclass(slots=True)
class RootSignatureMonitor:
    """Monitor of the announcements that only the root can sign.

    Attributes:
        store: Database of the announcements.
        clock: Wall time.
        online: Raw public key of the aggregator.
    """

    store: Store
    clock: Clock
    online: bytes
    _looked_at: int = field(default=0, init=False)

    def warn(self) -> None:
        """Log the signatures that end soon, once a day."""
        now = self.clock.wall()
        if abs(now - self._looked_at) < DAY:
            return
        self._looked_at = now
        for one in root_signatures(self.store.announcements(), self.online):
            if one.is_near(now):
                about = {"topic": one.topic, "days": (one.until - now) // DAY}
                hint = "sign it again: gridfed-aggregator announce"
                logger.warning("root signatures expiring %s", fields(**about, hint=hint))
