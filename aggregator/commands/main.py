"""Define the command line of ``gridfed-aggregator``; a subcommand's module is imported when used."""

from __future__ import annotations

from edge_sdk.app.cli import Subcommand, subcommand
from edge_sdk.app.command_line import CommandLine
from edge_sdk.app.extensions import ExtensionIndex

EPILOGUE = """\
a new fleet:
  gridfed-aggregator init aggregator.toml              make keys, sign the announcement of the run
  gridfed-aggregator enrol meter-1 --public meter-1.pub --config aggregator.toml
  gridfed-aggregator check aggregator.toml             show every value in force and its origin
  gridfed-aggregator run aggregator.toml               run the daemon until SIGTERM
  gridfed-aggregator status aggregator.toml            round, devices, refused messages

exit codes: 0 done · 1 failed · 2 wrong usage or configuration · 3 state needs migration · \
75 try again
"""


def _command(module: str, summary: str) -> Subcommand:
    return subcommand(f"aggregator.commands.{module}", summary)


COMMANDS = {
    "run": _command("run", "Run the daemon until SIGTERM."),
    "check": _command("check", "Show the configuration in force, and check that it can run."),
    "check-config": _command("check", "Same as check."),
    "init": _command("init", "Make keys, begin a run, and sign its announcements."),
    "announce": _command("announce", "Sign again; begin another run if the configuration changed."),
    "enrol": _command("enrol", "Enrol a device, or all devices of a CSV file."),
    "label": _command(
        "orders:Label", "Change the labels of devices, by which runs choose cohorts."
    ),
    "unlearn": _command("orders:Unlearn", "Remove a device's contribution to the model."),
    "list": _command("list", "List the devices with state, releases and labels."),
    "command": _command("orders:Command", "Send a signed command to one device."),
    "pause": _command(
        "orders:Pause", "Pause training in the whole fleet; devices keep forecasting."
    ),
    "resume": _command("orders:Resume", "Resume a paused or halted run."),
    "round": _command("orders:Round", "Open the next round before its start."),
    "status": _command("status", "Show the state of the run."),
    "health": _command("status:Health", "Exit with 0 if the daemon is ready, else with 1."),
    "dead-letters": _command("dead_letters", "List, show, retry or delete dead letters."),
    "backup": _command("backup", "Copy the database while the daemon runs."),
    "restore": _command("backup:Restore", "Put a backup in place and begin another run."),
} | ExtensionIndex("aggregator").commands()


def program() -> CommandLine:
    about = (
        "Federated learning server for a fleet of devices: one daemon, and its operator's tools."
    )
    return CommandLine("gridfed-aggregator", about, COMMANDS, EPILOGUE)


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; return its exit code."""
    return program().main(argv)
