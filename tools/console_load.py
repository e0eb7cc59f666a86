"""Load and kill the operator's console on this machine, and print the figures of docs/measurements.md.

    python -m tools.console_load pages                         # 5 000 devices, 50 viewers
    python -m tools.console_load sign-ins --attempts 100000
    python -m tools.console_load kills --kills 100 --devices 50

Every server is on the loopback address, every loop is bounded, and what was started is ended.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aggregator.commands import main as aggregator_command
from aggregator.config import AggregatorConfig
from aggregator.store.ledgers import Ledger, LedgerRow
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice, Version
from edge_sdk.errors import Reason
from edge_sdk.protocol import keys
from firmware_sim.fleet.federation import free_port

PASSWORD = "correct horse battery"  # noqa: S105 - of a user whom this tool adds and removes
AT_A_TIME, LONGEST = 3, 8.0  # consoles beside a fleet; s that one of them lives
BY_ADDRESS = 25  # attempts from one address
REQUESTS = 30  # of each page
PATIENCE = 180.0  # s until a console answers
CONFIG = """\
fleet = "north"
state = "aggregator"
broker = {{ url = "mqtt://127.0.0.1:1" }}
http = {{ listen = "off" }}
run = {{ bundle = "load-mlp", method = "fedavg", quorum = 3 }}
admission = {{ max_updates = 400 }}
[console]
listen = "127.0.0.1:{port}"
"""


@dataclass(slots=True)
class RunningConsole:
    """A console in a process of its own."""

    config: Path  # its configuration file, which has a section ``console``
    port: int
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        command = (
            sys.executable,
            "-m",
            "aggregator.extensions.console",
            "--config",
            str(self.config),
        )
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def connect(self, source: str = "127.0.0.1") -> http.client.HTTPConnection:
        """Return a connection from an address of this machine."""
        return http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=60, source_address=(source, 0)
        )

    def request(self, path: str, form: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """Send one request on a connection of its own; return status and body."""
        link = self.connect()
        try:
            return self.send(link, path, form)
        finally:
            link.close()

    def send(
        self, link: http.client.HTTPConnection, path: str, form: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send one request on a connection; return status and body."""
        if form is None:
            link.request("GET", path)
        else:
            head = {"Content-Type": "application/x-www-form-urlencoded"}
            head["Origin"] = f"http://127.0.0.1:{self.port}"
            link.request("POST", path, urlencode(form), head)
        answer = link.getresponse()
        return answer.status, answer.read()

    def answers(self) -> bool:
        """Return whether it serves a page."""
        try:
            return self.request("/static/console.css")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def wait(self) -> RunningConsole:
        """Return this console once it answers.

        Raises:
            SystemExit: It does not within ``PATIENCE`` seconds.
        """
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends and self.process.poll() is None:
            if self.answers():
                return self
            time.sleep(0.05)
        raise SystemExit("the console does not answer")

    def memory(self) -> int:
        """Return the resident bytes of the process."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text("ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def processor(self) -> float:
        """Return the processor seconds that it has used."""
        found = Path(f"/proc/{self.process.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(found[11]) + int(found[12])) / os.sysconf("SC_CLK_TCK")

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(60)


def new_fleet(folder: Path, devices: int = 0, rounds: int = 0) -> RunningConsole:
    """Set up a fleet whose devices have answered some closed rounds; start its console, and wait for it."""
    port = free_port()
    path = folder / "aggregator.toml"
    path.write_text(CONFIG.format(port=port), "utf-8")
    if aggregator_command.main(["init", str(path)]) != 0:
        raise SystemExit("the fleet could not be set up")
    names = [f"meter-{n:05}" for n in range(devices)]
    with open_store(AggregatorConfig.load(path).database) as store, store.transaction():
        for n, name in enumerate(names):
            public = keys.from_seed(n.to_bytes(32, "big")).public
            labels = (("site", f"s{n % 40}"), ("kind", "meter"))
            store.devices.save(EnrolledDevice(name, (public,), labels=labels))
        run = store.runs.latest()
        assert run is not None
        for number in range(1, rounds + 1):
            report = {"cohort": names, "loss": 1.0 / number, "step": 0.1, "dropped": {}}
            at = 1_760_000_000_000 + 60_000 * number
            closed = Version(run.run, number, number, True, bytes(32), report, at)
            store.commit(run.run, {}, number, closed=closed)
            for n, name in enumerate(names):
                code = Reason.TOO_STALE if (n + number) % 50 == 0 else Reason.ACCEPTED
                row = LedgerRow(bytes(32), code, run.run, number)
                store.refuse(name, Ledger(spent=number), (1, number), row)
    return RunningConsole(path, port).wait()


def percentile(seconds: Sequence[float], share: float) -> float:
    return 1000 * sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]


def pages(devices: int, viewers: int, seconds: float) -> Mapping[str, Any]:
    """Measure the pages of a large fleet, and the processor that watching viewers cost."""
    found: dict[str, Any] = {"devices": devices}
    paths = {"/": "first page", "/devices": "list", "/devices?q=99&page=2": "search"}
    paths |= {"/round?run=1&round=20": "round", "/budgets": "budgets", "/suspects": "suspects"}
    with tempfile.TemporaryDirectory() as place:
        console = new_fleet(Path(place), devices, rounds=20)
        try:
            for path, name in paths.items():
                console.request(path)
                taken, size, used = [], 0, console.processor()
                for _ in range(REQUESTS):
                    begun = time.perf_counter()
                    status, body = console.request(path)
                    taken.append(time.perf_counter() - begun)
                    assert status == 200, (path, status)
                    size = len(body)
                median = round(1000 * statistics.median(taken), 1)
                found[name] = {"bytes": size, "median ms": median}
                found[name]["p95 ms"] = round(percentile(taken, 0.95), 1)
                each = 1000 * (console.processor() - used) / REQUESTS
                found[name]["processor ms"] = round(each, 1)
            links = []
            for _ in range(viewers):
                link = http.client.HTTPConnection("127.0.0.1", console.port, timeout=60)
                link.request("GET", "/events")
                links.append((link, link.getresponse()))
            before, begun = console.processor(), time.monotonic()
            time.sleep(seconds)
            share = (console.processor() - before) / (time.monotonic() - begun)
            found["viewers"] = {"number": viewers, "share of a core": round(share, 4)}
            for link, _ in links:
                link.close()
        finally:
            console.end()
    return found


def sign_ins(attempts: int, seed: int = 0) -> Mapping[str, Any]:
    """Try to sign in many times from many loopback addresses; return statuses and memory.

    Args:
        attempts: Number of attempts; a tenth of them come before the memory is compared.
        seed: Seed of names, passwords and addresses.
    """
    from aggregator.extensions.console.app import users_file  # noqa: PLC0415 - an extra
    from aggregator.extensions.console.users import new_user, write_users  # noqa: PLC0415

    draw, counts, memory = random.Random(seed), Counter[int](), []  # noqa: S311 - a load
    with tempfile.TemporaryDirectory() as place:
        console = new_fleet(Path(place), 10)
        try:
            users = {name: new_user(name, "operator", PASSWORD) for name in ("alice", "bob")}
            write_users(users_file(AggregatorConfig.load(console.config)), users)
            begun, link = time.monotonic(), console.connect()
            for number in range(attempts):
                if number % BY_ADDRESS == 0:
                    link.close()
                    link = console.connect(
                        f"127.{draw.randrange(1, 60)}.0.{draw.randrange(1, 255)}"
                    )
                kinds = ("alice", f"user{draw.randrange(10**6)}", "<script>" * draw.randrange(200))
                form = {"name": draw.choice(kinds), "password": f"guess {number}"}
                status, _ = console.send(link, "/sign-in", form)
                counts[status] += 1
                if number % max(1, attempts // 10) == 0:
                    memory.append(console.memory())
            link.close()
            seconds, last = time.monotonic() - begun, console.memory()
            good, _ = console.request("/sign-in", {"name": "bob", "password": PASSWORD})
            attacked, _ = console.request("/sign-in", {"name": "alice", "password": PASSWORD})
        finally:
            console.end()
    return {
        "attempts": attempts,
        "seconds": round(seconds),
        "statuses": {str(status): count for status, count in sorted(counts.items())},
        "resident bytes after a tenth": memory[1] if len(memory) > 1 else memory[0],
        "resident bytes at the end": last,
        "another user signs in": good == 303,
        "the attacked user signs in from another address": attacked == 303,
    }


def journal_digest(database: Path) -> str:
    """Return the digest of every update and version of a database, by round and device."""
    digest = hashlib.sha256()
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        for query in (
            "SELECT run, round, device, seq, vector FROM journal WHERE kind = 'update' ORDER BY 1, 2, 3, 4",
            "SELECT run, round, version, moved, digest FROM versions ORDER BY 1, 2",
        ):
            for row in db.execute(query):
                digest.update(repr(row).encode())
    return digest.hexdigest()


def fleet_run(folder: Path, devices: int, rounds: int) -> subprocess.Popen[bytes]:
    """Start a fleet of simulated devices with a daemon and a broker."""
    command = (sys.executable, "-m", "firmware_sim", "fleet", "--in-process", "--steps", "2")
    sizes = ("--devices", str(devices), "--rounds", str(rounds), "--out", str(folder))
    return subprocess.Popen(
        [*command, *sizes, "--limit", "3600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def database_of(folder: Path) -> Path | None:
    """Return the database of a fleet that was started in a folder, once it is there."""
    return next(iter(folder.glob("**/fleet/aggregator/aggregator.db")), None)


def kills(number: int, devices: int, rounds: int, seed: int = 0) -> Mapping[str, Any]:
    """Run a fleet twice, the second time with consoles that are killed; compare the journals."""
    digests, killed = [], Counter[str]()
    for watched in (False, True):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            fleet = fleet_run(folder, devices, rounds)
            try:
                if watched:
                    killed = _watch_and_kill_all(folder, fleet, number, seed)
                fleet.wait(3600)
            finally:
                if fleet.poll() is None:
                    fleet.terminate()
                    fleet.wait(60)
            database = database_of(folder)
            if fleet.returncode != 0 or database is None:
                raise SystemExit(f"the fleet ended with {fleet.returncode}")
            digests.append(journal_digest(database))
    return {
        "kills while devices learned": killed.total(),
        "killed": dict(sorted(killed.items())),
        "devices": devices,
        "rounds": rounds,
        "digest without console": digests[0],
        "digest with killed consoles": digests[1],
        "equal": digests[0] == digests[1],
    }


def _watch_and_kill_all(
    folder: Path, fleet: subprocess.Popen[bytes], number: int, seed: int
) -> Counter[str]:
    while fleet.poll() is None and database_of(folder) is None:
        time.sleep(0.2)

    def kill(order: int) -> str:
        draw = random.Random(seed + order)  # noqa: S311 - when to kill
        return _watch_and_kill(folder, draw) if fleet.poll() is None else ""

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return Counter(done for done in pool.map(kill, range(number)) if done)


def _watch_and_kill(folder: Path, draw: random.Random) -> str:
    """Start a console beside a fleet, read pages of it, and kill it; return its answers."""
    database = database_of(folder)
    assert database is not None
    port, source = free_port(), database.parents[1] / "aggregator.toml"
    config = source.with_name(f"console-{port}.toml")
    text = source.read_text("utf-8")
    config.write_text(f'{text}\n[console]\nlisten = "127.0.0.1:{port}"\n', "utf-8")
    console, served = RunningConsole(config, port), 0
    ends = time.monotonic() + draw.uniform(0.2, LONGEST)
    try:
        while time.monotonic() < ends:
            try:
                path = draw.choice(("/", "/runs", "/run?run=1", "/devices", "/suspects", "/orders"))
                served += console.request(path)[0] == 200
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
    finally:
        console.end(signal.SIGKILL)
    return "while it served pages" if served else "while it started"


def main() -> None:
    """Run one measurement, and print it as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("pages", "sign-ins", "kills"))
    parser.add_argument("--attempts", type=int, default=100_000, help="sign-ins (100000)")
    parser.add_argument("--kills", type=int, default=100, help="consoles that are killed (100)")
    parser.add_argument("--devices", type=int, help="devices (5000 for pages, 50 for kills)")
    parser.add_argument("--rounds", type=int, default=40, help="rounds beside kills (40)")
    parser.add_argument("--viewers", type=int, default=50, help="watching viewers (50)")
    parser.add_argument("--seconds", type=float, default=30.0, help="time that they watch (30)")
    args = parser.parse_args()
    if args.what == "pages":
        found = pages(args.devices or 5000, args.viewers, args.seconds)
    elif args.what == "sign-ins":
        found = sign_ins(args.attempts)
    else:
        found = kills(args.kills, args.devices or 50, args.rounds)
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
