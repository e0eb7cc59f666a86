"""Keep the newest weather of each region that a device reads.

A message is verified before it arrives here: its signature covers the fleet, and the key is one of the
aggregator's. What remains is judged by its time of issue, because a broker may repeat or withhold
retained messages. The newest message of a region is saved, so that a restart without a link has it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from edge_sdk.app.cli import fields
from edge_sdk.session.signed_link import SignedLink
from edge_sdk.store.store import DeviceStore
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.protocol.codec import decode
from edge_sdk.wire.protocol.messages import WeatherMessage
from edge_sdk.wire.protocol.topics import is_region

logger = logging.getLogger(__name__)

ASSIGNED = ""
"""Region of the configuration that stands for the one that the aggregator assigns."""

MAX_AGE = 7 * 86_400_000
"""Milliseconds after its issue in which weather is accepted."""

_MAX_LEAD = 86_400_000  # ms by which an issue may lie after server time
_PAPER = "weather "
_REGION = "weather region"


class WeatherInbox:
    """The weather of the regions that one device reads.

    Args:
        store: Store that keeps the newest message of each region.
        link: Link that subscribes to the regions.
        wanted: Regions of the configuration; an empty text is the assigned region.
    """

    def __init__(self, store: DeviceStore, link: SignedLink, wanted: Collection[str]) -> None:
        self._store, self._link, self._wanted = store, link, frozenset(wanted)
        self._assigned = (store.paper(_REGION) or b"").decode() if ASSIGNED in wanted else ""
        self._newest: dict[str, tuple[WeatherMessage, bytes]] = {}
        self._logged: set[tuple[str, Reason]] = set()
        for region in self.regions:
            self._load(region)
        link.read_weather(self.regions)

    @property
    def regions(self) -> frozenset[str]:
        """Regions that the device reads now."""
        return (self._wanted | {self._assigned}) - {ASSIGNED}

    def assign(self, region: str) -> None:
        """Read the weather of the region that the aggregator assigns, if the configuration asks."""
        is_usable = not region or is_region(region)
        if ASSIGNED not in self._wanted or region == self._assigned or not is_usable:
            return
        logger.info("region assigned %s", fields(region=region or "-"))
        self._store.file_paper(_REGION, region.encode())
        self._assigned = region
        if region and region not in self._newest:
            self._load(region)
        self._link.read_weather(self.regions)

    def newest(self, region: str) -> WeatherMessage | None:
        """Return the newest weather of a region, or None; an empty text is the assigned region."""
        found = self._newest.get(region or self._assigned)
        return None if found is None else found[0]

    def receive(self, weather: WeatherMessage, body: bytes, now: int | None) -> None:
        """Adopt and save newer weather; the same message again is ignored.

        Args:
            weather: Verified message.
            body: Its bytes.
            now: Server time in Unix milliseconds, or None while it is unknown.

        Raises:
            Refused: ROLLBACK, TOO_STALE or FROM_FUTURE.
        """
        before = self._newest.get(weather.region)
        if before is not None and body == before[1]:
            return
        try:
            judge_weather(weather, None if before is None else before[0], now)
        except Refused as refused:
            if (weather.region, refused.reason) not in self._logged:
                self._logged.add((weather.region, refused.reason))
                logger.warning("weather refused %s", fields(region=weather.region, why=refused))
            raise
        self._store.file_paper(_PAPER + weather.region, body)
        self._newest[weather.region] = weather, body
        about = {"region": weather.region, "rows": weather.num, "streams": ",".join(weather.names)}
        logger.info("weather received %s", fields(**about, issued=weather.t))

    def _load(self, region: str) -> None:
        body = self._store.paper(_PAPER + region)
        try:
            if body is not None:
                self._newest[region] = decode(WeatherMessage, body), body
        except Refused as refused:
            logger.warning("stored value rejected %s", fields(what=_PAPER + region, why=refused))


def judge_weather(weather: WeatherMessage, newest: WeatherMessage | None, now: int | None) -> None:
    """Refuse weather that is not newer than the newest, or was not issued about now.

    Raises:
        Refused: ROLLBACK: it is not newer. TOO_STALE: it was issued more than a week ago.
            FROM_FUTURE: it was issued more than a day after now.

    >>> one = WeatherMessage("north", 10, 0, 3_600_000, 1, ("weather.temperature",), bytes(4))
    >>> judge_weather(one, None, 20)
    >>> judge_weather(one, one, 20)
    Traceback (most recent call last):
    edge_sdk.wire.errors.Refused: ROLLBACK: issued at 10, not after the newest at 10
    """
    if newest is not None and weather.t <= newest.t:
        raise Refused(Reason.ROLLBACK, f"issued at {weather.t}, not after the newest at {newest.t}")
    if now is not None and weather.t < now - MAX_AGE:
        raise Refused(Reason.TOO_STALE, f"issued at {weather.t}, more than a week before {now}")
    if now is not None and weather.t > now + _MAX_LEAD:
        raise Refused(Reason.FROM_FUTURE, f"issued at {weather.t}, more than a day after {now}")
