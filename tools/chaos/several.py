"""Compare several chaos tests from their reports.

    python -m tools.chaos.several chaos-run-1 chaos-run-2 chaos-run-3 [--docs docs/chaos.md]

Prints a table with a column for each; ``--docs`` puts it between the marks of a page instead.
Ends with 1 if one of them found something.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from edge_sdk.errors import Reason
from tools.experiments.pages import pasted

Report = Mapping[str, Any]
"""What ``tools.chaos.report.Outcome.data`` writes."""


def page(reports: Sequence[Report]) -> str:
    """Return all storms as Markdown, one column each."""
    seeds, names = [f"seed {report['seed']}" for report in reports], _names(reports)
    lines = [
        "## Results of several runs",
        "",
        *_table(["", *seeds], [[name, *map(cell, reports)] for name, cell in _ROWS]),
        "",
        "Times that a fault struck, and seconds until the model moved again (median, longest):",
        "",
        *_table(["fault", *seeds], [[n, *(_struck(r, n) for r in reports)] for n in names]),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(row)} |" for row in (head, ruler, *rows)]


def _refused(report: Report) -> str:
    refused = report["verdict"]["refused"].items()
    return ", ".join(f"`{Reason(int(code)).name}` {n}" for code, n in refused) or "0"


_ROWS: tuple[tuple[str, Callable[[Report], str]], ...] = (
    ("devices", lambda r: str(r["devices"])),
    ("seconds of faults", lambda r: f"{r['storm']:.0f}"),
    ("seconds until all receipts arrived", lambda r: f"{r['calm']:.0f}"),
    ("faults injected", lambda r: str(len(r["events"]))),
    ("updates sent", lambda r: str(r["verdict"]["sent"])),
    ("sent again", lambda r: str(r["verdict"]["repeats"])),
    ("receipted as counting", lambda r: str(r["verdict"]["receipted"])),
    ("refused for good, with a receipt", _refused),
    ("without any receipt", lambda r: str(r["verdict"]["unsettled"])),
    ("applied", lambda r: str(r["verdict"]["applied"])),
    ("rounds recomputed to the same bits", lambda r: str(r["audit"]["rounds"])),
    ("strikes without a target", lambda r: str(len(r["notes"]))),
    ("history check", lambda r: "passes" if r["sound"] else "**fails**"),
)  # fmt: skip


def _names(reports: Sequence[Report]) -> list[str]:
    met = [event["name"] for report in reports for event in report["events"]]
    return sorted(set(met), key=lambda name: (-met.count(name), name))


def _struck(report: Report, name: str) -> str:
    met = [event for event in report["events"] if event["name"] == name]
    took = [event["recovered"] for event in met if event["recovered"] is not None]
    return f"{len(met)}: {median(took):.1f}, {max(took):.1f}" if took else str(len(met))


def main(argv: list[str] | None = None) -> int:
    """Print a table of storms, or paste it."""
    parser = argparse.ArgumentParser(prog="python -m tools.chaos.several", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of storms that are over")
    parser.add_argument("--docs", type=Path, help="paste it between the marks of this page")
    args = parser.parse_args(argv)
    reports = [json.loads((run / "report.json").read_text("utf-8")) for run in args.runs]
    text = page(reports)
    if args.docs is None:
        print(text)
    else:
        whole = args.docs.read_text("utf-8")
        # One heading lower is what pasted makes of a page; here it stays a section of its own.
        args.docs.write_text(pasted(whole, "storms", text.removeprefix("#")), encoding="utf-8")
    return 0 if all(report["sound"] for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
