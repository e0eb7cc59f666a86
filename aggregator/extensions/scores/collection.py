"""Collect the devices' answers about their scores in a running daemon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from aggregator.config import AggregatorConfig
from aggregator.extensions.scores.score_book import ScoreBook, newest_histogram
from aggregator.ingress.message_ingress import Receiver
from aggregator.operations.server_extensions import ServerExtension, ServerParts
from edge_sdk.app.clock import DAY, SystemClock
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.scores.messages import ScoreMessage
from edge_sdk.protocol.envelope import Sealed


def gauges(own: CollectorRegistry) -> tuple[Gauge, Gauge, Gauge]:
    """Register and return the gauges of answers, of devices by cell, and of their errors."""
    answers = Gauge(
        "gridfed_score_answers", "Answers in the newest histogram of scores.", registry=own
    )
    devices = Gauge(
        "gridfed_score_devices",
        "Estimated number of devices whose score is in a cell; noise may make it negative.",
        ["cell"],
        registry=own,
    )
    errors = Gauge(
        "gridfed_score_devices_error",
        "Standard error of gridfed_score_devices.",
        ["cell"],
        registry=own,
    )
    return answers, devices, errors


class ScoreCollection(ServerExtension):
    """Stores answers and shows the newest histogram while the configuration asks for it."""

    def __init__(self, parts: ServerParts, config: AggregatorConfig) -> None:
        super().__init__(parts, config)
        self.follow(config)
        self._answers, self._devices, self._errors = gauges(parts.isolation.metrics.registry)

    def follow(self, config: AggregatorConfig) -> None:
        """Collect answers from now on, or refuse them."""
        self._book = ScoreBook.of(config) if config.section("scores").collect else None

    def receivers(self) -> Mapping[str, Receiver]:
        """Receive answers."""
        return {ScoreMessage.kind: (ScoreMessage, self._receive)}

    def measure(self) -> None:
        """Show the newest histogram."""
        found = self._newest()
        self._devices.clear()
        self._errors.clear()
        self._answers.set(found.get("answers", 0))
        for one in found.get("cells", ()):
            self._devices.labels(one["cell"]).set(one["devices"])
            self._errors.labels(one["cell"]).set(one["error"])

    def status(self) -> Mapping[str, Any]:
        """Return the newest histogram."""
        return {"scores": found} if (found := self._newest()) else {}

    def _receive(self, sealed: Sealed, answer: ScoreMessage) -> str:
        """Store an answer; a second one of its day is counted only."""
        if self._book is None:
            raise Refused(Reason.UNKNOWN_KIND, "scores.collect is false")
        is_first = self._book.record(sealed.sender, answer, self.parts.isolation.clock.wall())
        return "SCORES" if is_first else "REPEATED_SCORES"

    def _newest(self) -> Mapping[str, Any]:
        today = self.parts.isolation.clock.wall() // DAY
        return {} if self._book is None else newest_histogram(self._book, today)


def saved(config: AggregatorConfig) -> Mapping[str, Any]:
    """Return the newest histogram on the disk."""
    return {"scores": newest_histogram(ScoreBook.of(config), SystemClock().wall() // DAY)}
