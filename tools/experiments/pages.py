"""Parts of the reports of E9 to E13: claims, tables, pictures."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tools.experiments import cells, rankings
from tools.experiments.claims import Claim, Results
from tools.experiments.rankings import score

IMAGE = "<img "

SEEDS = 3
"""Default number of seeds, which a table does not state."""


@dataclass(frozen=True, slots=True)
class Page:
    """One experiment's report."""

    title: str
    claims: Sequence[Claim]  # what was judged
    lines: Sequence[str]  # markdown, with images as HTML elements on lines of their own

    def markdown(self) -> str:
        """Return the page without its pictures."""
        kept = [x for x in self.lines if not x.startswith(IMAGE)]
        text = "\n".join([f"## {self.title}", "", *judged(self.claims), "", *kept])
        return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"

    def html(self) -> str:
        """Return the page for a browser; it loads no other file."""
        return as_html("\n".join([f"# {self.title}", "", *judged(self.claims), "", *self.lines]))


def judged(claims: Iterable[Claim]) -> list[str]:
    rows = [f"| {x.text} | **{x.verdict}** | {x.detail} |" for x in claims]
    return ["| claim | on our data | by |", "|---|---|---|", *rows] if rows else []


def as_html(markdown: str) -> str:
    """Wrap Markdown of headings, tables and plain lines; images pass as they are."""
    body = []
    for line in markdown.splitlines():
        cells = [html.escape(x.strip()) for x in line.strip("|").split("|")]
        if line.startswith("|---") or not line.strip():
            continue
        if line.startswith(IMAGE):
            body.append(line)
        elif line.startswith("|"):
            row = "".join(f"<td>{x.replace('**', '')}</td>" for x in cells)
            body.append(f"<tr>{row}</tr>")
        else:
            level = len(line) - len(line.lstrip("#"))
            text = html.escape(line.lstrip("# "))
            body.append(f"<h{level}>{text}</h{level}>" if level else f"<p>{text}</p>")
    style = "body{font:15px sans-serif;margin:2em}td{border:1px solid #ccc;padding:.3em .6em}"
    joined = (f"<table>{x}</table>" if x.startswith("<tr>") else x for x in _joined(body))
    return f"<!doctype html><meta charset=utf-8><style>{style}</style>" + "\n".join(joined)


def _joined(lines: Iterable[str]) -> Iterable[str]:
    rows = ""
    for line in lines:
        if line.startswith("<tr>"):
            rows += line
        else:
            if rows:
                yield rows
            rows = ""
            yield line
    if rows:
        yield rows


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table.

    >>> table(("a", "b"), [["1", "2"]])
    ['| a | b |', '|---|---|', '| 1 | 2 |']
    """
    top = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return top + ["| " + " | ".join(row) + " |" for row in rows]


def said(results: Results, *, has_mae: bool = True) -> str:
    """Format RMSE / MAE, or RMSE alone, over seeds."""
    if not results:
        return ""
    rmse, mae = (np.array([score(r)[x] for r in results]) for x in ("RMSE", "MAE"))
    if len(results) == 1:
        return f"{rmse[0]:.4g}{f' / {mae[0]:.4g}' if has_mae else ''} (1 seed)"
    count = unusual(len(results))
    if not np.isfinite(rmse).all():
        return f"diverged{count}"
    second = f" / {mae.mean():.4g} ± {mae.std():.2g}" if has_mae else ""
    return f"{rmse.mean():.4g} ± {rmse.std():.2g}{second}{count}"


def called(task: rankings.Task) -> str:
    return f"{cells.TITLES[task[0]]} H={task[1]}"


def counted(seeds: int) -> str:
    """Return a number of seeds as text, in singular or plural.

    >>> counted(1), counted(3)
    ('1 seed', '3 seeds')
    """
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def unusual(seeds: int) -> str:
    """Return the count of seeds in brackets, or nothing if it is the usual one.

    >>> unusual(2), unusual(3)
    (' (2 seeds)', '')
    """
    return "" if seeds == SEEDS else f" ({counted(seeds)})"


def states(results: Results, missing: Sequence[str] = ()) -> list[str]:
    """Return a paragraph on the runs."""
    if not results:
        return ["Nothing of it has been run."]
    work = sorted({r["arm"]["work"] for r in results})
    many = sorted({(r["arm"]["dataset"], len(r["cells"])) for r in results})
    text = ", ".join(f"{cells.TITLES[d]} with {n} cells" for d, n in many)
    line = (
        f"{text}; {' and '.join(map(str, work))} gradient steps of an average device (alone: to "
        "convergence)."
    )
    gone = [f"{cells.TITLES[x]} is not in the data folder and was not run." for x in missing]
    return [line, *gone]


def pasted(text: str, name: str, page: str) -> str:
    r"""Put a page between the marks ``<!-- name -->`` and ``<!-- /name -->``, one heading lower.

    >>> pasted("a\n<!-- e9 -->\nold\n<!-- /e9 -->\nb", "e9", "## New\n")
    'a\n<!-- e9 -->\n\n### New\n\n<!-- /e9 -->\nb'
    """
    first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
    if first not in text or last not in text:
        return text
    before, rest = text.split(first, 1)
    after = rest.split(last, 1)[1]
    lines = (f"#{x}" if x.startswith("#") else x for x in page.strip().splitlines())
    body = "\n".join(lines)
    return f"{before}{first}\n\n{body}\n\n{last}{after}"
