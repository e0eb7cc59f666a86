"""Render a method's credit weights per device and round as a table and as an SVG heatmap.

Plain SVG looks the same on the page, in a browser and in a report, and needs no dependency. Its
colours are attributes, because the page's security policy allows no styles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

Rows = Mapping[str, Mapping[str, float]]
# by version, the weight of each device's model for each device; a missing weight is zero
Credits = Mapping[int, Rows]
COLUMNS = 12  # largest number of rounds in a table, which fits on a terminal
_CELL, _ROW, _EDGE = 12, 18, 24
_DARK, _LIGHT = np.array([12, 74, 110]), np.array([226, 238, 246])
_OUT, _ABSENT = "#b42318", "none"


@dataclass(frozen=True, slots=True, eq=False)
class Heat:
    """Weights of several devices over several rounds."""

    title: str  # meaning of a cell
    devices: tuple[str, ...]  # row labels, sorted by id
    versions: tuple[int, ...]  # column labels, increasing
    # shape ``(devices, versions)``; NaN if a device did not participate
    weights: NDArray[np.float64]

    @property
    def excluded(self) -> tuple[str, ...]:
        """Return the devices whose last weight is exactly zero: half of the others exclude them."""
        last = [row[np.isfinite(row)][-1:] for row in self.weights]
        return tuple(
            one for one, row in zip(self.devices, last, strict=True) if len(row) and row[0] == 0.0
        )

    @property
    def top(self) -> float:
        """Return the largest weight, which ends the colour scale."""
        return float(np.nanmax(self.weights, initial=0.0))


def received(weighed: Credits) -> Heat:
    """Return the median weight that the other devices give each device's model, by round.

    A median, not a mean: colluding Byzantine devices give each other large weights, which must not
    mask that all other devices exclude them.

    >>> first = {"a": {"a": 0.5, "b": 0.5}, "b": {"a": 0.5, "b": 0.5}}
    >>> heat = received({1: first, 2: {"a": {"a": 1.0}, "b": {"a": 0.4, "b": 0.6}}})
    >>> heat.weights.tolist(), heat.excluded
    ([[0.5, 0.4], [0.5, 0.0]], ('b',))
    """

    def from_others(rows: Rows, device: str) -> float:
        others = [row.get(device, 0.0) for one, row in rows.items() if one != device]
        return float(np.median(others)) if others else np.nan

    return _heat(
        "median weight that the other devices give each device's model", weighed, from_others
    )


def given(weighed: Credits, by: str) -> Heat:
    """Return the weights that one device gives every model, its own included, by round."""
    if not any(by in rows for rows in weighed.values()):
        raise KeyError(by)
    own = {version: rows for version, rows in weighed.items() if by in rows}
    title = f"weight that {by} gives each device's model"
    return _heat(title, own, lambda rows, one: rows[by].get(one, 0.0))


def _heat(title: str, weighed: Credits, weigh: Callable[[Rows, str], float]) -> Heat:
    versions = tuple(sorted(weighed))
    devices = tuple(sorted({one for rows in weighed.values() for one in rows}))
    weights = np.full((len(devices), len(versions)), np.nan)
    for column, version in enumerate(versions):
        rows = weighed[version]
        for row, device in enumerate(devices):
            if device in rows:
                weights[row, column] = weigh(rows, device)
    return Heat(title, devices, versions, weights)


def table(heat: Heat, columns: int = COLUMNS) -> str:
    """Format weights as text: one line per device, one column per round, up to the newest.

    >>> print(table(received({1: {"a": {"b": 0.25}, "b": {"a": 0.5}}, 2: {"a": {}, "b": {}}})))
    version    1    2
    a        .50    0
    b        .25    0
    """
    shown = _spread(len(heat.versions), columns)
    wide = max(map(len, (*heat.devices, "version")))
    lines = [f"{'version':{wide}}" + "".join(f"{heat.versions[i]:5}" for i in shown)]
    for device, row in zip(heat.devices, heat.weights, strict=True):
        lines.append(f"{device:{wide}}" + "".join(f"{_short(float(row[i])):>5}" for i in shown))
    return "\n".join(lines)


def _short(weight: float) -> str:
    """Format a weight in three characters; only an exact zero is written 0.

    >>> _short(0.0), _short(0.004), _short(0.256), _short(1.0), _short(float("nan"))
    ('0', '.00', '.26', '1.0', '-')
    """
    if np.isnan(weight):
        return "-"
    if weight == 0.0:
        return "0"
    return f"{weight:.1f}" if weight >= 0.995 else f"{weight:.2f}"[1:]


def _spread(count: int, most: int) -> Sequence[int]:
    """Choose at most ``most`` columns, including the first and the last.

    >>> _spread(3, 12), _spread(100, 4)
    ([0, 1, 2], [0, 33, 66, 99])
    """
    if count <= most:
        return list(range(count))
    return [int(i) for i in np.linspace(0, count - 1, most).round()]


def svg(heat: Heat) -> str:
    """Draw the heatmap: one row per device, one column per round; red is zero, dark is large.

    >>> picture = svg(received({1: {"a": {"b": 0.25}, "b": {}}}))
    >>> picture.startswith("<svg"), picture.count("<rect"), "#b42318" in picture
    (True, 2, True)
    """
    left = _EDGE + 7 * max(map(len, (*heat.devices, "")))
    width = left + max(_CELL * len(heat.versions), 7 * len(heat.title)) + _EDGE
    height = 2 * _EDGE + _ROW * len(heat.devices) + _EDGE
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">'
        f'<text x="{left}" y="{_EDGE - 8}">{escape(heat.title)}</text>'
    )
    rows = "".join(_line(heat, at, left) for at in range(len(heat.devices)))
    below = 2 * _EDGE + _ROW * len(heat.devices)
    ends = heat.versions[:1] + heat.versions[-1:]
    marks = "".join(
        f'<text x="{left + _CELL * at}" y="{below}">{version}</text>'
        for at, version in zip((0, len(heat.versions) - 1), ends, strict=False)
    )
    return f"{head}{rows}{marks}</svg>\n"


def _line(heat: Heat, at: int, left: int) -> str:
    y = _EDGE + _ROW * at
    name = escape(heat.devices[at])
    cells = [f'<text x="{_EDGE // 2}" y="{y + 13}">{name}</text>']
    for column, weight in enumerate(heat.weights[at].tolist()):
        label = f"{name}, version {heat.versions[column]}: {weight:.4g}"
        cells.append(
            f'<rect x="{left + _CELL * column}" y="{y}" width="{_CELL - 1}" height="{_ROW - 2}" '
            f'fill="{_colour(weight, heat.top)}"><title>{label}</title></rect>'
        )
    return "".join(cells)


def _colour(weight: float, top: float) -> str:
    if np.isnan(weight):
        return _ABSENT
    if weight == 0.0:
        return _OUT
    share = weight / top
    red, green, blue = (int(x) for x in (_LIGHT + share * (_DARK - _LIGHT)).round())
    return f"#{red:02x}{green:02x}{blue:02x}"
