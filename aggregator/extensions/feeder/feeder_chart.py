"""Draw a day of a feeder as SVG: the forecast, its interval as an area, and another day or what came."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from html import escape
from zoneinfo import ZoneInfo

from aggregator.extensions.feeder.feeder import FeederForecast

_WIDTH, _HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 34, 36
_FORECAST, _OTHER = "#2b6cb0", "#c05621"
_HOURS = 3  # between two times below the picture


def day_chart(
    one: FeederForecast, zone: ZoneInfo, other: tuple[str, Sequence[float]] | None = None
) -> str:
    """Return the picture of a forecast; text has the colour of the page.

    Args:
        zone: Of the times below the picture.
        other: Name and values of the other line; left out: the newest known day, at the same time of day.
    """
    at, came = one.yesterday, other
    if came is None:
        came = f"{_local(at.begin, zone):%a %d %b}, known", at.values
    ends = (*(one.lower or ()), *(one.upper or ()))
    every = (0.0, *one.values, *came[1], *ends)
    step = _tick(max(every) - min(every))
    low = step * math.floor(min(every) / step)
    high = max(step * math.ceil(max(every) / step), low + step)
    across = (_WIDTH - _LEFT - _RIGHT) / max(len(one.values) - 1, 1)
    base, tall = _HEIGHT - _BOTTOM, _HEIGHT - _TOP - _BOTTOM

    def up(value: float) -> float:
        return round(base - (value - low) / (high - low) * tall, 1)

    def points(values: Sequence[float]) -> list[str]:
        return [f"{_LEFT + i * across:.1f},{up(value)}" for i, value in enumerate(values)]

    def line(values: Sequence[float], colour: str, dashes: str = "") -> str:
        path = " ".join(points(values))
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'

    begin = _local(one.begin, zone)
    title = f"Feeder {one.feeder}, {begin:%a %d %b %Y}"
    drawn = [f'<title>{escape(title)}</title><text x="4" y="15">{escape(one.unit)}</text>']
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        drawn.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up(value)}" y2="{up(value)}" '
            f'stroke="currentColor" stroke-opacity="0.2"/>'
            f'<text x="{_LEFT - 6}" y="{up(value) + 4}" text-anchor="end">{value:.3g}</text>'
        )
    for i in range(len(one.values)):
        time = _local(one.begin + i * one.step, zone)
        if time.hour % _HOURS == time.minute == 0:
            drawn.append(
                f'<text x="{_LEFT + i * across:.1f}" y="{base + 18}" text-anchor="middle">{time:%H:%M}</text>'
            )
    legend = [("forecast", _FORECAST, "1"), (came[0], _OTHER, "1")]
    if one.lower is not None and one.upper is not None:
        area = " ".join(points(one.lower) + points(one.upper)[::-1])
        drawn.append(f'<polygon points="{area}" fill="{_FORECAST}" fill-opacity="0.25"/>')
        legend.insert(1, ("80 % interval", _FORECAST, "0.25"))
    drawn.append(line(came[1], _OTHER, ' stroke-dasharray="6 4"'))
    drawn.append(line(one.values, _FORECAST))
    for number, (name, colour, opacity) in enumerate(legend):
        left = _LEFT + 30 + 190 * number
        drawn.append(
            f'<rect x="{left}" y="6" width="12" height="10" fill="{colour}" fill-opacity="{opacity}"/>'
            f'<text x="{left + 18}" y="15">{escape(name)}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" aria-label="{escape(title)}" font-family="sans-serif" '
        f'font-size="12" fill="currentColor">{"".join(drawn)}</svg>\n'
    )


def _tick(span: float) -> float:
    """Return a round distance between the lines of a picture: at most five, 1 for a span of 0."""
    least = span / 4 if span > 1e-6 else 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(
        round(one * power, 12) for one in (1.0, 2.0, 2.5, 5.0, 10.0) if one * power >= least
    )


def _local(milliseconds: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, zone)
