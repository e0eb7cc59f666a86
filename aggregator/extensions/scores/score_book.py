"""Show the fleet's histogram of forecast errors, from sums whose source is ``scores``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Gauge

from aggregator.config import AggregatorConfig
from aggregator.operations.charts import bar_chart
from aggregator.operations.server_extensions import ServerExtension, ServerParts
from edge_sdk.app.clock import DAY
from edge_sdk.extensions.scores import score_cells

SCORED = 7  # newest days of scores
AGAIN = 60.0  # s after which opened sums are read again


class OpenedScores(Protocol):
    """The part of an opened sum that is read here; a sum of several numbers has them in ``values``."""

    @property
    def source(self) -> str: ...
    @property
    def period(self) -> int: ...
    @property
    def members(self) -> int: ...
    @property
    def values(self) -> NDArray[Any]: ...
    @property
    def noise(self) -> float: ...


def histograms(config: AggregatorConfig) -> list[dict[str, Any]]:
    """Return the histograms of the newest days for people and programs, of all cohorts together, newest first."""
    found: dict[int, list[OpenedScores]] = {}
    entries = config.index.configured(config.tables)
    opened = [load for entry in entries if (load := entry.load("opened")) is not None]
    for one in (one for load in opened for one in load(config)):
        if one.source == "scores" and len(one.values) == score_cells.CELLS:
            found.setdefault(one.period // DAY, []).append(one)
    return [histogram(day, found[day]) for day in sorted(found, reverse=True)[:SCORED]]


def histogram(day: int, sums: list[OpenedScores]) -> dict[str, Any]:
    """Return the histogram of a day since 1970: devices in each cell, and the noise of that number."""
    answers = sum(one.members for one in sums)
    counts = np.sum([one.values for one in sums], axis=0)
    error = math.sqrt(sum(one.noise**2 for one in sums))
    return {
        "histogram": score_cells.NAME,
        "day": day,
        "answers": answers,
        "cells": [
            {
                "cell": label,
                "devices": round(float(count), 2),
                "error": round(error, 2),
                "percent": round(100 * float(count) / answers, 2),
                "percent_error": round(100 * error / answers, 2),
            }
            for label, count in zip(score_cells.labels(), counts, strict=True)
        ],
    }


def status_lines(scores: Mapping[str, Any]) -> list[str]:
    """Return the line of the status about a day's histogram of scores.

    >>> cell = {"cell": "below 0.6", "devices": 11.5, "error": 4.0}
    >>> status_lines({"day": 20415, "answers": 40, "cells": [cell]})
    ['error relative to naive, 2025-11-23, of 40 devices: below 0.6 11.5 ±4.0']
    """
    day = datetime.fromtimestamp(86_400 * scores["day"], UTC).date().isoformat()
    cells = (f"{one['cell']} {one['devices']:.1f} ±{one['error']:.1f}" for one in scores["cells"])
    head = f"error relative to naive, {day}, of {scores['answers']} devices"
    return [f"{head}: {', '.join(cells)}"]


def score_values(config: AggregatorConfig, _query: Mapping[str, str]) -> dict[str, Any]:
    """Return the histograms of scores of the newest days, each with its chart."""
    days = histograms(config)
    for one in days:
        one["date"] = datetime.fromtimestamp(86_400 * one["day"], UTC).date().isoformat()
        one["chart"] = score_chart(one)
    return {"days": days}


def score_chart(found: Mapping[str, Any]) -> Markup:
    """Return the shares of a day's histogram of scores."""
    bars = [(one["cell"], one["percent"], one["percent_error"]) for one in found["cells"]]
    title = "Share of the devices by error relative to naive, in percent, with two deviations of the noise"
    return Markup(bar_chart(title, "%", bars))  # noqa: S704 - bar_chart escapes


def gauges(own: CollectorRegistry) -> tuple[Gauge, Gauge, Gauge]:
    """Register and return the gauges of answers, of devices by cell, and of their errors."""
    answers = Gauge(
        "gridfed_score_answers", "Devices in the newest histogram of scores.", registry=own
    )
    devices = Gauge(
        "gridfed_score_devices",
        "Number of devices whose score is in a cell; noise may make it negative.",
        ["cell"],
        registry=own,
    )
    errors = Gauge(
        "gridfed_score_devices_error",
        "Standard deviation of the noise in gridfed_score_devices.",
        ["cell"],
        registry=own,
    )
    return answers, devices, errors


class ScoreCollection(ServerExtension):
    """Shows the newest histogram of a running daemon."""

    def __init__(self, parts: ServerParts, config: AggregatorConfig) -> None:
        super().__init__(parts, config)
        self._answers, self._devices, self._errors = gauges(parts.isolation.metrics.registry)
        self._newest: Mapping[str, Any] = {}
        self._again_at = -math.inf

    def on_tick(self, now: float) -> None:
        """Read the opened sums once a minute."""
        if now >= self._again_at:
            self._again_at = now + AGAIN
            self._newest = saved(self.config)["scores"]

    def measure(self) -> None:
        """Show the newest histogram."""
        self._devices.clear()
        self._errors.clear()
        self._answers.set(self._newest.get("answers", 0))
        for one in self._newest.get("cells", ()):
            self._devices.labels(one["cell"]).set(one["devices"])
            self._errors.labels(one["cell"]).set(one["error"])

    def status(self) -> Mapping[str, Any]:
        """Return the newest histogram."""
        return {"scores": self._newest} if self._newest else {}


def saved(config: AggregatorConfig) -> Mapping[str, Any]:
    """Return the newest histogram in the database."""
    return {"scores": next(iter(histograms(config)), {})}
