"""Store the forecasts that devices send to a running daemon."""

from __future__ import annotations

from collections.abc import Mapping

from aggregator.config import AggregatorConfig
from aggregator.extensions.forecasts.forecast_book import ForecastBook
from aggregator.ingress.message_ingress import Receiver
from aggregator.operations.server_extensions import ServerExtension, ServerParts
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.outputs.forecast_message import ForecastMessage
from edge_sdk.protocol.envelope import Sealed


class ForecastCollection(ServerExtension):
    """Stores the newest forecast of each device while the configuration asks for it."""

    def __init__(self, parts: ServerParts, config: AggregatorConfig) -> None:
        super().__init__(parts, config)
        self._book = ForecastBook.of(config)

    def receivers(self) -> Mapping[str, Receiver]:
        """Receive forecasts."""
        return {ForecastMessage.kind: (ForecastMessage, self._receive)}

    def _receive(self, sealed: Sealed, forecast: ForecastMessage) -> str:
        """Store a forecast; one that is not newer is counted only."""
        if not self.config.section("forecasts").store:
            raise Refused(Reason.UNKNOWN_KIND, "forecasts.store is false")
        is_newer = self._book.record(sealed.sender, forecast, sealed.content)
        return "FORECASTS" if is_newer else "STALE_FORECASTS"
