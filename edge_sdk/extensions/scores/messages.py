"""Define the message of a device's answer to the fleet's histogram of scores."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Between, Length, Matches
from edge_sdk.protocol.messages import TIME_LIMIT, ProtocolMessage


@dataclass(frozen=True, slots=True)
class ScoreMessage(ProtocolMessage):
    """A noisy answer about one day, if owner and operator have opted in. Not receipted."""

    kind: ClassVar[str] = "score"
    from_device = True
    is_encryptable = True
    day: Annotated[int, Between(0, TIME_LIMIT // 86_400_000)]  # days since 1970, of the draw
    name: Annotated[str, Matches(r"[a-z][a-z0-9-]{0,31}")]  # the histogram
    cells: Annotated[int, Between(1, 64)]  # its number of cells
    how: Literal["k-ary", "unary"]  # the mechanism
    eps: Annotated[float, Between(0.1, 10.0)]  # privacy loss of the answer
    blob: Annotated[bytes, Length(0, 8)] = b""  # the answer: a cell, or a bit for each

    def __post_init__(self) -> None:
        """Refuse an answer that is not as long as the mechanism's."""
        size = 1 if self.how == "k-ary" else (self.cells + 7) // 8
        if len(self.blob) != size:
            raise ValueError(f"blob: {len(self.blob)} bytes, expected {size}")
