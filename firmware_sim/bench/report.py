"""One report of a sweep: a table and a picture, as HTML, Markdown and SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from firmware_sim.bench.results import write_whole

_WIDTH, _BAR, _LEFT = 760, 18, 300
_COLOURS = ("#0b6e4f", "#b3541e", "#4a5fa5", "#8a3a7a", "#6b6b1f", "#1f6b6b")


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors of one configuration over its seeds."""

    method: str  # method of the run, with its encoding where that is not float32
    rule: str
    attack: str  # attack; ``none`` without one
    # RMSE of each seed, the mean over devices; None where it is not finite
    rmse: tuple[float | None, ...]
    # RMSE of each seed of the same configuration without an attack, if known
    clean: tuple[float | None, ...] = ()
    updates: float = 0.0  # updates a second, as a mean

    @property
    def mean(self) -> float | None:
        """Return the mean over the seeds; None if one is not finite."""
        return _mean(self.rmse)

    @property
    def rise(self) -> float | None:
        """Return the relative rise over the runs without an attack; None where it is unknown."""
        mean, clean = self.mean, _mean(self.clean)
        return None if self.attack == "none" or mean is None or not clean else mean / clean - 1

    @property
    def spread(self) -> float | None:
        """Return the standard deviations over the seeds of both sides, combined, relative to the clean mean.

        None with one seed.
        """
        sides = [[value for value in side if value is not None] for side in (self.rmse, self.clean)]
        clean = _mean(self.clean)
        if not clean or min(map(len, sides)) < 2:
            return None
        return math.hypot(*map(stdev, sides)) / clean

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the row of the table as text.

        >>> Summary("fedavg", "mean", "alie", (1.0, 3.0), (1.0, 1.1), 900.4).cells
        ('fedavg', 'mean', 'alie', '2 ± 1.4', '+90.5 %, within the spread', '900')
        >>> Summary("fedavg", "mean", "alie", (3.0, 3.1), (1.0, 1.1)).cells[4]
        '+190.5 %'
        >>> Summary("fedavg", "mean", "ipm", (None,)).cells
        ('fedavg', 'mean', 'ipm', 'not finite', '', '0')
        """
        mean, rise = self.mean, ""
        if mean is None:
            error = "not finite"
        else:
            known = [value for value in self.rmse if value is not None]
            error = f"{mean:.4g}" + (f" ± {stdev(known):.2g}" if len(known) > 1 else "")
            if self.rise is not None:
                rise = f"{self.rise:+.1%}".replace("%", " %")
                is_within = self.spread is not None and abs(self.rise) <= self.spread
                rise += ", within the spread" if is_within else ""
        return self.method, self.rule, self.attack, error, rise, f"{self.updates:.0f}"


HEAD = ("method", "rule", "attack", "RMSE", "rise", "updates a second")


def summaries(records: Sequence[Mapping[str, Any]]) -> list[Summary]:
    """Return a summary of each configuration, in the order of the records."""
    grouped: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        cell = record["cell"]
        is_plain = cell["encoding"] == "f4"
        method = cell["method"] if is_plain else f"{cell['method']} {cell['encoding']}"
        grouped.setdefault((method, cell["rule"], cell["attack"]), []).append(record)
    found = [
        Summary(*key, tuple(map(_rmse, some)), updates=fmean(map(_rate, some)))
        for key, some in grouped.items()
    ]
    clean = {(one.method, one.rule): one.rmse for one in found if one.attack == "none"}
    return [replace(one, clean=clean.get((one.method, one.rule), ())) for one in found]


def on_rises(rows: Sequence[Summary]) -> str:
    """Return the remark on the spread of a table's rises over the seeds; empty without a rise.

    >>> on_rises([Summary("fedavg", "mean", "alie", (1.0,), (1.0,))])
    'The rises are of one seed: what another seed would give is not known (--seeds 0 1 2).'
    """
    rises = [row for row in rows if row.rise is not None]
    if not rises:
        return ""
    if all(row.spread is None for row in rises):
        return (
            "The rises are of one seed: what another seed would give is not known (--seeds 0 1 2)."
        )
    within = sum(row.spread is not None and abs(row.rise or 0.0) <= row.spread for row in rises)
    return (
        f"{within} of {len(rises)} rises are within the spread: not larger than the standard "
        "deviations over the seeds with and without the attack together."
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _rmse(record: Mapping[str, Any]) -> float | None:
    values = [error["rmse"] for error in record["errors"].values()]
    return None if not values or None in values else fmean(values)


def _rate(record: Mapping[str, Any]) -> float:
    seconds = record["result"]["seconds"]
    return float(record["result"]["updates"] / seconds) if seconds else 0.0


def chart(rows: Sequence[Summary], unit: str) -> str:
    """Return the errors as horizontal bars, an SVG; a bar that is not finite has no length."""
    most = max((row.mean for row in rows if row.mean is not None), default=1.0) or 1.0
    colours = {
        name: _COLOURS[number % len(_COLOURS)]
        for number, name in enumerate(dict.fromkeys(row.attack for row in rows))
    }
    height = (_BAR + 6) * len(rows) + 34
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
            f' font-family="sans-serif" font-size="12"><title>RMSE in {html.escape(unit)}</title>'
        )
    ]
    for number, row in enumerate(rows):
        y, mean = (_BAR + 6) * number + 4, row.mean
        name = html.escape(f"{row.method} {row.rule}, {row.attack}")
        wide = 0.0 if mean is None else (_WIDTH - _LEFT - 80) * mean / most
        text = "not finite" if mean is None else f"{mean:.4g}"
        lines.append(
            f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{name}</text>'
            f'<rect x="{_LEFT}" y="{y}" width="{wide:.1f}" height="{_BAR}"'
            f' fill="{colours[row.attack]}"/>'
            f'<text x="{_LEFT + wide + 6:.1f}" y="{y + 13}">{text}</text>'
        )
    lines.append(f'<text x="{_LEFT}" y="{height - 8}">RMSE, {html.escape(unit)}</text></svg>')
    return "\n".join(lines)


def write_report(
    records: Sequence[Mapping[str, Any]], folder: Path, *, title: str, unit: str
) -> list[Path]:
    """Write ``report.html`` (complete in itself), ``report.md`` and ``chart.svg``."""
    rows, facts = summaries(records), _facts(records, unit)
    facts += filter(None, [on_rises(rows)])
    picture = chart(rows, unit)
    written = [folder / name for name in ("report.html", "report.md", "chart.svg")]
    for path, text in zip(
        written,
        (_html(title, rows, facts, picture), _markdown(title, rows, facts), picture + "\n"),
        strict=True,
    ):
        write_whole(path, text.encode())
    return written


def _facts(records: Sequence[Mapping[str, Any]], unit: str) -> list[str]:
    first = records[0]
    seeds = sorted({record["cell"]["seed"] for record in records})
    machine = first["machine"]
    versions = ", ".join(f"{name} {value}" for name, value in first["versions"].items())
    return [
        f"{len(records)} runs, seeds {', '.join(map(str, seeds))}; {first['result']['rounds']} rounds",
        (
            f"RMSE in {unit}: the mean over {len(first['errors'])} devices that are honest in every run,"
            " on readings after their histories; ± is the standard deviation over the seeds"
        ),
        f"{versions}; {machine['processor'] or machine['architecture']}, {machine['cores']} cores",
        f"definition {first['definition']}",
    ]


def _markdown(title: str, rows: Sequence[Summary], facts: Sequence[str]) -> str:
    table = [HEAD, tuple("---" for _ in HEAD), *(row.cells for row in rows)]
    lines = ["| " + " | ".join(cells) + " |" for cells in table]
    notes = [f"- {fact}" for fact in facts]
    return "\n".join([f"# {title}", "", *lines, "", "![RMSE](chart.svg)", "", *notes, ""])


def _html(title: str, rows: Sequence[Summary], facts: Sequence[str], picture: str) -> str:
    head = "".join(f"<th>{name}</th>" for name in HEAD)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row.cells) + "</tr>"
        for row in rows
    )
    notes = "".join(f"<li>{html.escape(fact)}</li>" for fact in facts)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{{font-family:sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
table{{border-collapse:collapse}}td,th{{padding:.3rem .8rem;border-bottom:1px solid #ccc;text-align:left}}
td:nth-child(n+4){{text-align:right;font-variant-numeric:tabular-nums}}svg{{width:100%;height:auto}}</style>
<h1>{html.escape(title)}</h1>
<table><thead><tr>{head}</tr></thead><tbody>
{body}
</tbody></table>
{picture}
<ul>{notes}</ul></html>
"""
