"""Simulate a year of a fleet's certificates in virtual time: who is locked out, and which rounds are lost.

    python -m tools.certificate_year --devices 2000 --days 365 --seed 1
    python -m tools.certificate_year --devices 40 --days 120 --json

The authority is the real one: its folder and record, the handler of its EST server, the renewal of its own
certificate and of the list of revoked ones. So is the device: keys, files, store, clock and renewal. TLS is
OpenSSL on both ends, in memory instead of on sockets; MQTT is left out. Time is simulated.

A tenth of the devices have a wrong clock: minutes to years ahead or behind, at 1970, drifting. Devices are
off for hours to months, and without a network for days. Every step of a renewal kills the program in 3 % of
its visits. The EST server is out of reach for minutes to days, restarted and killed; requests and answers are
lost; the broker's clock is two hours behind for days; the broker's certificate is issued again once.

There is a round a day. A device that is awake with a network for six hours owes it, and has lost it if no
broker accepts its certificate on that day: chain, purpose, revocation list, and dates at the true time. A
day is counted apart if the EST server was out of reach. On the last three days nothing fails; who cannot
connect then is locked out. The program ends with exit code 1 if anybody is, if an operator had to act, or
if a round is lost.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from tools.certificate_year.year import Year, YearResult, YearSettings

MEMORY = Path("/dev/shm")  # noqa: S108 - files in memory, where the system has such a folder


def text_of(result: YearResult) -> str:
    """Return a result as text.

    >>> print(text_of(YearResult(YearSettings(2, 30), rounds_owed=60)).splitlines()[0])
    2 devices, 30 days, seed 1
    """
    settings = result.settings
    wrong = sum(count for kind, count in result.wrong_clocks.items() if kind != "right")
    acts = ", ".join(f"{act} {count}" for act, count in result.operator_acts.items())
    rows = {
        "renewals": f"{result.renewals:,} of {result.requests:,} requests",
        "issued after the former one had expired": f"{result.after_expiry:,}",
        "wrong clocks": f"{wrong:,}",
        "kills": f"{sum(result.kills.values()):,}",
        "rounds owed": f"{result.rounds_owed:,}",
        "rounds lost": f"{result.rounds_lost:,}",
        "days without a connection, EST server out of reach": f"{result.days_without_connection:,}",
        "locked out": f"{len(result.locked_out):,}",
        "acts of the operator for a device": acts or "0",
        "waiting for approval": f"{len(result.waiting):,}",
        "processor seconds": f"{result.processor_seconds:,.0f}",
    }
    lines = [f"{settings.devices:,} devices, {settings.days} days, seed {settings.seed}"]
    lines += [f"  {name}: {value}" for name, value in rows.items()]
    lines += ["", "kills by step, of so many visits"]
    lines += [f"  {step}: {n:,} of {result.visits[step]:,}" for step, n in result.kills.items()]
    lines += ["", "other events"]
    lines += [f"  {name}: {count:,}" for name, count in result.events.items()]
    lines += [f"lost round: {one}" for one in result.lost]
    lines += [f"locked out: {name}: {why}" for name, why in result.locked_out.items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, and print the outcome."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.certificate_year",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = YearSettings()
    add = parser.add_argument
    add("--devices", type=int, default=defaults.devices, help="number of devices (2000)")
    add("--days", type=int, default=defaults.days, help="days, at least 10 (365)")
    add(
        "--seed", type=int, default=defaults.seed, help="seed of all that happens, without keys (1)"
    )
    add("--wrong-clocks", type=float, default=defaults.wrong_clocks, metavar="SHARE", help="(0.1)")
    add("--kill-rate", type=float, default=defaults.kill_rate, metavar="SHARE", help="(0.03)")
    add(
        "--folder",
        type=Path,
        help="folder for the fleet's files (memory, where there is such a folder)",
    )
    add("--json", action="store_true", help="print JSON")
    args = parser.parse_args(arguments)
    if args.devices < 1 or args.days < 10:
        parser.error("expected at least 1 device and 10 days")
    settings = YearSettings(args.devices, args.days, args.seed, args.wrong_clocks, args.kill_rate)
    place = args.folder or (MEMORY if MEMORY.is_dir() else None)
    with (
        tempfile.TemporaryDirectory(prefix="certificate-year-", dir=place) as name,
        Progress(console=Console(stderr=True)) as bar,
    ):
        task = bar.add_task("days", total=args.days)
        result = Year(settings, Path(name)).run(lambda _day: bar.advance(task))
    print(json.dumps(result.as_dict(), indent=2) if args.json else text_of(result))
    return 0 if result.is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
