"""Sign the weather of a region, and hand it to the store or to the running daemon."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from aggregator.audit_log import AuditLog, Initiator, login_name
from aggregator.config import AggregatorConfig
from aggregator.extensions.weather.weather_tables import WeatherTable
from aggregator.operations import signing_keys
from aggregator.operations.commands import OrderError
from aggregator.operations.control_queue import ControlOrder, leave
from aggregator.operations.order_executor import record_once
from aggregator.operations.server_extensions import Order, ServerExtension
from aggregator.rounds.announcements import Ends, Publication
from aggregator.store.errors import DatabaseBusyError
from aggregator.store.opener import open_store
from aggregator.store.store import Store
from edge_sdk.app.clock import SystemClock
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.errors import Refused
from edge_sdk.extensions.weather.messages import WeatherMessage, is_region, topic_of
from edge_sdk.protocol import topics
from edge_sdk.protocol.codec import decode
from edge_sdk.protocol.envelope import unproved
from edge_sdk.protocol.keys import write_atomically


@dataclass(frozen=True, slots=True)
class PublishedWeather:
    """The result of a publication."""

    message: WeatherMessage | None  # message that was signed; None if the region was cleared
    is_queued: bool  # true if a running daemon publishes it; else it is published when one starts
    size: int  # bytes on the link


def publish(config: AggregatorConfig, region: str, table: WeatherTable | None) -> PublishedWeather:
    """Sign and announce a region's weather, None clears it; raise Failure if key or store cannot be used."""
    topic, signer = topic_of(config.fleet, region), signing_keys.signer(config)
    message, payload, who = None, b"", login_name()[:64]
    if table is not None:
        before = announced(config).get(region)
        now = max(SystemClock().wall(), before.t + 1 if before is not None else 0)
        message = table.message(region, now)
        payload = Ends(config.fleet, signer).to_all(message)
    try:
        with open_store(config.database) as store, store.transaction():
            store.announce({topic: payload})
            AuditLog(store, config.fleet, signer).record(
                Initiator("command", who),
                "weather",
                region,
                detail=f"weather of {region} is {'announced' if payload else 'cleared'}",
            )
    except DatabaseBusyError:
        _write(_beside(config.inbox, region), payload)
        leave(config.inbox, ControlOrder("weather", region, who=who))
        return PublishedWeather(message, True, len(payload))
    return PublishedWeather(message, False, len(payload))


def announced(config: AggregatorConfig) -> dict[str, WeatherMessage]:
    with open_store(config.database, read_only=True) as store:
        return dict(_announced(store))


def _announced(store: Store) -> Iterator[tuple[str, WeatherMessage]]:
    for topic, payload in store.announcements.all().items():
        address = topics.parse(topic)
        if payload and address is not None and address.kind == WeatherMessage.kind:
            try:
                yield address.tail, decode(WeatherMessage, unproved(payload))
            except Refused:
                continue


def taken(folder: Path, region: str) -> bytes:
    """Return and delete the signed payload that an order refers to; raise OrderError if there is none."""
    if not is_region(region):
        raise OrderError(f"weather: {region!r} is no region")
    path = _beside(folder, region)
    try:
        payload = path.read_bytes()
        path.unlink()
    except OSError as error:
        raise OrderError(f"weather of {region}: {error}") from error
    return payload


def _beside(folder: Path, region: str) -> Path:
    return folder / f"{region}.weather"


def _write(path: Path, payload: bytes) -> None:
    make_private_folder(path.parent)
    write_atomically(path, payload, 0o600)


class WeatherAnnouncement(ServerExtension):
    """Announces signed weather, or clears it."""

    def orders(self) -> Mapping[str, Order]:
        """Execute orders about weather."""
        return {"weather": self._announce}

    def _announce(self, order: ControlOrder, inbox: Path) -> str:
        region, parts = order.device, self.parts
        payload = taken(inbox, region)
        topic = topic_of(parts.ends.fleet, region)
        result = f"weather of {region} is {'announced' if payload else 'cleared'}"
        with parts.isolation.store.transaction():
            parts.isolation.store.announce({topic: payload})
            record_once(order, parts.isolation.audit_log, region, result)
        parts.isolation.publisher.announce([Publication(topic, payload)])
        return result
