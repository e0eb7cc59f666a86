"""Define the section ``[feeder]`` of the aggregator's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from zoneinfo import ZoneInfo

from edge_sdk.app.schema import Between


@dataclass(frozen=True, slots=True)
class FeederSection:
    """Forecasts of feeders, from sums of which no device's part is known."""

    forecast: bool = False  # forecast every feeder after each opened sum, in a process of its own
    zone: str = "UTC"  # time zone of the feeders, such as Europe/Berlin
    most_days: Annotated[int, Between(14, 3650)] = 400  # newest days of which a forecast is made

    def __post_init__(self) -> None:
        """Refuse a zone that this machine does not know."""
        try:
            ZoneInfo(self.zone)
        except (KeyError, OSError, ValueError) as error:
            raise ValueError(f"zone: no time zone {self.zone!r} on this machine") from error
