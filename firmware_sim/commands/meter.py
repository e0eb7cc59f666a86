"""Simulate one meter: P1 telegrams on a pty or TCP port, registers over Modbus.

Prints one line of JSON with its addresses, then sends. A [[source]] with such an address reads it
like a real meter.

  gridfed-sim meter --p1 pty:./ttyP1
  gridfed-sim meter --p1 tcp://127.0.0.1:2323 --modbus tcp://127.0.0.1:0 --solar 4
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from edge_sdk.app.cli import CommandResult
from firmware_sim.commands.options import (
    add_device_options,
    announce,
    duration,
    moment,
    pairs,
    value_of,
)
from firmware_sim.devices.faults import CLOCK, LINE, FaultRates
from firmware_sim.devices.meter_process import MeterSettings
from firmware_sim.devices.meter_process import run as simulate
from firmware_sim.fleet.processes import stoppable


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add = parser.add_argument
    add("--p1", default="pty", metavar="LINE", help="pty, pty:LINK or tcp://host:port; '' for none")
    words = "address that serves registers: tcp://127.0.0.1:0"
    add("--modbus", default="", metavar="URL", help=words)
    words = "shipped readings to replay: homes, homes/NAME (default: generated)"
    add("--like", default="", metavar="SET/DEVICE", help=words)
    add("--business", action="store_true", help="a business instead of a household")
    add("--solar", type=float, default=0.0, metavar="KW", help="peak power of a solar system (0)")
    add("--heat-pump", action="store_true", help="with a heat pump")
    add("--gas", action="store_true", help="with a gas meter")
    words = (
        "duplicate, reorder, gap, noise, flip, cut, flap, lost_clock: shares; drift: ppm; "
        "reboots, brownouts: a day"
    )
    add_device_options(parser, "10s", "24h", words)


def run(args: Namespace) -> CommandResult:
    """Simulate the device; return its counters."""
    faults = {key: value_of(text) for key, text in pairs(args.fault, "--fault").items()}
    settings = MeterSettings(
        moment(args.start),
        duration(args.length, "--for"),
        duration(args.every, "--every"),
        args.speed,
        args.p1,
        args.modbus,
        "business" if args.business else "home",
        args.seed,
        args.region,
        args.zone,
        args.solar,
        args.heat_pump,
        args.gas,
        FaultRates.of(faults, (*LINE, *CLOCK)),
        args.truth,
        args.like,
    )
    with stoppable():
        counts = simulate(settings, announce)
    data = asdict(counts)
    lost = f", {counts.dropped} without a reader" if counts.dropped else ""
    wrong = "".join(f", {count} {name}" for name, count in counts.faults.items())
    return CommandResult(data, f"{counts.telegrams} telegrams, {counts.wh:.0f} Wh{lost}{wrong}")
