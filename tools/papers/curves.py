"""Draw a paper's curves beside ours: panels of lines and bands, from a JSON record."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from edge_sdk.app.schema import Length, build

FOLDER = Path(__file__).parent / "curves"
COLOURS = ("#222222", "#3a6ea5", "#d9822b", "#0b6e4f", "#b03a48", "#7a5195")
BAND = "#c9dcef"
WIDE, HIGH, MARGIN, HEAD = 300, 120, 46, 34

Text = Annotated[str, Length(1, 120)]
Values = tuple[float, ...]
Gapped = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One frame of lines over a common axis."""

    title: Text  # above the frame
    # values of each line, by its name; all as long as ``across``. A line has no corner where it has
    # no value, and the colour of its name in the first panel.
    lines: Mapping[str, Gapped]
    low: Values = ()  # lower end of a band; none for no band
    high: Values = ()  # its upper end


@dataclass(frozen=True, slots=True)
class Curves:
    """A picture."""

    x: Text  # what is across
    y: Text  # what is upwards, with its unit
    across: Values  # positions of the values, rising
    panels: tuple[Panel, ...]  # its frames, two in a row


def read(name: str) -> Curves:
    """Read a record of ``tools/papers/curves``.

    Raises:
        ValueError: A line has another length than the axis.
    """
    path = FOLDER / f"{name}.json"
    curves: Curves = build(Curves, json.loads(path.read_text("utf-8")), where=path.name)
    for panel in curves.panels:
        bands = [x for x in (panel.low, panel.high) if x]
        for values in (*panel.lines.values(), *bands):
            if len(values) != len(curves.across):
                why = f"expected {len(curves.across)} values, got {len(values)}"
                raise ValueError(f"{path.name}: {panel.title}: {why}")
    return curves


def rounded(values: Any) -> list[float]:  # noqa: ANN401 - an array or a list
    """Return numbers of four digits; a non-finite number becomes the value before it.

    >>> rounded([12345.6, float("nan"), 0.00012345])
    [12350.0, 12350.0, 0.0001234]
    """
    out: list[float] = []
    for value in np.asarray(values, np.float64):
        known = float(f"{value:.4g}") if np.isfinite(value) else (out[-1] if out else 0.0)
        out.append(known)
    return out


def picture(curves: Curves) -> str:
    """Return the panels as SVG without other files."""
    columns = min(2, len(curves.panels))
    rows = -(-len(curves.panels) // columns)
    across, down = WIDE + MARGIN + 14, HIGH + HEAD + 12
    size = f'width="{columns * across}" height="{rows * down + 40}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        *_legend(curves),
    ]
    for number, panel in enumerate(curves.panels):
        left = (number % columns) * across + MARGIN
        top = (number // columns) * down + HEAD + 12
        lines += _panel(curves, panel, left, top)
    below = rows * down + 34
    lines.append(f'<text x="4" y="{below}">{html.escape(curves.x)}; {html.escape(curves.y)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _legend(curves: Curves) -> list[str]:
    names, x, out = list(curves.panels[0].lines), 4, []
    for colour, name in zip(COLOURS, names, strict=False):
        out.append(f'<rect x="{x}" y="6" width="14" height="4" fill="{colour}"/>')
        out.append(f'<text x="{x + 18}" y="12">{html.escape(name)}</text>')
        x += 34 + 7 * len(name)
    return out


def _panel(curves: Curves, panel: Panel, left: int, top: int) -> list[str]:
    drawn = (*panel.lines.values(), panel.low, panel.high)
    every = [v for values in drawn for v in values if v is not None]
    low, high = min(every), max(every)
    room = (high - low) or 1.0
    first, last = curves.across[0], curves.across[-1]
    span = (last - first) or 1.0

    def points(values: Sequence[float | None]) -> list[str]:
        return [
            f"{left + WIDE * (x - first) / span:.0f},{top + HIGH * (1 - (y - low) / room):.0f}"
            for x, y in zip(curves.across, values, strict=True)
            if y is not None
        ]

    lines = [
        f'<text x="{left}" y="{top - 5}" font-weight="bold">{html.escape(panel.title)}</text>',
        f'<rect x="{left}" y="{top}" width="{WIDE}" height="{HIGH}" fill="none" stroke="#bbb"/>',
        f'<text x="{left - 4}" y="{top + 9}" text-anchor="end">{high:.3g}</text>',
        f'<text x="{left - 4}" y="{top + HIGH}" text-anchor="end">{low:.3g}</text>',
    ]
    if panel.low and panel.high:
        shape = " ".join([*points(panel.low), *reversed(points(panel.high))])
        lines.append(f'<polygon points="{shape}" fill="{BAND}"/>')
    colours = dict(zip(curves.panels[0].lines, COLOURS, strict=False))
    for name, values in panel.lines.items():
        shape, colour = " ".join(points(values)), colours[name]
        lines.append(
            f'<polyline points="{shape}" fill="none" stroke="{colour}" stroke-width="1.2"/>'
        )
    return lines
