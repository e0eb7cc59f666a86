"""Live progress: a table that rewrites itself on a terminal, plain lines everywhere else."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol, Self, TextIO

from firmware_sim.fleet.federation import Progress
from firmware_sim.results import short

EVERY = 5.0  # s between two plain lines of one run

HEAD = ("run", "state", "round", "loss", "bytes in / out", "devices", "refused", "seconds")


class Display(Protocol):
    """Display of the progress of runs."""

    def note(self, text: str) -> None:
        """Show a text once."""

    def update(self, run: str, state: str, progress: Progress) -> None:
        """Show the progress of a run; ``state`` is a word such as ``training`` or ``done``."""

    def advance(self, work: str, done: int, rounds: int) -> None:
        """Show the finished rounds of a computation in this process, and its remaining time."""

    def __enter__(self) -> Self:
        """Start the display."""

    def __exit__(self, *_: object) -> None:
        """Stop the display; its last content stays."""


def cells(run: str, state: str, now: Progress) -> tuple[str, ...]:
    """Return one run's progress as the cells of its row.

    >>> now = Progress(4, 3, 40, 0.0123, 8, 7, 12_000, 9_000, {"LATE": 1}, 2.5)
    >>> cells("PL-FL", "training", now)
    ('PL-FL', 'training', '3 / 40', '0.01230', '12 kB / 9 kB', '7 of 8', '1 (LATE 1)', '2')
    """
    reasons = ", ".join(f"{name} {count}" for name, count in sorted(now.refused.items()))
    refused = sum(now.refused.values())
    return (
        run,
        state,
        f"{now.version} / {now.rounds}",
        "" if now.loss is None else f"{now.loss:.5f}",
        f"{short(now.up)} / {short(now.down)}",
        f"{now.present} of {now.seen}",
        f"{refused} ({reasons})" if refused else "0",
        f"{now.seconds:.0f}",
    )


def bar(done: int, rounds: int, width: int = 24) -> str:
    """Return a bar as text.

    >>> bar(3, 12, 8)
    '##...... 3 / 12'
    """
    full = width * done // max(rounds, 1)
    return f"{'#' * full}{'.' * (width - full)} {done} / {rounds}"


class RemainingTime:
    """Estimates the remaining time of each computation from its pace."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: dict[str, tuple[float, int]] = {}

    def after(self, work: str, done: int, rounds: int) -> str:
        """Return the remaining time as text; empty after the first round, which has no pace yet.

        >>> times = iter([0.0, 10.0, 20.0])
        >>> left = RemainingTime(lambda: next(times))
        >>> [left.after("PL-FL", done, 12) for done in (1, 2, 3)]
        ['', ', 1 min 40 s left', ', 1 min 30 s left']
        """
        now = self._clock()
        if work not in self._began or done < self._began[work][1]:
            self._began[work] = now, done
        began, first = self._began[work]
        if done <= first or done >= rounds:
            return ""
        seconds = round((now - began) / (done - first) * (rounds - done))
        return (
            f", {seconds // 60} min {seconds % 60} s left"
            if seconds >= 60
            else f", {seconds} s left"
        )


class PlainDisplay:
    """Prints a line at a change, at most one every few seconds and run."""

    def __init__(self, out: TextIO | None = None, *, every: float = EVERY) -> None:
        """Write to ``out``; to the present standard error if left out."""
        self._out, self._every = sys.stderr if out is None else out, every
        self._printed: dict[str, tuple[str, float]] = {}
        self._remaining = RemainingTime()
        self._warnings = RepeatedWarnings(self.note)

    def note(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def update(self, run: str, state: str, progress: Progress) -> None:
        """Write a line if the state changed or the last line is older than the interval."""
        before, when = self._printed.get(run, ("", 0.0))
        now = time.monotonic()
        if state == before and now - when < self._every:
            return
        self._printed[run] = (state, now)
        pairs = zip(HEAD[2:], cells(run, state, progress)[2:], strict=True)
        known = (f"{name} {value}" for name, value in pairs if value)  # a loss may be withheld
        self.note(f"{run}: {state}; " + ", ".join(known))

    def advance(self, work: str, done: int, rounds: int) -> None:
        """Write a line at the end, or if the last line is older than the interval."""
        _, when = self._printed.setdefault(work, ("", time.monotonic()))
        left, now = self._remaining.after(work, done, rounds), time.monotonic()
        if done < rounds and now - when < self._every:
            return
        self._printed[work] = ("", now)
        self.note(f"{work}: {done} of {rounds}{left}")

    def __enter__(self) -> Self:
        self._warnings.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._warnings.__exit__()


class LiveDisplay:
    """A table on a terminal, a row a run; notes scroll by above it."""

    def __init__(self, console: Any) -> None:  # noqa: ANN401 - rich.console.Console
        from rich.live import Live  # noqa: PLC0415 - only with a terminal

        self._console = console
        self._rows: dict[str, tuple[str, ...]] = {}
        self._remaining = RemainingTime()
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._warnings = RepeatedWarnings(self.note)

    def note(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def update(self, run: str, state: str, progress: Progress) -> None:
        """Redraw the run's row."""
        from rich.table import Table  # noqa: PLC0415 - as above

        self._rows[run] = cells(run, state, progress)
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in HEAD:
            table.add_column(name, justify="left" if name in {"run", "state"} else "right")
        for row in self._rows.values():
            table.add_row(*row)
        self._live.update(table)

    def advance(self, work: str, done: int, rounds: int) -> None:
        """Redraw the bar; it goes when all rounds are done."""
        left = self._remaining.after(work, done, rounds)
        self._live.update("" if done >= rounds else f"{work}  {bar(done, rounds)}{left}")
        if done >= rounds:
            self.note(f"{work}: {rounds} of {rounds}")

    def __enter__(self) -> Self:
        self._live.start()
        self._warnings.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop drawing; the last table stays on the screen, below the number of repetitions of each warning."""
        self._warnings.__exit__()
        self._live.stop()


def display(*, is_quiet: bool = False) -> Display:
    """Return a live display on a terminal with rich, else plain lines on standard error."""
    if not is_quiet and sys.stderr.isatty():
        try:
            from rich.console import Console  # noqa: PLC0415 - the simulator's extra

            return LiveDisplay(Console(stderr=True))
        except ImportError:
            pass
    return PlainDisplay()


FIELD = "="


class RepeatedWarnings(logging.Handler):
    """Handler of the warnings of all devices of this process, by their event.

    An event is the text of a log line before its fields, as ``docs/logging.md`` lists them.

    >>> shown = []
    >>> with RepeatedWarnings(shown.append):
    ...     for device in range(80):
    ...         logging.getLogger("edge").warning("parameters restored why=%d", device)
    >>> shown
    ['parameters restored why=0', 'parameters restored: 80 times in all']
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note
        self._counts: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Show the first line of an event; count it."""
        text = record.getMessage()
        event = text.split(FIELD, 1)[0].rpartition(" ")[0] if FIELD in text else text
        self._counts[event] += 1
        if self._counts[event] == 1:
            self._note(text)

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Show the number of each event that was logged more than once."""
        logging.getLogger().removeHandler(self)
        for event, count in self._counts.items():
            if count > 1:
                self._note(f"{event}: {count} times in all")
        self._counts.clear()
