"""A few plots as PNG inside a page, drawn with matplotlib as the simulator's own page is."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

COLOURS = ("#0b6e4f", "#d9822b", "#7a5195", "#1f6fb2", "#b03a48", "#666666", "#8a6d3b", "#2e9e9e")

Points = Sequence[tuple[float, float]]


def curves(
    lines: Mapping[str, Points], *, x: str, y: str, title: str = "", is_log: bool = False
) -> str:
    """Draw lines over a common axis; return an ``img`` element, or nothing without matplotlib."""

    def draw(axis: Any) -> None:  # noqa: ANN401 - matplotlib is untyped
        for number, (name, points) in enumerate(lines.items()):
            across, up = zip(*points, strict=True) if points else ((), ())
            axis.plot(across, up, color=COLOURS[number % len(COLOURS)], lw=1.5, label=name)
        if is_log:
            axis.set_yscale("log")
        _named(axis, x, y, title)
        axis.legend(frameon=False, fontsize=8)

    return _image(draw)


def marks(
    series: Mapping[str, Points], *, x: str, y: str, title: str = "", level: float | None = None
) -> str:
    """Draw points joined by thin lines, with a level to compare with."""

    def draw(axis: Any) -> None:  # noqa: ANN401 - matplotlib is untyped
        for number, (name, points) in enumerate(series.items()):
            across, up = zip(*points, strict=True) if points else ((), ())
            colour = COLOURS[number % len(COLOURS)]
            axis.plot(across, up, "o-", color=colour, lw=0.8, ms=4, label=name)
        if level is not None:
            axis.axhline(level, color="#999999", lw=0.8, ls="--")
        _named(axis, x, y, title)
        axis.legend(frameon=False, fontsize=8)

    return _image(draw)


def shades(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Mapping[tuple[str, str], float],
    *,
    title: str = "",
    most: float = 3.0,
) -> str:
    """Draw a table of ratios as colours: 1 is white, ``most`` and above is dark red."""

    def draw(axis: Any) -> None:  # noqa: ANN401 - matplotlib is untyped
        grid = [[values.get((r, c), float("nan")) for c in columns] for r in rows]
        axis.imshow(grid, cmap="Reds", vmin=1.0, vmax=most, aspect="auto")
        axis.set_xticks(range(len(columns)), columns, rotation=30, ha="right", fontsize=8)
        axis.set_yticks(range(len(rows)), rows, fontsize=8)
        for i, line in enumerate(grid):
            for j, value in enumerate(line):
                text = "" if math.isnan(value) else f"{value:.2f}" if value < 100 else "≫"
                ink = "white" if value > (1.0 + most) / 2 else "black"
                axis.text(j, i, text, ha="center", va="center", fontsize=7, color=ink)
        axis.set_title(title, fontsize=10, loc="left")

    return _image(draw, size=(9.0, 0.38 * len(rows) + 1.2))


def fan(
    truth: Sequence[float],
    told: Sequence[Sequence[float]],
    *,
    x: str,
    y: str,
    title: str = "",
    hours: float = 0.5,
) -> str:
    """Draw readings over a band of forecasts.

    Args:
        told: Triples of lower end, median and upper end, one a step.
        x: What runs across.
    """

    def draw(axis: Any) -> None:  # noqa: ANN401 - matplotlib is untyped
        across = [i * hours for i in range(len(truth))]
        below, mid, above = zip(*told, strict=True)
        axis.fill_between(across, below, above, color=COLOURS[0], alpha=0.25, lw=0, label="80 %")
        axis.plot(across, mid, color=COLOURS[0], lw=1.2, label="median")
        axis.plot(across, truth, color=COLOURS[5], lw=0.9, label="came")
        _named(axis, x, y, title)
        axis.legend(frameon=False, fontsize=8)

    return _image(draw)


def heat(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Mapping[tuple[str, str], float],
    *,
    title: str = "",
) -> str:
    """Draw shares between 0, white, and 1."""

    def draw(axis: Any) -> None:  # noqa: ANN401 - matplotlib is untyped
        grid = [[values.get((r, c), 0.0) for c in columns] for r in rows]
        axis.imshow(grid, cmap="Greens", vmin=0.0, vmax=1.0, aspect="auto")
        axis.set_xticks(range(len(columns)), columns, rotation=30, ha="right", fontsize=8)
        axis.set_yticks(range(len(rows)), rows, fontsize=8)
        for i, line in enumerate(grid):
            for j, value in enumerate(line):
                ink = "white" if value > 0.5 else "black"
                text = f"{value:.2f}" if value else "0"
                axis.text(j, i, text, ha="center", va="center", fontsize=7, color=ink)
        axis.set_title(title, fontsize=10, loc="left")

    return _image(draw, size=(8.0, 0.38 * len(rows) + 1.4))


def _named(axis: Any, x: str, y: str, title: str) -> None:  # noqa: ANN401 - matplotlib is untyped
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(y, fontsize=9)
    axis.set_title(title, fontsize=10, loc="left")
    axis.tick_params(labelsize=8)


def _image(draw: Callable[[Any], None], size: tuple[float, float] = (7.0, 3.2)) -> str:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - only the simulator's extra has it
    except ImportError:
        return ""
    figure = Figure(figsize=size, layout="constrained")
    draw(figure.subplots())
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    coded = base64.b64encode(out.getvalue()).decode()
    return f'<img alt="" src="data:image/png;base64,{coded}">'
