"""A year of a fleet: sleeping devices, faults, and whether each round has every device that is awake."""

from __future__ import annotations

import http.client
import logging
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from tools.certificate_year import memory_tls
from tools.certificate_year.device import Device
from tools.certificate_year.faults import STEPS, Faults
from tools.certificate_year.machine_clock import DAY, HOUR, MINUTE, MachineClock, wrong_clock
from tools.certificate_year.site import OPERATOR, Interval, Site

BEGIN = 1_800_000_000.0  # 2027-01-15
QUIET_DAYS = 3  # at the end, in which nothing fails and everybody is awake
MOST_LOST = 50  # lost rounds that are described
OWED = 6 * HOUR  # s awake with a network, in a day, from which a device owes its round
LONGEST_SLEEP = 120 * DAY  # within the time of grace of 180 days, however old the certificate is
SETUP = ("make authority", "issue certificate", "list serial")
"""Acts of the operator before the year, and once a year for the broker's certificate."""


@dataclass(frozen=True, slots=True)
class YearSettings:
    """Settings of a simulated year."""

    devices: int = 2000
    days: int = 365
    seed: int = 1  # seed of everything but keys and serial numbers
    wrong_clocks: float = 0.1  # share of the devices whose clocks are wrong
    kill_rate: float = 0.03  # share of the visits of a step at which the program is killed


@dataclass(slots=True)
class YearResult:
    """Counts of a simulated year."""

    settings: YearSettings  # what was simulated
    rounds_owed: int = 0  # device-days with at least six hours awake with a network
    # those without a connection, though both servers were in reach for six hours
    rounds_lost: int = 0
    # some of these: day, device, clock, and state of its renewal
    lost: list[str] = field(default_factory=list)
    # those without a connection since the EST server was out of reach
    days_without_connection: int = 0
    renewals: int = 0  # certificates that devices put in place
    requests: int = 0  # requests that devices made
    after_expiry: int = 0  # certificates issued to a device whose former one had expired
    # devices that cannot connect at the end, each with its clock and the reason
    locked_out: dict[str, str] = field(default_factory=dict)
    # acts of the operator for devices after their enrolment, by name
    operator_acts: dict[str, int] = field(default_factory=dict)
    # devices that wait for an operator's approval at the end
    waiting: list[str] = field(default_factory=list)
    wrong_clocks: dict[str, int] = field(default_factory=dict)  # devices by kind of wrong clock
    kills: dict[str, int] = field(default_factory=dict)  # kills by step
    visits: dict[str, int] = field(default_factory=dict)  # visits by step
    events: dict[str, int] = field(default_factory=dict)
    processor_seconds: float = 0.0  # processor time of the simulation

    @property
    def is_sound(self) -> bool:
        """Return whether nobody is locked out, no operator has acted, and no round is lost."""
        return not (self.locked_out or self.operator_acts or self.waiting or self.rounds_lost)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"is_sound": self.is_sound}


class Year:
    """A fleet and its year.

    Args:
        settings: What is simulated.
        place: Empty folder; in memory it takes a fifth of the time.
    """

    def __init__(self, settings: YearSettings, place: Path) -> None:
        self.settings, self.place = settings, place
        rng = self._rng = Random(settings.seed)  # noqa: S311 - a repeatable year
        self.end = BEGIN + settings.days * DAY
        self.calm = self.end - QUIET_DAYS * DAY
        self.faults = Faults(Random(rng.random()), settings.kill_rate)  # noqa: S311 - as above
        self.faults.is_armed = False
        self.site = Site(place / "ca", BEGIN, self.calm, Random(rng.random()), self.faults)  # noqa: S311
        self.result = YearResult(settings)
        self.devices = [self._device(number) for number in range(settings.devices)]

    def _device(self, number: int) -> Device:
        settings, rng = self.settings, Random(self._rng.random())  # noqa: S311 - a repeatable year
        wrong = round(settings.devices * settings.wrong_clocks)
        clock = MachineClock()
        if number < wrong:
            clock = wrong_clock(number, rng)
        clock.true = clock.set_at = clock.powered = BEGIN
        name = f"meter-{number}"
        device = Device(name, self.place / name, self.site, clock, rng)
        device.asleep = self._sleep(number, rng)
        device.offline = _intervals(rng, BEGIN, self.calm, 40 * DAY, (10 * MINUTE, 4 * DAY))
        kind = clock.kind or "right"
        self.result.wrong_clocks[kind] = self.result.wrong_clocks.get(kind, 0) + 1
        return device

    def _sleep(self, number: int, rng: Random) -> list[Interval]:
        kind = (number // 10) % 10
        every, lasts = (120 * DAY, (HOUR, 2 * DAY))
        if kind in (6, 7, 8):
            every, lasts = 12 * DAY, (8 * HOUR, 14 * DAY)
        elif kind == 9:
            every, lasts = 20 * DAY, (15 * DAY, LONGEST_SLEEP)
        return _intervals(rng, BEGIN + DAY, self.calm, every, lasts)

    # --- running ------------------------------------------------------------------------------------

    def run(self, progress: Callable[[int], None] = lambda _day: None) -> YearResult:
        """Simulate the year, and return its outcome.

        Args:
            progress: Receives the number of each day that is over.
        """
        begun = time.process_time()
        with self._virtual():
            self._enrol()
            for day in range(self.settings.days):
                self._day(day)
                progress(day)
            self._judge()
        self.result.processor_seconds = time.process_time() - begun
        return self.result

    @contextmanager
    def _virtual(self) -> Iterator[None]:
        """Run the block in simulated time, without sockets, and without lines of the log."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 3 * self.settings.devices + 500
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(files[0], min(wanted, files[1])), files[1]))
        former, real = logging.root.manager.disable, time.time

        def now() -> float:
            return real() if self.site.machine is None else self.site.machine.seconds

        connection = memory_tls.https_connection(self.site.open_est)
        logging.disable(logging.CRITICAL)
        try:
            with (
                mock.patch.object(time, "time", now),
                mock.patch.object(http.client, "HTTPSConnection", connection),
                self.faults.patched(),
            ):
                yield
        finally:
            self.site.machine = None
            for device in self.devices:
                device.close()
            self.site.close()
            logging.disable(former)
            resource.setrlimit(resource.RLIMIT_NOFILE, files)

    def _enrol(self) -> None:
        authority = (self.place / "ca" / "ca.pem").read_bytes()
        listed = self.site.list_devices([one.name for one in self.devices])
        right = MachineClock(true=BEGIN)
        for device, (serial, _, password) in zip(self.devices, listed, strict=True):
            self.site.machine = right
            self.site.now = right.true = BEGIN
            device.enrol(serial, password, authority)
        self.site.turn()
        self._setup = Counter(self.site.acts)
        self.faults.is_armed = self.site.is_faulty = True

    def _day(self, day: int) -> None:
        begin = BEGIN + day * DAY
        self.site.now, self.site.machine = begin, None
        if begin >= self.calm:
            self.faults.is_armed = self.site.is_faulty = False
        self.site.turn()
        for number, device in enumerate(self.devices):
            if device.rng.random() < 0.05:
                device.cut()
            offset = number * DAY / len(self.devices)
            device.live(begin + offset, begin + offset + DAY)
            self._count_round(day, device)

    def _count_round(self, day: int, device: Device) -> None:
        counts, result = device.counts, self.result
        if counts["seconds awake"] < OWED:
            return
        result.rounds_owed += 1
        if not counts["connected"]:
            is_served = counts["seconds served"] >= OWED
            result.rounds_lost += is_served
            if is_served and len(result.lost) < MOST_LOST:
                result.lost.append(f"day {day}, {device.state}")
            result.days_without_connection += not is_served

    def _judge(self) -> None:
        result, site = self.result, self.site
        total: Counter[str] = Counter()
        for device in self.devices:
            program = device.program
            if program is None or not (program.link.is_up and site.is_valid(program.link.shown)):
                kind = device.clock.kind or "right"
                result.locked_out[device.name] = f"clock: {kind}; {device.why}"
            device.close()
            total.update(device.counts)
        site.machine = None
        site.turn()
        acts = site.acts - self._setup
        result.operator_acts = {
            act: count
            for (who, act), count in acts.items()
            if who == OPERATOR and act != "issue certificate"
        }
        result.renewals, result.requests = total["renewals"], total["requests"]
        result.kills = {step: self.faults.kills[step] for step in STEPS}
        result.visits = {step: self.faults.visits[step] for step in STEPS}
        record = site.record()
        result.waiting = [one.name for one in record.members() if one.pending]
        result.after_expiry = _after_expiry(record.certificates())
        refused = {f"refused: {reason}": count for reason, count in record.refusals().items()}
        record.close()
        names = ("starts", "starts refused", "kills", "limited connections", "waits for approval")
        result.events = {name: total[name] for name in names} | dict(site.counts) | refused
        result.events["broker's certificate issued again"] = acts[OPERATOR, "issue certificate"]


def _after_expiry(issued: list[Any]) -> int:
    until: dict[str, str] = {}
    count = 0
    for one in issued:
        count += one.role == "device" and one.issued > until.get(one.name, "~")
        until[one.name] = max(one.expires, until.get(one.name, ""))
    return count


def _intervals(
    rng: Random, begin: float, end: float, every: float, lasts: tuple[float, float]
) -> list[Interval]:
    """Return intervals that are about so many seconds apart, and last from one bound to the other."""
    found, at = [], begin + rng.uniform(0.1, 1.0) * every
    while at < end:
        found.append((at, min(end, at + rng.uniform(*lasts))))
        at = found[-1][1] + every * rng.uniform(0.5, 1.5)
    return found
