"""Forecast every feeder after each opened sum, in a process of its own, and show the stored forecasts."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from aggregator.config import AggregatorConfig
from aggregator.extensions.feeder.feeder import FeederBook, FeederForecast, opened_sums
from aggregator.extensions.feeder.feeder_page import gauges
from aggregator.operations.server_extensions import ServerExtension, ServerParts
from edge_sdk.app.cli import fields

RECENT = 7 * 86_400_000
"""Milliseconds after the begin of a period in which its sum is expected."""
EVERY = 60.0
"""Seconds between two checks for opened sums."""
LONGEST = 900.0
"""Seconds after which a forecast is given up."""

logger = logging.getLogger(__name__)


class FeederForecasts(ServerExtension):
    """The feeders of a running daemon."""

    def __init__(self, parts: ServerParts, config: AggregatorConfig) -> None:
        super().__init__(parts, config)
        self._book = FeederBook.of(config)
        self._mark, self._stored = -1.0, list[FeederForecast]()
        self._load, self._devices, self._missing = gauges(parts.isolation.metrics.registry)
        self._looked, self._opened = float("-inf"), -1
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = 0.0

    def on_tick(self, now: float) -> None:
        """Begin a process if a sum was opened since the last one; note how it ended."""
        if self._process is not None:
            self._wait(now)
        elif self.config.section("feeder").forecast and now >= self._looked + EVERY:
            self._looked = now
            since = self.parts.isolation.clock.wall() - RECENT
            newest = max((one.opened for one in opened_sums(self.config, since)), default=-1)
            if newest > self._opened:
                self._opened, self._begun = newest, now
                self._process = self._start()

    def measure(self) -> None:
        """Show the stored forecasts."""
        now = self.parts.isolation.clock.wall()
        mark = self._book.mark()
        if mark != self._mark:
            self._mark, self._stored = mark, list(self._book.all())
        for gauge in (self._load, self._devices, self._missing):
            gauge.clear()
        for one in self._stored:
            self._devices.labels(one.feeder).set(one.expected)
            self._missing.labels(one.feeder).set(one.missing)
            self._load.labels(one.feeder, "highest").set(max(one.values))
            for row in one.rows():
                if row["start"] <= now < row["start"] + one.step:
                    for what in ("value", "lower", "upper"):
                        if row[what] is not None:
                            self._load.labels(one.feeder, what).set(row[what])

    def status(self) -> Mapping[str, Any]:
        """Return the devices of every feeder, and those that are missing."""
        found = {
            one.feeder: {"devices": one.expected, "missing": one.missing, "begin": one.begin}
            for one in self._stored
        }
        return {"feeders": found} if found else {}

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        file = str(self.config.file)
        return subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "aggregator", "feeder", "--store", "--config", file],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _wait(self, now: float) -> None:
        assert self._process is not None
        code = self._process.poll()
        if code is None and now > self._begun + LONGEST:
            self._process.kill()
            code = self._process.wait()
        if code is None:
            return
        self._process = None
        if code:
            logger.warning(
                "feeders not forecast %s",
                fields(code=code, hint="gridfed-aggregator feeder shows the fault"),
            )
