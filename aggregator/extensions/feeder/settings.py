"""Define the section ``[feeder]`` of the aggregator's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

from edge_sdk.app.schema import Between, Matches


@dataclass(frozen=True, slots=True)
class FeederMqttSection:
    """An operator's MQTT broker to which forecasts are published, retained."""

    url: str  # mqtts://host:8883, or mqtt://127.0.0.1:1883
    topic: Annotated[str, Matches(r"[^+#\x00/]+(/[^+#\x00/]+)*")] = (
        "feeders"  # TOPIC/FEEDER/forecast
    )
    username: str = ""  # user name of the broker
    password_file: Path | None = None  # file whose first line is the password
    ca_file: Path | None = None  # authority that signed the broker's certificate, for mqtts
    cert_file: Path | None = None  # certificate of this client
    key_file: Path | None = None  # private key of that certificate

    def __post_init__(self) -> None:
        """Refuse the topics of the fleet's protocol."""
        if self.topic.partition("/")[0] == "gf":
            raise ValueError(
                "topic: 'gf/...' belongs to the fleet's protocol; choose another topic"
            )


@dataclass(frozen=True, slots=True)
class FeederSection:
    """Forecasts of feeders, from sums of which no device's part is known."""

    forecast: bool = False  # forecast every feeder after each opened sum, in a process of its own
    zone: str = "UTC"  # time zone of the feeders, such as Europe/Berlin
    most_days: Annotated[int, Between(14, 3650)] = 400  # newest days of which a forecast is made
    # label with a number above 0, such as the rated power or the energy of a year, by which a sum of
    # some devices is scaled to all; where a device of the feeder lacks it, or empty: by their number
    weight: str = "kva"
    mqtt: FeederMqttSection | None = None  # broker to which forecasts that are stored are published

    def __post_init__(self) -> None:
        """Refuse a zone that this machine does not know."""
        try:
            ZoneInfo(self.zone)
        except (KeyError, OSError, ValueError) as error:
            raise ValueError(f"zone: no time zone {self.zone!r} on this machine") from error
