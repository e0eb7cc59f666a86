"""Run one simulated day of one device, and compare it with the committed budgets.

    python -m tools.day [--every 1] [--pace 1200] [--rounds-per-day 1] [--encoding q4 --downlink q8] [--keep FOLDER]

A real agent under a real limit of memory (``RLIMIT_DATA``, set from outside), a simulated meter on
a TCP port, a real broker and a real aggregator with rounds all day. Agent, meter and aggregator
live by a clock that runs fast while nothing is said between them, and as fast as this machine's
while something is; so timers, keepalives, commits and rounds are as many as a day has. Flash is
read from the kernel's account of the process, bytes on the link are counted by a proxy. Ends with 1
if a number is above its budget in ``tools/day/budgets.toml``.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edge_sdk.errors import Failure
from firmware_sim.fleet.federation import fetched
from firmware_sim.fleet.processes import ProcessGroup, RunningProgram, stoppable
from tools.day.outside import Seen, see_off
from tools.day.street import Plan, Street
from tools.day.town import Counted, Town

BUDGETS = Path(__file__).with_name("budgets.toml")
_DAY = 86_400.0
_LOOK = 0.05  # of our seconds between two looks at the process
_TURN = 0.004
_PATIENCE = 60.0
_COMING = 180.0  # a machine that tests four things at once starts programs slowly


@dataclass(slots=True)
class Day:
    """Measurements of one day."""

    seen: Seen = field(default_factory=Seen)  # the agent's process
    up: int = 0  # bytes from the device; ``down``: to it, both of TCP payload
    down: int = 0
    connections: int = 0
    rounds: int = 0  # rounds that moved the model during the day
    files: int = 0  # bytes of its state folder at the end
    told: dict[str, Any] = field(default_factory=dict)  # the agent's status at its end
    seconds: float = 0.0  # real seconds that the day took

    @property
    def measured(self) -> dict[str, int]:
        seen = self.seen
        flash, link = seen.flash, self.up + self.down
        return {"data": seen.data, "flash": flash, "link": link, "files": self.files}

    def keeps_to(self, allowed: Mapping[str, int]) -> bool:
        """Return True if no measurement exceeds its budget."""
        return all(n <= allowed[name] for name, n in self.measured.items())


def budgets(kind: str) -> dict[str, int]:
    table: dict[str, int] = tomllib.loads(BUDGETS.read_text("utf-8"))[kind]
    return table


def live(folder: Path, plan: Plan, pace: float) -> Day:
    """Run one day.

    Raises:
        Failure: A program ended, or the device never came up.
    """
    day, began = Day(), time.monotonic()
    with ProcessGroup(folder / "logs") as family, stoppable():
        town = Town(folder / "clock", pace)
        street = Street.build(folder, family, town, plan)
        device = street.start_device()
        limit = budgets(plan.kind)["data"]
        resource.prlimit(device.process.pid, resource.RLIMIT_DATA, (limit, limit))
        line, other = street.lines
        with line, other:
            _until_up(family, line)
            _pass(street, device, day)
            page = json.loads(fetched(street.federation.prepared.page, "/status") or "{}")
            see_off(device, day.seen, _PATIENCE)
            day.up, day.down, day.connections = line.up, line.down, line.connections
        day.rounds = page.get("run", {}).get("version", 0)
        day.files = sum(p.stat().st_size for p in street.state.rglob("*") if p.is_file())
        day.told = json.loads(device.tail(1))
    day.seconds = time.monotonic() - began
    return day


def _until_up(family: ProcessGroup, line: Counted) -> None:
    until = time.monotonic() + _COMING
    while line.down < 1000:  # its welcome and the model
        family.require_running()
        if time.monotonic() > until:
            words = (f"\n{member.name}: {member.tail(3)}" for member in family.members)
            raise Failure(f"the device did not come up ({line.down} bytes);{''.join(words)}")
        time.sleep(0.05)


def _pass(street: Street, device: RunningProgram, day: Day) -> None:
    """Advance the clock until the day is over; sample the process at intervals."""
    town = street.town
    town.go()
    until, looked, met = town.now + _DAY, 0.0, 2
    while town.now < until:
        town.look()
        if time.monotonic() - looked > _LOOK:
            looked = time.monotonic()
            street.family.require_running()
            day.seen.look(device.process.pid)
            lost = met < (met := sum(line.connections for line in street.lines))
            town.tire() if lost else town.rest()  # lost for want of this machine's time
        time.sleep(_TURN)
    town.hear()


def page(day: Day, kind: str) -> str:
    """Return the day as a table."""
    allowed, seen = budgets(kind), day.seen
    source = day.told.get("sources", [{}])[0]
    met = f"{source.get('accepted', 0)} telegrams, {day.connections} connections"
    rows = [
        f"{day.rounds} rounds, {met}",
        f"{seen.resident / 2**20:.1f} MiB resident at most; {seen.anonymous / 2**20:.1f} MiB without files",
        f"{seen.processor:.1f} s of processor time, {day.up:,} bytes up, {day.down:,} bytes down",
        "",
        "| a day | measured | budget |",
        "| --- | ---: | ---: |",
    ]
    rows += [f"| {name} | {n:,} | {allowed[name]:,} |" for name, n in day.measured.items()]
    return "\n".join(rows) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Run a day, print its measurements, and return an exit code."""
    usual = Plan()
    parser = argparse.ArgumentParser(
        prog="python -m tools.day",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--every", type=float, default=10.0, help="seconds between telegrams (10)")
    parser.add_argument("--pace", type=float, default=1200.0, help="of the quiet hours (1200)")
    parser.add_argument("--bundle", default=usual.bundle, help=f"({usual.bundle})")
    parser.add_argument("--method", default=usual.method, help=f"({usual.method})")
    parser.add_argument("--rounds", type=int, default=usual.rounds, help=f"({usual.rounds})")
    parser.add_argument(
        "--rounds-per-day", type=int, default=0, help="of the schedule; 0: back to back (0)"
    )
    parser.add_argument("--encoding", choices=("f4", "q8", "q4"), default="f4", help="of updates")
    parser.add_argument("--downlink", choices=("f4", "q8"), default="f4", help="of new models")
    parser.add_argument("--behind", type=int, default=usual.behind, help="days of readings (28)")
    parser.add_argument("--python", default="", help="interpreter of the device; this one")
    parser.add_argument("--json", action="store_true", help="print all of it")
    parser.add_argument("--keep", type=Path, help="folder for logs and files")
    args = parser.parse_args(argv)
    plan = Plan(
        args.bundle,
        every=args.every,
        rounds=args.rounds,
        method=args.method,
        behind=args.behind,
        python=args.python,
        rounds_per_day=args.rounds_per_day,
        encoding=args.encoding,
        downlink=args.downlink,
    )
    with tempfile.TemporaryDirectory(prefix="gridfed-day-") as spare:
        folder = args.keep or Path(spare)
        folder.mkdir(parents=True, exist_ok=True)
        day = live(folder, plan, args.pace)
    print(json.dumps(asdict(day)) if args.json else page(day, plan.kind))
    return 0 if day.keeps_to(budgets(plan.kind)) else 1


if __name__ == "__main__":
    sys.exit(main())
