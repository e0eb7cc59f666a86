"""Simulate one charge point: OCPP 1.6 or 2.0.1, sessions, a queue of messages while offline.

Connects to a back office (CSMS) as a charger does. Through gridfed-edge tap, the device beside it
reads the measured values.

  gridfed-sim charger ws://127.0.0.1:9000/CP-1 --ocpp 2.0.1 --sockets 2
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from edge_sdk.app.cli import CommandResult
from firmware_sim.commands.options import (
    add_device_options,
    duration,
    moment,
    pairs,
    value_of,
    zone_of,
)
from firmware_sim.devices.charge_point import ChargerSettings
from firmware_sim.devices.charge_point import run as simulate
from firmware_sim.devices.faults import CLOCK, FaultRates
from firmware_sim.fleet.processes import stoppable


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add = parser.add_argument
    words = "ws://host:port/NAME: address of a back office, or of gridfed-edge tap"
    add("url", metavar="URL", help=words)
    add("--ocpp", default="1.6", choices=("1.6", "2.0.1"), help="version of OCPP (1.6)")
    add("--sockets", type=int, default=1, metavar="N", help="number of sockets (1)")
    sites = ("home", "workplace", "public", "depot")
    add("--site", default="home", choices=sites, help="kind of site (home)")
    words = "shipped readings to replay: chargers, chargers/NAME (default: generated)"
    add("--like", default="", metavar="SET/DEVICE", help=words)
    words = "file with the password of basic authentication"
    add("--password-file", type=Path, metavar="FILE", help=words)
    words = "duplicate, gap, flap, lost_clock: shares; drift: ppm; reboots, brownouts: a day"
    add_device_options(parser, "60s", "24h", words)


def run(args: Namespace) -> CommandResult:
    """Simulate the device; return its counters."""
    faults = {key: value_of(text) for key, text in pairs(args.fault, "--fault").items()}
    password = args.password_file.read_text("utf-8").strip() if args.password_file else ""
    settings = ChargerSettings(
        args.url,
        moment(args.start),
        duration(args.length, "--for"),
        args.ocpp,
        duration(args.every, "--every"),
        args.speed,
        args.sockets,
        args.site,
        args.seed,
        password,
        FaultRates.of(faults, ("duplicate", "gap", "flap", *CLOCK)),
        args.truth,
        args.region,
        zone_of(args.zone),
        args.like,
    )
    with stoppable():
        counts = simulate(settings)
    late = f", {counts.queued} of them delivered late" if counts.queued else ""
    undelivered = f", {counts.undelivered} not delivered" if counts.undelivered else ""
    text = (
        f"{counts.sessions} sessions, {counts.wh} Wh, {counts.messages} messages{late}{undelivered}"
    )
    return CommandResult(asdict(counts), text)
