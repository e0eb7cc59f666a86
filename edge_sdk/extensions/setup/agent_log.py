"""Log channels without a source, the first reading, the first forecast, and a line a day."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edge_sdk.agent import SourceHealth, streams_given
from edge_sdk.app.cli import fields
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.client import Client
from edge_sdk.config import Config
from edge_sdk.forecasting.forecast import moment
from edge_sdk.protocol.contract.manifest import Feature, Manifest

logger = logging.getLogger(__name__)

_DAY = 86_400
_SILENCE = 26 * 3600.0  # seconds after which a line is due although no reading has begun a day


class AgentLog:
    """The log of one agent, for every participation."""

    def __init__(self, config: Config, clients: Sequence[Client], _sources: SourceHealth) -> None:
        self._clients, self._logs = clients, list[ActivityLog]()
        self._reminders = [ChannelReminder(one) for one in config.participants()]
        self._remind()

    @staticmethod
    def prepare(config: Config) -> None:
        """Do nothing."""

    def turn(self) -> None:
        """Log reminders and new activity; readings of files at the first call are not news."""
        self._remind()
        self._logs = self._logs or [ActivityLog(client) for client in self._clients]
        for log in self._logs:
            log.turn()

    def _remind(self) -> None:
        for client, reminder in zip(self._clients, self._reminders, strict=True):
            reminder.turn(client.learner.manifest)

    def close(self) -> None:
        """Do nothing."""

    def status(self) -> dict[str, object]:
        return {}


class ChannelReminder:
    """Logs the channels of the bundle in use that have no source, once for each bundle."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._manifest: Manifest | None = None

    def turn(self, manifest: Manifest) -> None:
        """Log the missing channels if this is another bundle than before."""
        if manifest is self._manifest:
            return
        self._manifest = manifest
        given = streams_given(self._config, manifest)
        for lost in unsupplied(channel_sources(manifest, given, self._config.site)):
            found = {"channel": lost.channel, "reads": lost.reads, "why": lost.consequence}
            logger.warning("channel without source %s", fields(bundle=manifest.name, **found))


class ActivityLog:
    """Logs the first reading and forecast, and the completed days of one client.

    Args:
        client: The client; readings that it has now are not its first.
    """

    def __init__(self, client: Client) -> None:
        self._client, self._newest = client, client.newest_reading
        self._forecasts, self._logged = False, client.now
        self._counts: dict[str, int] = client.counts
        self._log_forecast()

    def turn(self) -> None:
        """Log the events since the last call."""
        before, newest, now = self._newest, self._client.newest_reading, self._client.now
        if newest != before:
            self._newest = newest
            if before is None:
                logger.info("first reading %s", fields(at=moment(newest)))
            self._log_forecast()
        is_next = before is not None and newest is not None and newest // _DAY > before // _DAY
        if is_next or now - self._logged >= _SILENCE:
            self._logged = now
            self._log_day(before)

    def _log_forecast(self) -> None:
        if self._forecasts or self._newest is None:
            return
        source = self._client.forecast_source
        if source != "none":
            self._forecasts = True
            logger.info("first forecast %s", fields(by=source, newest=moment(self._newest)))

    def _log_day(self, newest: int | None) -> None:
        status = self._client.status()
        counts: Mapping[str, int] = status["counts"]
        new = {name: counts.get(name, 0) - self._counts.get(name, 0) for name in _COUNTED}
        self._counts = dict(counts)
        monitor = status["forecast"].get("monitor", {})
        error = monitor.get("error relative to naive, 7 days", "unknown")
        day = "none" if newest is None else str(moment(newest))[:10]
        logger.info(
            "day complete %s",
            fields(
                day=day,
                readings=new[_COUNTED[0]],
                forecasts=new[_COUNTED[1]],
                served=status["forecast"]["served"],
                error_relative_to_naive=error,
                fleet=fleet_state(status),
            ),
        )


_COUNTED = ("readings new", "forecasts")


def fleet_state(status: Mapping[str, Any]) -> str:
    """Return the state of a device's part in its fleet, in words.

    >>> status = {"fleet": "north", "linked": True, "stopped": "", "run": 2, "round": 7}
    >>> fleet_state(status), fleet_state(status | {"linked": False})
    ('run 2, round 7', 'no link; run 2, round 7')
    >>> fleet_state({"fleet": None}), fleet_state(status | {"stopped": "budget"})
    ('none', 'run 2, round 7; stopped: budget')
    """
    if status.get("fleet") is None:
        return "none"
    words = "" if status["linked"] else "no link; "
    words += f"run {status['run']}, round {status['round']}" if status["run"] else "no run yet"
    return f"{words}; stopped: {status['stopped']}" if status["stopped"] else words


NEVER = "no model forecast and no training until it has a source"
MASKED = "optional: the model forecasts without it, less accurately"


@dataclass(frozen=True, slots=True)
class ChannelSource:
    """The origin of one channel of a bundle."""

    channel: str
    reads: str  # stream, calendar feature or site constant that it reads
    source: str  # where that comes from; empty for none
    consequence: str = ""  # cost of a missing source costs; empty where there is a source

    @property
    def is_missing(self) -> bool:
        return not self.source

    @property
    def text(self) -> str:
        return self.source or f"no source: {self.consequence}"


def channel_sources(
    manifest: Manifest, given: Mapping[str, str], site: Mapping[str, float]
) -> list[ChannelSource]:
    """Return the source of every channel of a bundle, in the bundle's order, without its masks."""
    return [
        _source_of(feature, manifest, given, site)
        for feature in manifest.features
        if feature.kind != "mask"
    ]


def _source_of(
    feature: Feature, manifest: Manifest, given: Mapping[str, str], site: Mapping[str, float]
) -> ChannelSource:
    lost = MASKED if feature.name in manifest.optional else NEVER
    if feature.kind == "calendar":
        return ChannelSource(feature.name, str(feature.what), "the clock")
    if feature.kind == "static":
        value = site.get(feature.name)
        source = "" if value is None else f"[site] {feature.name} = {value:g}"
        return ChannelSource(feature.name, "the site", source, "" if source else lost)
    stream = feature.stream or manifest.target.stream
    source = given.get(stream, "")
    if source and feature.lag_steps is not None:
        source = f"{source}, earlier readings"
    if source and feature.lead_steps is not None:
        source = f"{source}, values announced ahead; without them, the newest reading"
    return ChannelSource(feature.name, stream, source, "" if source else lost)


def unsupplied(channels: Iterable[ChannelSource]) -> list[ChannelSource]:
    return [channel for channel in channels if channel.is_missing]
