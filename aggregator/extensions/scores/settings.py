"""Define the section ``[scores]`` of the aggregator's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edge_sdk.app.schema import Between


@dataclass(frozen=True, slots=True)
class ScoreCollectionSection:
    """Histogram of the devices' scores, from noisy answers that their owners allow."""

    collect: bool = False  # ask for answers, and estimate the histogram of every day
    min_epsilon: Annotated[float, Between(0.1, 10.0)] = 0.5  # answers with more noise are refused
    keep_days: Annotated[int, Between(1, 3650)] = 60  # days whose answers are stored
