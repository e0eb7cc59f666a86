"""Define the options of simulated devices: ``meter``, ``charger``, ``station``."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from edge_sdk.app.settings import SettingsError, seconds

DAY = 86_400


def add_device_options(parser: ArgumentParser, every: str, length: str, faults: str) -> None:
    """Add the options of every simulated device."""
    add = parser.add_argument
    add(
        "--start",
        default="",
        metavar="TIME",
        help="first time of its clock, ISO; UTC without offset (now)",
    )
    add("--for", dest="length", default=length, metavar="TIME", help=f"simulated time ({length})")
    add("--every", default=every, metavar="TIME", help=f"interval of messages ({every})")
    add(
        "--speed",
        type=float,
        default=1.0,
        help="speed relative to real time; 0: as fast as read (1)",
    )
    add("--seed", type=int, default=0, help="seed; another one is another device (0)")
    add("--region", default="north", help="region; its devices share their weather (north)")
    add("--zone", default="Europe/Amsterdam", help="time zone (Europe/Amsterdam)")
    add("--truth", type=Path, metavar="CSV", help="file for the true values")
    add("--fault", action="append", default=[], metavar="K=V", help=faults)


def zone_of(name: str) -> tzinfo:
    """Return a time zone by name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise SettingsError(
            f"--zone {name}: unknown time zone", hint="such as Europe/Amsterdam"
        ) from None


def announce(where: dict[str, Any]) -> None:
    """Print the address of a device at once, for the process that waits for it."""
    print(json.dumps(where), flush=True)  # noqa: T201 - a command's own standard output


def moment(text: str) -> float:
    """Return an ISO time in Unix seconds; now if empty."""
    if not text:
        return time.time() // 1
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"--start {text}: expected an ISO time", hint="such as 2023-10-28T22:00Z"
        ) from None
    return found.replace(tzinfo=found.tzinfo or UTC).timestamp()


def duration(text: str, option: str) -> float:
    """Return a duration in seconds."""
    try:
        return seconds(text)
    except AttributeError:
        raise SettingsError(
            f"{option} {text}: expected a duration", hint="such as 10s, 24h"
        ) from None
