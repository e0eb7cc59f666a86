"""One federation of real programs: start the aggregator and devices, monitor and stop them."""

from __future__ import annotations

import http.client
import json
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_sdk.errors import TEMPORARY, Failure
from edge_sdk.link.broker_options import Broker
from firmware_sim.fleet.processes import ProcessGroup, RunningProgram, command
from firmware_sim.fleet.run_files import Device, Prepared

POLL_SECONDS = 0.4  # s between two looks at the aggregator's page
START_TIMEOUT = 60.0  # s until broker or aggregator must answer
FINISH_TIMEOUT = 30.0  # s that devices may take to fetch the final model
_LOWEST, _LISTENED = 20_000, 12_000  # ports to listen on, below the ephemeral ports


class TooSlow(Failure):
    """A time limit was exceeded."""


class NoBroker(Failure):
    """There is no broker at an address."""

    exit_code = TEMPORARY


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run, from the aggregator's status."""

    round: int = 0  # the open round, or the last one
    version: int = 0  # number of times the model has moved
    rounds: int = 0  # number of times the model is to move
    loss: float | None = None  # mean training loss that devices reported for the last closed round
    seen: int = 0  # devices that have sent a message; ``present`` of them are connected now
    present: int = 0
    up: int = 0  # payload bytes that the aggregator received so far; ``down``: that it published
    down: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # messages refused, by reason
    seconds: float = 0.0  # time since the aggregator was started

    @property
    def is_done(self) -> bool:
        return self.version >= self.rounds > 0


_reserved: list[socket.socket] = []


def free_port(count: int = 1) -> int:
    """Return a loopback port that is free now, with ``count - 1`` free ones after it.

    They lie below the kernel's ephemeral ports and stay reserved for this process: it keeps a
    socket bound to each, which does not listen. A server sets SO_REUSEADDR and can therefore
    listen there, while another call of this function, in any process, passes the port over.
    """
    for _ in range(50):
        port = _LOWEST + secrets.randbelow(_LISTENED)
        held = [_bound(port + i) for i in range(count)]
        free = [one for one in held if one is not None]
        if len(free) == count:
            _reserved.extend(free)
            return port
        for one in free:
            one.close()
    raise TooSlow("no free port on loopback")


def _bound(port: int) -> socket.socket | None:
    held = socket.socket()
    try:
        held.bind(("127.0.0.1", port))  # exclusive: fails beside any other socket
    except (OSError, OverflowError):
        held.close()
        return None
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held


def start_broker(family: ProcessGroup, folder: Path, kind: str = "auto") -> str:
    """Start a broker on loopback, wait until it accepts connections, and return its address.

    Raises:
        Died: No broker is installed, or it does not start; the hint is its output.
    """
    port = free_port(2)
    options = ("--kind", kind, "--port", str(port), "--folder", str(folder))
    family.start("broker", command("gridfed-aggregator", "broker", "start", *options))
    until = time.monotonic() + START_TIMEOUT
    while time.monotonic() < until:
        family.require_running()
        with closing(socket.socket()) as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return f"mqtt://127.0.0.1:{port}"
        time.sleep(0.05)
    raise TooSlow(f"the broker did not answer within {START_TIMEOUT:.0f} s")


def require_broker(url: str) -> str:
    """Return the address of a running broker, after checking that it accepts a connection."""
    broker = Broker(url=url, client_id="sim")
    try:
        socket.create_connection((broker.host, broker.port), 5.0).close()
    except OSError as error:
        raise NoBroker(
            f"no broker answers at {url}: {error.strerror or error}",
            hint="start one there, or leave --broker out and one is started",
        ) from error
    return url


def fetched(page: str, path: str) -> str | None:
    """Return the aggregator's page under a path, or None while it does not answer."""
    connection = http.client.HTTPConnection(page, timeout=2.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def read(document: Mapping[str, Any], metrics: str, rounds: int, seconds: float = 0.0) -> Progress:
    """Parse a run's progress from the status document and the metrics.

    >>> document = {"run": {"round": 3, "version": 2}, "rounds": [{"loss": 0.5}],
    ...             "devices": {"enrolled": 8, "online": 7, "lost": 1}, "refused": {"LATE": 0}}
    >>> now = read(document, 'gridfed_payload_bytes_total{way="up"} 1.5e+03', rounds=2)
    >>> now.is_done, now.present, now.seen, now.up, now.refused
    (True, 7, 8, 1500, {})
    """
    run, closed = document.get("run", {}), document.get("rounds", [])
    states = {name: int(n) for name, n in document.get("devices", {}).items()}
    enrolled = states.pop("enrolled", 0)
    return Progress(
        round=int(run.get("round", 0)),
        version=int(run.get("version", 0)),
        rounds=rounds,
        loss=next((row["loss"] for row in closed if row.get("loss") is not None), None),
        seen=min(sum(states.values()), enrolled),
        present=states.get("online", 0),
        up=_payload(metrics, "up"),
        down=_payload(metrics, "down"),
        refused={name: int(n) for name, n in document.get("refused", {}).items() if n},
        seconds=seconds,
    )


def _payload(metrics: str, way: str) -> int:
    start = f'gridfed_payload_bytes_total{{way="{way}"}} '
    lines = (line for line in metrics.splitlines() if line.startswith(start))
    return int(float(next(lines, start + "0").rpartition(" ")[2]))


@dataclass
class Federation:
    """The programs of one run, started from prepared files."""

    prepared: Prepared
    rounds: int  # number of times the model is to move
    family: ProcessGroup  # process group of the programs; its owner stops what is left
    aggregator: RunningProgram | None = None
    devices: list[RunningProgram] = field(default_factory=list)

    def start_aggregator(self) -> None:
        """Start the aggregator and wait until its page answers."""
        config = str(self.prepared.aggregator)
        name = f"aggregator-{self.prepared.folder.name}"
        self.aggregator = self.family.start(name, command("gridfed-aggregator", "run", config))
        until = time.monotonic() + START_TIMEOUT
        while fetched(self.prepared.page, "/status") is None:
            self.family.require_running()
            if time.monotonic() > until:
                raise TooSlow("the aggregator did not answer", hint=self.aggregator.tail())
            time.sleep(0.05)

    def start_devices(self) -> None:
        self.devices += [self.start_device(device) for device in self.prepared.devices]

    def start_device(self, device: Device) -> RunningProgram:
        """Start one device; the caller that replaces an ended process stores the new one."""
        name = f"{self.prepared.folder.name}-{device.id}"
        options = ("--until-done", "--json")
        return self.family.start(name, command("gridfed-edge", "run", str(device.config), *options))

    def watch(self, limit: float, serve: Callable[[], None] = lambda: None) -> Iterator[Progress]:
        """Yield progress until the model moved as often as configured.

        Args:
            limit: Time limit in seconds.
            serve: Called before every look: serves devices in this process.

        Raises:
            TooSlow: The run did not end in time.
            Died: A program ended in failure.
        """
        begun = looked = time.monotonic()
        now = Progress(rounds=self.rounds)
        while not now.is_done:
            serve()
            if time.monotonic() - looked < POLL_SECONDS:
                time.sleep(0.0 if self.is_in_process else 0.05)
                continue
            looked = time.monotonic()
            self.family.require_running()
            document = fetched(self.prepared.page, "/status")
            if document is not None:
                metrics = fetched(self.prepared.page, "/metrics") or ""
                now = read(json.loads(document), metrics, self.rounds, looked - begun)
                yield now
            if looked - begun > limit and not now.is_done:
                raise TooSlow(
                    f"time limit of {limit:.0f} s: round {now.round} is open, {now.version} of "
                    f"{self.rounds} closed",
                    hint="more time: --limit; fewer rounds: --rounds",
                )

    @property
    def is_in_process(self) -> bool:
        """Return True if no device is a separate process."""
        return not self.devices

    def stop(self) -> None:
        """Stop the devices first, so that their last messages reach the broker."""
        self.family.stop(self.devices)
        if self.aggregator is not None:
            self.family.stop([self.aggregator])
