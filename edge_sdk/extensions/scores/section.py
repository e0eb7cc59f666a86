"""Define the section ``[scores]``."""

from __future__ import annotations

from typing import Annotated

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Between


@dataclass(frozen=True, slots=True)
class ScoresSection:
    """A noisy answer a day to the fleet's histogram of forecast scores. Off by default."""

    report: bool = False  # answer once a day, if the aggregator collects the histogram
    epsilon: Annotated[float, Between(0.1, 10.0)] = 1.0  # privacy loss of one answer
    budget: Annotated[float, Between(0.1, 1e6)] = 30.0  # privacy loss of all answers; then it stops

    def __post_init__(self) -> None:
        if self.budget < self.epsilon:
            raise ValueError(
                f"budget: {self.budget:g} is below epsilon {self.epsilon:g}, so no answer fits into it"
            )

    @property
    def is_bounded(self) -> bool:
        return self.report
