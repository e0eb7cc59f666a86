"""How benchmarks measure and tell: the best of many, beside a yardstick of the same minute.

Times of a shared machine move by two; ratios within one run do not. So no time is asserted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

Best = Callable[..., float]


def best_of(do: Callable[[], object], *, seconds: float = 0.5, least: int = 5) -> float:
    """Return the shortest of many runs, in seconds; runs for about ``seconds`` after a first."""
    do()
    shortest, runs, end = float("inf"), 0, time.perf_counter() + seconds
    while runs < least or time.perf_counter() < end:
        began = time.perf_counter()
        do()
        shortest, runs = min(shortest, time.perf_counter() - began), runs + 1
    return shortest


@pytest.fixture(scope="session")
def best() -> Best:
    return best_of


@pytest.fixture(scope="session")
def copied() -> float:
    """Bytes a second that a copy in numpy moves, read and written: this machine's memory now."""
    source = np.ones(32 * 1024 * 1024 // 8)
    target = np.empty_like(source)
    return 2 * source.nbytes / best_of(lambda: np.copyto(target, source))


@pytest.fixture
def tell(request):
    """Show a table, past whatever captures the output."""
    writer = request.config.get_terminal_writer()

    def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        writer.line()
        writer.line(title)
        for row in (head, *rows):
            cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
            writer.line("  " + "  ".join(cells))

    return show
