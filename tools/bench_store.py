"""Cost of an update on PostgreSQL beside SQLite, in one run.

    python -m tools.bench_store --url postgresql://gridfed@/bench     # an empty database
    python -m tools.bench_store --url ... --numbers 5760 --updates 512

Signed updates pass the daemon's own ingress: size, envelope, signature, schema, decoding, admission,
journal, ledger, commit. Blocks of one engine alternate with blocks of the other and with blocks that
stop before the database, so that all meet the same machine. Processor time is that of this process;
the server's own is not in it, but in the wall time. Compare ratios: times of a shared machine move.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aggregator.ingress.admission_context import AdmissionContext, WelcomeTerms
from aggregator.ingress.admission_policy import Limits, OpenRound
from aggregator.ingress.message_bodies import MessageBodies
from aggregator.ingress.message_ingress import MessageIngress
from aggregator.ingress.rate_limits import RateLimits
from aggregator.ingress.registry import Registry
from aggregator.ingress.replies import IngressParts, ReplySealer
from aggregator.store.dialect import DatabaseUrl, Location
from aggregator.store.opener import open_store
from aggregator.store.store import Store
from aggregator.store.types import EnrolledDevice
from edge_sdk.app.clock import SystemClock
from edge_sdk.link.transport import Message
from edge_sdk.protocol import codec, envelope, topics
from edge_sdk.protocol.contract.method import CONTRACTS
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.protocol.envelope import AGGREGATOR
from edge_sdk.protocol.keys import SigningKey, generate
from edge_sdk.protocol.messages import HelloMessage, UpdateMessage

FLEET, NAME = "bench", "meter-1"
BLOCK = 32  # updates of one engine, then of the next
GROUPS = (1, 8, 32)  # updates that share a commit, as messages that arrive together do


@dataclass(frozen=True)
class Cost:
    """Time of one update in a block."""

    wall: float
    processor: float


def medians(found: Mapping[str, Sequence[Cost]]) -> dict[str, Cost]:
    """Return the medians of the costs of each row.

    >>> medians({"a": [Cost(1.0, 0.5), Cost(3.0, 0.1), Cost(2.0, 0.2)]})
    {'a': Cost(wall=2.0, processor=0.2)}
    """
    return {
        name: Cost(
            statistics.median(one.wall for one in costs),
            statistics.median(one.processor for one in costs),
        )
        for name, costs in found.items()
    }


class Sender:
    """One device that signs updates with rising numbers.

    Args:
        numbers: Length of a vector.
    """

    def __init__(self, numbers: int) -> None:
        self.key: SigningKey = generate()
        self.spec = ParamSpec.of([("w", (numbers,))])
        self._vector = np.random.default_rng(7).normal(size=numbers).astype("<f4").tobytes()

    def sealed(self, message: HelloMessage | UpdateMessage) -> Message:
        """Return a signed message with its topic."""
        payload = envelope.seal(
            codec.encode(message),
            signer=self.key,
            kind=message.kind,
            sender=NAME,
            recipient=AGGREGATOR,
            fleet=FLEET,
        )
        return Message(topics.up(FLEET, NAME, message.kind), payload)

    def hello(self) -> Message:
        """Return the greeting of the first life."""
        return self.sealed(
            HelloMessage(
                life=1,
                nonce=bytes(16),
                spent=0,
                lost=True,
                open=(),
                wire=(1, 1),
                caps=(),
                sdk="0.1.0",
                conn=1,
            )
        )

    def updates(self) -> Iterator[Message]:
        """Return an update for each round, from the first on."""
        for number in itertools.count(1):
            yield self.sealed(
                UpdateMessage(
                    run=1,
                    round=number,
                    base=0,
                    life=1,
                    seq=number,
                    spent=number,
                    spec=self.spec.digest,
                    part="delta",
                    enc="f4",
                    n=64,
                    blob=self._vector,
                )
            )


class Admission:
    """The daemon's ingress on one database."""

    def __init__(self, place: Location, sender: Sender) -> None:
        self.store: Store = open_store(place)
        self.store.devices.save(EnrolledDevice(NAME, (sender.key.public,)))
        self._spec, self._sent = sender.spec, sender.updates()
        quotas = RateLimits(control=10**9, volume=10**12)
        sealer = ReplySealer(MessageBodies(FLEET), generate())
        self._ingress = MessageIngress(
            IngressParts(self.store, Registry(self.store), sealer, SystemClock()),
            WelcomeTerms(inline=10**9, quotas=quotas),
        )
        self._round = 0
        self._ingress.receive(sender.hello())

    def block(self, group: int) -> Cost:
        """Admit ``BLOCK`` updates, ``group`` in a commit."""
        messages = [next(self._sent) for _ in range(BLOCK)]
        begun = time.perf_counter(), time.process_time()
        for first in range(0, BLOCK, group):
            with self.store.transaction():
                for message in messages[first : first + group]:
                    self._admit(message)
        return cost_since(*begun)

    def _admit(self, message: Message) -> None:
        self._round += 1
        contract = CONTRACTS["fedavg"]["train"]
        limits = Limits(self._spec.digest, self._spec.shared_size, contract, max_norm=1e9)
        self._ingress.open(AdmissionContext(OpenRound(1, self._round, 0, is_open=True), limits))
        if not self._ingress.receive(message).entries:
            raise SystemExit(f"an update was refused: {dict(self._ingress.counts)}")


def cost_since(wall: float, processor: float) -> Cost:
    return Cost((time.perf_counter() - wall) / BLOCK, (time.process_time() - processor) / BLOCK)


def verified(sender: Sender) -> Callable[[], Cost]:
    """Return a function that verifies ``BLOCK`` updates, as before the database."""
    sent = sender.updates()

    def block() -> Cost:
        messages = [next(sent) for _ in range(BLOCK)]
        begun = time.perf_counter(), time.process_time()
        for message in messages:
            sealed = envelope.unseal(
                message.payload,
                kind=UpdateMessage.kind,
                sender=NAME,
                recipient=AGGREGATOR,
                fleet=FLEET,
                key_of=lambda _sender, _kid: sender.key.public,
            )
            codec.decode(UpdateMessage, sealed.content)
        return cost_since(*begun)

    return block


def measure(url: str, folder: Path, numbers: int, updates: int) -> dict[str, Cost]:
    """Return the median cost of an update by what it passed."""
    sender = Sender(numbers)
    engines = {
        "SQLite": Admission(folder / "bench.db", sender),
        "PostgreSQL": Admission(DatabaseUrl(url), sender),
    }
    before = verified(sender)
    found: dict[str, list[Cost]] = {"before the database": []}
    for _ in range(max(1, updates // BLOCK)):
        found["before the database"].append(before())
        for group in GROUPS:
            for name, engine in engines.items():
                found.setdefault(f"{name}, {group} in a commit", []).append(engine.block(group))
    for engine in engines.values():
        engine.store.close()
    return medians(found)


def table(found: dict[str, Cost]) -> str:
    """Return the costs as a Markdown table, and their ratio to SQLite with the same commits.

    >>> rows = {"SQLite, 1 in a commit": Cost(0.001, 0.0005),
    ...         "PostgreSQL, 1 in a commit": Cost(0.003, 0.001)}
    >>> print(table(rows).splitlines()[-1])
    | PostgreSQL, 1 in a commit | 3.00 | 1.00 | 3.0 | 2.0 |
    """
    lines = [
        "| an update | wall, ms | processor, ms | wall / SQLite | processor / SQLite |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, cost in found.items():
        base = found.get(name.replace("PostgreSQL", "SQLite"))
        ratios = "| | |"
        if base is not None and name.startswith("PostgreSQL"):
            ratios = f"| {cost.wall / base.wall:.1f} | {cost.processor / base.processor:.1f} |"
        lines.append(f"| {name} | {cost.wall * 1e3:.2f} | {cost.processor * 1e3:.2f} {ratios}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both engines and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--url", required=True, help="empty PostgreSQL database")
    parser.add_argument("--numbers", type=int, default=5760, help="numbers in an update (5760)")
    parser.add_argument("--updates", type=int, default=512, help="updates of each row (512)")
    parser.add_argument("--folder", type=Path, help="folder of the file of SQLite (temporary)")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measure(options.url, Path(folder), options.numbers, options.updates)
    print(table(found))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
