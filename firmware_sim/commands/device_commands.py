"""The options and commands of single simulated devices: ``meter``, ``charger``, ``station``."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from datetime import tzinfo
from pathlib import Path
from typing import Any

from edge_sdk.app.cli import CommandResult, Subcommand
from edge_sdk.app.settings import SettingsError, seconds
from firmware_sim.commands.options import pairs, value_of

_DAY = 86_400


def _meter(args: Namespace) -> CommandResult:
    from firmware_sim.devices.faults import CLOCK, LINE, FaultRates  # noqa: PLC0415 - numpy
    from firmware_sim.devices.meter_process import MeterSettings, run  # noqa: PLC0415 - as above
    from firmware_sim.fleet.processes import stoppable  # noqa: PLC0415 - as above

    faults = {key: value_of(text) for key, text in pairs(args.fault, "--fault").items()}
    order = MeterSettings(
        _moment(args.start),
        _duration(args.length, "--for"),
        _duration(args.every, "--every"),
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
        told = run(order, _announce)
    data = asdict(told)
    lost = f", {told.dropped} not taken by anybody" if told.dropped else ""
    wrong = "".join(f", {count} {name}" for name, count in told.faults.items())
    return CommandResult(data, f"{told.telegrams} telegrams, {told.wh:.0f} Wh{lost}{wrong}")


def _station(args: Namespace) -> CommandResult:
    from firmware_sim.devices.base_station import Dropper, Habits  # noqa: PLC0415 - as above
    from firmware_sim.fleet.processes import stoppable  # noqa: PLC0415 - numpy
    from firmware_sim.profiles.station import CellSite  # noqa: PLC0415 - as above

    faults = {key: value_of(text) for key, text in pairs(args.fault, "--fault").items()}
    zone, like = _zone(args.zone), args.like
    station = CellSite(
        args.seed, args.region, args.cells, args.place, busy=args.busy, zone=zone, like=like
    )
    period = int(_duration(args.every, "--every"))
    if period < 1 or _DAY % period:
        raise SettingsError(f"--every {args.every}: does not divide a day")
    dropper = Dropper(
        station,
        f"site-{args.seed}",
        args.folder,
        args.standard,
        period,
        not args.plain,
        Habits.of(faults),
        args.speed,
    )
    _announce({"folder": str(args.folder), "standard": args.standard})
    begin = int(_moment(args.start) // period) * period
    with stoppable():
        counts = dropper.run(begin, int(_duration(args.length, "--for") // period), args.truth)
    wrong = "".join(
        f", {count} {name}" for name, count in sorted(counts.items()) if name != "files"
    )
    return CommandResult(dict(counts), f"{counts['files']} files{wrong}")


def _zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415 - 0.5 MB

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise SettingsError(f"--zone {name}: no such time zone") from None


def _announce(where: dict[str, Any]) -> None:
    """Print the address of a device at once, for the process that waits for it."""
    print(json.dumps(where), flush=True)  # noqa: T201 - a command's own standard output


def _moment(text: str) -> float:
    from datetime import UTC, datetime  # noqa: PLC0415

    if not text:
        return datetime.now(UTC).timestamp() // 1
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"--start {text}: no moment", hint="such as 2023-10-28T22:00Z"
        ) from None
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def _duration(text: str, option: str) -> float:
    try:
        return seconds(text)
    except AttributeError:
        raise SettingsError(
            f"{option} {text}: no length of time", hint="such as 10s, 24h"
        ) from None


def _life_arguments(parser: ArgumentParser, every: str, length: str, faults: str) -> None:
    """Add the options of every simulated device."""
    add = parser.add_argument
    add("--start", default="", metavar="TIME", help="of its clock, ISO; UTC without offset (now)")
    add(
        "--for", dest="length", default=length, metavar="TIME", help=f"how long it lives ({length})"
    )
    add("--every", default=every, metavar="TIME", help=f"between two messages ({every})")
    add(
        "--speed",
        type=float,
        default=1.0,
        help="times as fast as real time; 0: as fast as read (1)",
    )
    add("--seed", type=int, default=0, help="tells devices apart (0)")
    add("--region", default="north", help="devices of one region share their weather (north)")
    add("--zone", default="Europe/Amsterdam", help="whose clock it lives by (Europe/Amsterdam)")
    add("--truth", type=Path, metavar="CSV", help="write what really happened")
    add("--fault", action="append", default=[], metavar="K=V", help=faults)


def _meter_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--p1", default="pty", metavar="LINE", help="pty, pty:LINK or tcp://host:port; '' for none")
    add("--modbus", default="", metavar="URL", help="serve registers there: tcp://127.0.0.1:0")
    words = "shipped readings behind it: homes, homes/NAME (generated)"
    add("--like", default="", metavar="SET/DEVICE", help=words)
    add("--business", action="store_true", help="opening hours instead of a household")
    add("--solar", type=float, default=0.0, metavar="KW", help="panels on the roof (0)")
    add("--heat-pump", action="store_true", help="heats with electricity")
    add("--gas", action="store_true", help="with a gas meter")
    words = (
        "duplicate, reorder, gap, noise, flip, cut, flap, lost_clock: shares; drift: ppm; "
        "reboots, brownouts: a day"
    )
    _life_arguments(parser, "10s", "24h", words)


def _station_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", type=Path, help="where files are dropped")
    add("--standard", choices=("32.435", "28.532"), default="32.435", help="of the files (32.435)")
    add("--plain", action="store_true", help="files that are not packed")
    add("--cells", type=int, default=3, help="how many (3)")
    places = ("residential", "business", "transport")
    add("--place", choices=places, default="residential", help="what is around it (residential)")
    words = "shipped readings shape what is offered: cells, cells/NAME (generated)"
    add("--like", default="", metavar="SET/DEVICE", help=words)
    add("--busy", type=float, default=0.7, help="of its capacity, in the busiest hour (0.7)")
    words = "late, twice, broken, lost, suspect, missing, slow: shares of the files"
    _life_arguments(parser, "15m", "24h", words)


def _charger(args: Namespace) -> CommandResult:
    from firmware_sim.devices.charge_point import ChargerSettings, run  # noqa: PLC0415 - numpy
    from firmware_sim.devices.faults import CLOCK, FaultRates  # noqa: PLC0415 - as above
    from firmware_sim.fleet.processes import stoppable  # noqa: PLC0415 - as above

    faults = {key: value_of(text) for key, text in pairs(args.fault, "--fault").items()}
    password = args.password_file.read_text("utf-8").strip() if args.password_file else ""
    order = ChargerSettings(
        args.url,
        _moment(args.start),
        _duration(args.length, "--for"),
        args.ocpp,
        _duration(args.every, "--every"),
        args.speed,
        args.sockets,
        args.site,
        args.seed,
        password,
        FaultRates.of(faults, ("duplicate", "gap", "flap", *CLOCK)),
        args.truth,
        args.region,
        _zone(args.zone),
        args.like,
    )
    with stoppable():
        told = run(order)
    late = f", {told.queued} of them late" if told.queued else ""
    owed = f", {told.owed} still owed" if told.owed else ""
    text = f"{told.sessions} sessions, {told.wh} Wh, {told.messages} messages{late}{owed}"
    return CommandResult(asdict(told), text)


def _charger_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("url", metavar="URL", help="ws://host:port/NAME: a back office, or gridfed-edge tap")
    add("--ocpp", default="1.6", choices=("1.6", "2.0.1"), help="version (1.6)")
    add("--sockets", type=int, default=1, metavar="N", help="cars at a time (1)")
    sites = ("home", "workplace", "public", "depot")
    add("--site", default="home", choices=sites, help="whose habits (home)")
    words = "cars that take what shipped readings tell: chargers, chargers/NAME (generated)"
    add("--like", default="", metavar="SET/DEVICE", help=words)
    add("--password-file", type=Path, metavar="FILE", help="for basic authentication")
    words = "duplicate, gap, flap, lost_clock: shares; drift: ppm; reboots, brownouts: a day"
    _life_arguments(parser, "60s", "24h", words)


METER = Subcommand(
    "Be one meter: P1 telegrams on a pty or TCP port, registers over Modbus.",
    _meter,
    _meter_arguments,
    "Prints one line of JSON with its addresses, then speaks. A [[source]] that names such an\n"
    "address reads it as it reads a real meter.",
)

STATION = Subcommand(
    "Be one base station: performance files dropped into a folder.",
    _station,
    _station_arguments,
    "A [[source]] of type pm3gpp with that folder reads them as it reads an element manager's.",
)

CHARGER = Subcommand(
    "Be one charge point: OCPP 1.6 or 2.0.1, sessions, a queue for when nobody answers.",
    _charger,
    _charger_arguments,
    "Connects to a back office as a charger does; through gridfed-edge tap, the device beside it\n"
    "reads what was measured.",
)
