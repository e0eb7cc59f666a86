"""Define the messages of forecasts: weather by region, and a device's own forecast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from edge_sdk.wire.protocol.messages.fields import Moment, Piece, Real, Text, Whole
from edge_sdk.wire.schema import Between, Length, Matches

WEATHER_LIMIT = 8192
"""Most numbers of one weather message."""

Region = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")]
GridStep = Annotated[int, Between(1, 86_400_000)]
SPAN_LIMIT = 400 * 86_400_000
"""Most milliseconds that a weather message may span."""


@dataclass(frozen=True, slots=True)
class WeatherMessage:
    """History and forecast of a region's weather on a regular grid. Retained; the latest replaces."""

    kind: ClassVar[str] = "weather"
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


@dataclass(frozen=True, slots=True)
class ForecastMessage:
    """A device's newest forecast, if its owner and the operator have opted in. Not receipted."""

    kind: ClassVar[str] = "forecast"
    t: Moment  # time of issue; a lower one than before is ignored
    start: Moment  # begin of the first step of the horizon
    step: GridStep  # milliseconds from step to step
    num: Annotated[int, Between(1, 1024)]  # steps of the horizon
    stream: Text  # canonical stream that is forecast
    model: Text  # name of the bundle
    bundle: Annotated[int, Between(1, 2**31 - 1)]  # version of the bundle
    run: Whole  # training run; 0 before the first
    source: Text  # what predicted the values: model, last day, ...
    by: Text  # the candidate that is served: fleet, tuned, own, ...
    version: Whole | None = None  # version of the common model; absent before the first
    error: Real | None = None  # held-back error of the candidate, in the unit of the stream
    coverage: Annotated[float, Between(0.0, 1.0)] | None = None  # intended share inside the bounds
    blob: Piece = b""  # float32: values, lower ends, upper ends, each of ``num``

    def __post_init__(self) -> None:
        """Refuse columns that are not as long as announced."""
        if len(self.blob) != 12 * self.num:
            raise ValueError(f"blob: {len(self.blob)} bytes for 3 x {self.num}")
