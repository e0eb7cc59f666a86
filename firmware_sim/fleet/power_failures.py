"""Power failures of a fleet's devices: ``kill -9`` at any moment, and a restart."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from edge_sdk.app.settings import SettingsError
from firmware_sim.fleet.federation import Federation
from firmware_sim.profiles.weather import draw

_PATIENCE = 10.0  # seconds until a killed process has ended


def a_minute(options: Mapping[str, Any]) -> float:
    """Parse the ``--fault`` options of a fleet: the number of power failures a minute.

    Raises:
        SettingsError: Another fault, or a rate out of range.

    >>> a_minute({"brownouts": 6}), a_minute({})
    (6.0, 0.0)
    """
    for name, value in options.items():
        if name != "brownouts":
            raise SettingsError(
                f"--fault {name}: unknown; known: brownouts",
                hint="gridfed-sim meter, charger and station have faults of their own",
            )
        if not isinstance(value, int | float) or value < 0:
            raise SettingsError(f"--fault {name}: {value!r} is not a rate")
    return float(options.get("brownouts", 0.0))


@dataclass(slots=True)
class PowerFailures:
    """Cuts the power of one device after another."""

    run: Federation  # federation whose devices are processes
    rate: float  # number a minute, over all devices
    seed: int = 0  # seed of the times and the devices
    clock: Callable[[], float] = time.monotonic
    count: int = 0  # number of power failures so far
    _next: float = field(init=False)

    def __post_init__(self) -> None:
        self._next = self.clock() + self._pause()

    def serve(self) -> None:
        """Kill and restart a running device, if a failure is due."""
        running = [i for i, one in enumerate(self.run.devices) if one.poll() is None]
        if self.clock() < self._next or not running:
            return
        self._next = self.clock() + self._pause()
        number = running[int(draw("whom", self.seed, self.count).integers(len(running)))]
        self.count += 1
        device = self.run.devices[number]
        device.signal(signal.SIGKILL)
        device.wait(_PATIENCE)
        self.run.family.members.remove(device)
        self.run.devices[number] = self.run.start_device(self.run.prepared.devices[number])

    def _pause(self) -> float:
        if not self.rate:
            return float("inf")
        return float(draw("when", self.seed, self.count).exponential(60.0 / self.rate))
