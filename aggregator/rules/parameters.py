"""Parameters of the rules: the accepted ranges, and the weight of each row."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.schema import Between, Length

Shares = NDArray[np.float64]  # weight of each row, shape ``(n,)``, not negative, summing to 1
Faulty = Annotated[int, Between(0, 100_000)]  # rows that may be Byzantine
Count = Annotated[int, Between(1, 100_000)]
Radius = Annotated[float, Between(1e-30, 1e30)]
Times = Annotated[int, Between(1, 10_000)]
Tolerance = Annotated[float, Between(0.0, 1.0)]
Seed = Annotated[int, Between(0, 2**63 - 1)]
Client = Annotated[str, Length(1, 64)]


def uniform(n: int) -> Shares:
    """Return equal shares for ``n`` clients; no claim is used."""
    return np.full(n, 1.0 / n) if n else np.zeros(0)
