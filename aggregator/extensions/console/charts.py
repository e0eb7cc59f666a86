"""Draw the console's charts as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from aggregator.extensions.console.overview_rows import ClosedRound
from aggregator.operations.charts import line_chart


def replay_chart(result: Mapping[str, Any]) -> Markup:
    """Return the distances of a replay's result, by round."""
    rounds = result["rounds"]
    lines = {
        "recorded step": [(one["round"], one["recorded"]["step"]) for one in rounds],
        "distance, single": [(one["round"], one["single_distance"]) for one in rounds],
        "distance, chained": [(one["round"], one["chained_distance"]) for one in rounds],
    }
    title = "Distance of the replayed from the recorded model"
    return Markup(line_chart(title, "length", lines))  # noqa: S704 - line_chart escapes


def loss_chart(rounds: Sequence[ClosedRound]) -> Markup | str:
    """Return the reported losses of rounds, given newest first; empty without any."""
    points = [(one.round, one.loss) for one in reversed(rounds) if one.loss is not None]
    if not points:
        return ""
    title = "Mean loss that devices reported, by round"
    return Markup(line_chart(title, "loss", {"loss": points}))  # noqa: S704 - line_chart escapes


def excluded_chart(rounds: Sequence[ClosedRound]) -> Markup | str:
    """Return the number of devices that the rule left out, by round; empty without a round."""
    points = [(one.round, float(one.dropped)) for one in reversed(rounds)]
    if not points:
        return ""
    title = "Devices left out by the rule, by round"
    return Markup(line_chart(title, "devices", {"left out": points}))  # noqa: S704 - line_chart escapes
