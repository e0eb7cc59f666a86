"""Define the message of a region's weather."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Between, Length, Matches
from edge_sdk.protocol import topics
from edge_sdk.protocol.messages import Moment, Piece, ProtocolMessage, Text

WEATHER_LIMIT = 8192
"""Most numbers of one weather message."""

_REGION = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
Region = Annotated[str, Matches(_REGION)]
GridStep = Annotated[int, Between(1, 86_400_000)]
SPAN_LIMIT = 400 * 86_400_000
"""Most milliseconds that a weather message may span."""


@dataclass(frozen=True, slots=True)
class WeatherMessage(ProtocolMessage):
    """History and forecast of a region's weather on a regular grid. Retained; the latest replaces."""

    kind: ClassVar[str] = "weather"
    of_fleet = True
    in_topic = "region"
    region: Region  # as in the topic
    t: Moment  # time of issue; rises with every message of the region
    start: Moment  # time of the first row
    step: GridStep  # milliseconds from row to row
    num: Annotated[int, Between(1, WEATHER_LIMIT)]  # rows
    names: Annotated[tuple[Text, ...], Length(1, 8)]  # canonical streams, one column each
    blob: Piece = b""  # float32, column after column, each of ``num``; not finite: unknown

    def __post_init__(self) -> None:
        """Refuse columns that are not as long as announced, and a stream twice."""
        if len(self.blob) != 4 * self.num * len(self.names):
            raise ValueError(f"blob: {len(self.blob)} bytes for {len(self.names)} x {self.num}")
        if self.num * self.step > SPAN_LIMIT:
            raise ValueError(f"num, step: {self.num} x {self.step} ms is more than 400 days")
        if len(set(self.names)) < len(self.names):
            raise ValueError("names: a stream is named twice")


def is_region(text: str) -> bool:
    """Return whether a text may name a region of weather.

    >>> is_region("nl-utrecht"), is_region("a/b"), is_region("+")
    (True, False, False)
    """
    return re.fullmatch(_REGION, text) is not None


def topic_of(fleet: str, region: str) -> str:
    """Return the retained topic of a region's weather.

    >>> topic_of("north", "utrecht")
    'gf/1/north/_all/weather/utrecht'
    """
    return f"{topics.common(fleet, WeatherMessage.kind)}/{region}"
