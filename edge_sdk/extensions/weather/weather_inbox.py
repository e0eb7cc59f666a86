"""Keep the newest weather of each region that a device reads.

A message is verified before it arrives here: its signature covers the fleet, and the key is one of the
aggregator's. What remains is judged by its time of issue, because a broker may repeat or withhold
retained messages. The newest message of a region is saved, so that a restart without a link has it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from edge_sdk.app.cli import fields
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.weather.messages import WeatherMessage, is_region
from edge_sdk.protocol.codec import decode
from edge_sdk.protocol.messages import WelcomeMessage
from edge_sdk.session.signed_link import VerifiedMessage
from edge_sdk.training.extension import DeviceExtension, DeviceParts

logger = logging.getLogger(__name__)

TYPE: Final = "fleet-weather"
"""Type of the source in a configuration."""

ASSIGNED = ""
"""Region of the configuration that stands for the one that the aggregator assigns."""

MAX_AGE = 7 * 86_400_000
"""Milliseconds after its issue in which weather is accepted."""

_MAX_LEAD = 86_400_000  # ms by which an issue may lie after server time
_PAPER = "weather "
_REGION = "weather region"


def regions_of(sections: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the regions that ``[[source]]`` sections read; an empty text is the assigned one.

    >>> sorted(regions_of([{"type": "csv"}, {"type": "fleet-weather", "region": "utrecht"}]))
    ['utrecht']
    """
    return frozenset(str(row.get("region", "")) for row in sections if row.get("type") == TYPE)


class WeatherInbox(DeviceExtension):
    """The weather of the regions that one device reads."""

    kinds = (WeatherMessage.kind, WelcomeMessage.kind)

    def __init__(self, device: DeviceParts) -> None:
        super().__init__(device)
        wanted, store = regions_of(device.config.source), device.store
        self._store, self._link, self._wanted = store, device.session.parts.link, wanted
        self._assigned = (store.paper(_REGION) or b"").decode() if ASSIGNED in wanted else ""
        self._newest: dict[str, tuple[WeatherMessage, bytes]] = {}
        self._logged: set[tuple[str, Reason]] = set()
        for region in self.regions:
            self._load(region)
        self._read()

    def on_message(self, message: VerifiedMessage) -> None:
        """Adopt newer weather, and the region that an accepted welcome assigns.

        Raises:
            Refused: ROLLBACK, TOO_STALE or FROM_FUTURE.
        """
        session = self.device.session
        match message.message:
            case WeatherMessage() as weather:
                self.receive(weather, message.body, session.time.now())
            case WelcomeMessage() as welcome if welcome == session.outbox.welcome:
                self.assign(welcome.region)

    @property
    def regions(self) -> frozenset[str]:
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
        self._read()

    def _read(self) -> None:
        self._link.follow_topics(WeatherMessage.kind, self.regions, self._log_refused)

    def _log_refused(self, region: str, refused: Refused) -> None:
        if (region, refused.reason) not in self._logged:
            self._logged.add((region, refused.reason))
            logger.warning("weather refused %s", fields(region=region, why=refused))

    def newest(self, region: str) -> WeatherMessage | None:
        """Return the newest weather of a region, or None; an empty text is the assigned region."""
        found = self._newest.get(region or self._assigned)
        return None if found is None else found[0]

    def receive(self, weather: WeatherMessage, body: bytes, now: int | None) -> None:
        """Adopt and save newer weather; the same message again is ignored.

        Args:
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
            self._log_refused(weather.region, refused)
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
    edge_sdk.errors.Refused: ROLLBACK: issued at 10, not after the newest at 10
    """
    if newest is not None and weather.t <= newest.t:
        raise Refused(Reason.ROLLBACK, f"issued at {weather.t}, not after the newest at {newest.t}")
    if now is not None and weather.t < now - MAX_AGE:
        raise Refused(Reason.TOO_STALE, f"issued at {weather.t}, more than a week before {now}")
    if now is not None and weather.t > now + _MAX_LEAD:
        raise Refused(Reason.FROM_FUTURE, f"issued at {weather.t}, more than a day after {now}")
