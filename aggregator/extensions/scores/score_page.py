"""Show the estimated histograms of scores on a page of the console."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from aggregator.config import AggregatorConfig
from aggregator.extensions.scores.score_book import ScoreBook, histogram
from aggregator.operations.charts import bar_chart

SCORED = 7  # newest days of scores


def score_values(config: AggregatorConfig, _query: Mapping[str, str]) -> dict[str, Any]:
    """Return the estimated histograms of scores of the newest days, each with its chart."""
    book = ScoreBook.of(config)
    days = [histogram(book, day) for day in book.stored_days()[:SCORED]]
    for one in days:
        one["date"] = datetime.fromtimestamp(86_400 * one["day"], UTC).date().isoformat()
        one["chart"] = score_chart(one)
    return {"days": days}


def score_chart(found: Mapping[str, Any]) -> Markup | str:
    """Return the shares of a day's histogram of scores; empty without an answer."""
    if not found["answers"]:
        return ""
    bars = [(one["cell"], one["percent"], one["percent_error"]) for one in found["cells"]]
    title = "Share of the devices by error relative to naive, in percent, with two standard errors"
    return Markup(bar_chart(title, "%", bars))  # noqa: S704 - bar_chart escapes
