"""Throughput of a fleet's uploads, their waiting times, and their cost.

    python -m tools.bench_uploads                                # 200 devices, 158 kB up
    python -m tools.bench_uploads --devices 1000 --rounds 2
    python -m tools.bench_uploads --shared lstm                  # 23 kB: sent unasked
    python -m tools.bench_uploads --json FILE

Runs ``gridfed-sim fleet --in-process`` on a Mosquitto of its own and listens beside it to what is
offered, granted, refused and receipted. Nothing in the programs measured is changed for it. All
devices share one thread, so the simulator can use one core at most; aggregator and broker use
others. Rate and processor time are those after the first round. Compare refusals, offers and
processor seconds per update: times of a shared machine move.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from aggregator.extensions.authority.access import broker_process
from edge_sdk.errors import Reason
from edge_sdk.link.broker_options import Broker
from edge_sdk.link.mqtt import MqttLink
from edge_sdk.link.transport import Message
from edge_sdk.protocol import codec, topics
from edge_sdk.protocol.envelope import digest, unproved
from edge_sdk.protocol.messages import (
    GrantMessage,
    HaveMessage,
    OfferMessage,
    ReceiptMessage,
    RefusalMessage,
)
from firmware_sim.fleet.processes import processor_seconds

HEARD = ("up/offer", "up/update", "down/grant", "down/have", "down/refusal", "down/receipt")
STATES = ("offered", "refused", "granted", "inline")
"""States of a waiting update: for an answer, the end of a retry delay, its chunks, a receipt."""

_LOOK = 0.25  # s between two looks at the processes
_NEXT = {"grant": "granted", "refusal": "refused", "offer": "offered", "update": "inline"}


@dataclass
class Upload:
    """One update in transit: its present state, and the time in each state."""

    state: str
    since: float
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*STATES, "done"), 0.0))

    def move(self, state: str, now: float) -> None:
        """Change the state; a repeated offer keeps waiting."""
        self.spent[self.state] += now - self.since
        self.state, self.since = state, now


@dataclass
class Trace:
    """Messages recorded on the broker."""

    counts: Counter[str] = field(default_factory=Counter)  # messages by kind; refusals by reason
    # uploads in transit, by device and body
    uploads: dict[tuple[str, bytes], Upload] = field(default_factory=dict)
    done: list[Upload] = field(default_factory=list)  # uploads with a receipt of acceptance
    times: list[float] = field(default_factory=list)  # time of the receipt of each of them
    first: float = 0.0  # time of the first message; ``last`` of the last receipt
    last: float = 0.0
    most_granted: int = 0  # largest number of uploads with a grant at the same time

    def hear(self, message: Message, now: float) -> None:
        """Record one message."""
        address = topics.parse(message.topic)
        if address is None:
            return
        body = unproved(message.payload)
        name, code = _named(address.kind, body)
        self.counts[address.kind] += 1
        if code is not None and address.kind == "refusal":
            self.counts[Reason(code).name] += 1
        if name is None:
            return
        self.first = self.first or now
        self._follow(address.kind, (address.id, name), code, now)

    def _follow(self, kind: str, key: tuple[str, bytes], code: int | None, now: float) -> None:
        upload = self.uploads.get(key)
        if kind == "receipt":
            if upload is not None and code == Reason.ACCEPTED:
                upload.move("done", now)
                self.done.append(self.uploads.pop(key))
                self.times.append(now)
                self.last = now
        elif upload is None and kind in ("offer", "update"):
            self.uploads[key] = Upload(_NEXT[kind], now)
        elif upload is not None and kind in _NEXT and (kind, upload.state) != ("offer", "granted"):
            upload.move(_NEXT[kind], now)
        granted = sum(u.state == "granted" for u in self.uploads.values())
        self.most_granted = max(self.most_granted, granted)


def _named(kind: str, body: bytes) -> tuple[bytes | None, int | None]:
    if kind == "update":
        return digest(body)[:16], None
    match codec.decode(kind, body):
        case OfferMessage(digest=whole):
            return whole[:16], None
        case GrantMessage(id=name) | HaveMessage(id=name):
            return name, None
        case RefusalMessage(id=name, code=code):
            return name, code
        case ReceiptMessage(ref=name, code=code):
            return name, code
    return None, None


@dataclass(frozen=True)
class Cost:
    """Cost of one run. Fractions are of one core; the machine has ``cores`` of them."""

    devices: int
    rounds: int
    shared: str
    updates: int
    seconds: float
    rate: float  # updates a second
    first_round: float  # seconds, before these; graphs and data are loaded in it
    refusals: float  # per update
    offers: float  # per update
    haves: float  # per update
    most_granted: int  # uploads at the same time
    waits: dict[str, float]  # mean seconds of an update in each state
    cpu_ms: dict[str, float]  # processor milliseconds per update
    share: dict[str, float]  # of one core
    used: float  # of all cores
    cores: int
    load: float  # of the machine before it began
    refused: dict[str, int]

    def text(self) -> str:
        waits = ", ".join(f"{name} {took:.2f}" for name, took in self.waits.items() if took)
        cpu = ", ".join(f"{name} {ms:.1f}" for name, ms in self.cpu_ms.items())
        share = ", ".join(f"{name} {part:.0%}" for name, part in self.share.items())
        return (
            f"{self.devices} devices, {self.rounds} rounds, shared {self.shared}:"
            f" {self.updates} updates in {self.seconds:.1f} s, {self.rate:.1f} a second"
            f" (first round before these: {self.first_round:.1f} s; load: {self.load:.1f})\n"
            f"per update: {self.refusals:.3f} refusals, {self.offers:.2f} offers,"
            f" {self.haves:.2f} reports; at most {self.most_granted} granted at a time\n"
            f"seconds of an update: {waits}\n"
            f"processor ms per update: {cpu}\n"
            f"of one core: {share}; {self.used:.0%} of {self.cores} cores"
        )


def measure(options: argparse.Namespace, folder: Path) -> Cost:
    """Run one fleet and record its messages.

    Raises:
        SystemExit: The simulator failed; what it said is printed.
    """
    load = os.getloadavg()[0]
    with broker_process.start(options.kind, folder=folder / "broker") as served:
        link = MqttLink(Broker(url=served.url, client_id="bench"))
        link.open()
        trace, samples = Trace(), deque[tuple[float, dict[str, float]]]()
        with (folder / "sim.out").open("wb") as out:
            fleet = subprocess.Popen(_command(options, served.url), stdout=out)
            try:
                _listen(link, trace, fleet, served.pid or 0, samples)
            finally:
                fleet.terminate()
                fleet.wait()
                link.close()
        if fleet.returncode:
            raise SystemExit((folder / "sim.out").read_text(encoding="utf-8"))
    return _cost(options, trace, list(samples), load)


def _command(options: argparse.Namespace, url: str) -> list[str]:
    parts = ("devices", "rounds", "shared", "steps", "limit")
    given = [part for key in parts for part in (f"--{key}", str(getattr(options, key)))]
    return [
        sys.executable, "-m", "firmware_sim", "fleet", "--in-process", "--json",
        "--broker", url, *given,
    ]  # fmt: skip


def _listen(
    link: MqttLink,
    trace: Trace,
    fleet: subprocess.Popen[bytes],
    broker_pid: int,
    samples: deque[tuple[float, dict[str, float]]],
) -> None:
    is_subscribed, looked = False, 0.0
    while fleet.poll() is None:
        happened = link.poll(_LOOK)
        now = time.monotonic()
        if link.is_up and not is_subscribed:
            link.subscribe(*(f"gf/1/+/+/{kind}" for kind in HEARD))
            is_subscribed = True
        for happening in happened:
            if isinstance(happening, Message):
                link.acknowledge(happening)
                trace.hear(happening, now)
        if now - looked >= _LOOK:
            looked = now
            samples.append((now, _used(fleet.pid, broker_pid)))


def _used(simulator: int, served: int) -> dict[str, float]:
    """Return the processor seconds of each program so far."""
    used = {"devices": processor_seconds(simulator), "broker": processor_seconds(served)}
    children = Path(f"/proc/{simulator}/task/{simulator}/children")
    try:
        below = children.read_text(encoding="ascii").split()
    except OSError:
        below = []
    used["aggregator"] = max((processor_seconds(int(pid)) for pid in below), default=0.0)
    return used


def _cost(
    options: argparse.Namespace,
    trace: Trace,
    samples: Sequence[tuple[float, dict[str, float]]],
    load: float,
) -> Cost:
    is_warm = len(trace.times) > options.devices  # the first round also loads graphs and data
    begin = trace.times[options.devices - 1] if is_warm else trace.first
    inside = [used for at, used in samples if begin <= at <= trace.last + _LOOK]
    done, seconds = sum(at > begin for at in trace.times), max(trace.last - begin, 1e-9)
    count = max(len(trace.done), 1)
    cpu = {name: max(0.0, inside[-1][name] - inside[0][name]) for name in inside[0]}
    cores, heard = len(os.sched_getaffinity(0)), trace.counts
    return Cost(
        devices=options.devices,
        rounds=options.rounds,
        shared=options.shared,
        updates=done,
        seconds=seconds,
        rate=done / seconds,
        first_round=begin - trace.first if is_warm else seconds,
        refusals=heard["refusal"] / count,
        offers=heard["offer"] / count,
        haves=heard["have"] / count,
        most_granted=trace.most_granted,
        waits={s: mean([u.spent[s] for u in trace.done] or [0.0]) for s in STATES},
        cpu_ms={name: 1e3 * spent / max(done, 1) for name, spent in cpu.items()},
        share={name: spent / seconds for name, spent in cpu.items()},
        used=sum(cpu.values()) / seconds / cores,
        cores=cores,
        load=load,
        refused={name: n for name, n in heard.items() if name in Reason.__members__},
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the result of one run; return 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shared", default="head", help="prefixes of layers (head)")
    parser.add_argument("--steps", type=int, default=1, help="local steps in a round (1)")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds the run may take (900)")
    parser.add_argument("--kind", choices=("mosquitto", "embedded"), default="mosquitto")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="bench-uploads-") as folder:
        cost = measure(options, Path(folder))
    print(cost.text())
    if options.json:
        data: dict[str, Any] = asdict(cost)
        options.json.write_text(json.dumps(data, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
