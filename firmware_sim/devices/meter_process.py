"""``gridfed-sim meter``: one simulated meter, with the protocols of a real one."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from edge_sdk.app.settings import SettingsError
from firmware_sim.devices.faults import FaultRates, FaultSequence
from firmware_sim.devices.meter import Meter
from firmware_sim.ports.line import Line, open_line
from firmware_sim.ports.modbus import Registers
from firmware_sim.ports.p1 import MeterDisplay, telegram
from firmware_sim.profiles.premises import Premises
from firmware_sim.profiles.recorded import Recorded
from firmware_sim.profiles.weather import DAY, Weather

_TRUTH_EVERY = 900
_LINGER = 30.0  # seconds that a reader may take for the last bytes


@dataclass(frozen=True, slots=True)
class MeterSettings:
    """Settings of a simulated meter."""

    start: float  # Unix seconds of the first telegram
    seconds: float  # duration in the meter's time
    every: float = 10.0  # seconds between two telegrams
    speed: float = 1.0  # speed relative to real time; 0 is as fast as it is read
    p1: str = "pty"  # Destination of telegrams (``open_line``); empty is none
    modbus: str = ""  # address of the registers' server, ``tcp://host:port``; empty is none
    kind: Literal["home", "business"] = "home"
    seed: int = 0
    region: str = "north"  # region, which shares its weather
    zone: str = "Europe/Amsterdam"
    solar: float = 0.0  # kW of panels
    heat_pump: bool = False
    gas: bool = False
    faults: FaultRates = field(default_factory=FaultRates)
    truth: Path | None = None  # CSV file for the true energy; None writes none
    recorded: str = ""  # ``SET/DEVICE`` of shipped readings to use instead; empty generates

    def meter(self) -> Meter:
        zone = ZoneInfo(self.zone)
        first = int(self.start // DAY) * DAY
        if self.recorded:
            return Meter(Recorded(self.recorded, self.seed), first, zone, self.gas)
        place = Weather(self.region)
        site = Premises(self.seed, self.kind, place, zone, self.solar, self.heat_pump)
        return Meter(site, first, zone, self.gas)


@dataclass(slots=True)
class MeterCounts:
    """Counters of a simulated meter."""

    telegrams: int = 0  # written telegrams, without faults
    dropped: int = 0  # messages without a reader
    faults: dict[str, int] = field(default_factory=dict)  # faults, by name
    wh: float = 0.0  # energy between the first telegram and the last: the true value
    shown: int = 0  # the same from the registers: each in whole Wh


def run(settings: MeterSettings, announce: Callable[[dict[str, Any]], object]) -> MeterCounts:
    """Run a meter until its time is over, or it is interrupted.

    Args:
        announce: Called once with the meter's addresses, before the first telegram.

    Raises:
        SettingsError: An invalid address.
    """
    meter, counts = settings.meter(), MeterCounts()
    now: list[MeterDisplay] = [meter.display(settings.start)]
    with ExitStack() as opened:
        line = open_line(settings.p1) if settings.p1 else None
        addresses: dict[str, Any] = {}
        if line is not None:
            opened.callback(line.close)
            addresses["p1"] = line.url
        if settings.modbus:
            host, port = _endpoint(settings.modbus)
            server = Registers(host, port, lambda: now[0])
            opened.callback(server.close)
            addresses["modbus"] = server.url
        announce(addresses)
        first, shown = meter.wh(settings.start), sum(now[0].imported)
        for moment, display, messages, breaks in _steps(settings, meter, counts):
            now[0] = display
            counts.telegrams += 1
            counts.wh = meter.wh(moment) - first
            counts.shown = sum(display.imported) - shown
            _send(line, messages, counts, waits=settings.speed == 0)
            if line is not None and breaks:
                line.disconnect()
        if line is not None and settings.speed == 0:
            line.drain(_LINGER)
    return counts


def _steps(
    settings: MeterSettings, meter: Meter, counts: MeterCounts
) -> Iterator[tuple[float, MeterDisplay, list[bytes], bool]]:
    """Yield true time, display, bytes for the line, and True if the line breaks."""
    faults = FaultSequence(settings.faults, settings.seed)
    began, zone = time.monotonic(), ZoneInfo(settings.zone)
    with ExitStack() as opened:
        truth = _Truth.open(settings.truth, opened)
        for number in range(int(settings.seconds // settings.every) + 1):
            moment = settings.start + number * settings.every
            if settings.speed > 0:
                time.sleep(
                    max(0.0, began + number * settings.every / settings.speed - time.monotonic())
                )
            truth.note(meter, moment)
            shown = faults.clock(moment, settings.start)
            counts.faults = dict(faults.counts)
            if shown is None:
                continue
            display = meter.display(moment, shown)
            messages = list(faults.sent(telegram(display, zone)))
            yield moment, display, messages, faults.happens("flap")
            counts.faults = dict(faults.counts)


def _send(line: Line | None, messages: list[bytes], counts: MeterCounts, *, waits: bool) -> None:
    if line is None:
        return
    for message in messages:
        if not line.send(message, waits=waits):
            counts.dropped += 1


class _Truth:
    """CSV rows of Unix seconds, Wh so far, and whole Wh shown, on every quarter of an hour."""

    def __init__(self, rows: Any) -> None:  # noqa: ANN401 - the writer's type has no public name
        self._rows = rows

    @classmethod
    def open(cls, path: Path | None, opened: ExitStack) -> _Truth:
        if path is None:
            return cls(None)
        file = opened.enter_context(path.open("w", newline="", encoding="utf-8"))
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("time", "wh", "shown"))
        return cls(rows)

    def note(self, meter: Meter, moment: float) -> None:
        if self._rows is not None and moment % _TRUTH_EVERY == 0:
            shown = sum(meter.display(moment).imported)
            self._rows.writerow((int(moment), f"{meter.wh(moment):.3f}", shown))


def _endpoint(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme != "tcp" or not parts.hostname or parts.port is None:
        raise SettingsError(
            f"--modbus {url}: expected tcp://host:port", hint="such as tcp://127.0.0.1:0"
        )
    return parts.hostname, parts.port
