"""Self-contained HTML page of a comparison, and its picture as a PNG.

The page loads no other resource. Without matplotlib it has its tables and no picture.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firmware_sim.results import ARMS, NAMES, DeviceResult, Traffic, mean_mase, short

COLOURS = {"persistence": "#b0b0b0", "local": "#d9822b", "federated": "#7a5195", "pl-fl": "#0b6e4f"}
TRUTH = "#222222"
SHOWN = 96  # steps of the test part in a panel: four days of hours


@dataclass(frozen=True, slots=True)
class Panel:
    """Data of one device's picture: instants in UTC seconds, the truth, and a forecast per arm."""

    device: str
    times: NDArray[np.int64]
    truth: NDArray[np.float64]
    forecasts: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class PageText:
    """Text of the page."""

    title: str
    verdict: str
    unit: str
    facts: Sequence[tuple[str, str]]  # (what, value): data set, licence, rounds, seconds …
    newcomer: str = ""  # table of a home with little history, as text
    week: bytes | None = None  # picture of its first judged week


def picture(panels: Sequence[Panel], unit: str) -> bytes | None:
    """Draw forecasts against truth, a panel a device, as PNG; None without matplotlib."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - only the simulator's extra has it
    except ImportError:
        return None
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(13, 2.3 * rows + 0.6), layout="constrained")
    axes: Any = figure.subplots(rows, 2, squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        _draw(axis, panel, unit)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()


def _draw(axis: Any, panel: Panel, unit: str) -> None:  # noqa: ANN401 - matplotlib is untyped
    part = slice(-SHOWN, None)
    when = [datetime.fromtimestamp(t, UTC) for t in panel.times[part].tolist()]
    axis.plot(when, panel.truth[part], color=TRUTH, lw=1.6, label="reading")
    for arm in ARMS[1:]:
        axis.plot(when, panel.forecasts[arm][part], color=COLOURS[arm], lw=1.1, label=arm)
    axis.set_title(panel.device, fontsize=9, loc="left")
    axis.set_ylabel(unit, fontsize=8)
    axis.tick_params(labelsize=7)
    axis.margins(x=0.01)
    axis.spines[["top", "right"]].set_visible(False)


def week_picture(week: Panel, unit: str, arm: str) -> bytes | None:
    """Draw a home's week: readings, its forecast alone and the fleet's; None without matplotlib."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - as above
    except ImportError:
        return None
    figure = Figure(figsize=(13, 3.4), layout="constrained")
    axis: Any = figure.subplots()
    when = [datetime.fromtimestamp(t, UTC) for t in week.times.tolist()]
    axis.plot(when, week.truth, color=TRUTH, lw=1.6, label="reading")
    for name, values in week.forecasts.items():
        label = f"with the fleet ({name})" if name == arm else f"alone ({name})"
        colour = COLOURS["pl-fl"] if name == arm else COLOURS.get(name, COLOURS["persistence"])
        axis.plot(when, values, color=colour, lw=1.2, label=label)
    axis.set_title(week.device, fontsize=9, loc="left")
    axis.set_ylabel(unit, fontsize=8)
    axis.tick_params(labelsize=7)
    axis.margins(x=0.01)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()


def page(page_text: PageText, rows: Sequence[DeviceResult], png: bytes | None) -> str:
    """Return the whole page as HTML."""
    facts = "".join(
        f"<tr><th>{html.escape(what)}</th><td>{html.escape(value)}</td></tr>"
        for what, value in page_text.facts
    )
    drawn = base64.b64encode(png or b"").decode()
    image = f'<img alt="forecasts against readings" src="data:image/png;base64,{drawn}">'
    return _PAGE.format(
        title=html.escape(page_text.title),
        verdict=html.escape(page_text.verdict).replace("\n", "<br>"),
        newcomer=_newcomer(page_text),
        errors=_errors(rows, page_text.unit),
        traffic=_traffic(rows),
        facts=facts,
        image=image if png else "<p>No picture: matplotlib is not installed.</p>",
        shown=SHOWN,
    )


def _newcomer(page_text: PageText) -> str:
    """Return the section on the home with little history; empty without one."""
    if not page_text.newcomer:
        return ""
    drawn = base64.b64encode(page_text.week or b"").decode()
    image = f'<img alt="a new home\'s week" src="data:image/png;base64,{drawn}">' if drawn else ""
    return (
        "<h2>A new home: its first judged week, alone and with the fleet (UTC)</h2>"
        f'{image}<pre class="wide">{html.escape(page_text.newcomer)}</pre>'
    )


def _errors(rows: Sequence[DeviceResult], unit: str) -> str:
    names = "".join(f'<th colspan="2">{html.escape(NAMES[arm])}</th>' for arm in ARMS)
    units = f"<th>MAE, {html.escape(unit)}</th><th>MASE</th>" * len(ARMS)
    body = []
    for row in rows:
        best = min(row.scores[arm].mase for arm in ARMS)
        cells = "".join(
            f"<td>{s.mae:.3f}</td><td{_best(s.mase, best)}>{s.mase:.3f}</td>"
            for s in (row.scores[arm] for arm in ARMS)
        )
        body.append(f"<tr><th>{html.escape(row.device)}</th>{cells}</tr>")
    means = [mean_mase(rows, arm) for arm in ARMS]
    maes = [float(np.mean([row.scores[arm].mae for row in rows])) for arm in ARMS]
    cells = "".join(
        f"<td>{mae:.3f}</td><td{_best(mase, min(means))}>{mase:.3f}</td>"
        for mae, mase in zip(maes, means, strict=True)
    )
    body.append(f'<tr class="mean"><th>mean</th>{cells}</tr>')
    return f"<thead><tr><th></th>{names}</tr><tr><th>device</th>{units}</tr></thead>" + "".join(
        body
    )


def _best(value: float, best: float) -> str:
    return ' class="best"' if value == best else ""


def _traffic(rows: Sequence[DeviceResult]) -> str:
    arms = ARMS[1:]
    names = "".join(f'<th colspan="2">{html.escape(NAMES[arm])}</th>' for arm in arms)
    head = (
        f"<thead><tr><th></th>{names}</tr><tr><th>device</th>{'<th>up</th><th>down</th>' * 3}</tr>"
    )
    body = ""
    for row in rows:
        moved = [row.traffic.get(arm, Traffic()) for arm in arms]
        cells = "".join(f"<td>{short(t.up)}</td><td>{short(t.down)}</td>" for t in moved)
        body += f"<tr><th>{html.escape(row.device)}</th>{cells}</tr>"
    return f"{head}</thead>{body}"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
 body {{ font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 76rem; margin: 2rem auto;
        padding: 0 1rem }}
 h1 {{ font-size: 1.5rem }} h2 {{ font-size: 1.1rem; margin-top: 2rem }}
 .verdict {{ border-left: 4px solid #0b6e4f; background: #f3f7f5; padding: .7rem 1rem }}
 .wide {{ overflow-x: auto }}
 table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
 th, td {{ padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #ddd }}
 th:first-child {{ text-align: left }} thead th {{ font-weight: 600; vertical-align: bottom }}
 .best {{ font-weight: 700; color: #0b6e4f }} .mean th, .mean td {{ border-top: 2px solid #222 }}
 .facts td {{ text-align: left }} img {{ max-width: 100% }}
 footer {{ color: #666; font-size: .85rem; margin-top: 2rem }}
</style></head><body>
<h1>{title}</h1>
<p class="verdict">{verdict}</p>
{newcomer}
<h2>Errors on readings that no device learned from</h2>
<div class="wide"><table>{errors}</table></div>
<p>MAE is the mean absolute error of the next value. MASE divides it by the mean change from one
reading to the next in the same weeks: 1 is as good as repeating the last reading, lower is better.
The best of a row is marked.</p>
<h2>Forecasts against readings, the last {shown} steps of the test part (UTC)</h2>
{image}
<h2>Payload bytes of each device, the whole run</h2>
<div class="wide"><table>{traffic}</table></div>
<p>Persistence sends nothing; local training says hello, and hears what is announced.</p>
<h2>How it was done</h2>
<div class="wide"><table class="facts">{facts}</table></div>
<footer>Written by gridfed-sim. This file is complete in itself and loads nothing.</footer>
</body></html>
"""
