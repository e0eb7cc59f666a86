"""Draw lines over whole numbers, such as rounds, and bars with their error bars, as SVG.

Colours are attributes and text has the colour of its page, so that a picture needs no style.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

# pairs of x and y, increasing in x; a y that is not finite is left out
Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 28, 36
BAR_HEIGHT = 260
_BAR_TOP, _BAR_BOTTOM = 20, 40
_COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5")


def line_chart(title: str, unit: str, lines: Mapping[str, Points], x_name: str = "round") -> str:
    """Return an SVG picture with one line per name, and a legend.

    Args:
        title: Meaning of the picture, its accessible name.
        lines: Points by name; at most four names have colours of their own.

    >>> picture = line_chart("loss", "1", {"<a>": [(1, 0.5), (2, math.nan), (3, 0.25)]})
    >>> picture.count("<circle"), "&lt;a&gt;" in picture, "style=" in picture
    (2, True, False)
    """
    kept = {name: [(x, y) for x, y in points if math.isfinite(y)] for name, points in lines.items()}
    every = [point for points in kept.values() for point in points]
    low_x, high_x = _range([x for x, _ in every])
    low_y, high_y = _range([0.0, *(y for _, y in every)])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - low_x) / (high_x - low_x)
        up = (y - low_y) / (high_y - low_y)
        return (
            round(_LEFT + across * (WIDTH - _LEFT - _RIGHT), 1),
            round(HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM), 1),
        )

    drawn = [_axes(place, (low_x, high_x), (low_y, high_y), unit, x_name)]
    for number, (name, points) in enumerate(kept.items()):
        drawn.append(_line(name, [(place(*one), one) for one in points], number))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-label="{escape(title)}" font-family="sans-serif" '
        f'font-size="12" fill="currentColor"><title>{escape(title)}</title>'
    )
    return f"{head}{''.join(drawn)}</svg>\n"


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the smallest and the largest value; an interval of length 1 if they are equal."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    return (low, high) if high > low else (low, low + 1.0)


def _axes(
    place: object, xs: tuple[float, float], ys: tuple[float, float], unit: str, x_name: str
) -> str:
    assert callable(place)
    rows = []
    for share in (0.0, 0.5, 1.0):
        y = ys[0] + share * (ys[1] - ys[0])
        _, at = place(xs[0], y)
        rows.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at}" y2="{at}" stroke="currentColor" '
            f'stroke-opacity="0.2"/><text x="{_LEFT - 6}" y="{at + 4}" text-anchor="end">{y:.3g}</text>'
        )
    for x, anchor in ((xs[0], "start"), (xs[1], "end")):
        at, _ = place(x, ys[0])
        rows.append(f'<text x="{at}" y="{HEIGHT - 18}" text-anchor="{anchor}">{x:g}</text>')
    middle = (_LEFT + WIDTH - _RIGHT) // 2
    rows.append(
        f'<text x="{middle}" y="{HEIGHT - 18}" text-anchor="middle">{escape(x_name)}</text>'
        f'<text x="4" y="14">{escape(unit)}</text>'
    )
    return "".join(rows)


def _line(
    name: str, points: Sequence[tuple[tuple[float, float], tuple[float, float]]], number: int
) -> str:
    colour = _COLOURS[number % len(_COLOURS)]
    path = " ".join(f"{x},{y}" for (x, y), _ in points)
    marks = "".join(
        f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"><title>'
        f"{escape(name)}, {at:g}: {value:.6g}</title></circle>"
        for (x, y), (at, value) in points
    )
    left = _LEFT + 60 + number * 200
    legend = (
        f'<rect x="{left}" y="6" width="12" height="10" fill="{colour}"/>'
        f'<text x="{left + 18}" y="15">{escape(name)}</text>'
    )
    line = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    return f"{line}{marks}{legend}"


Bar = tuple[str, float, float]  # label, value and standard error


def bar_chart(title: str, unit: str, bars: Sequence[Bar]) -> str:
    """Return an SVG picture with a bar for each value and a line of two standard errors either way.

    A value without a standard error, which is 0, has no line.

    Args:
        title: Meaning of the picture, its accessible name.
        bars: At least one; finite numbers.

    >>> picture = bar_chart("shares", "%", [("<a>", 40.0, 5.0), ("b", -2.0, 5.0)])
    >>> picture.count("<rect"), "&lt;a&gt;" in picture, "style=" in picture
    (2, True, False)
    >>> "standard error" in bar_chart("counts", "devices", [("a", 4.0, 0.0)])
    False
    """
    low = min(0.0, *(value - 2 * error for _, value, error in bars))
    high = max(0.0, *(value + 2 * error for _, value, error in bars))
    high = high if high > low else low + 1.0

    base, tall = BAR_HEIGHT - _BAR_BOTTOM, BAR_HEIGHT - _BAR_TOP - _BAR_BOTTOM

    def up(value: float) -> float:
        return round(base - (value - low) / (high - low) * tall, 1)

    width = (WIDTH - _LEFT - _RIGHT) / len(bars)
    drawn = [
        f'<text x="{_LEFT - 8}" y="{up(value) + 4}" text-anchor="end">{value:.3g} {escape(unit)}</text>'
        for value in sorted({low, 0.0, high})
    ]
    drawn.append(_stroke(_LEFT, up(0.0), WIDTH - _RIGHT, up(0.0), "currentColor"))
    for number, (label, value, error) in enumerate(bars):
        left = round(_LEFT + number * width, 1)
        middle = round(left + width / 2, 1)
        top, bottom = sorted((up(value), up(0.0)))
        known = f", standard error {error:.3g}" if error else ""
        drawn.append(
            f'<rect x="{round(left + width / 6, 1)}" y="{top}" width="{round(width * 2 / 3, 1)}" '
            f'height="{round(bottom - top, 1)}" fill="{_COLOURS[0]}"><title>{escape(label)}: {value:.4g} '
            f"{escape(unit)}{known}</title></rect>"
        )
        if error:
            drawn.append(
                _stroke(
                    middle, up(value - 2 * error), middle, up(value + 2 * error), "currentColor"
                )
            )
        drawn.append(
            f'<text x="{middle}" y="{BAR_HEIGHT - 16}" text-anchor="middle">{escape(label)}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {BAR_HEIGHT}" width="{WIDTH}" '
        f'height="{BAR_HEIGHT}" role="img" aria-label="{escape(title)}" font-family="sans-serif" '
        f'font-size="12" fill="currentColor"><title>{escape(title)}</title>{"".join(drawn)}</svg>\n'
    )


def _stroke(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}"/>'
