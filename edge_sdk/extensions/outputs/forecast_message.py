"""Define the message of a device's own forecast."""

from __future__ import annotations

from typing import Annotated, ClassVar

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Between
from edge_sdk.protocol.messages import Moment, Piece, ProtocolMessage, Real, Text, Whole

GridStep = Annotated[int, Between(1, 86_400_000)]


@dataclass(frozen=True, slots=True)
class ForecastMessage(ProtocolMessage):
    """A device's newest forecast, if its owner and the operator have opted in. Not receipted."""

    kind: ClassVar[str] = "forecast"
    from_device = True
    is_encryptable = True
    t: Moment  # time of issue; a lower one than before is ignored
    start: Moment  # begin of the first step of the horizon
    step: GridStep  # milliseconds from step to step
    num: Annotated[int, Between(1, 1024)]  # steps of the horizon
    stream: Text  # canonical stream that is forecast
    model: Text  # name of the bundle
    bundle: Annotated[int, Between(1, 2**31 - 1)]  # version of the bundle
    run: Whole  # training run; 0 before the first
    source: Text  # source of the values: model, last day, ...
    by: Text  # the candidate that is served: fleet, tuned, own, ...
    version: Whole | None = None  # version of the common model; absent before the first
    error: Real | None = None  # held-back error of the candidate, in the unit of the stream
    coverage: Annotated[float, Between(0.0, 1.0)] | None = None  # intended share inside the bounds
    blob: Piece = b""  # float32: values, lower ends, upper ends, each of ``num``

    def __post_init__(self) -> None:
        if len(self.blob) != 12 * self.num:
            raise ValueError(f"blob: {len(self.blob)} bytes for 3 x {self.num}")
