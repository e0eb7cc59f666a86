"""Draw bars, with error bars where they are known, as SVG, in the manner of ``line_chart``."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 20, 40
_COLOUR = "#2b6cb0"

Bar = tuple[str, float, float]
"""Label, value and standard error."""


def bar_chart(title: str, unit: str, bars: Sequence[Bar]) -> str:
    """Return an SVG picture with a bar for each value and a line of two standard errors either way.

    A value without a standard error, which is 0, has no line.

    Args:
        title: Meaning of the picture, its accessible name.
        unit: Unit of the values.
        bars: At least one; finite numbers.

    Example:
        >>> picture = bar_chart("shares", "%", [("<a>", 40.0, 5.0), ("b", -2.0, 5.0)])
        >>> picture.count("<rect"), "&lt;a&gt;" in picture, "style=" in picture
        (2, True, False)
        >>> "standard error" in bar_chart("counts", "devices", [("a", 4.0, 0.0)])
        False
    """
    low = min(0.0, *(value - 2 * error for _, value, error in bars))
    high = max(0.0, *(value + 2 * error for _, value, error in bars))
    high = high if high > low else low + 1.0

    def up(value: float) -> float:
        return round(HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM), 1)

    width = (WIDTH - _LEFT - _RIGHT) / len(bars)
    drawn = [
        f'<text x="{_LEFT - 8}" y="{up(value) + 4}" text-anchor="end">{value:.3g} {escape(unit)}</text>'
        for value in sorted({low, 0.0, high})
    ]
    drawn.append(_line(_LEFT, up(0.0), WIDTH - _RIGHT, up(0.0), "currentColor"))
    for number, (label, value, error) in enumerate(bars):
        left = round(_LEFT + number * width, 1)
        middle = round(left + width / 2, 1)
        top, bottom = sorted((up(value), up(0.0)))
        known = f", standard error {error:.3g}" if error else ""
        drawn.append(
            f'<rect x="{round(left + width / 6, 1)}" y="{top}" width="{round(width * 2 / 3, 1)}" '
            f'height="{round(bottom - top, 1)}" fill="{_COLOUR}"><title>{escape(label)}: {value:.4g} '
            f"{escape(unit)}{known}</title></rect>"
        )
        if error:
            drawn.append(
                _line(middle, up(value - 2 * error), middle, up(value + 2 * error), "currentColor")
            )
        drawn.append(
            f'<text x="{middle}" y="{HEIGHT - 16}" text-anchor="middle">{escape(label)}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-label="{escape(title)}" font-family="sans-serif" '
        f'font-size="12" fill="currentColor"><title>{escape(title)}</title>{"".join(drawn)}</svg>\n'
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}"/>'
