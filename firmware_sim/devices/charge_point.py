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
from firmware_sim.ports.websocket import Conversation
from firmware_sim.profiles.charging import ChargingSession, Site, recorded, sessions
from firmware_sim.profiles.weather import DAY

_QUARTER = 900
_ANSWER = 10.0  # seconds that an answer may take
_AGAIN = 0.5  # seconds before a lost connection is tried again; doubles up to ten times that
_LINGER = 30.0  # seconds to send the queued messages at the end


@dataclass(frozen=True, slots=True)
class ChargerSettings:
    """Settings of a simulated charge point.

    Attributes:
        url: Back office or proxy, with the charge point's own name at the end of the path.
        start: Unix seconds.
        seconds: Duration in the charge point's time.
        version: Version of OCPP.
        every: Seconds between two values while a car charges.
        speed: Speed relative to real time; 0 is as fast as the back office answers.
        sockets: Number of sockets.
        site: Kind of site, for arrivals and stays.
        seed: Seed of the charge point.
        password: For basic authentication.
        faults: Rates of faults.
        truth: CSV file for every socket's true register; None writes none.
        region: Charge points of one region have their busy days together.
        zone: Time zone of the drivers.
        like: ``SET/DEVICE`` of shipped readings that its sockets share; empty generates.
    """

    url: str
    start: float
    seconds: float
    version: Version = "1.6"
    every: float = 60.0
    speed: float = 1.0
    sockets: int = 1
    site: Site = "home"
    seed: int = 0
    password: str = ""
    faults: FaultRates = field(default_factory=FaultRates)
    truth: Path | None = None
    region: str = "north"
    zone: tzinfo = UTC
    like: str = ""


@dataclass(slots=True)
class ChargerCounts:
    """Counters of a simulated charge point.

    Attributes:
        sessions: Charging sessions.
        messages: Answered messages.
        queued: Messages that were sent later than scheduled.
        connections: Number of connections made.
        owed: Messages without an answer at the end.
        faults: Faults, by name.
        wh: Delivered energy, whole Wh of all sockets: the true value.
    """

    sessions: int = 0
    messages: int = 0
    queued: int = 0
    connections: int = 0
    owed: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    wh: int = 0


@dataclass(slots=True)
class ChargingSocket:
    """The meter of one socket: its register rises over all sessions.

    Attributes:
        order: Settings of the charge point.
        number: Number of the socket, from 1.
    """

    order: ChargerSettings
    number: int
    cars: list[ChargingSession] = field(init=False)

    def __post_init__(self) -> None:
        """Draw the sessions, with those of the day before: one may still be open."""
        first = int(self.order.start // DAY)
        last = int((self.order.start + self.order.seconds) // DAY)
        found = (car for day in range(first, last + 1) for car in self._day(day))
        end = self.order.start + self.order.seconds
        self.cars = [car for car in found if self.order.start <= car.arrival < end]

    def _day(self, day: int) -> list[ChargingSession]:
        order = self.order
        if order.like:
            return recorded(order.like, 1 / order.sockets, day)
        seed, region, zone = order.seed, order.region, order.zone
        return sessions(seed, self.number, order.site, day, region=region, zone=zone)

    def wh(self, moment: float) -> float:
        """Return the register in Wh."""
        base = 100_000.0 * self.number + 1000 * self.order.seed
        return base + sum(car.delivered(moment) for car in self.cars if car.arrival < moment)

    def seen(self, moment: float, shown: float) -> SocketSample:
        """Return the meter's values, with the charge point's clock."""
        watts = sum(car.power(moment) for car in self.cars)
        return SocketSample(shown, self.number, int(self.wh(moment)), round(watts))


def happenings(
    socket: ChargingSocket, every: float
) -> Iterator[tuple[float, int, str, ChargingSession | None]]:
    """Yield moment, order among equals, kind of event, and its session, unsorted."""
    order = socket.order
    end = order.start + order.seconds
    quarter = -(-order.start // _QUARTER) * _QUARTER
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
    """The connection to the back office, and the queue of messages while there is none.

    Attributes:
        order: Settings of the charge point.
        speaker: Messages of the version.
        told: Counters.
    """

    order: ChargerSettings
    speaker: OcppVersion
    told: ChargerCounts
    _talk: Conversation | None = None
    _owed: deque[tuple[CallMessage, bool]] = field(default_factory=deque)
    _numbers: dict[str, int] = field(default_factory=dict)
    _count: int = 0
    _again_at: float = 0.0
    _wait: float = _AGAIN

    def send(self, ask: CallMessage) -> None:
        """Queue a message, and send the queue if connected."""
        self._owed.append((ask, False))
        self.flush()

    def flush(self) -> None:
        """Send the queue, oldest first, until a message has no answer."""
        while self._owed:
            if self._talk is None and not self._connected():
                break
            ask, was_late = self._owed[0]
            try:
                self._asked(ask, was_late=was_late)
            except OSError:
                self.hang_up()
                break
            self._owed.popleft()
            self.told.messages += 1
            self.told.queued += was_late
        self._owed = deque((ask, True) for ask, _ in self._owed)
        self.told.owed = len(self._owed)

    def _connected(self) -> bool:
        if time.monotonic() < self._again_at:
            return False
        protocol = SUBPROTOCOL[self.order.version]
        try:
            self._talk = Conversation(self.order.url, protocol, self.order.password)
            self._asked(self.speaker.boot(), was_late=False)
        except OSError:
            self.hang_up()
            self._again_at = time.monotonic() + self._wait
            self._wait = min(2 * self._wait, 10 * _AGAIN)
            return False
        self.told.connections += 1
        self._wait = _AGAIN
        return True

    def _asked(self, ask: CallMessage, *, was_late: bool) -> None:
        """Send one message and wait for its answer.

        Raises:
            OSError: No answer in time, or no connection.
        """
        assert self._talk is not None
        self._count += 1
        number = f"{self.order.seed}-{self._count}"
        is_numbered = self.order.version == "1.6" and ask.session and not ask.is_start
        transaction = self._numbers.get(ask.session, 0) if is_numbered else None
        self._talk.send(ask.text(number, transaction, is_offline=was_late))
        answer = self._answer(self._talk, number)
        if ask.is_start:
            self._numbers[ask.session] = int(answer.get("transactionId", 0))

    def _answer(self, talk: Conversation, number: str) -> dict[str, Any]:
        end = time.monotonic() + _ANSWER
        while (left := end - time.monotonic()) > 0:
            text = talk.receive(left)
            if text is None:
                break
            match json.loads(text):
                case [3, str(told), dict(payload)] if told == number:
                    return payload
                case [4, str(told), *_] if told == number:
                    return {}
                case [2, str(asked), *_]:
                    talk.send(json.dumps([4, asked, "NotImplemented", "", {}]))
        raise TimeoutError("no answer")

    def hang_up(self) -> None:
        """Drop the connection; the queue stays."""
        if self._talk is not None:
            self._talk.close()
            self._talk = None

    def finish(self) -> None:
        """Send the rest of the queue, for a limited time."""
        end = time.monotonic() + _LINGER
        self.flush()
        while self._owed and time.monotonic() < end:
            time.sleep(0.05)
            self.flush()
        self.hang_up()


def run(order: ChargerSettings, speaker: OcppVersion | None = None) -> ChargerCounts:
    """Run a charge point until its time is over, or it is interrupted."""
    told = ChargerCounts()
    link = BackOfficeLink(order, speaker or OcppVersion(order.version), told)
    trouble = FaultSequence(order.faults, order.seed)
    sockets = [ChargingSocket(order, number + 1) for number in range(order.sockets)]
    plan = sorted(
        (moment, rank, socket.number, what, car)
        for socket in sockets
        for moment, rank, what, car in happenings(socket, order.every)
    )
    began, said = time.monotonic(), dict[str, list[SocketSample]]()
    for moment, _, number, what, car in plan:
        if order.speed > 0:
            _wait_until(began + (moment - order.start) / order.speed, link)
        shown = trouble.clock(moment, order.start)
        if shown is None or trouble.browns():
            link.hang_up()  # it reboots; its register can still be sent later
        seen = sockets[number - 1].seen(moment, moment if shown is None else shown)
        told.sessions += what == "start"
        for ask in _words(link.speaker, what, seen, car, said):
            _say(link, ask, trouble)
    link.finish()
    end = order.start + order.seconds
    told.faults = dict(trouble.counts)
    told.wh = sum(int(s.wh(end)) - int(s.wh(order.start)) for s in sockets)
    _write_truth(order, sockets)
    return told


def _say(link: BackOfficeLink, ask: CallMessage, trouble: FaultSequence) -> None:
    """Send one message, subject to faults. A message that a session requires is never dropped."""
    if ask.action == "MeterValues" and trouble.happens("gap"):
        return
    link.send(ask)
    if not ask.is_start and trouble.happens("duplicate"):
        link.send(ask)
    if trouble.happens("flap"):
        link.hang_up()


def _wait_until(moment: float, link: BackOfficeLink) -> None:
    """Wait; reconnect a lost link meanwhile."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))
        link.flush()


def _words(
    speaker: OcppVersion,
    what: str,
    seen: SocketSample,
    car: ChargingSession | None,
    said: dict[str, list[SocketSample]],
) -> list[CallMessage]:
    """Return the messages of one event; a session keeps its values."""
    if car is None:
        return [speaker.on_the_clock(seen)]
    session = f"{seen.socket}-{car.arrival}"
    before = said.setdefault(session, [])
    if what == "start":
        return [speaker.started(seen, session)]
    if what == "stop":
        return [speaker.stopped(seen, session, len(before) + 1, said.pop(session)[-20:])]
    before.append(seen)
    return [speaker.sampled(seen, session, len(before))]


def _write_truth(order: ChargerSettings, sockets: list[ChargingSocket]) -> None:
    if order.truth is None:
        return
    with ExitStack() as opened:
        file = opened.enter_context(order.truth.open("w", newline="", encoding="utf-8"))
        rows = csv.writer(file)
        rows.writerow(("time", "socket", "wh"))
        quarter = -(-order.start // _QUARTER) * _QUARTER
        while quarter <= order.start + order.seconds:
            for socket in sockets:
                rows.writerow((int(quarter), socket.number, f"{socket.wh(quarter):.3f}"))
            quarter += _QUARTER
