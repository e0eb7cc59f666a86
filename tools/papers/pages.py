"""Make the list, the pages and the pictures of the papers from their records."""

from __future__ import annotations

import argparse
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tools.papers import combined, curves, drawings, stations
from tools.papers.records import PAPERS, Exhibit, Paper, read

HEAD = ("paper", "table or figure", "state", "date", "command")
ROW, LEFT, WIDE = 20, 210, 330
APART = ("pfgl-lengths", "pfgl-rates", "pl-fl-servers")
"""Pictures of curves that belong to no exhibit; another page shows them."""


def listed() -> list[tuple[str, ...]]:
    """Return a row for every table and figure: paper, name, state, date, command."""
    return [
        (paper.name, one.name, one.state, one.date, one.command)
        for paper in map(read, PAPERS)
        for one in paper.exhibit
    ]


def listing() -> str:
    """Return the list as aligned text."""
    rows = [HEAD, *listed()]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    lines = ("  ".join(x.ljust(w) for x, w in zip(r, widths, strict=True)).rstrip() for r in rows)
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Print the list; with ``--docs FOLDER`` write the pages and pictures, too."""
    parser = argparse.ArgumentParser("reproduce.py list", description=listing.__doc__)
    parser.add_argument("--docs", type=Path, help="folder whose pages and pictures are written")
    docs: Path | None = parser.parse_args(arguments).docs
    print(listing(), end="")
    for path in write(docs) if docs else ():
        print(f"changed: {path}")
    return 0


def files(docs: Path) -> dict[Path, str]:
    """Return the path and the content of every page and picture below a docs folder."""
    out = {docs / "papers" / "index.md": overview()}
    for name in PAPERS:
        paper = read(name)
        out[docs / "papers" / f"{name}.md"] = page(paper, name)
        for one in paper.exhibit:
            if one.has_picture:
                out[docs / "papers" / picture_name(name, one)] = drawn(one)
    for name in APART:
        out[docs / "papers" / f"{name}.svg"] = curves.picture(curves.read(name))
    if scores := stations.read():
        out[docs / "papers" / f"{stations.NAME}.md"] = stations.page(scores)
    if rows := combined.read():
        out[docs / "papers" / "combined.md"] = combined.page(rows)
        out[docs / "papers" / "combined.svg"] = combined.picture(rows)
    return out


def overview() -> str:
    """Return the page that lists the tables and figures of each paper by state."""
    rows = []
    for name in PAPERS:
        paper = read(name)
        found: dict[str, list[str]] = {}
        for one in paper.exhibit:
            found.setdefault(one.state, []).append(one.name)
        rows += [
            (f"[{paper.name}]({name}.md)", f"**{state}**", ", ".join(names))
            for state, names in found.items()
        ]
    head = ("paper", "state", "tables and figures")
    return "\n".join(
        [
            "# The four papers",
            "",
            "Each paper's page has its equations with their functions, its tables and figures with ours",
            "beside them, its claims with the paper's own criteria, and what is corrected here.",
            "`definition`: there is nothing to measure; `no data`: the paper's data are not available.",
            "[The papers together](combined.md) has their ideas in every combination.",
            "",
            "```console",
            "$ .venv/bin/python tools/reproduce.py list",
            "```",
            "",
            *_table(head, rows),
            "",
        ]
    )


def page(paper: Paper, name: str) -> str:
    """Return a paper's page."""
    return "\n".join(
        [
            f"# {paper.title}",
            "",
            f"{paper.source}. Here: {paper.method}. The data sets differ from the paper's:",
            "[data](../data.md). All tables and figures of the four papers: [list](index.md).",
            "",
            "## What it proposes",
            "",
            *(f"{number}. {line}" for number, line in enumerate(paper.proposes, 1)),
            "",
            "## What differs here",
            "",
            *(f"- {line}" for line in paper.differs),
            "",
            "## Equations and code",
            "",
            *_table(
                ("equation", "what", "where"),
                ((x.number, x.what, _places(x.where)) for x in paper.equation),
            ),
            "",
            "## Symbols and names",
            "",
            "Greek letters by name. Settings stand in `[run.settings]`, `[run]` or `[run.graph]`.",
            "",
            *_table(
                ("the paper", "here"),
                ((x.printed, x.here) for x in paper.symbol),
            ),
            "",
            "## Claims",
            "",
            "Each with the paper's own criterion. What a paper says of other work is not judged.",
            "",
            *_table(
                ("the paper says", "here", "by"),
                ((x.says, f"**{x.verdict}**", x.by) for x in paper.claim),
            ),
            "",
            "## Tables and figures",
            "",
            *(line for one in paper.exhibit for line in _shown(one, name)),
            "## What is corrected",
            "",
            *_table(
                ("printed", "here", "why"),
                ((x.printed, x.here, x.why) for x in paper.correction),
            ),
            "",
            "## Repeat it",
            "",
            "```console",
            f"$ .venv/bin/{paper.repeat}",
            "```",
            "",
            *_spent(paper),
            paper.cost,
            "",
        ]
    )


def _spent(paper: Paper) -> list[str]:
    head = ("command", "arms", "minutes of one core", "MiB", "measured")
    rows = [
        (f"`reproduce.py {x.command}`", str(x.arms), f"{x.minutes:g}", str(x.mib), x.measured)
        for x in paper.costs
    ]
    return [*_table(head, rows), ""] if rows else []


def _shown(one: Exhibit, name: str) -> list[str]:
    lines = [
        f"### {one.name}: {one.what}",
        "",
        f"- **{one.state}**, {one.date}, `{one.command}` ([results](../{one.where}))",
    ]
    if not one.bars:
        lines += [f"- The paper: {one.paper}", f"- Ours: {one.ours}"]
    lines.append("")
    if one.has_picture:
        lines += [f"![{one.unit}]({Path(picture_name(name, one)).name})", ""]
    return lines


def picture_name(name: str, one: Exhibit) -> str:
    """Return the file of an exhibit's picture, below ``docs/papers``.

    >>> picture_name("bafdp", read("bafdp").exhibit[0])
    'bafdp-table-i.svg'
    """
    words = "".join(x if x.isalnum() else "-" for x in one.name.lower())
    return f"{name}-{'-'.join(filter(None, words.split('-')))}.svg"


def drawn(one: Exhibit) -> str:
    """Return an exhibit's picture: curves, a heat map, a diagram, or bars."""
    if one.curves:
        return curves.picture(curves.read(one.curves))
    if one.weights:
        return drawings.heat_map(drawings.read(one.weights))
    return drawings.diagram(one.lanes) if one.lanes else picture(one)


def picture(one: Exhibit) -> str:
    """Return an exhibit's numbers as horizontal bars, in SVG without other files.

    Bars begin at zero; a negative one is drawn to the same side and is paler.
    """
    most = max(map(abs, one.bars.values())) or 1.0
    height = ROW * (len(one.bars) + 1) + 10
    size = f'width="{LEFT + WIDE + 70}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<text x="4" y="14" font-weight="bold">{html.escape(one.unit)}</text>',
    ]
    for number, (label, value) in enumerate(one.bars.items(), 1):
        lines += _bar(label, value, most, ROW * number + 4)
    return "\n".join([*lines, "</svg>", ""])


def _bar(label: str, value: float, most: float, top: int) -> list[str]:
    width, colour = WIDE * abs(value) / most, "#3a6ea5" if value >= 0 else "#a8c4e0"
    return [
        f'<text x="{LEFT - 6}" y="{top + 12}" text-anchor="end">{html.escape(label)}</text>',
        f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="15" fill="{colour}"/>',
        f'<text x="{LEFT + width + 5:.1f}" y="{top + 12}">{value:g}</text>',
    ]


def _places(where: Iterable[str]) -> str:
    """Return the names in the code, those of one file together.

    >>> _places(("a.py:f", "a.py:g", "b.py:h"))
    '`a.py`: `f`, `g`; `b.py`: `h`'
    """
    found: dict[str, list[str]] = {}
    for one in where:
        path, _, name = one.partition(":")
        found.setdefault(path, []).append(f"`{name}`")
    return "; ".join(f"`{path}`: {', '.join(names)}" for path, names in found.items()) or "none"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def write(docs: Path) -> list[Path]:
    """Write all pages and pictures that differ, and remove pictures that are no longer made.

    Returns:
        The paths that changed, sorted.
    """
    made: Mapping[Path, str] = files(docs)
    (docs / "papers").mkdir(exist_ok=True)
    stale = [x for x in (docs / "papers").glob("*.svg") if x not in made]
    changed = [path for path, text in made.items() if not _is(path, text)]
    for path in changed:
        path.write_text(made[path], "utf-8")
    for path in stale:
        path.unlink()
    return sorted([*changed, *stale])


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text("utf-8") == text
