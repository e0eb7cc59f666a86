"""Draw the console's charts as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from aggregator.extensions.console.overview_rows import ClosedRound
from aggregator.operations.charts import line_chart


def loss_chart(rounds: Sequence[ClosedRound]) -> Markup | str:
    """Return the reported losses of rounds, given newest first; empty without any."""
    points = [(one.round, one.loss) for one in reversed(rounds) if one.loss is not None]
    if not points:
        return ""
    title = "Mean loss that devices reported, by round"
    return Markup(line_chart(title, "loss", {"loss": points}))  # noqa: S704 - line_chart escapes


def excluded_chart(rounds: Sequence[ClosedRound]) -> Markup | str:
    """Return the number of devices that the rule left out, by round; empty without a round."""
    points = [(one.round, float(one.dropped)) for one in reversed(rounds)]
    if not points:
        return ""
    title = "Devices left out by the rule, by round"
    return Markup(line_chart(title, "devices", {"left out": points}))  # noqa: S704 - line_chart escapes


WIDTH, PANEL, GAP = 720, 84, 34
_LEFT, _RIGHT, _TOP = 64, 16, 26
_BLUE, _ORANGE = "#2b6cb0", "#c05621"


@dataclass(frozen=True, slots=True)
class Bar:
    """One slot of time."""

    start: str  # start of the slot, as text
    moved: int  # rounds that moved the model
    abandoned: int  # rounds that were abandoned
    loss: float | None  # loss of the newest round that moved it; None if unknown
    used: int  # devices whose update was used in that round
    left_out: int  # devices that the rule left out of it


def activity_chart(title: str, bars: Sequence[Bar], devices: int) -> str:
    """Return an SVG picture with three panels over one axis of time.

    Args:
        title: Meaning of the picture, its accessible name.
        bars: Slots of time, oldest first; at least one.
        devices: Devices that may take part, a dashed line.

    >>> bars = [Bar("<a>", 2, 1, 0.5, 4, 1), Bar("b", 0, 0, None, 0, 0)]
    >>> picture = activity_chart("t", bars, 8)
    >>> picture.count("<rect"), picture.count("<circle"), "&lt;a&gt;" in picture, "style=" in picture
    (8, 1, True, False)
    """
    height = _TOP + 3 * PANEL + 2 * GAP + 24
    losses = [one.loss if one.loss is None or math.isfinite(one.loss) else None for one in bars]
    drawn = [
        _panel(0, "rounds closed", max(one.moved + one.abandoned for one in bars)),
        _legend(0, (("moved the model", _BLUE, True), ("abandoned", _ORANGE, False))),
        _stacks(0, bars, [(one.moved, one.abandoned) for one in bars], ("moved", "abandoned")),
        _panel(1, "mean loss that devices reported", max((x for x in losses if x), default=0.0)),
        _line(1, bars, losses),
        _panel(2, "devices", max(devices, *(one.used + one.left_out for one in bars))),
        _legend(2, (("used", _BLUE, True), ("left out", _ORANGE, False))),
        _stacks(2, bars, [(one.used, one.left_out) for one in bars], ("used", "left out"), devices),
    ]
    for text, at, anchor in (
        (bars[0].start, _LEFT, "start"),
        ("UTC", (_LEFT + WIDTH - _RIGHT) // 2, "middle"),
        (bars[-1].start if len(bars) > 1 else "", WIDTH - _RIGHT, "end"),
    ):
        drawn.append(
            f'<text x="{at}" y="{height - 6}" text-anchor="{anchor}">{escape(text)}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="{escape(title)}" font-family="sans-serif" '
        f'font-size="12" fill="currentColor"><title>{escape(title)}</title>{"".join(drawn)}</svg>\n'
    )


def _floor(panel: int) -> int:
    return _TOP + PANEL + panel * (PANEL + GAP)


def _panel(panel: int, name: str, most: float) -> str:
    low = _floor(panel)
    rows = [
        f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="currentColor" '
        f'stroke-opacity="0.2"/><text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{value:.3g}</text>'
        for y, value in ((low, 0.0), (low - PANEL, most or 1.0))
    ]
    return f'<text x="4" y="{low - PANEL - 10}">{escape(name)}</text>{"".join(rows)}'


def _legend(panel: int, names: Sequence[tuple[str, str, bool]]) -> str:
    y = _floor(panel) - PANEL - 19
    return "".join(
        f'<rect x="{300 + 160 * n}" y="{y}" width="11" height="9" {_paint(colour, is_full=is_full)}/>'
        f'<text x="{318 + 160 * n}" y="{y + 9}">{escape(name)}</text>'
        for n, (name, colour, is_full) in enumerate(names)
    )


def _paint(colour: str, *, is_full: bool) -> str:
    """Return fill and stroke: a hollow shape is distinguished from a full one without its colour."""
    return f'fill="{colour}"' if is_full else f'fill="none" stroke="{colour}" stroke-width="1.5"'


def _stacks(
    panel: int,
    bars: Sequence[Bar],
    values: Sequence[tuple[int, int]],
    names: tuple[str, str],
    limit: int = 0,
) -> str:
    most = max(limit, *(sum(pair) for pair in values)) or 1
    width, low, found = (WIDTH - _LEFT - _RIGHT) / len(bars), _floor(panel), []
    for n, (bar, pair) in enumerate(zip(bars, values, strict=True)):
        y = float(low)
        for value, name, colour in zip(pair, names, (_BLUE, _ORANGE), strict=True):
            if value:
                tall = value / most * PANEL
                y -= tall
                found.append(
                    f'<rect x="{_LEFT + (n + 0.15) * width:.1f}" y="{y:.1f}" width="{0.7 * width:.1f}" '
                    f'height="{tall:.1f}" {_paint(colour, is_full=colour == _BLUE)}>'
                    f"<title>{escape(bar.start)}: {value} {name}</title></rect>"
                )
    if limit:
        y = low - limit / most * PANEL
        found.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="currentColor" stroke-dasharray="5 4"/>'
        )
    return "".join(found)


def _line(panel: int, bars: Sequence[Bar], losses: Sequence[float | None]) -> str:
    most = max((one for one in losses if one), default=1.0)
    width, low = (WIDTH - _LEFT - _RIGHT) / len(bars), _floor(panel)
    places = [
        (_LEFT + (n + 0.5) * width, low - max(0.0, loss) / most * PANEL, bars[n].start, loss)
        for n, loss in enumerate(losses)
        if loss is not None
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in places)
    marks = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{_BLUE}"><title>{escape(start)}: loss '
        f"{loss:.4g}</title></circle>"
        for x, y, start, loss in places
    )
    return f'<polyline points="{path}" fill="none" stroke="{_BLUE}" stroke-width="2"/>{marks}'
