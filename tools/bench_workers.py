"""Updates a second of one admission worker beside several, with the processor time of every program.

    python -m tools.bench_workers --url postgresql://gridfed@/bench     # an empty database
    python -m tools.bench_workers --url ... --updates 2000 --repeat 5 --most 2 --enc q4

A Mosquitto and ``gridfed-aggregator worker`` processes are started. In each block the workers are stopped
(SIGSTOP) while signed updates fill their queues at the broker; then they continue, and the seconds until
all updates are in the database are measured, so the program that publishes takes no part. Blocks of one
worker alternate with blocks of several. Each worker is a session of its own, because Linux divides a busy
machine among sessions (or services), not among processes.

From the processor time of workers, broker and database follows how much several workers can gain on these
cores where nothing else runs (``bounds``). At the end, blocks of updates pass the daemon's ingress: received
by it, and taken from the workers' queue. Compare ratios: times of a shared machine move.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aggregator.config import AggregatorConfig, bind
from aggregator.extensions.authority.access import broker_process
from aggregator.extensions.postgres.postgres_queue import PostgresQueue
from aggregator.extensions.postgres.update_queue import open_queue
from aggregator.operations.run_setup import set_up
from aggregator.operations.signing_keys import RootSigners
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice
from edge_sdk.link.transport import Message
from edge_sdk.protocol import codec, envelope, keys, topics
from edge_sdk.protocol.envelope import AGGREGATOR
from edge_sdk.protocol.keys import SigningKey
from edge_sdk.protocol.messages import UpdateMessage
from firmware_sim.fleet.processes import processor_seconds
from tools.bench_queue import daemon_costs, schema
from tools.mqtt_sender import publish

if TYPE_CHECKING:
    import psycopg

FLEET = "bench"
DEVICES = 100
PATIENCE = 300.0  # s for one block
LOOK = 0.01  # s between two looks into the database
PROGRAMS = ("workers", "broker", "database")

CONFIG = """\
fleet = "{fleet}"
state = "state"
broker = {{ url = "{broker}" }}
store = {{ url = "{database}" }}
http = {{ listen = "off" }}
admission = {{ workers = true }}
log = {{ level = "warning" }}

[run]
bundle = "load-lstm-week"
method = "fedavg"
quorum = {devices}
"""


@dataclass(frozen=True)
class Throughput:
    """Updates and processor time of the workers of one block."""

    rate: float  # updates a second, from the first message to the last row
    spent: Mapping[str, float]  # processor time by program (``PROGRAMS``), seconds an update


class Fleet:
    """A fleet that is set up, with updates that its devices have signed.

    Args:
        database: URL of the database, empty.
    """

    def __init__(
        self, folder: Path, broker: str, database: str, *, updates: int, enc: str = "f4"
    ) -> None:
        self.file = folder / "aggregator.toml"
        text = CONFIG.format(fleet=FLEET, broker=broker, database=database, devices=DEVICES)
        self.file.write_text(text, "utf-8")
        config = AggregatorConfig.load(self.file, {})
        config.state.mkdir()
        root, online = keys.generate(), keys.generate()
        keys.save_public(config.root_public, root.public)
        keys.save_signing_key(config.signing_key, online)
        run = bind(config)
        signers = {f"meter-{number}": keys.generate() for number in range(DEVICES)}
        with open_store(config.database) as store:
            set_up(
                run,
                store,
                root=RootSigners.of(root),
                online=online.public,
                now=int(time.time() * 1000),
            )
            with store.transaction():
                for name, key in signers.items():
                    store.devices.save(EnrolledDevice(name, (key.public,)))
        vector = codec.pack_tensor(np.random.default_rng(7).normal(size=run.spec.shared_size), enc)
        unsigned = replace(_NOTHING, spec=run.spec.digest, enc=enc, blob=vector)
        names = [f"meter-{at % DEVICES}" for at in range(updates)]
        self.updates = [
            signed(name, signers[name], replace(unsigned, seq=at, spent=at))
            for at, name in enumerate(names, 1)
        ]


_NOTHING = UpdateMessage(
    run=1, round=1, base=0, life=1, seq=1, spent=1, spec=b"", part="delta", enc="f4", n=64, blob=b""
)


def signed(name: str, key: SigningKey, message: UpdateMessage, fleet: str = FLEET) -> Message:
    """Return a signed update of a device with its topic."""
    payload = envelope.seal(
        codec.encode(message),
        signer=key,
        kind=message.kind,
        sender=name,
        recipient=AGGREGATOR,
        fleet=fleet,
    )
    return Message(topics.up(fleet, name, message.kind), payload)


@contextmanager
def workers(
    fleet: Fleet, queue: PostgresQueue, count: int
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start workers, wait until updates reach them, and end them."""
    command = [sys.executable, "-m", "aggregator", "worker", str(fleet.file)]
    started = [
        subprocess.Popen([*command, "--name", str(name)], start_new_session=True)
        for name in range(count)
    ]
    try:
        until = time.monotonic() + PATIENCE
        while sum(one.is_alive for one in queue.workers()) < count:
            if time.monotonic() > until or any(one.poll() is not None for one in started):
                raise SystemExit("a worker did not start")
            time.sleep(0.05)
        time.sleep(0.5)  # their subscriptions are on the way
        yield started
    finally:
        for one in started:
            one.kill()
            one.wait()


class Accounts:
    """Processor time of the programs of a block.

    Raises:
        SystemExit: The database's server is on another machine.
    """

    def __init__(self, db: psycopg.Connection, broker: int, workers: Sequence[int]) -> None:
        found = db.execute(
            "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND (datname = current_database() OR datname IS NULL)"
        )
        database = [pid for (pid,) in found]
        if not all(Path(f"/proc/{pid}/comm").exists() for pid in database):
            raise SystemExit("--url: the server is not on this machine: its processor is unknown")
        self._pids = dict(zip(PROGRAMS, (list(workers), [broker], database), strict=True))
        self._begun = self._now()

    def spent(self) -> dict[str, float]:
        """Return the seconds since the start, by program."""
        return {name: now - self._begun[name] for name, now in self._now().items()}

    def _now(self) -> dict[str, float]:
        return {name: sum(map(processor_seconds, pids)) for name, pids in self._pids.items()}


def measured(
    fleet: Fleet, broker: broker_process.BrokerProcess, queue: PostgresQueue, db: psycopg.Connection,
    count: int,
) -> Throughput:  # fmt: skip
    """Return the throughput of ``count`` workers on all updates of the fleet, and empty the queue."""
    wanted = len(fleet.updates)
    with workers(fleet, queue, count) as processes:
        for one in processes:
            one.send_signal(signal.SIGSTOP)
        publish(broker.url, fleet.updates)
        accounts = Accounts(db, broker.pid or 0, [one.pid for one in processes])
        begun = time.perf_counter()
        for one in processes:
            one.send_signal(signal.SIGCONT)
        while (found := queue.length()) < wanted:
            if time.perf_counter() - begun > PATIENCE:
                raise SystemExit(f"{found} of {wanted} updates are in the queue")
            time.sleep(LOOK)
        seconds, spent = time.perf_counter() - begun, accounts.spent()
    if any(not one.verified_by for one in queue.oldest(wanted)):
        raise SystemExit("a worker refused an update")
    db.execute("TRUNCATE queued_updates")
    return Throughput(wanted / seconds, {name: one / wanted for name, one in spent.items()})


def bounds(
    one: Mapping[str, float], several: Mapping[str, float], count: int, cores: int
) -> tuple[float, float]:
    """Return the ratios of several workers to one that processor times allow where nothing else runs.

    Several workers have all cores together; the broker, and each worker with its session of the
    database, have one core at most. One worker streams its updates into the database and waits for the
    commit: the first ratio is for a database that works while the worker does, the second for one that
    works while the worker waits.

    Args:
        one: Seconds an update by program (``PROGRAMS``), with one worker.

    Example:
        On two cores a broker that costs nothing allows up to twice the rate. One that costs half as much
        as worker and database allows a third more.

        >>> spent = {"workers": 0.3, "broker": 0.0, "database": 0.1}
        >>> [round(ratio, 2) for ratio in bounds(spent, spent, 2, 2)]
        [1.5, 2.0]
        >>> spent = {"workers": 0.3, "broker": 0.2, "database": 0.1}
        >>> [round(ratio, 2) for ratio in bounds(spent, spent, 2, 2)]
        [1.0, 1.33]
    """
    alone = one["workers"], one["workers"] + one["database"]
    best = max(sum(several.values()) / cores, several["workers"] / count, several["broker"])
    return max(alone[0], one["broker"]) / best, max(alone[1], one["broker"]) / best


def medians(blocks: Sequence[Throughput]) -> Throughput:
    """Return the median of each figure.

    >>> medians([Throughput(3.0, dict.fromkeys(PROGRAMS, 1.0))] * 2).rate
    3.0
    """
    return Throughput(
        statistics.median(one.rate for one in blocks),
        {name: statistics.median(one.spent[name] for one in blocks) for name in PROGRAMS},
    )


def table(found: Mapping[int, Sequence[Throughput]]) -> str:
    """Return the medians as a Markdown table, and the ratio to one worker.

    >>> spent = {"workers": 0.0004, "broker": 0.0001, "database": 0.0002}
    >>> print(table({1: [Throughput(1000.0, spent)], 2: [Throughput(1600.0, spent)]}).splitlines()[-1])
    | 2 | 1600 | 1.60 | 0.40 | 0.10 | 0.20 | 0.70 |
    """
    lines = [
        "| workers | updates a second | ratio | workers, ms | broker, ms | database, ms | all, ms |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    base = medians(found[1]).rate
    for count, blocks in sorted(found.items()):
        here = medians(blocks)
        times = [*here.spent.values(), sum(here.spent.values())]
        shown = " | ".join(f"{one * 1e3:.2f}" for one in times)
        lines.append(f"| {count} | {here.rate:.0f} | {here.rate / base:.2f} | {shown} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the tables."""
    import psycopg  # noqa: PLC0415 - extra

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--url", required=True, help="PostgreSQL database, in new schemas")
    parser.add_argument("--updates", type=int, default=2000, help="updates of a block (2000)")
    parser.add_argument("--repeat", type=int, default=5, help="blocks of each number (5)")
    parser.add_argument("--most", type=int, default=2, help="workers beside one (2)")
    parser.add_argument("--enc", choices=codec.ENCODINGS, default="f4", help="encoding (f4)")
    parser.add_argument("--no-daemon", action="store_true", help="only the workers")
    args = parser.parse_args(argv)
    if not re.match(r"postgres(ql)?://", args.url):
        parser.error(f"--url: expected postgresql://…, got {args.url!r}")
    folder = Path(tempfile.mkdtemp(prefix="gridfed-workers-"))
    found: dict[int, list[Throughput]] = {1: [], args.most: []}
    try:
        with (
            broker_process.start("mosquitto", folder=folder / "broker") as broker,
            schema(args.url) as place,
            psycopg.connect(place.url, autocommit=True) as db,
        ):
            fleet = Fleet(folder, broker.url, place.url, updates=args.updates, enc=args.enc)
            queue = open_queue(place)
            for number in range(args.repeat):
                for count in sorted(
                    found, reverse=number % 2 == 1
                ):  # what changes steadily cancels
                    blocks = found[count]
                    blocks.append(measured(fleet, broker, queue, db, count))
                    print(f"block {number + 1}, {count} workers: {blocks[-1].rate:.0f}", flush=True)
            queue.close()
        load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{len(fleet.updates[0].payload)} bytes an update ({args.enc})\n\n{table(found)}\n")
    ratios = [b.rate / a.rate for a, b in zip(found[1], found[args.most], strict=True)]
    shown = ", ".join(f"{one:.2f}" for one in sorted(ratios))
    print(
        f"ratios of neighbouring blocks: {shown}; median {statistics.median(ratios):.2f}; load {load}"
    )
    cores = len(os.sched_getaffinity(0))
    one, several = (medians(found[count]).spent for count in (1, args.most))
    least, most = bounds(one, several, args.most, cores)
    print(f"processor times allow {least:.2f} to {most:.2f} on {cores} cores without other work\n")
    if args.no_daemon:
        return 0
    print("| an update in the daemon | wall, ms | processor, ms |\n| --- | ---: | ---: |")
    for name, cost in daemon_costs(args.url, 3).items():
        print(f"| {name} | {cost.wall * 1e3:.2f} | {cost.processor * 1e3:.2f} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
