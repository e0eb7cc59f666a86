"""Define the ``[[output]]`` sections of a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from edge_sdk.app.settings import Duration, seconds
from edge_sdk.wire.link.broker_options import is_loopback
from edge_sdk.wire.schema import Between, Matches

TopicName = Annotated[str, Matches(r"[^+#\x00/]+(/[^+#\x00/]+)*")]
TopicPrefix = Annotated[str, Matches(r"([^+#\x00/]+(/[^+#\x00/]+)*)?")]
MIN_INTERVAL = 1.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSection:
    """Keys common to every output."""

    type: str  # kind of output
    interval: Duration = "10s"  # shortest time between two forecasts, at least 1s
    participation: str = ""  # id of the participation that forecasts; empty: the device's own

    def __post_init__(self) -> None:
        """Refuse an interval that would write without a pause."""
        if seconds(self.interval) < MIN_INTERVAL:
            raise ValueError(f"interval: {self.interval} is below 1s, the shortest interval")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOutputSection(OutputSection):
    """``type = "file"``: forecasts in a file that only its owner can read."""

    path: Path  # the file
    format: Literal["csv", "json", "line", "prometheus"] = "csv"  # line is InfluxDB's line protocol
    mode: Literal["replace", "append"] = "replace"  # replace: the newest forecast only, atomically
    max_bytes: Annotated[int, Between(1024, 1 << 40)] = 1 << 20  # size at which append rotates
    keep: Annotated[int, Between(0, 100)] = 3  # rotated files that are kept

    def __post_init__(self) -> None:
        """Refuse to append metrics: their format has no history."""
        OutputSection.__post_init__(self)
        if self.format == "prometheus" and self.mode == "append":
            raise ValueError('mode: expected "replace" with format = "prometheus", got "append"')


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOutputSection(OutputSection):
    """``type = "http"``: the newest forecast at ``/forecast`` and metrics at ``/metrics``."""

    listen: Annotated[str, Matches(r"(\[[0-9a-fA-F:]+\]|[^:\[\]]+):\d{1,5}")] = (
        "127.0.0.1:8322"  # host:port
    )
    remote: bool = (
        False  # allow an address other than loopback: every host that reaches it can read
    )

    def __post_init__(self) -> None:
        """Refuse to listen on the network unless this is set."""
        OutputSection.__post_init__(self)
        host, port = self.address
        if port > 65_535:
            raise ValueError(f"listen: port {port} is above 65535")
        if not self.remote and not is_loopback(host):
            raise ValueError(
                f"listen: {host} is not loopback; set remote = true to serve forecasts on the network"
            )

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttOutputSection(OutputSection):
    """``type = "mqtt"``: a local broker, such as Home Assistant's; never the fleet's topics."""

    url: str  # mqtt://127.0.0.1:1883, or mqtts://host:8883
    topic: TopicName = "gridfed"  # TOPIC/DEVICE/forecast and TOPIC/DEVICE/availability
    discovery: TopicPrefix = "homeassistant"  # Home Assistant's discovery prefix; empty: none
    username: str = ""  # user name of the broker
    password_file: Path | None = None  # file whose first line is the password
    ca_file: Path | None = None  # authority that signed the broker's certificate, for mqtts
    cert_file: Path | None = None  # certificate of this client
    key_file: Path | None = None  # private key of that certificate
    protocol: Literal[4, 5] = 5  # MQTT 5, or 4 for 3.1.1
    insecure: bool = False  # allow mqtt:// to another host

    def __post_init__(self) -> None:
        """Refuse the fleet's own topics."""
        OutputSection.__post_init__(self)
        if self.topic.partition("/")[0] == "gf":
            raise ValueError(
                "topic: 'gf/...' belongs to the fleet's protocol; choose another topic"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOutputSection(OutputSection):
    """``type = "fleet"``: to the aggregator, signed, over the fleet's own link."""

    interval: Duration = "15m"  # shortest time between two forecasts, at least 1s
    uncovered: bool = False  # also with a [privacy] mechanism, whose claim forecasts void
