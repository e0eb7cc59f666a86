"""Define the command line of ``gridfed-edge``; a subcommand's module is imported when used."""

from __future__ import annotations

import os

from edge_sdk.app.cli import subcommand
from edge_sdk.app.command_line import CommandLine
from edge_sdk.app.extensions import ExtensionIndex

ABOUT = """\
Train a forecasting model on this device's own readings, together with its fleet.

Readings stay on the device. Only the shared layers of the model are sent, signed, over MQTT.
Forecasts are computed here, with or without a connection."""

EPILOGUE = """\
a new device:
  gridfed-edge init meter.toml      write a commented configuration
  gridfed-edge enrol meter.toml     create this device's key; give the printed line to the operator
  gridfed-edge check meter.toml     check configuration, keys, bundle and sources
  gridfed-edge run meter.toml       record, train, share and forecast until SIGTERM

Every setting can also come from the environment: GRIDFED_EDGE_BROKER__URL=mqtts://… overrides
url in [broker].

exit codes: 0 done · 1 failed · 2 wrong usage or configuration · 3 state needs a newer version · \
75 try again"""

CORE = {
    name: subcommand(f"edge_sdk.commands.{name}", summary)
    for name, summary in {
        "run": "Record readings, train, share updates and forecast until SIGTERM.",
        "enrol": "Create this device's signing key.",
    }.items()
}
COMMANDS = CORE | ExtensionIndex("edge_sdk").commands()


def program() -> CommandLine:
    return CommandLine("gridfed-edge", ABOUT, COMMANDS, EPILOGUE)


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; return its exit code.

    Linear algebra gets one thread unless the environment says otherwise: a device's products are
    small, and each thread of a library counts against its memory.
    """
    if argv is None:  # as a program, not called by another one
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(name, "1")
    return program().main(argv)
