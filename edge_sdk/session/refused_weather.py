"""Log weather that cannot be verified or read."""

from __future__ import annotations

import logging
from collections.abc import Container

from edge_sdk.app.cli import fields
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.protocol import topics
from edge_sdk.wire.protocol.messages import WeatherMessage

logger = logging.getLogger(__name__)


class RefusedWeatherLog:
    """The regions and reasons that were logged, each once."""

    def __init__(self) -> None:
        """Begin with nothing logged."""
        self._logged: set[tuple[str, Reason]] = set()

    def record(self, topic: str, refused: Refused, regions: Container[str]) -> None:
        """Log a refused message, if it is weather of one of these regions.

        Args:
            topic: Topic of the message.
            refused: Why it was refused.
            regions: Regions that the device reads.
        """
        address = topics.parse(topic)
        if address is None or address.kind != WeatherMessage.kind:
            return
        about = (address.tail, refused.reason)
        if address.tail in regions and about not in self._logged:
            self._logged.add(about)
            logger.warning("weather refused %s", fields(region=address.tail, why=refused))
