"""Define the command line of ``gridfed-aggregator``; a subcommand's module is imported when used."""

from __future__ import annotations

from edge_sdk.app.cli import CommandLine, Subcommand, subcommand

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
    """Return the subcommand of a module of this package."""
    return subcommand(f"aggregator.commands.{module}", summary)


COMMANDS = {
    "run": _command("run", "Run the daemon until SIGTERM."),
    "worker": _command("worker", "Check updates for the daemon until SIGTERM."),
    "check": _command("check", "Show the configuration in force, and check that it can run."),
    "check-config": _command("check", "Same as check."),
    "init": _command("init", "Make keys, begin a run, and sign what devices must trust."),
    "announce": _command("announce", "Sign again; begin another run if the configuration changed."),
    "rotate": _command("rotate", "Replace the keys of the root, the aggregator or the authority."),
    "enrol": _command("enrol", "Enrol a device, or all devices of a CSV file."),
    "join": _command("join", "Create this site's key for its parent's fleet."),
    "revoke": _command("revoke", "Revoke a device."),
    "label": _command("label", "Change the labels of devices, by which runs choose cohorts."),
    "unlearn": _command("unlearn", "Remove what a device has contributed to the model."),
    "list": _command("list", "List the devices with state, releases and labels."),
    "command": _command("command", "Send a signed command to one device."),
    "pause": _command("pause", "Pause training in the whole fleet; devices keep forecasting."),
    "resume": _command("resume", "Resume a paused or halted run."),
    "round": _command("round", "Open the next round before its start."),
    "status": _command("status", "Show the state of the run."),
    "health": _command("health", "Exit with 0 if the daemon is ready, else with 1."),
    "log": _command("log", "Export or verify the log of models."),
    "audit-log": _command("audit_log", "Show, export or verify who did what, when and why."),
    "data-sheet": _command("data_sheet", "Write the fleet's data-protection sheet."),
    "audit": _command("audit", "Recompute every round from the journal, and compare."),
    "replay": _command("replay", "Apply recorded rounds again under another rule, and compare."),
    "dead-letters": _command("dead_letters", "List, show, retry or delete dead letters."),
    "backup": _command("backup", "Copy the database while the daemon runs."),
    "restore": _command("restore", "Put a backup in place and begin another run."),
    "migrate": _command("migrate", "Copy the database file into PostgreSQL, and compare."),
    "ca": _command("ca", "Run a certificate authority for TLS: init, issue, revoke."),
    "broker": _command("broker", "Find, start, configure or check an MQTT broker."),
    "export": _command("export", "Export a model as a signed bundle."),
    "bundle": _command("bundle", "List, promote or roll back the fleet's bundles."),
    "rollout": _command("rollout", "Let a bundle out in waves that stop by themselves on harm."),
    "forecasts": _command("forecasts", "Show the forecasts that devices send."),
    "weather": _command("weather", "Publish the weather of a region to devices, signed."),
    "credit": _command("credit", "Show the weight of every device's model for the others."),
    "certificate": _command("certificate", "Bound the Lipschitz constants of the present model."),
    "conform": _command("conform", "Check the rules and methods of an installed package."),
}


def program() -> CommandLine:
    """Return the command line."""
    about = (
        "Federated learning server for a fleet of devices: one daemon, and its operator's tools."
    )
    return CommandLine("gridfed-aggregator", about, COMMANDS, EPILOGUE)


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; return its exit code."""
    return program().main(argv)
