"""Accepted ranges of the methods' settings, and the numbers of a ``train`` task."""

from __future__ import annotations

from typing import Annotated

from edge_sdk.wire.schema import Between

Steps = Annotated[int, Between(0, 65536)]
Rate = Annotated[float, Between(0.0, 1e3)]
Share = Annotated[float, Between(0.0, 1.0)]
Prox = Annotated[float, Between(0.0, 1e9)]
Length = Annotated[float, Between(1e-9, 1e9)]
Count = Annotated[int, Between(1, 2**31 - 1)]
Behind = Annotated[int, Between(0, 1_000_000)]
Factor = Annotated[float, Between(0.0, 1e6)]


def task(steps: int, rate: float, **more: float) -> dict[str, float]:
    """Return the numbers of a ``train`` task, as the contract names them.

    >>> task(4, 0.001, prox=0.01)
    {'steps': 4.0, 'rate': 0.001, 'prox': 0.01}
    """
    return {"steps": float(steps), "rate": rate, **more}
