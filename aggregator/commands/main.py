"""Define the command line of ``gridfed-aggregator``; a subcommand is imported when used."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib import import_module

from edge_sdk.app.cli import CommandLine, CommandResult, Subcommand

DEFAULT = "aggregator.toml"

EPILOGUE = """\
a new fleet:
  gridfed-aggregator init aggregator.toml              keys, and a signed announcement of the run
  gridfed-aggregator enrol meter-1 --public meter-1.pub --config aggregator.toml
  gridfed-aggregator check aggregator.toml             what is in force, and where it was said
  gridfed-aggregator run aggregator.toml               until SIGTERM
  gridfed-aggregator status aggregator.toml            round, devices, what was refused and why

exit codes: 0 done · 1 failed · 2 wrong usage or configuration · 3 state needs migration · \
75 try again
"""


def _later(name: str) -> Callable[[Namespace], CommandResult]:
    """Return a command of ``aggregator.commands.subcommands``, imported at its first call."""

    def run(args: Namespace) -> CommandResult:
        answer: CommandResult = getattr(import_module("aggregator.commands.subcommands"), name)(
            args
        )
        return answer

    return run


def _config(parser: ArgumentParser) -> None:
    parser.add_argument(
        "config", nargs="?", default=DEFAULT, help=f"configuration file (default: {DEFAULT})"
    )


def _config_option(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--config", default=DEFAULT, metavar="FILE", help=f"configuration file ({DEFAULT})"
    )


def _run(parser: ArgumentParser) -> None:
    _config(parser)
    parser.add_argument(
        "--exit-when-done", action="store_true", help="end with 0 once run.rounds have moved"
    )
    parser.add_argument(
        "--log",
        choices=("debug", "info", "warning", "error"),
        help="instead of log.level in the file",
    )


def _root(parser: ArgumentParser) -> None:
    _config(parser)
    parser.add_argument(
        "--root-key", metavar="FILE", help="the root's private key, if it was moved away"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="begin another run, from the bundle's first vector"
    )


def _enrol(parser: ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", help="the device's id")
    parser.add_argument("--public", metavar="HEX|FILE", help="its public key")
    parser.add_argument(
        "--proof", metavar="HEX", default="", help="its proof that it holds the key"
    )
    parser.add_argument("--from-file", metavar="CSV", help="many: columns id, public, proof")
    parser.add_argument(
        "--spent",
        type=int,
        default=0,
        metavar="N",
        help="with a new key: releases that the device's new ledger begins with (0)",
    )
    _config_option(parser)


def _revoke(parser: ArgumentParser) -> None:
    parser.add_argument("id", help="the device's id")
    parser.add_argument("--why", default="", help="for the record")
    _config_option(parser)


def _command(parser: ArgumentParser) -> None:
    parser.add_argument("id", help="the device's id")
    parser.add_argument("op", help="stop, resume, reenrol, report, budget, hello or wipe")
    parser.add_argument("--releases", type=int, help="budget: let so many updates leave in all")
    _config_option(parser)


def _backup(parser: ArgumentParser) -> None:
    parser.add_argument("file", help="where the copy goes")
    _config_option(parser)


def _restore(parser: ArgumentParser) -> None:
    parser.add_argument("file", help="what backup wrote")
    parser.add_argument(
        "--root-key", metavar="FILE", help="the root's private key, if it was moved away"
    )
    _config_option(parser)


def _broker(parser: ArgumentParser) -> None:
    parser.add_argument("what", choices=("find", "start", "config", "access", "check"))
    parser.add_argument("--kind", default="auto", choices=("auto", "mosquitto", "embedded"))
    parser.add_argument("--port", type=int, default=1883, help="where it listens (1883)")
    parser.add_argument("--folder", default="broker", help="its configuration and sessions")
    parser.add_argument("--fleet", default="", help="config: write this fleet's access rules too")
    parser.add_argument(
        "--pairs", metavar="CSV", default="", help="config: client,neighbour; who may be peers"
    )
    parser.add_argument("--url", default="auto", help="find: an address, or auto")
    parser.add_argument("--file", default="", help="check: a mosquitto.conf; access: where it goes")
    parser.add_argument("--ca", default="", help="config: authority that signs devices (PEM)")
    parser.add_argument("--cert", default="", help="config: the broker's certificate (PEM)")
    parser.add_argument("--key", default="", help="config: its private key (PEM)")
    parser.add_argument(
        "--config", default=DEFAULT, metavar="FILE", help=f"access: the aggregator's ({DEFAULT})"
    )


def _export(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="a model's name, package.module:factory, or file.py:Class")
    parser.add_argument("out", help="folder of the new bundle")
    parser.add_argument("--key", metavar="FILE", required=True, help="the root's private key")
    parser.add_argument("--name", help="of the bundle; else the model's, or the folder's")
    parser.add_argument("--bundle-version", type=int, default=1, help="rises with every release")
    parser.add_argument("--like", default="load-lstm-week", help="take features from this model")
    parser.add_argument("--shared", nargs="*", metavar="PREFIX", help="layers to share by default")
    parser.add_argument(
        "--for",
        dest="methods",
        nargs="+",
        default=[],
        metavar="METHOD",
        help="add the graphs that these methods ask for",
    )
    parser.add_argument(
        "--graphs", nargs="*", metavar="NAME", help="graphs besides gradient and forecast"
    )


def _audit(parser: ArgumentParser) -> None:
    _config(parser)
    parser.add_argument(
        "--devices",
        metavar="FOLDER",
        help="also hold what devices' links saw (*.jsonl) against the database",
    )


def _dead_letters(parser: ArgumentParser) -> None:
    parser.add_argument("what", choices=("list", "show", "retry", "clear"))
    parser.add_argument(
        "name", nargs="?", help="of one dead letter; retry and clear: all if left out"
    )
    _config_option(parser)


def _credit(parser: ArgumentParser) -> None:
    _config(parser)
    parser.add_argument("--by", metavar="ID", help="what this device makes of the others (all)")
    parser.add_argument("--out", metavar="SVG", help="write a heat map of all rounds")


def _certificate(parser: ArgumentParser) -> None:
    _config(parser)
    parser.add_argument(
        "--error",
        type=float,
        metavar="E",
        help="largest error that can occur, in scaled units; a squared error needs it",
    )


COMMANDS = {
    "run": Subcommand(
        "Serve a fleet until SIGTERM.",
        _later("run"),
        _run,
        "SIGTERM or SIGINT finishes what is at hand; a second one stops at once. Killed at any\n"
        "point, the next start continues on the same trajectory.",
    ),
    "check": Subcommand(
        "Say what is configured, by whom, and whether it can run.", _later("check"), _config
    ),
    "check-config": Subcommand("The same as check.", _later("check"), _config),
    "init": Subcommand(
        "Make keys, begin a run, sign what devices must trust.",
        _later("init"),
        _root,
        "Copy root.pub to every device. root.key may then be kept offline: the daemon never\n"
        "needs it. Run twice, it changes nothing that is there.",
    ),
    "announce": Subcommand(
        "Sign keys and bundle again; begin another run if the configuration changed.",
        _later("announce"),
        _root,
    ),
    "enrol": Subcommand(
        "Let a device in.",
        _later("enrol"),
        _enrol,
        "A new key for a device that is known begins a new ledger of it: the count of releases\n"
        "that the aggregator keeps begins at --spent, and what could not be used is left behind.\n"
        "The privacy ledger on the device goes on.",
    ),
    "revoke": Subcommand("Shut a device out.", _later("revoke"), _revoke),
    "list": Subcommand("List the devices and their standing.", _later("listing"), _config),
    "command": Subcommand(
        "Tell one device to do something.",
        _later("command"),
        _command,
        "It is sent again after every hello until the device says that it is done.",
    ),
    "pause": Subcommand("Make the whole fleet wait; forecasts go on.", _later("pause"), _config),
    "resume": Subcommand("Let a paused fleet go on.", _later("resume"), _config),
    "status": Subcommand("Say what it is doing, or where it stopped.", _later("status"), _config),
    "credit": Subcommand(
        "Show who trusted whom in every round, where the method weighs models for one another.",
        _later("credit"),
        _credit,
        "Reads the database beside a running daemon. A weight of exactly 0 is an outcast's.",
    ),
    "health": Subcommand(
        "End with 0 if the daemon is alive and ready, else with 1.", _later("health"), _config
    ),
    "audit": Subcommand(
        "Recompute every round from the journal and compare.", _later("audit"), _audit
    ),
    "dead-letters": Subcommand(
        "Look at messages that met a defect; handle or forget them.",
        _later("dead_letters"),
        _dead_letters,
        "A message whose handling met a defect of this program is set aside under\n"
        "STATE/dead-letters and never handled again. After an upgrade, retry lets it in again;\n"
        "clear forgets it. A run that a defect halted goes on after resume.",
    ),
    "certificate": Subcommand(
        "Bound how steep the model's loss is in its data.",
        _later("certify"),
        _certificate,
        "A product of norms of the weights: no readings are needed, and none is steeper.",
    ),
    "backup": Subcommand("Copy the database while the daemon runs.", _later("backup"), _backup),
    "restore": Subcommand(
        "Put a backup in place and begin another run.",
        _later("restore"),
        _restore,
        "The daemon must not run. Devices may have seen rounds that the backup does not know, so\n"
        "another run begins from its model, and every number that only rises leaps ahead. The\n"
        "database from before is kept beside it.",
    ),
    "broker": Subcommand(
        "Find, start, configure or check a broker.", _later("broker"), _broker
    ),
    "export": Subcommand("Turn a torch module into a signed bundle.", _later("export"), _export),
}  # fmt: skip


def program() -> CommandLine:
    """Return the command line."""
    about = "Turns the updates of a fleet into models worth downloading."
    return CommandLine("gridfed-aggregator", about, COMMANDS, EPILOGUE)


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; return its exit code."""
    return program().main(argv)
