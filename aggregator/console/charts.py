"""Draw the console's charts as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from aggregator.analysis.bar_chart import bar_chart
from aggregator.analysis.line_chart import line_chart
from aggregator.config import AggregatorConfig
from aggregator.ingress.score_book import ScoreBook, histogram
from aggregator.store.overview_rows import ClosedRound

SCORED = 7  # newest days of scores


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


def score_days(config: AggregatorConfig) -> list[dict[str, Any]]:
    """Return the estimated histograms of scores of the newest days, each with its chart."""
    book = ScoreBook(config.scores_folder)
    days = [histogram(book, day) for day in book.stored_days()[:SCORED]]
    for one in days:
        one["date"] = datetime.fromtimestamp(86_400 * one["day"], UTC).date().isoformat()
        one["chart"] = score_chart(one)
    return days


def score_chart(found: Mapping[str, Any]) -> Markup | str:
    """Return the shares of a day's histogram of scores; empty without an answer."""
    if not found["answers"]:
        return ""
    bars = [(one["cell"], one["percent"], one["percent_error"]) for one in found["cells"]]
    title = "Share of the devices by error relative to naive, in percent, with two standard errors"
    return Markup(bar_chart(title, "%", bars))  # noqa: S704 - bar_chart escapes
