"""Simulate one base station: performance files written into a folder.

A [[source]] of type pm3gpp with that folder reads them like those of an element manager.

  gridfed-sim station ./pm --speed 900
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from edge_sdk.app.cli import CommandResult
from edge_sdk.app.settings import SettingsError
from firmware_sim.commands.options import (
    DAY,
    add_device_options,
    announce,
    duration,
    moment,
    pairs,
    value_of,
    zone_of,
)
from firmware_sim.devices.base_station import FileFaultRates, FileWriter
from firmware_sim.fleet.processes import stoppable
from firmware_sim.profiles.station import CellSite


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add = parser.add_argument
    add("folder", type=Path, help="folder to write files into")
    words = "standard of the files (32.435)"
    add("--standard", choices=("32.435", "28.532"), default="32.435", help=words)
    add("--plain", action="store_true", help="write the files uncompressed")
    add("--cells", type=int, default=3, help="number of cells (3)")
    places = ("residential", "business", "transport")
    add("--place", choices=places, default="residential", help="surroundings (residential)")
    words = "shipped readings that shape the load: cells, cells/NAME (default: generated)"
    add("--like", default="", metavar="SET/DEVICE", help=words)
    words = "share of the capacity used in the busiest hour (0.7)"
    add("--busy", type=float, default=0.7, help=words)
    words = "late, twice, broken, lost, suspect, missing, slow: shares of the files"
    add_device_options(parser, "15m", "24h", words)


def run(args: Namespace) -> CommandResult:
    """Simulate the device; return its counters."""
    faults = {key: value_of(text) for key, text in pairs(args.fault, "--fault").items()}
    zone, like = zone_of(args.zone), args.like
    station = CellSite(
        args.seed, args.region, args.cells, args.place, busy=args.busy, zone=zone, like=like
    )
    period = int(duration(args.every, "--every"))
    if period < 1 or DAY % period:
        raise SettingsError(f"--every {args.every}: does not divide a day")
    writer = FileWriter(
        station,
        f"site-{args.seed}",
        args.folder,
        args.standard,
        period,
        not args.plain,
        FileFaultRates.of(faults),
        args.speed,
    )
    announce({"folder": str(args.folder), "standard": args.standard})
    begin = int(moment(args.start) // period) * period
    with stoppable():
        counts = writer.run(begin, int(duration(args.length, "--for") // period), args.truth)
    wrong = "".join(
        f", {count} {name}" for name, count in sorted(counts.items()) if name != "files"
    )
    return CommandResult(dict(counts), f"{counts['files']} files{wrong}")
