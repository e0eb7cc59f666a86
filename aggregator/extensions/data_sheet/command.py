"""Write the fleet's data-protection sheet from its configuration, database and audit log.

What devices read and send, the privacy budget promised and spent, retention, keys and their expiry, who did
what, and items of NIST SP 800-226, IEC 62443-4-2 and ETSI EN 303 645 with the place where each is shown.

  gridfed-aggregator data-sheet aggregator.toml --out sheet.md
  gridfed-aggregator data-sheet aggregator.toml --json
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aggregator.commands.arguments import add_config, require_database
from aggregator.config import AggregatorConfig, bind
from aggregator.extensions.data_sheet.data_sheet import data_sheet
from aggregator.store.opener import open_store
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.clock import SystemClock
from edge_sdk.protocol.keys import write_atomically


def add_arguments(parser: ArgumentParser) -> None:
    """Add the configuration and the file to write."""
    add_config(parser)
    parser.add_argument(
        "--out", metavar="FILE", help="write Markdown there, instead of printing it"
    )


def run(args: Namespace) -> CommandResult:
    """Make the sheet."""
    config = require_database(AggregatorConfig.load(args.config))
    bound = [bind(view) for view in config.views()]
    with open_store(config.database, read_only=True) as store:
        sheet = data_sheet(config, bound, store, SystemClock().wall())
    text = markdown(sheet)
    if args.out:
        write_atomically(Path(args.out), text.encode(), 0o644)
        text = f"{args.out}: sheet of fleet {config.fleet}"
    return CommandResult(sheet, text.rstrip())


def markdown(sheet: Mapping[str, Any]) -> str:
    """Return the sheet as Markdown."""
    return "\n".join(_lines(sheet)) + "\n"


def _lines(sheet: Mapping[str, Any]) -> Iterator[str]:
    yield f"# Data-protection sheet of fleet {sheet['fleet']}"
    yield ""
    yield (
        f"Made {sheet['made']} by gridfed {sheet['software']} from {_code(sheet['configuration'])}, its "
        "database and its audit log. Every line is derived from them, or names where it is shown."
    )
    yield from _section("Runs")
    yield from _table(("run", "method", "rule", "answer", "bundle", "SHA-256"), sheet["runs"],
                      ("name", "method", "rule", "answer", "bundle", "digest"))  # fmt: skip
    yield from _section(
        "What the model reads on a device",
        "Readings stay on the device; from the manifest of the bundle.",
    )
    yield from _table(("run", "series", "kind", "unit", "window"), sheet["recorded_on_devices"],
                      ("run", "what", "kind", "unit", "window"))  # fmt: skip
    yield from _section(
        "What leaves a device",
        "`mechanism`: noise of the device covers it, if its owner has configured a mechanism. `public`, "
        "`process`: does not depend on the values of readings. `opt-in`: the owner has asked for it. See "
        "docs/privacy.md.",
    )
    rows = [
        {
            **one,
            "fields": ", ".join(one["fields"]),
            "accepted": "yes" if one["accepted"] else f"no: {one['why_not']}",
            "encrypted": "yes" if one["encrypted_to_the_aggregator"] else "no",
        }
        for one in sheet["sent"]
    ]
    heads = (
        "message",
        "fields",
        "what it reveals",
        "covered by",
        "used here",
        "encrypted to the aggregator",
    )
    names = ("message", "fields", "reveals", "covered_by", "accepted", "encrypted")
    yield from _table(heads, rows, names)
    yield from _privacy(sheet["privacy"])
    yield from _section("Retention")
    yield from _table(
        ("what", "bound", "now", "key"), sheet["retention"], ("what", "bound", "now", "key")
    )
    yield from _keys(sheet["keys"])
    yield from _acts(sheet["acts"])
    yield from _standards(sheet["standards"])


def _privacy(found: Mapping[str, Any]) -> Iterator[str]:
    yield from _section("Privacy budget")
    limit = found["promised_updates"]
    promised = "no limit is set (admission.max_updates)" if limit is None else f"{limit} updates"
    yield f"- Promised to each device: {promised}."
    yield (
        f"- Spent: the median of {found['devices']} devices is {found['updates_median']:g} updates, the largest "
        f"{found['updates_largest']}; {found['at_the_limit']} are at the limit."
    )
    yield f"- ε and δ: {found['epsilon']}."
    if found["scores_least_epsilon"] is not None:
        least = f"{found['scores_least_epsilon']:g}"
        yield f"- Answers about scores: an ε of at least {least} each day, charged on the device."


def _keys(found: Mapping[str, Any]) -> Iterator[str]:
    yield from _section("Keys and expiry")
    kinds = ", ".join(found["encrypted_kinds"]) or "none"
    yield f"- Root {_code(found['root'])}, aggregator {_code(found['aggregator'])}."
    yield f"- Messages that devices encrypt to the aggregator: {kinds} (encryption.kinds)."
    authority = found["authority"]
    if authority is None:
        yield "- No authority in ca.folder."
    else:
        yield (
            f"- Authority {_code(authority['folder'])}: {authority['certificates']} valid certificates, "
            f"the next expires {authority['next_expiry'] or 'never'}; a device's is valid for "
            f"{authority['certificate_days']:g} days, with {authority['grace_days']:g} days of grace."
        )
    yield ""
    if found["files"]:
        yield from _table(("kind", "file", "expires"), found["files"], ("kind", "file", "status"))
    else:
        yield "No file of [broker] expires."


def _acts(found: Mapping[str, Any]) -> Iterator[str]:
    if found["faults"]:
        verdict = "**not sound: " + "; ".join(found["faults"]) + "**"
    else:
        verdict = "verified with the present key"
    yield from _section(
        "Who did what", f"{found['records']} records, {verdict}; head {_code(found['head'])}."
    )
    yield from _table(
        ("act", "via", "count", "last"), found["by_act"], ("act", "via", "count", "last")
    )
    yield ""
    yield f"The newest {len(found['newest'])}; all of them: `gridfed-aggregator audit-log show --last 0`."
    yield ""
    yield from _table(("record", "time", "via", "who", "act", "what", "why"), found["newest"],
                      ("record", "time", "via", "actor", "act", "subject", "reason"))  # fmt: skip


def _standards(items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from _section(
        "Items of standards",
        "An assessor judges; this table says where each item is shown. `not met` has the reason.",
    )
    for standard in dict.fromkeys(one["standard"] for one in items):
        own = [one for one in items if one["standard"] == standard]
        met = sum(one["met"] for one in own)
        yield from _section(f"{standard}: {met} of {len(own)} items", level=3)
        rows = [
            {
                **one,
                "state": "shown" if one["met"] else f"**not met**: {one['reason']}",
                "places": ", ".join(map(_code, one["places"])) or "-",
            }
            for one in own
        ]
        yield from _table(
            ("item", "title", "state", "where"), rows, ("item", "title", "state", "places")
        )


def _section(title: str, text: str = "", level: int = 2) -> Iterator[str]:
    yield ""
    yield f"{'#' * level} {title}"
    yield ""
    if text:
        yield text
        yield ""


def _table(
    heads: Sequence[str], rows: Iterable[Mapping[str, Any]], names: Sequence[str]
) -> Iterator[str]:
    yield _row(heads)
    yield _row(["---"] * len(heads))
    for row in rows:
        yield _row([str(row[name]) or "-" for name in names])


def _row(cells: Sequence[str]) -> str:
    r"""Return a row of a table; a bar in a cell is escaped.

    >>> _row(["a|b", "c\nd"])
    '| a\\|b | c d |'
    """
    return (
        f"| {' | '.join(one.replace('|', chr(92) + '|').replace(chr(10), ' ') for one in cells)} |"
    )


def _code(text: str) -> str:
    return f"`{text}`"
