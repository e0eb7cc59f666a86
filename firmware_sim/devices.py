"""The options and commands of single simulated devices: ``meter``, ``charger``, ``station``."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edge_sdk.program import Answer, Command
from edge_sdk.settings import SettingsError, seconds
from firmware_sim.options import pairs, value_of


def _meter(args: Namespace) -> Answer:
    from firmware_sim.faults import Faults  # noqa: PLC0415 - numpy
    from firmware_sim.metering import Order, run  # noqa: PLC0415 - as above
    from firmware_sim.processes import stoppable  # noqa: PLC0415 - as above

    faults = {key: value_of(text) for key, text in pairs(args.fault, "--fault").items()}
    order = Order(
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
        Faults.of(faults),
        args.truth,
    )
    with stoppable():
        told = run(order, _announce)
    data = asdict(told)
    lost = f", {told.dropped} not taken by anybody" if told.dropped else ""
    wrong = "".join(f", {count} {name}" for name, count in told.faults.items())
    return Answer(data, f"{told.telegrams} telegrams, {told.wh:.0f} Wh{lost}{wrong}")


def _announce(where: dict[str, Any]) -> None:
    """Print where a device can be reached, at once: whoever started it is waiting for that."""
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


def _life_arguments(parser: ArgumentParser, every: str, length: str) -> None:
    """Add what every simulated device can be told."""
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
    words = (
        "duplicate, reorder, gap, noise, flip, cut, lost_clock: shares; drift: ppm; reboots: a day"
    )
    add("--fault", action="append", default=[], metavar="K=V", help=words)


def _meter_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--p1", default="pty", metavar="LINE", help="pty, pty:LINK or tcp://host:port; '' for none")
    add("--modbus", default="", metavar="URL", help="serve registers there: tcp://127.0.0.1:0")
    add("--business", action="store_true", help="opening hours instead of a household")
    add("--solar", type=float, default=0.0, metavar="KW", help="panels on the roof (0)")
    add("--heat-pump", action="store_true", help="heats with electricity")
    add("--gas", action="store_true", help="with a gas meter")
    _life_arguments(parser, "10s", "24h")


METER = Command(
    "Be one meter: P1 telegrams on a pty or TCP port, registers over Modbus.",
    _meter,
    _meter_arguments,
    "Prints one line of JSON with its addresses, then speaks. A [[source]] that names such an\n"
    "address reads it as it reads a real meter.",
)
