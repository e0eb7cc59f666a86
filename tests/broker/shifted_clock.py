"""Run a program of the project with a wall clock that stands so many milliseconds away.

  python -m tests.broker.shifted_clock FILE aggregator run aggregator.toml

FILE holds the number; the program reads it at every look at the clock.
"""

import importlib
import sys
import time
from pathlib import Path

from edge_sdk.app.clock import SystemClock


def main(file: str, program: str, *words: str) -> int:
    """Set the clock of this process, and run the program."""
    shift = Path(file)
    SystemClock.wall = lambda _self: time.time_ns() // 1_000_000 + int(shift.read_text() or 0)
    time.time = lambda: SystemClock().wall() / 1000  # by which certificates are judged
    return importlib.import_module(f"{program}.commands.main").main(list(words))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
