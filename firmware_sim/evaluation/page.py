"""Write one self-contained HTML page of a comparison: answer, tables, curves, a plot a device."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from firmware_sim.evaluation.comparison import ExampleWeek, HorizonComparison
from firmware_sim.evaluation.records import FleetRecords, span
from firmware_sim.evaluation.tomorrow import (
    AVERAGE,
    FLEET,
    TomorrowComparison,
    tomorrow_verdict,
)
from firmware_sim.evaluation.verdict import MATTERS, verdict
from firmware_sim.results import short

PLOTS = 12  # devices with a plot
_ACTUAL, _SERVED, _WEEK = "#222222", "#0b6e4f", "#b0b0b0"


def page(
    found: Sequence[HorizonComparison],
    records: FleetRecords,
    title: str,
    day: TomorrowComparison | None = None,
) -> str:
    """Return the whole page as HTML; tomorrow and the first days stand first where they were compared."""
    parts = [] if day is None else [_tomorrow(day)]
    parts += [_section(one, records) for one in found]
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in records.notes)
    return _PAGE.format(title=html.escape(title), sections="".join(parts), notes=notes)


def _tomorrow(day: TomorrowComparison) -> str:
    answer = "".join(f"<p>{html.escape(line)}</p>" for line in tomorrow_verdict(day))
    ways = "".join(
        f"<tr><th>{way}</th><td>{day.relative(way, AVERAGE):.3f}</td></tr>" for way in day.errors
    )
    pairs = {days: day.after(days) for days in day.first}
    curve = "".join(
        f"<tr><th>{days} days</th><td>{own:.3f}</td><td>{helped:.3f}</td></tr>"
        for days, (own, helped) in pairs.items()
    )
    return (
        "<h2>Tomorrow's 24 hours</h2>"
        f'<div class="verdict">{answer}</div>'
        "<table><thead><tr><th>way</th><th>error to the average day</th></tr></thead>"
        f"{ways}</table><h3>The first days of a new device</h3>"
        f"<table><thead><tr><th>own history</th><th>{AVERAGE}</th><th>{FLEET}</th></tr></thead>"
        f"{curve}</table>"
        "<p>Error of the next 24 hours, relative to the average day of 28 days. The fleet's model is"
        " solved without the device that it forecasts.</p>"
    )


def _section(one: HorizonComparison, records: FleetRecords) -> str:
    answer = "".join(f"<p>{html.escape(line)}</p>" for line in verdict(one, records))
    head = "".join(f"<th>{way}</th>" for way in one.ways) + "<th>serves</th>"
    body = []
    for score in one.scores:
        best = min(score.mae.values())
        cells = "".join(_cell(score.mae[way], f"{score.mae[way]:.4g}", best) for way in one.ways)
        body.append(f"<tr><th>{html.escape(score.device)}</th>{cells}<td>{score.chosen}</td></tr>")
    curve = "".join(
        f"<tr><th>{days} days</th><td>{alone:.3f}</td><td>{helped:.3f}</td></tr>"
        for days, (alone, helped) in one.cold.items()
    )
    cold = (
        "<h3>How much history does a new device need?</h3>"
        '<div class="wide"><table><thead><tr><th>own history</th><th>alone</th>'
        f"<th>with the fleet</th></tr></thead>{curve}</table></div>"
        "<p>Error over the two weeks that follow, relative to yesterday's reading. The fleet's model"
        " is solved without the device's own part.</p>"
    )
    return (
        f"<h2>{html.escape(span(one.ahead * records.step))} ahead</h2>"
        f'<div class="verdict">{answer}</div>'
        f"{_summary(one)}"
        + (cold + _cold_plot(one) if curve else "")
        + _plots(one.examples[:PLOTS], records)
        + f'<h3>Every device</h3><div class="wide"><table><thead><tr><th>mean absolute error</th>{head}'
        f"</tr></thead>{''.join(body)}</table></div>"
    )


def _summary(one: HorizonComparison) -> str:
    head = "".join(
        f"<th>{text}</th>"
        for text in (
            "way",
            "error to last week",
            f"error to {one.local}",
            f"better on, of {len(one.scores)}",
            "worse on",
            "a device sends",
            "receives",
        )
    )
    means = {way: one.relative(way) for way in one.ways}
    rows = []
    for way, mean in means.items():
        better, worse = one.counts(way, MATTERS)
        up, down = one.traffic.get(way, (0, 0))
        rows.append(
            f"<tr><th>{way}</th>{_cell(mean, f'{mean:.3f}', min(means.values()))}"
            f"<td>{one.relative(way, one.local):.3f}</td><td>{better}</td><td>{worse}</td>"
            f"<td>{short(up) if up else '-'}</td><td>{short(down) if down else '-'}</td></tr>"
        )
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in one.notes)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>{"".join(rows)}</table></div>{notes}'


def _cell(value: float, text: str, best: float) -> str:
    return f"<td{' class=best' if value == best else ''}>{text}</td>"


def _plots(examples: Sequence[ExampleWeek], records: FleetRecords) -> str:
    """Return the newest week of some devices as one SVG; a sentence without matplotlib."""
    figure = _figure(12, 2.0 * (-(-len(examples) // 2)) + 0.5)
    if figure is None:
        return "<p>No plots: matplotlib is not installed.</p>"
    rows = -(-len(examples) // 2)
    axes: Any = figure.subplots(rows, 2, squeeze=False)
    starts = {one.device: one.start for one in records.devices}
    for axis, one in zip(axes.flat, examples, strict=False):
        first = starts[one.device] + one.start * records.step
        when = (first + records.step * np.arange(len(one.actual))).astype("datetime64[s]")
        axis.plot(when, one.last_week, color=_WEEK, lw=1.0, label="last week")
        axis.plot(when, one.actual, color=_ACTUAL, lw=1.3, label="reading")
        axis.plot(when, one.served, color=_SERVED, lw=1.0, label="served forecast")
        axis.set_title(one.device, fontsize=8, loc="left")
        axis.tick_params(labelsize=6)
        axis.margins(x=0.01)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes.flat[len(examples) :]:
        axis.set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    return f'<h3>The newest week of test days (UTC)</h3><div class="wide">{_svg(figure)}</div>'


def _cold_plot(one: HorizonComparison) -> str:
    """Return the cold-start curve as SVG; empty without matplotlib."""
    figure = _figure(6, 2.6)
    if figure is None:
        return ""
    axis = figure.subplots()
    days = list(one.cold)
    alone, helped = zip(*one.cold.values(), strict=True)
    axis.plot(days, alone, "o-", color=_WEEK, label="alone")
    axis.plot(days, helped, "o-", color=_SERVED, label="with the fleet")
    axis.set_xlabel("days of history", fontsize=8)
    axis.set_ylabel("error to yesterday's reading", fontsize=8)
    axis.set_xticks(days)
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    return f'<div class="wide">{_svg(figure)}</div>'


def _figure(width: float, height: float) -> Any:  # noqa: ANN401 - an optional library
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - only the simulator's extra has it
    except ImportError:
        return None
    return Figure(figsize=(width, height), layout="constrained")


def _svg(figure: Any) -> str:  # noqa: ANN401 - as above
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    drawn = out.getvalue()
    return drawn[drawn.index("<svg") :]


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
 body {{ font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 76rem; margin: 2rem auto;
        padding: 0 1rem }}
 h1 {{ font-size: 1.5rem }} h2 {{ font-size: 1.2rem; margin-top: 2.5rem }} h3 {{ font-size: 1rem }}
 .verdict {{ border-left: 4px solid #0b6e4f; background: #f3f7f5; padding: .2rem 1rem }}
 .verdict p {{ margin: .4rem 0 }} .wide {{ overflow-x: auto }} svg {{ max-width: 100%; height: auto }}
 table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
 th, td {{ padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ddd }}
 th:first-child {{ text-align: left }} .best {{ font-weight: 700; color: #0b6e4f }}
 .mean th, .mean td {{ border-top: 2px solid #222 }}
</style></head><body>
<h1>{title}</h1>
{sections}
<h2>What was found in the files</h2>
<ul>{notes}</ul>
<h2>The ways compared</h2>
<p><b>last value</b>, <b>yesterday</b> and <b>last week</b> repeat an earlier reading. <b>alone</b> is a
ridge regression on the device's own record, <b>local net</b> a small network on it. <b>fleet</b> is one
regression from the sums of all devices. <b>personal</b> is that model fitted to the device, or a model of
its own where that was better on held-back readings. <b>FedAvg</b> is the network with all layers shared,
<b>PL-FL</b> the network with personal output layers. <b>served</b> is what each device's gate chooses on
its held-back days from the best federated way, the best local one, yesterday and last week.
<b>LightGBM</b> needs the readings of all devices in one place. All were trained on the readings before
the test days.</p>
<footer>Written by gridfed-sim. This file is complete and loads nothing; no reading left this machine
except into this file.</footer>
</body></html>
"""
