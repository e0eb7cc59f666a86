"""The methods of BAFDP's tables as this project runs them: one row, one name, its settings.

Settings were chosen on Milan's week before the test, never on the test; what a paper gives is used
where it gives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

STEPS = 4
RATE = 1e-3


def _nothing(_: Any) -> Mapping[str, float]:  # noqa: ANN401 - every half has its own state
    return {}


@dataclass(frozen=True, slots=True)
class Row:
    """How a method is run.

    Attributes:
        method: A key of both ``METHODS``.
        net: The network of its paper.
        settings: Of the server half.
        steps: Gradient steps behind one answer.
        share: Of the devices, whose answers make a firing.
        rule: What combines the rows, where the method takes a rule.
        watched: What to note of the server's state on the way.
    """

    method: str
    net: str = "mlp"
    settings: Mapping[str, Any] = field(default_factory=dict)
    steps: int = STEPS
    share: float = 1.0
    rule: str = "mean"
    watched: Callable[[Any], Mapping[str, float]] = _nothing

    def quorum(self, devices: int) -> int:
        """How many answers make a firing.

        >>> Row("bafdp", share=0.5).quorum(25), Row("fedavg").quorum(25)
        (13, 25)
        """
        return max(1, math.ceil(self.share * devices - 1e-9))

    def firings(self, work: int, devices: int) -> int:
        """How many firings an average device's ``work`` gradient steps make.

        >>> Row("bafdp", steps=1, share=0.5).firings(1000, 4)
        2000
        """
        return max(1, round(work / self.steps * devices / self.quorum(devices)))


_LOCAL = {"steps": STEPS, "rate": RATE}

FIELD: Mapping[str, Row] = {
    "FedAvg": Row("fedavg", settings=_LOCAL),
}
