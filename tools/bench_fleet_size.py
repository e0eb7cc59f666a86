"""Cost of a daemon by the number of enrolled devices: start, memory, and a second without messages.

    python -m tools.bench_fleet_size                            # 1,000, 10,000 and 100,000 devices
    python -m tools.bench_fleet_size --devices 1000 300000

Each number runs in a process of its own: a fleet is set up in a file of SQLite, devices are enrolled, and a
daemon is opened on it without a broker. Times are processor times.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from aggregator.commands.main import main as aggregator
from aggregator.config import AggregatorConfig
from aggregator.daemon import Daemon
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice
from firmware_sim.testing.loopback import LoopbackBroker

ROOT = Path(__file__).resolve().parents[1]
CONFIG = """
fleet = "bench"
state = "state"
broker = { url = "mqtt://127.0.0.1:1883" }
http = { listen = "off" }

[run]
bundle = "load-mlp"
method = "fedavg"
quorum = 2
"""
SECONDS = 10  # turns that are measured, each with all that is due every second


@dataclass(frozen=True)
class Size:
    """Cost of a daemon."""

    devices: int
    enrol: float  # processor seconds of their enrolment, in one transaction
    start: float  # processor seconds until the daemon is open
    memory: float  # Growth of the process by the start, MB
    second: float  # processor milliseconds of a second in which nothing happens
    file: float  # size of the database, MB


class SteppedClock:
    """Clock that moves when a caller advances it."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def monotonic(self) -> float:
        """Return seconds."""
        return self.now

    def wall(self) -> int:
        """Return Unix milliseconds."""
        return 1_800_000_000_000 + int(1000 * self.now)


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def measured(folder: Path, devices: int) -> Size:
    """Set a fleet up, enrol its devices, and open its daemon."""
    path = folder / "aggregator.toml"
    path.write_text(CONFIG, "utf-8")
    if aggregator(["init", str(path)]):
        raise SystemExit("bench_fleet_size: init failed")
    config = AggregatorConfig.load(path)
    begun = time.process_time()
    with open_store(config.database) as store, store.transaction():
        for number in range(devices):
            key = hashlib.sha256(str(number).encode()).digest()
            store.devices.save(EnrolledDevice(f"meter-{number:07}", (key,)))
    enrolled = time.process_time()
    before, clock = resident(), SteppedClock()
    with Daemon(config, transport=LoopbackBroker().link("_agg"), clock=clock) as daemon:
        daemon.turn()
        started, after = time.process_time(), resident()
        for _ in range(SECONDS):
            clock.now += 1.0
            daemon.turn()
        turned = time.process_time()
    return Size(
        devices,
        enrolled - begun,
        started - enrolled,
        (after - before) / 1e6,
        1e3 * (turned - started) / SECONDS,
        config.file_database.stat().st_size / 1e6,
    )


def table(sizes: Sequence[Size]) -> str:
    """Return the costs as a Markdown table.

    >>> print(table([Size(1000, 0.1, 0.2, 5.0, 1.5, 0.3)]).splitlines()[-1])
    | 1,000 | 0.1 | 0.2 | 5 | 1.5 | 0.3 |
    """
    lines = [
        "| devices | enrolment, s | start, s | memory, MB | an idle second, ms | database, MB |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {one.devices:,} | {one.enrol:.1f} | {one.start:.1f} | {one.memory:.0f} "
        f"| {one.second:.1f} | {one.file:.1f} |"
        for one in sizes
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every number of devices and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asdict(measured(Path(folder), options.devices[0]))))
        return 0
    found = []
    for devices in options.devices:
        program = [sys.executable, "-m", "tools.bench_fleet_size", "--one", "--devices"]
        done = subprocess.run(
            [*program, str(devices)], cwd=ROOT, check=True, capture_output=True, text=True
        )
        found.append(Size(**json.loads(done.stdout.splitlines()[-1])))
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
