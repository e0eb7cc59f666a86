"""The method that solves a bundle in closed form: its tasks, and where its halves are."""

from __future__ import annotations

from edge_sdk.protocol.contract.manifest import STATISTIC
from edge_sdk.protocol.contract.method import LOSS, Ask, Number, Up
from edge_sdk.protocol.contract.plugin import MethodPlugin

ANALYTIC = MethodPlugin(
    {
        "train": Ask(
            (STATISTIC,),
            ("w",),
            (
                Number("weighted", 0.0, 1.0),  # weigh windows by the residuals under w
                Number("period", 0.0, 2.0**53),  # keep the statistic for this period's sum; 0: send
            ),
            Up.STATISTIC,
            (LOSS,),
            personal=True,
            patient=True,
            has_statistic=True,
        )
    },
    "edge_sdk.extensions.analytic.half:analytic",
    "aggregator.extensions.analytic.analytic:ANALYTIC",
)
