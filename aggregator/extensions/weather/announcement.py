"""Announce the weather that an order hands to the running daemon."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aggregator.extensions.weather.weather_publication import taken
from aggregator.operations.control_queue import ControlOrder
from aggregator.operations.recorded_orders import record_once
from aggregator.operations.server_extensions import Order, ServerExtension
from aggregator.rounds.announcements import Publication
from edge_sdk.protocol import topics


class WeatherAnnouncement(ServerExtension):
    """Announces signed weather, or clears it."""

    def orders(self) -> Mapping[str, Order]:
        """Execute orders about weather."""
        return {"weather": self._announce}

    def _announce(self, order: ControlOrder, inbox: Path) -> str:
        region, parts = order.device, self.parts
        payload = taken(inbox, region)
        topic = topics.weather(parts.ends.fleet, region)
        result = f"weather of {region} is {'announced' if payload else 'cleared'}"
        with parts.isolation.store.transaction():
            parts.isolation.store.announce({topic: payload})
            record_once(order, parts.isolation.audit_log, region, result)
        parts.isolation.publisher.announce([Publication(topic, payload)])
        return result
