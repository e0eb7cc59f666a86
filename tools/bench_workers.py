"""Updates a second of one admission worker beside several, in one run, and the cost of a checked update.

    python -m tools.bench_workers --url postgresql://gridfed@/bench     # an empty database
    python -m tools.bench_workers --url ... --updates 2000 --repeat 5 --most 2

A Mosquitto and ``gridfed-aggregator worker`` processes are started. In each block the workers are stopped
(SIGSTOP) while signed updates fill their queues at the broker; then they continue, and the seconds until
all updates are in the database are measured, so the program that publishes takes no part. Blocks of one
worker alternate with blocks of several. At the end, blocks of updates pass the daemon's ingress: received
by it, and taken from the workers' queue. Compare ratios: times of a shared machine move.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from aggregator.brokers import broker_process
from aggregator.config import AggregatorConfig, bind
from aggregator.operations.root_signers import RootSigners
from aggregator.operations.run_setup import set_up
from aggregator.store.location import PostgresUrl
from aggregator.store.opener import open_queue, open_store
from aggregator.store.types import EnrolledDevice
from aggregator.store.update_queue import QueuedUpdate, UpdateQueue
from edge_sdk.wire import keys
from edge_sdk.wire.keys import SigningKey
from edge_sdk.wire.link.transport import Message
from edge_sdk.wire.protocol import codec, envelope, topics
from edge_sdk.wire.protocol.envelope import AGGREGATOR
from edge_sdk.wire.protocol.messages import UpdateMessage
from tools.bench_store import BLOCK, Admission, Cost, Sender, cost_since

FLEET = "bench"
DEVICES = 100
PATIENCE = 300.0  # s for one block
LOOK = 0.005  # s between two looks into the database
TICKS = os.sysconf("SC_CLK_TCK")

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
    """What the workers of one block did.

    Attributes:
        rate: Updates a second, from the first message to the last row.
        processor: Processor time of the workers, seconds an update.
    """

    rate: float
    processor: float


class Fleet:
    """A fleet that is set up, with updates that its devices have signed.

    Args:
        folder: Folder of its files.
        broker: Address of the broker.
        database: URL of the database, empty.
        updates: Number of updates.
    """

    def __init__(self, folder: Path, broker: str, database: str, updates: int) -> None:
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
                    store.put_client(EnrolledDevice(name, (key.public,)))
        vector = np.random.default_rng(7).normal(size=run.spec.shared_size).astype("<f4").tobytes()
        names = list(signers)
        self.updates = [
            signed(names[at % DEVICES], signers[names[at % DEVICES]], at, run.spec.digest, vector)
            for at in range(updates)
        ]


def signed(name: str, key: SigningKey, number: int, spec: bytes, vector: bytes) -> Message:
    """Return a signed update of a device with its topic."""
    message = UpdateMessage(
        run=1,
        round=1,
        base=0,
        life=1,
        seq=1 + number,
        spent=1 + number,
        spec=spec,
        part="delta",
        enc="f4",
        n=64,
        blob=vector,
    )
    payload = envelope.seal(
        codec.encode(message),
        signer=key,
        kind=message.kind,
        sender=name,
        recipient=AGGREGATOR,
        fleet=FLEET,
    )
    return Message(topics.up(FLEET, name, message.kind), payload)


def publish(broker: str, messages: Sequence[Message]) -> None:
    """Publish messages with quality of service 1 (MQTT 3.1.1), and wait for every acknowledgement."""
    place = urlsplit(broker)
    packets = b"".join(
        _packet(0x32, _text(one.topic) + struct.pack("!H", 1 + at % 65_535) + one.payload)
        for at, one in enumerate(messages)
    )
    hello = _packet(0x10, _text("MQTT") + b"\x04\x02" + struct.pack("!H", 0) + _text("bench"))
    with socket.create_connection((place.hostname or "", place.port or 1883)) as link:
        link.sendall(hello)
        missing, sent = 4 + 4 * len(messages), memoryview(packets)
        link.setblocking(False)
        until = time.monotonic() + PATIENCE
        while missing:
            if time.monotonic() > until:
                raise SystemExit("the broker did not acknowledge every update")
            try:
                if sent:
                    sent = sent[link.send(sent[: 1 << 18]) :]
            except BlockingIOError:
                time.sleep(0.001)
            try:
                missing -= len(link.recv(65_536))
            except BlockingIOError:
                time.sleep(0.0 if sent else 0.001)
        link.setblocking(True)
        link.sendall(b"\xe0\x00")


def _text(value: str) -> bytes:
    return struct.pack("!H", len(value)) + value.encode()


def _packet(kind: int, rest: bytes) -> bytes:
    """Return a packet of MQTT.

    >>> _packet(0x30, bytes(200))[:3].hex()
    '30c801'
    """
    length, left = bytearray(), len(rest)
    while left > 127:
        length.append(left & 127 | 128)
        left >>= 7
    length.append(left)
    return bytes([kind]) + bytes(length) + rest


@contextmanager
def workers(
    fleet: Fleet, queue: UpdateQueue, count: int
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start workers, wait until updates reach them, and end them."""
    command = [sys.executable, "-m", "aggregator", "worker", str(fleet.file)]
    started = [subprocess.Popen([*command, "--name", str(name)]) for name in range(count)]
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


def processor_of(processes: Sequence[subprocess.Popen[bytes]]) -> float:
    """Return the processor time of processes, in seconds."""
    total = 0
    for one in processes:
        fields = Path(f"/proc/{one.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def measured(fleet: Fleet, broker: str, queue: UpdateQueue, count: int) -> Throughput:
    """Return what ``count`` workers do with all updates of the fleet, and empty the queue."""
    wanted = len(fleet.updates)
    with workers(fleet, queue, count) as processes:
        for one in processes:
            one.send_signal(signal.SIGSTOP)
        publish(broker, fleet.updates)
        spent, begun = processor_of(processes), time.perf_counter()
        for one in processes:
            one.send_signal(signal.SIGCONT)
        while (found := queue.length()) < wanted:
            if time.perf_counter() - begun > PATIENCE:
                raise SystemExit(f"{found} of {wanted} updates are in the queue")
            time.sleep(LOOK)
        seconds = time.perf_counter() - begun
        spent = processor_of(processes) - spent
    if any(not one.verified_by for one in queue.oldest(wanted)):
        raise SystemExit("a worker refused an update")
    emptied(queue)
    return Throughput(wanted / seconds, spent / wanted)


def emptied(queue: UpdateQueue) -> None:
    """Remove every update."""
    while found := queue.oldest(1000):
        queue.remove(found)


class QueuedAdmission(Admission):
    """The daemon's ingress for updates that workers have checked.

    Args:
        place: The database, empty.
        sender: The device.
        queue: The queue in that database.
    """

    def __init__(self, place: PostgresUrl, sender: Sender) -> None:
        super().__init__(place, sender)
        self.queue = open_queue(place)
        self._key = sender.key.public

    def block(self, group: int) -> Cost:
        """Take ``BLOCK`` updates from the queue, admit ``group`` in a commit, and remove them."""
        messages = [next(self._sent) for _ in range(BLOCK)]
        self.queue.append(
            [QueuedUpdate(m.topic, m.payload, verified_by=self._key) for m in messages]
        )
        begun = time.perf_counter(), time.process_time()
        for _ in range(0, BLOCK, group):
            taken = self.queue.oldest(group)
            with self.store.transaction():
                for message in taken:
                    self._admit(message)
            self.queue.remove(taken)
        return cost_since(*begun)


def daemon_costs(url: str, blocks: int) -> dict[str, Cost]:
    """Return the daemon's cost of an update that it checks itself, and of one from a worker."""
    found: dict[str, list[Cost]] = {"checked by the daemon": [], "checked by a worker": []}
    kinds = {"checked by the daemon": Admission, "checked by a worker": QueuedAdmission}
    for _ in range(blocks):
        for name, kind in kinds.items():
            with schema(url) as place:
                engine = kind(place, Sender(5760))
                engine.block(BLOCK)
                found[name] += [engine.block(BLOCK) for _ in range(4)]
                if isinstance(engine, QueuedAdmission):
                    engine.queue.close()
                engine.store.close()
    return {
        name: Cost(
            statistics.median(one.wall for one in costs),
            statistics.median(one.processor for one in costs),
        )
        for name, costs in found.items()
    }


@contextmanager
def schema(url: str) -> Iterator[PostgresUrl]:
    """Make an empty schema in a database, and drop it at the end."""
    import psycopg  # noqa: PLC0415 - extra

    name = f"bench_{time.monotonic_ns()}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {name}".encode())
        try:
            mark = "&" if "?" in url else "?"
            yield PostgresUrl(f"{url}{mark}options=-c%20search_path%3D{name}")
        finally:
            db.execute(f"DROP SCHEMA {name} CASCADE".encode())


def table(found: dict[int, list[Throughput]]) -> str:
    """Return the medians as a Markdown table, and the ratio to one worker.

    >>> print(table({1: [Throughput(1000.0, 0.0004)], 2: [Throughput(1600.0, 0.0005)]}).splitlines()[-1])
    | 2 | 1600 | 0.50 | 1.60 |
    """
    lines = [
        "| workers | updates a second | processor of the workers, ms an update | ratio |",
        "| ---: | ---: | ---: | ---: |",
    ]
    base = statistics.median(one.rate for one in found[1])
    for count, blocks in sorted(found.items()):
        rate = statistics.median(one.rate for one in blocks)
        processor = statistics.median(one.processor for one in blocks)
        lines.append(f"| {count} | {rate:.0f} | {processor * 1e3:.2f} | {rate / base:.2f} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--url", required=True, help="PostgreSQL database, in new schemas")
    parser.add_argument("--updates", type=int, default=2000, help="updates of a block (2000)")
    parser.add_argument("--repeat", type=int, default=5, help="blocks of each number (5)")
    parser.add_argument("--most", type=int, default=2, help="workers beside one (2)")
    args = parser.parse_args(argv)
    if not re.match(r"postgres(ql)?://", args.url):
        parser.error(f"--url: expected postgresql://…, got {args.url!r}")
    folder = Path(tempfile.mkdtemp(prefix="gridfed-workers-"))
    found: dict[int, list[Throughput]] = {1: [], args.most: []}
    try:
        with (
            broker_process.start("mosquitto", folder=folder / "broker") as broker,
            schema(args.url) as place,
        ):
            fleet = Fleet(folder, broker.url, place.url, args.updates)
            queue = open_queue(place)
            for number in range(args.repeat):
                for count, blocks in found.items():
                    blocks.append(measured(fleet, broker.url, queue, count))
                    print(f"block {number + 1}, {count} workers: {blocks[-1].rate:.0f}", flush=True)
            queue.close()
        ratios = [b.rate / a.rate for a, b in zip(found[1], found[args.most], strict=True)]
        load = " ".join(f"{one:.1f}" for one in os.getloadavg())
        costs = daemon_costs(args.url, 3)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{table(found)}\n")
    shown = ", ".join(f"{one:.2f}" for one in sorted(ratios))
    print(
        f"ratios of neighbouring blocks: {shown}; median {statistics.median(ratios):.2f}; load {load}\n"
    )
    print("| an update in the daemon | wall, ms | processor, ms |\n| --- | ---: | ---: |")
    for name, cost in costs.items():
        print(f"| {name} | {cost.wall * 1e3:.2f} | {cost.processor * 1e3:.2f} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
