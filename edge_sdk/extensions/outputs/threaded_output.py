"""Run one output in a thread of its own, so that a slow or broken one never delays the agent."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from edge_sdk.app.cli import fields
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.settings import Duration, seconds
from edge_sdk.extensions.outputs.forecast_issuer import AgentReport, OutputPlace

logger = logging.getLogger(__name__)

_PATIENCE = 0.2  # seconds that a sink may serve before the next report is looked for
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0  # seconds before a report that failed is passed again


class OutputSink(Protocol):
    """The blocking end of an output. All methods are called by one thread, never the agent's."""

    def send(self, report: AgentReport, *, is_new: bool) -> bool:
        """Write a report.

        Args:
            report: The newest report; earlier ones may have been skipped.
            is_new: False if only the state of the agent has changed, not the forecast.

        Returns:
            False if it cannot be written now and must be passed again.

        Raises:
            OSError: It cannot be written; it is passed again later.
        """

    def serve(self, patience: float) -> None:
        """Run pending work between two reports, for at most this many seconds.

        Raises:
            OSError: The output does not work.
        """

    def close(self) -> None:
        """Flush, and free every resource."""


class ThreadedOutput:
    """One configured output. Only the newest report waits; an older one is replaced.

    A failure is logged when it begins and when it ends, not while it lasts.

    Args:
        interval: Shortest time between two forecasts, in seconds.
    """

    def __init__(self, name: str, interval: float, make: Callable[[], OutputSink]) -> None:
        self.name, self.interval = name, interval
        self._make = make
        self._guard = threading.Lock()
        self._waiting: tuple[AgentReport, bool] | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._written = 0
        self._failures = 0
        self._trouble = ""

    @classmethod
    def of(
        cls, section: OutputSection, place: OutputPlace, make: Callable[[], OutputSink]
    ) -> ThreadedOutput:
        """Return the output of a section."""
        return cls(f"{place.number} {section.type}", seconds(section.interval), make)

    def start(self, _client: object = None) -> None:
        """Start the thread."""
        name = f"output {self.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, report: AgentReport, *, is_new: bool) -> None:
        """Pass a report on; returns at once."""
        with self._guard:
            was_new = self._waiting is not None and self._waiting[1]
            self._waiting = report, is_new or was_new

    def health(self) -> dict[str, Any]:
        """Return the number of forecasts written and of failures, and the present failure."""
        return {
            "output": self.name,
            "written": self._written,
            "failures": self._failures,
            "failing": self._trouble,
        }

    def stop(self) -> None:
        """Ask the thread to write the last report and end; returns at once."""
        self._stopping.set()

    def close(self, patience: float = 5.0) -> None:
        """Write the last report and stop; an output that is blocked is left to the process's end."""
        self.stop()
        if self._thread is not None:
            self._thread.join(patience)
            self._thread = None

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        sink: OutputSink | None = None
        wait = _FIRST_WAIT
        while not self._stopping.is_set():
            try:
                if sink is None:
                    sink = self._make()
                sink.serve(_PATIENCE)
                wait = self._pass_on(sink, wait)
            except Exception as error:  # noqa: BLE001 - no output may stop the agent
                self._fail(error)
                self._stopping.wait(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
        self._end(sink)

    def _pass_on(self, sink: OutputSink, wait: float) -> float:
        """Write the waiting report; put it back if it could not be written and no newer one waits."""
        with self._guard:
            waiting, self._waiting = self._waiting, None
        if waiting is None:
            return wait
        report, is_new = waiting
        is_written = False
        try:
            is_written = sink.send(report, is_new=is_new)
        finally:
            if not is_written:
                with self._guard:
                    if self._waiting is None:
                        self._waiting = waiting
                    else:
                        self._waiting = self._waiting[0], self._waiting[1] or is_new
        if not is_written:
            return wait
        self._written += is_new
        if self._trouble:
            self._trouble = ""
            logger.info("output restored %s", fields(output=self.name))
        return _FIRST_WAIT

    def _end(self, sink: OutputSink | None) -> None:
        if sink is None:
            return
        try:
            if not self._trouble:
                self._pass_on(sink, _FIRST_WAIT)
            sink.close()
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        why = str(error) or type(error).__name__
        if not self._trouble:
            logger.warning("output failed %s", fields(output=self.name, why=why))
        self._trouble = why


MIN_INTERVAL = 1.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSection:
    """Keys common to every output."""

    type: str  # kind of output
    interval: Duration = "10s"  # shortest time between two forecasts, at least 1s
    participation: str = ""  # id of the participation that forecasts; empty: the device's own

    def __post_init__(self) -> None:
        if seconds(self.interval) < MIN_INTERVAL:
            raise ValueError(f"interval: {self.interval} is below 1s, the shortest interval")
