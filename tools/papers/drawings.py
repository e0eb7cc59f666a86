"""Draw a paper's diagrams and heat maps: lanes of boxes, and a matrix of weights, in SVG."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_sdk.app.schema import build

FOLDER = Path(__file__).parent / "weights"

WIDE, HIGH, GAP, LEFT, LETTER = 112, 30, 20, 112, 5.6
"""Size of a box, room between two, room for a lane's name, and width of a letter, in pixels."""

CELL, SIDE = 24, 150
STAYS = "~"
"""First letter of a box for data that stays on the device, drawn brown."""

HEAD = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="11"'


@dataclass(frozen=True, slots=True)
class Weights:
    """A matrix of weights."""

    title: str  # what a cell means
    names: tuple[str, ...]  # of rows and columns
    rows: tuple[tuple[float, ...], ...]  # weights, row by row, from 0 to 1


def read(name: str) -> Weights:
    """Read a record of a heat map from ``tools/papers/weights``.

    Raises:
        ValueError: The rows are no square matrix of the names.
    """
    path = FOLDER / f"{name}.json"
    weights: Weights = build(Weights, json.loads(path.read_text("utf-8")), where=path.name)
    if {len(weights.rows), *map(len, weights.rows)} != {len(weights.names)}:
        raise ValueError(f"{path.name}: expected {len(weights.names)} rows of as many weights")
    return weights


def heat_map(weights: Weights) -> str:
    """Return a square of cells, the darker the larger the weight; a weight of 0 is red."""
    count = len(weights.names)
    size = f'width="{SIDE + CELL * count + 30}" height="{CELL * count + 60}"'
    lines = [f"<svg {HEAD} {size}>", f'<text x="4" y="14">{html.escape(weights.title)}</text>']
    most = max(map(max, weights.rows)) or 1.0
    for i, (name, row) in enumerate(zip(weights.names, weights.rows, strict=True)):
        top = 24 + CELL * i
        number = f"{i + 1} {html.escape(name)}"
        lines.append(f'<text x="{SIDE - 6}" y="{top + 16}" text-anchor="end">{number}</text>')
        for j, weight in enumerate(row):
            shade = f"{round(240 - 200 * weight / most):02x}"
            fill = f"#{shade}{shade}f0" if weight else "#b42318"
            at = f'x="{SIDE + CELL * j}" y="{top}" width="{CELL - 1}" height="{CELL - 1}"'
            lines.append(f'<rect {at} fill="{fill}"/>')
    below = 24 + CELL * count + 14
    for j in range(count):
        middle = SIDE + CELL * j + CELL // 2
        lines.append(f'<text x="{middle}" y="{below}" text-anchor="middle">{j + 1}</text>')
    return "\n".join([*lines, "</svg>", ""])


def diagram(lanes: Mapping[str, Sequence[str]]) -> str:
    """Return rows of boxes joined by arrows, one row a lane, with the lane's name before it.

    >>> picture = diagram({"device": ["window", "~head"], "server": ["mean"]})
    >>> picture.count("<rect"), picture.count("<path"), "~" in picture
    (3, 1, False)
    """
    most = max(map(len, lanes.values()))
    size = f'width="{LEFT + most * (WIDE + GAP)}" height="{len(lanes) * (HIGH + GAP)}"'
    lines = [f"<svg {HEAD} {size}>"]
    for number, (name, boxes) in enumerate(lanes.items()):
        top = number * (HIGH + GAP) + GAP // 2
        lines.append(f'<text x="4" y="{top + 19}" font-weight="bold">{html.escape(name)}</text>')
        for place, text in enumerate(boxes):
            lines += _box(text, LEFT + place * (WIDE + GAP), top, is_first=place == 0)
    return "\n".join([*lines, "</svg>", ""])


def _box(text: str, left: int, top: int, *, is_first: bool) -> list[str]:
    fill, shown = ("#f3e3d0" if text.startswith(STAYS) else "#dbe7f3"), text.removeprefix(STAYS)
    middle, at = left + WIDE // 2, f'x="{left}" y="{top}" width="{WIDE}" height="{HIGH}"'
    squeeze = f' textLength="{WIDE - 8}" lengthAdjust="spacingAndGlyphs"'
    narrow = squeeze if LETTER * len(shown) > WIDE - 8 else ""
    label = f'<text x="{middle}" y="{top + 19}" text-anchor="middle"{narrow}>'
    start = left - GAP + 3
    arrow = f"M{start} {top + HIGH // 2}h{GAP - 8}m-4 -4l4 4l-4 4"
    drawn = [] if is_first else [f'<path d="{arrow}" fill="none" stroke="#555"/>']
    box = f'<rect {at} rx="4" fill="{fill}" stroke="#777"/>'
    return [*drawn, box, f"{label}{html.escape(shown)}</text>"]
