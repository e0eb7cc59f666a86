"""``gridfed-sim charger``: one charge point that connects to a back office, or to a proxy."""

from __future__ import annotations

import csv
import json
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any

from firmware_sim.devices.faults import FaultRates, FaultSequence
from firmware_sim.ports.ocpp import SUBPROTOCOL, CallMessage, OcppVersion, SocketSample, Version
from firmware_sim.ports.websocket import WebSocketConnection
from firmware_sim.profiles.charging import ChargingSession, Site, recorded, sessions
from firmware_sim.profiles.weather import DAY

_QUARTER = 900
_ANSWER = 10.0  # seconds that an answer may take
_AGAIN = 0.5  # seconds before a lost connection is tried again; doubles up to ten times that
_LINGER = 30.0  # seconds to send the queued messages at the end


@dataclass(frozen=True, slots=True)
class ChargerSettings:
    """Settings of a simulated charge point."""

    url: str  # back office or proxy, with the charge point's own name at the end of the path
    start: float  # Unix seconds
    seconds: float  # duration in the charge point's time
    version: Version = "1.6"
    every: float = 60.0  # seconds between two values while a car charges
    speed: float = 1.0  # speed relative to real time; 0 is as fast as the back office answers
    sockets: int = 1
    site: Site = "home"  # kind of site, for arrivals and stays
    seed: int = 0
    password: str = ""  # for basic authentication
    faults: FaultRates = field(default_factory=FaultRates)
    truth: Path | None = None  # CSV file for every socket's true register; None writes none
    region: str = "north"  # charge points of one region have their busy days together
    zone: tzinfo = UTC  # time zone of the drivers
    like: str = ""  # ``SET/DEVICE`` of shipped readings that its sockets share; empty generates


@dataclass(slots=True)
class ChargerCounts:
    """Counters of a simulated charge point."""

    sessions: int = 0
    messages: int = 0
    queued: int = 0  # messages that were sent later than scheduled
    connections: int = 0
    undelivered: int = 0  # messages without an answer at the end
    faults: dict[str, int] = field(default_factory=dict)  # faults, by name
    wh: int = 0  # delivered energy, whole Wh of all sockets: the true value


@dataclass(slots=True)
class ChargingSocket:
    """The meter of one socket: its register rises over all sessions."""

    settings: ChargerSettings
    number: int  # number of the socket, from 1
    cars: list[ChargingSession] = field(init=False)

    def __post_init__(self) -> None:
        """Draw the sessions, with those of the day before: one may still be open."""
        first = int(self.settings.start // DAY)
        last = int((self.settings.start + self.settings.seconds) // DAY)
        found = (car for day in range(first, last + 1) for car in self._day(day))
        end = self.settings.start + self.settings.seconds
        self.cars = [car for car in found if self.settings.start <= car.arrival < end]

    def _day(self, day: int) -> list[ChargingSession]:
        settings = self.settings
        if settings.like:
            return recorded(settings.like, 1 / settings.sockets, day)
        seed, region, zone = settings.seed, settings.region, settings.zone
        return sessions(seed, self.number, settings.site, day, region=region, zone=zone)

    def wh(self, moment: float) -> float:
        base = 100_000.0 * self.number + 1000 * self.settings.seed
        return base + sum(car.delivered(moment) for car in self.cars if car.arrival < moment)

    def sample(self, moment: float, shown: float) -> SocketSample:
        watts = sum(car.power(moment) for car in self.cars)
        return SocketSample(shown, self.number, int(self.wh(moment)), round(watts))


def events(
    socket: ChargingSocket, every: float
) -> Iterator[tuple[float, int, str, ChargingSession | None]]:
    """Yield moment, order among equals, kind of event, and its session, unsorted."""
    settings = socket.settings
    end = settings.start + settings.seconds
    quarter = -(-settings.start // _QUARTER) * _QUARTER
    while quarter <= end:
        yield quarter, 2, "clock", None
        quarter += _QUARTER
    for car in socket.cars:
        yield car.arrival, 0, "start", car
        at = car.arrival + every
        while at < min(car.departure, end):
            yield at, 1, "sample", car
            at += every
        if car.departure <= end:
            yield car.departure, 3, "stop", car


@dataclass(slots=True)
class BackOfficeLink:
    """The connection to the back office, and the queue of messages while there is none."""

    settings: ChargerSettings
    protocol: OcppVersion
    counts: ChargerCounts
    _connection: WebSocketConnection | None = None
    _queue: deque[tuple[CallMessage, bool]] = field(default_factory=deque)
    _numbers: dict[str, int] = field(default_factory=dict)
    _count: int = 0
    _again_at: float = 0.0
    _wait: float = _AGAIN

    def send(self, message: CallMessage) -> None:
        self._queue.append((message, False))
        self.flush()

    def flush(self) -> None:
        """Send the queue, oldest first, until a message has no answer."""
        while self._queue:
            if self._connection is None and not self._connected():
                break
            message, was_late = self._queue[0]
            try:
                self._call(message, was_late=was_late)
            except OSError:
                self.disconnect()
                break
            self._queue.popleft()
            self.counts.messages += 1
            self.counts.queued += was_late
        self._queue = deque((message, True) for message, _ in self._queue)
        self.counts.undelivered = len(self._queue)

    def _connected(self) -> bool:
        if time.monotonic() < self._again_at:
            return False
        protocol = SUBPROTOCOL[self.settings.version]
        try:
            self._connection = WebSocketConnection(
                self.settings.url, protocol, self.settings.password
            )
            self._call(self.protocol.boot(), was_late=False)
        except OSError:
            self.disconnect()
            self._again_at = time.monotonic() + self._wait
            self._wait = min(2 * self._wait, 10 * _AGAIN)
            return False
        self.counts.connections += 1
        self._wait = _AGAIN
        return True

    def _call(self, message: CallMessage, *, was_late: bool) -> None:
        assert self._connection is not None
        self._count += 1
        number = f"{self.settings.seed}-{self._count}"
        is_numbered = self.settings.version == "1.6" and message.session and not message.is_start
        transaction = self._numbers.get(message.session, 0) if is_numbered else None
        self._connection.send(message.text(number, transaction, is_offline=was_late))
        answer = self._answer(self._connection, number)
        if message.is_start:
            self._numbers[message.session] = int(answer.get("transactionId", 0))

    def _answer(self, connection: WebSocketConnection, number: str) -> dict[str, Any]:
        end = time.monotonic() + _ANSWER
        while (left := end - time.monotonic()) > 0:
            text = connection.receive(left)
            if text is None:
                break
            match json.loads(text):
                case [3, str(answered), dict(payload)] if answered == number:
                    return payload
                case [4, str(answered), *_] if answered == number:
                    return {}
                case [2, str(call), *_]:
                    connection.send(json.dumps([4, call, "NotImplemented", "", {}]))
        raise TimeoutError("no answer")

    def disconnect(self) -> None:
        """Drop the connection; the queue stays."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def finish(self) -> None:
        """Send the rest of the queue, for a limited time."""
        end = time.monotonic() + _LINGER
        self.flush()
        while self._queue and time.monotonic() < end:
            time.sleep(0.05)
            self.flush()
        self.disconnect()


def run(settings: ChargerSettings, protocol: OcppVersion | None = None) -> ChargerCounts:
    """Run a charge point until its time is over, or it is interrupted."""
    counts = ChargerCounts()
    link = BackOfficeLink(settings, protocol or OcppVersion(settings.version), counts)
    faults = FaultSequence(settings.faults, settings.seed)
    sockets = [ChargingSocket(settings, number + 1) for number in range(settings.sockets)]
    plan = sorted(
        (moment, rank, socket.number, event, car)
        for socket in sockets
        for moment, rank, event, car in events(socket, settings.every)
    )
    began, samples = time.monotonic(), dict[str, list[SocketSample]]()
    for moment, _, number, event, car in plan:
        if settings.speed > 0:
            _wait_until(began + (moment - settings.start) / settings.speed, link)
        shown = faults.clock(moment, settings.start)
        if shown is None or faults.power_fails():
            link.disconnect()  # it reboots; its register can still be sent later
        sample = sockets[number - 1].sample(moment, moment if shown is None else shown)
        counts.sessions += event == "start"
        for message in _messages(link.protocol, event, sample, car, samples):
            _send(link, message, faults)
    link.finish()
    end = settings.start + settings.seconds
    counts.faults = dict(faults.counts)
    counts.wh = sum(int(s.wh(end)) - int(s.wh(settings.start)) for s in sockets)
    _write_truth(settings, sockets)
    return counts


def _send(link: BackOfficeLink, message: CallMessage, faults: FaultSequence) -> None:
    """Send one message, subject to faults. A message that a session requires is never dropped."""
    if message.action == "MeterValues" and faults.happens("gap"):
        return
    link.send(message)
    if not message.is_start and faults.happens("duplicate"):
        link.send(message)
    if faults.happens("flap"):
        link.disconnect()


def _wait_until(moment: float, link: BackOfficeLink) -> None:
    while (left := moment - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))
        link.flush()


def _messages(
    protocol: OcppVersion,
    event: str,
    sample: SocketSample,
    car: ChargingSession | None,
    samples: dict[str, list[SocketSample]],
) -> list[CallMessage]:
    if car is None:
        return [protocol.clock_aligned(sample)]
    session = f"{sample.socket}-{car.arrival}"
    before = samples.setdefault(session, [])
    if event == "start":
        return [protocol.started(sample, session)]
    if event == "stop":
        return [protocol.stopped(sample, session, len(before) + 1, samples.pop(session)[-20:])]
    before.append(sample)
    return [protocol.sampled(sample, session, len(before))]


def _write_truth(settings: ChargerSettings, sockets: list[ChargingSocket]) -> None:
    if settings.truth is None:
        return
    with ExitStack() as opened:
        file = opened.enter_context(settings.truth.open("w", newline="", encoding="utf-8"))
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("time", "socket", "wh"))
        quarter = -(-settings.start // _QUARTER) * _QUARTER
        while quarter <= settings.start + settings.seconds:
            for socket in sockets:
                rows.writerow((int(quarter), socket.number, f"{socket.wh(quarter):.3f}"))
            quarter += _QUARTER
