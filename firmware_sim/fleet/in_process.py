"""Many devices in one process: real clients on one poller, or on any link of a test."""

from __future__ import annotations

import gc
import os
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

from edge_sdk import Client, Config, Reading
from edge_sdk.app.clock import Clock
from edge_sdk.app.permissions import make_private_file, make_private_folder
from edge_sdk.app.settings import seconds
from edge_sdk.client import ClientParts
from edge_sdk.forecasting.series import Series, SeriesRow
from edge_sdk.link.broker_options import Broker, Will
from edge_sdk.link.transport import Transport
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.messages import BundleMessage
from edge_sdk.store.schema import FILE, INSTALLED, stored_bytes
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.bootstrap import open_bundle
from edge_sdk.training.run_role import RunnableBundle, history_of, series_for
from firmware_sim.attacks.attack_plan import HONEST, AttackRole
from firmware_sim.fleet.processes import peak_kilobytes
from firmware_sim.fleet.run_files import Device
from firmware_sim.results import Traffic, short
from firmware_sim.samples import DeviceReadings, SampleSet, instant
from firmware_sim.scenario import Scenario

# seconds between two turns of a device whose link has no news, in a fleet of at most a thousand
IDLE = 1.0
# turns a second of all devices without news: in a larger fleet each one waits longer
IDLE_TURNS = 1000.0
Connect = Callable[[Config, Callable[[], Will | None]], Transport]  # makes one device's link


@dataclass
class SharedBundles:
    """Bundles that the clients of one process share: the graphs of each are loaded once.

    A bundle that a device has installed from an announcement is its own.
    """

    _opened: dict[tuple[str, Path | None], RunnableBundle] = field(default_factory=dict)

    def open(self, config: Config, announced: BundleMessage | None) -> RunnableBundle:
        """Open the bundle of a device, as ``edge_sdk.training.bootstrap.open_bundle``."""
        if announced is not None and (config.state / INSTALLED / announced.digest.hex()).is_dir():
            return open_bundle(config, announced)
        key = (config.bundle, config.keys.root)
        if key not in self._opened:
            self._opened[key] = open_bundle(config, None)
        return self._opened[key]


@dataclass(slots=True)
class _Served:
    """A device, its links, the last of which is in use, and when it is served without news."""

    client: Client
    links: Sequence[Transport]
    due: float = 0.0

    @property
    def has_news(self) -> bool:
        """Return whether its link has news; a link that does not know may have some."""
        return bool(getattr(self.links[-1], "has_news", True)) if self.links else True

    def tick(self, timeout: float, now: float, idle: float) -> None:
        """Serve the device; after news also in the next pass, because a pass does one piece of work."""
        self.due = now if self.has_news else now + idle
        self.client.tick(timeout)


@dataclass
class Fleet:
    """Clients that share a process, its one thread, and the graphs of their bundles.

    Example: ``tests/fleet`` runs one on a loopback broker with a clock of its own.
    """

    clients: list[Client] = field(default_factory=list)  # in the order they were added
    _stack: ExitStack = field(default_factory=ExitStack)
    bundles: SharedBundles = field(default_factory=SharedBundles)
    clock: Callable[[], float] = time.monotonic  # monotonic seconds
    _served: list[_Served] = field(default_factory=list)

    def add(
        self,
        config: Config,
        readings: Iterable[Reading],
        *,
        connect: Connect,
        clock: Clock | None = None,
        make: Callable[..., Client] = Client,
        store: DeviceStore | None = None,
    ) -> Client:
        """Start one device with its history; ``make`` may make a Byzantine client."""
        links: list[Transport] = []

        def linked(will: Callable[[], Will | None]) -> Transport:
            links.append(connect(config, will))
            return links[-1]

        with ExitStack() as unless_made:
            if store is not None:
                unless_made.callback(store.close)
            client = make(
                config,
                transport=linked,
                clock=clock,
                parts=ClientParts(bundles=self.bundles.open, store=store),
            )
            unless_made.pop_all()
        self._stack.callback(client.close)
        for reading in readings:
            client.observe(reading)
        client.flush()
        self.clients.append(client)
        self._served.append(_Served(client, links))
        return client

    def turn(self, timeout: float = 0.0) -> None:
        """Serve every device once; the first one may wait ``timeout`` seconds."""
        for client in self.clients:
            client.tick(timeout)
            timeout = 0.0

    def serve(self, timeout: float = 0.0) -> None:
        """Serve the devices whose links have news, and every other one from time to time (``IDLE``).

        The first device may wait ``timeout`` seconds, and is served every time: a poller that all links
        share is then served too.
        """
        now, idle = self.clock(), max(IDLE, len(self._served) / IDLE_TURNS)
        for number, one in enumerate(self._served):
            if number == 0 or now >= one.due or one.has_news:
                one.tick(timeout if number == 0 else 0.0, now, idle)

    def traffic(self) -> list[Traffic]:
        """Return each device's bytes, from the counters of its link."""
        counts = [client.status()["counts"] for client in self.clients]
        return [Traffic(n.get("bytes_up", 0), n.get("bytes_down", 0)) for n in counts]

    def store_bytes(self) -> int:
        return sum(stored_bytes(client.config.state) for client in self.clients)

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def over_mqtt(seed: int = 0) -> Connect:
    """Return a maker of MQTT links that are all served by one epoll."""
    from edge_sdk.link.event_loop import Poller  # noqa: PLC0415 - as above
    from edge_sdk.link.mqtt import MqttLink  # noqa: PLC0415 - loads paho

    poller, rng = Poller(), random.Random(seed)  # noqa: S311 - jitter of reconnects

    def connect(config: Config, will: Callable[[], Will | None]) -> Transport:
        broker = Broker(
            url=config.broker.url,
            client_id=f"{config.fleet}.{config.id}",
            protocol=config.broker.protocol,
            keepalive=config.broker.keepalive,
            reconnect_max=seconds(config.broker.reconnect_max),
            will=will,
        )
        return MqttLink(broker, poller=poller, rng=random.Random(rng.random()))  # noqa: S311

    return connect


def readings(sample: DeviceReadings, samples: SampleSet, chosen: Scenario) -> Iterator[Reading]:
    """Yield a device's history, column by column, within the scenario's bounds.

    A column that the file lacks is left out. A reading covers the step of the file, so that shorter
    intervals add up to the step of the bundle.
    """
    first = instant(chosen.start) if chosen.start else -(2**62)
    last = instant(chosen.until) if chosen.until else 2**62
    step = sample.step(samples.target)
    for column, stream in samples.present(sample).items():
        times, values = sample.column(column)
        for moment, value in zip(times.tolist(), values.tolist(), strict=True):
            if first <= moment < last:
                yield Reading(stream, float(moment), value, seconds=step)


def populate(
    fleet: Fleet,
    devices: Sequence[Device],
    samples: SampleSet,
    chosen: Scenario,
    connect: Connect,
    *,
    role: Callable[[str], AttackRole] = lambda _device: HONEST,
) -> None:
    """Start every prepared device in this process, each in its role.

    The readings of a file are put on the bundle's grid once, and written to the store of every
    device that has them before it starts. No other program reads these stores while they are open.
    The configuration is read once for all devices with the same readings.
    """
    prepared: dict[tuple[Path, str], tuple[Config, bytes]] = {}
    for number, device in enumerate(devices, 1):
        own = chosen.of_newcomer() if number == len(devices) else chosen
        key = (device.sample.path, own.start)
        if key not in prepared:
            config = Config.load(device.config)
            manifest = fleet.bundles.open(config, None).manifest
            history = readings(device.sample, samples, own)
            rows = on_grid(manifest, history_of(config, manifest).slots, history).pending()
            prepared[key] = config, stored(rows)
        like, file = prepared[key]
        store_of, config = partial(copied, file), device.configured(like)
        enlist(fleet, config, role(device.id), connect=connect, history=tuple, store_of=store_of)


def stored(rows: Sequence[SeriesRow]) -> bytes:
    """Return the file of a new device's store with these readings."""
    with tempfile.TemporaryDirectory() as folder:
        with DeviceStore.open(Path(folder), exclusive=True) as store:
            store.add_readings(rows)
        return store.path.read_bytes()


def copied(file: bytes, config: Config) -> DeviceStore:
    """Open a new device's store for this process alone, as a copy of this file."""
    make_private_folder(config.state)
    path = config.state / FILE
    make_private_file(path)
    path.write_bytes(file)
    return DeviceStore.open(config.state, exclusive=True)


def on_grid(manifest: Manifest, slots: int, history: Iterable[Reading]) -> Series:
    """Return readings as a series with the bundle's step and streams."""
    series = series_for(manifest, slots)
    for reading in history:
        series.add(reading)
    return series


def enlist(
    fleet: Fleet,
    config: Config,
    role: AttackRole,
    *,
    connect: Connect,
    history: Callable[[], Iterable[Reading]],
    clock: Clock | None = None,
    store_of: Callable[[Config], DeviceStore | None] = lambda _config: None,
) -> Client:
    """Start one device in its role, and the processes that claim to be it."""

    def linked(as_config: Config, will: Callable[[], Will | None]) -> Transport:
        link: Transport = role.around(connect(as_config, will))
        return link

    client = fleet.add(
        config, history(), connect=linked, clock=clock, make=role.make, store=store_of(config)
    )
    for name in role.clones:
        double = replace(config, state=config.state.with_name(name))
        named = replace(config, id=name)  # for the broker, which would disconnect the other one
        at = partial(_as, named, linked)
        fleet.add(double, history(), connect=at, clock=clock, store=store_of(double))
    return client


def _as(named: Config, connect: Connect, _: Config, will: Callable[[], Will | None]) -> Transport:
    return connect(named, will)


@contextmanager
def uncollected() -> Iterator[None]:
    """Exclude the existing objects from garbage collection inside the block.

    A fleet that is set up has millions of objects that stay, and each full collection looks at
    all of them; a copied process (``fork``) would copy their pages as well.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def processor_seconds() -> float:
    """Return the processor seconds of this process so far, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_bytes() -> int:
    """Return the largest resident memory of this process so far, in bytes."""
    return 1024 * (
        peak_kilobytes(os.getpid()) or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    )


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; its peak where the system reports only that."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return peak_bytes()
    return pages * resource.getpagesize()


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """Set-up and memory of many devices in one process."""

    setup_ms: float  # processor milliseconds of the set-up of one device
    # memory of one device, in units of 1,000 bytes: the peak less what was there before the set-up,
    # divided by the devices
    device_kb: float
    store_kb: float  # files of one device at the end, in units of 1,000 bytes
    peak_mb: float  # peak of the process, in units of 10^6 bytes

    @classmethod
    def of(cls, devices: int, seconds: float, before: int, peak: int, stores: int) -> Self:
        """Divide by the number of devices.

        Args:
            devices: Number of devices, at least 1.
            seconds: Processor seconds of their set-up.
            before: Resident memory before the set-up, bytes.
            peak: Largest resident memory, bytes.
            stores: Size of all stores, bytes.

        >>> OwnProcess.of(1000, 5.0, 100_000_000, 900_000_000, 400_000_000)
        OwnProcess(setup_ms=5.0, device_kb=800.0, store_kb=400.0, peak_mb=900.0)
        """
        kb = 1e3 * devices
        return cls(1e3 * seconds / devices, (peak - before) / kb, stores / kb, peak / 1e6)

    def text(self) -> str:
        """Return a line for people."""
        return (
            f"a device: set-up {self.setup_ms:.1f} ms of the processor, {self.device_kb:,.0f} kB of memory,"
            f" {self.store_kb:,.0f} kB of files; the process at most {self.peak_mb:,.0f} MB"
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a run, to be divided by devices and rounds."""

    devices: int
    rounds: int  # number of times the model moved
    wall: float  # seconds of the rounds, without the start
    device_cpu: float  # processor seconds of all devices during the rounds
    aggregator_cpu: float  # processor seconds of the aggregator during the rounds
    up: int  # bytes that all devices sent, ``down`` received
    down: int

    @property
    def each(self) -> dict[str, float]:
        """Return the cost per device and round: milliseconds of processor, bytes.

        >>> Cost(10, 5, 2.0, 1.0, 0.1, 5000, 10000).each["device_cpu_ms"]
        20.0
        """
        share = self.devices * max(self.rounds, 1)
        return {
            "device_cpu_ms": 1e3 * self.device_cpu / share,
            "aggregator_cpu_ms": 1e3 * self.aggregator_cpu / share,
            "bytes_up": self.up / share,
            "bytes_down": self.down / share,
        }

    def text(self) -> str:
        """Return the cost as two sentences."""
        each = self.each
        return (
            f"{self.devices} devices, {self.rounds} rounds in {self.wall:.1f} s"
            f" ({self.wall / max(self.rounds, 1):.2f} s a round)\n"
            f"per device and round: {each['device_cpu_ms']:.1f} ms processor on the device,"
            f" {each['aggregator_cpu_ms']:.2f} ms at the aggregator,"
            f" {short(each['bytes_up'])} up, {short(each['bytes_down'])} down"
        )
