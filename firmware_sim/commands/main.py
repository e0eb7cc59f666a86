"""Define the command line of ``gridfed-sim``; a subcommand's module is imported when used."""

from __future__ import annotations

import os

from edge_sdk.app.cli import subcommand
from edge_sdk.app.command_line import CommandLine

ABOUT = "Simulate devices and fleets of the real SDK on this machine, from recorded readings."

EPILOGUE = """\
examples:
  gridfed-sim demo                            eight homes, three methods, one page
  gridfed-sim evaluate --data meters          would a fleet's model help your own devices?
  gridfed-sim benchmark --data m4_hourly      a public task, beside published models
  gridfed-sim fleet --devices 200 --in-process --rounds 20
  gridfed-sim fleet --byzantine 0.2 --attack alie --rule mean,trimmed_mean
  gridfed-sim sweep runs --method fedavg,fedprox --seeds 0 1 2
  gridfed-sim feeder --out feeders            two feeders, from sums that a witness opens
  gridfed-sim meter --p1 pty:./ttyP1          one meter that a [[source]] can read
  gridfed-sim station ./pm --speed 900        one base station, a file per second
  gridfed-sim attacks                         the attacks, with their options
  gridfed-sim list                            shipped readings and scenarios, with licences
"""

COMMANDS = {
    name: subcommand(f"firmware_sim.commands.{name}", summary)
    for name, summary in {
        "demo": "Train eight homes in three ways, and compare their forecasts.",
        "evaluate": "Compare forecasts on your own records, alone and as a fleet.",
        "benchmark": "Score forecasts on a public task, beside published models.",
        "fleet": "Run N devices, and print the cost of a device and of a round.",
        "sweep": "Run methods, rules, attacks and seeds, with a record of each.",
        "feeder": "Forecast two feeders of simulated homes from masked sums.",
        "meter": "Simulate one meter: P1 telegrams, Modbus registers.",
        "charger": "Simulate one charge point: OCPP 1.6 or 2.0.1.",
        "station": "Simulate one base station: performance files in a folder.",
        "attacks": "List the attacks with their definitions and options.",
        "list": "List the shipped readings and scenarios.",
    }.items()
}


def program() -> CommandLine:
    return CommandLine("gridfed-sim", ABOUT, COMMANDS, EPILOGUE)


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; return its exit code.

    Products of matrices get one thread unless the environment says otherwise: they are small, and on
    a machine with other work the threads of a product wait for one another.
    """
    if argv is None:  # as a program, not called by another one
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return program().main(argv)
