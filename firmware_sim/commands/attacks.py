"""List the attacks with their definitions and options.

gridfed-sim attacks
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from edge_sdk.app.cli import CommandResult
from firmware_sim.attacks import ATTACKS, KINDS, options_of


def add_arguments(_parser: ArgumentParser) -> None:
    """Add nothing: this subcommand has no arguments."""


def run(_: Namespace) -> CommandResult:
    """Return the attacks by kind."""
    lines = []
    for kind, where in KINDS.items():
        lines.append(f"on {where}:")
        for row in (row for row in ATTACKS.values() if row.kind == kind):
            note = " (reads the honest updates)" if row.is_omniscient else ""
            lines.append(f"  {row.name:14} {row.definition}{note}{options_of(row)}")
    data = {
        name: {
            "kind": row.kind,
            "definition": row.definition,
            "options": dict(row.options),
            "target": row.space,
            "omniscient": row.is_omniscient,
        }
        for name, row in ATTACKS.items()
    }
    return CommandResult(data, "\n".join(lines))
