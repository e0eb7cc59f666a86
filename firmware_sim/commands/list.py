"""List the shipped readings and scenarios.

gridfed-sim list
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from edge_sdk.app.cli import CommandResult
from firmware_sim.samples import sample_sets
from firmware_sim.scenario import names, scenario


def add_arguments(_parser: ArgumentParser) -> None:
    """Add nothing: this subcommand has no arguments."""


def run(_: Namespace) -> CommandResult:
    """Return the sets of readings and the scenarios."""
    sets = sample_sets()
    scenarios = {name: scenario(name).title for name in names()}
    lines = ["samples:"]
    for name, row in sets.items():
        lines.append(f"  {name:10} {row.title} ({row.kind}; {row.licence})")
        lines.append(f"  {'':10} {', '.join(sample.device for sample in row.samples)}")
    lines += ["scenarios:", *(f"  {name:10} {title}" for name, title in scenarios.items())]
    kept = ("title", "kind", "licence", "attribution", "step_seconds", "target", "unit")
    data = {
        name: {key: getattr(row, key) for key in kept}
        | {"devices": [sample.device for sample in row.samples]}
        for name, row in sets.items()
    }
    return CommandResult({"samples": data, "scenarios": scenarios}, "\n".join(lines))
