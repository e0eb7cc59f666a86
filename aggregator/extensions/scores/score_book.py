"""Keep the devices' noisy answers of every day, and estimate the fleet's histogram from them.

One file for each day with one line for each answer, written before it counts; the first answer of a
device counts. A line that a power cut left incomplete is no answer; a line begins with a line feed, so
that the next one is complete.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup
from prometheus_client import CollectorRegistry, Gauge

from aggregator.config import AggregatorConfig
from aggregator.ingress.message_ingress import Receiver
from aggregator.operations.charts import bar_chart
from aggregator.operations.server_extensions import ServerExtension, ServerParts
from edge_sdk.app.cli import fields
from edge_sdk.app.clock import DAY, SystemClock
from edge_sdk.app.permissions import make_private_folder, open_private
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.scores import score_cells
from edge_sdk.extensions.scores.local_histogram import LocalHistogram
from edge_sdk.extensions.scores.messages import ScoreMessage
from edge_sdk.protocol.envelope import Sealed

logger = logging.getLogger(__name__)

EARLY, LATE = 1, 2  # days by which the day of an answer may be after and before server time
_SUFFIX = ".answers"


@dataclass(slots=True)
class DayAnswers:
    """The answers of one day."""

    devices: set[str] = field(default_factory=set)
    # for each mechanism the number of answers, then the number that support each cell
    supported: dict[LocalHistogram, list[int]] = field(default_factory=dict)

    def add(self, device: str, mechanism: LocalHistogram, answer: bytes) -> None:
        cells = mechanism.supported(answer)
        counts = self.supported.setdefault(mechanism, [0] * (1 + mechanism.cells))
        self.devices.add(device)
        counts[0] += 1
        for cell in cells:
            counts[1 + cell] += 1

    def estimate(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return unbiased estimates of the counts of all cells, and their standard errors."""
        counts, spread = [0.0] * score_cells.CELLS, [0.0] * score_cells.CELLS
        for mechanism, (answers, *supported) in self.supported.items():
            found, variances = mechanism.estimate(supported, answers)
            counts = [a + b for a, b in zip(counts, found, strict=True)]
            spread = [a + b for a, b in zip(spread, variances, strict=True)]
        return tuple(counts), tuple(math.sqrt(one) for one in spread)


@dataclass(slots=True)
class ScoreBook:
    """The answers of the fleet by day."""

    folder: Path  # folder of the files, one for each day
    # smallest epsilon of an answer: one with more noise has an unbounded influence
    least: float = 0.1
    keep: int = 60  # number of days whose answers are stored
    _days: dict[int, DayAnswers] = field(default_factory=dict)
    _pruned: int = -1

    @classmethod
    def of(cls, config: AggregatorConfig) -> ScoreBook:
        """Return the answers of a fleet."""
        section = config.section("scores")
        return cls(config.state / "scores", section.min_epsilon, section.keep_days)

    def record(self, device: str, answer: ScoreMessage, now: int) -> bool:
        """Store a verified answer; return False for a second one of its day.

        Args:
            now: Server time in Unix milliseconds.

        Raises:
            Refused: No device that follows the protocol sends it, or it cannot be stored.
        """
        mechanism = self._judge(answer, now // DAY)
        self._drop_old(now // DAY)
        day = self.day(answer.day)
        if device in day.devices:
            return False
        line = {"device": device, "how": answer.how, "eps": answer.eps, "answer": answer.blob.hex()}
        try:
            make_private_folder(self.folder)
            with open_private(self._path(answer.day), "ab") as file:
                file.write(b"\n%s\n" % json.dumps(line).encode())
        except OSError as error:
            logger.warning("score not stored %s", fields(device=device, why=error))
            raise Refused(Reason.NO_SPACE, str(error)) from error
        day.add(device, mechanism, answer.blob)
        return True

    def day(self, number: int) -> DayAnswers:
        """Return the answers of a day, counted since 1970."""
        if number not in self._days:
            self._days[number] = self._read(number)
        return self._days[number]

    def stored_days(self) -> list[int]:
        """Return the days with answers, newest first."""
        names = (path.name.removesuffix(_SUFFIX) for path in self.folder.glob(f"*{_SUFFIX}"))
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    def _judge(self, answer: ScoreMessage, today: int) -> LocalHistogram:
        if answer.day < today - LATE:
            raise Refused(Reason.TOO_STALE, f"day {answer.day}, today is {today}")
        if answer.day > today + EARLY:
            raise Refused(Reason.FROM_FUTURE, f"day {answer.day}, today is {today}")
        if (answer.name, answer.cells) != (score_cells.NAME, score_cells.CELLS):
            raise Refused(Reason.UNKNOWN_KIND, f"histogram {answer.name} of {answer.cells} cells")
        if answer.eps < self.least:
            raise Refused(Reason.BAD_SCALAR, f"eps {answer.eps:g} is below {self.least:g}")
        mechanism = LocalHistogram.best(answer.cells, answer.eps)
        try:
            mechanism.supported(answer.blob)
        except ValueError as error:
            raise Refused(Reason.MALFORMED, str(error)) from error
        if mechanism.how != answer.how:
            raise Refused(Reason.MALFORMED, f"how {answer.how}, expected {mechanism.how}")
        return mechanism

    def _read(self, number: int) -> DayAnswers:
        day = DayAnswers()
        for device, mechanism, answer in self._lines(number):
            if device not in day.devices:
                day.add(device, mechanism, answer)
        return day

    def _lines(self, number: int) -> Iterator[tuple[str, LocalHistogram, bytes]]:
        path = self._path(number)
        try:
            text = path.read_bytes()
        except OSError:
            return
        for line in filter(None, text.splitlines()):
            try:
                row = json.loads(line)
                mechanism = LocalHistogram(score_cells.CELLS, row["eps"], row["how"])
                answer = bytes.fromhex(row["answer"])
                mechanism.supported(answer)
                yield str(row["device"]), mechanism, answer
            except (ValueError, KeyError, TypeError):
                logger.warning("stored score rejected %s", fields(file=path.name))

    def _drop_old(self, today: int) -> None:
        if today == self._pruned:
            return
        self._pruned = today
        for number in self.stored_days():
            if number <= today - self.keep:
                self._path(number).unlink(missing_ok=True)
        self._days = {number: one for number, one in self._days.items() if number > today - 7}

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}{_SUFFIX}"


def histogram(book: ScoreBook, day: int) -> dict[str, Any]:
    """Return a day's histogram for people and programs: shares of the answers, in percent.

    A share may be below 0 or above 100: cutting it off would bias what is computed from it.
    """
    found = book.day(day)
    counts, errors = found.estimate()
    answers = len(found.devices)
    return {
        "histogram": score_cells.NAME,
        "day": day,
        "answers": answers,
        "epsilon": sorted({mechanism.epsilon for mechanism in found.supported}),
        "cells": [
            {
                "cell": label,
                "devices": round(count, 2),
                "error": round(error, 2),
                "percent": round(100 * count / answers, 2) if answers else None,
                "percent_error": round(100 * error / answers, 2) if answers else None,
            }
            for label, count, error in zip(score_cells.labels(), counts, errors, strict=True)
        ],
    }


def newest_histogram(book: ScoreBook, today: int) -> Mapping[str, Any]:
    """Return the histogram of the newest complete day with answers, or of today; empty without any."""
    days = book.stored_days()
    complete = [day for day in days if day < today]
    return histogram(book, (complete or days)[0]) if days else {}


def status_lines(scores: Mapping[str, Any]) -> list[str]:
    """Return the line of the status about a day's histogram of scores.

    >>> cell = {"cell": "below 0.6", "devices": 11.5, "error": 4.0}
    >>> status_lines({"day": 20415, "answers": 40, "cells": [cell]})
    ['error relative to naive, 2025-11-23, estimated from 40 answers: below 0.6 11.5 ±4.0']
    """
    day = datetime.fromtimestamp(86_400 * scores["day"], UTC).date().isoformat()
    cells = (f"{one['cell']} {one['devices']:.1f} ±{one['error']:.1f}" for one in scores["cells"])
    head = f"error relative to naive, {day}, estimated from {scores['answers']} answers"
    return [f"{head}: {', '.join(cells)}"]


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
