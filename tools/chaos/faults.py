"""Faults of the chaos test, one function each: inject, and recover."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from firmware_sim.fleet.processes import command, run
from tools.chaos.hostile import Stranger
from tools.chaos.wires import tell
from tools.chaos.world import PER_PROCESS, World, answers, is_listening, opened

_VOLLEY = 150
_HALF_OPEN = 50
_CLOCKS: Final = {"1970": -60 * 365 * 86_400.0, "a day back": -86_400.0, "ten years on": 3.2e8}


@dataclass(frozen=True, slots=True)
class Struck:
    """Effect of one fault: number and kind of its targets, and errors of the injection."""

    count: int
    what: str
    fault: str = ""


Strike = Callable[[World, random.Random], Struck]


def kill_devices(world: World, rng: random.Random) -> Struck:
    """Kill ten devices at once, and restart them."""
    number = rng.randrange(len(world.processes))
    world.kill(world.processes[number])
    time.sleep(rng.uniform(0.0, 1.5))
    world.start_devices(number)
    return Struck(PER_PROCESS, "devices")


def kill_aggregator(world: World, rng: random.Random) -> Struck:
    """Kill the aggregator at a random moment."""
    world.kill(world.aggregator)
    time.sleep(rng.uniform(0.0, 1.0))
    world.start_aggregator()
    return Struck(1, "aggregator")


def kill_broker(world: World, rng: random.Random) -> Struck:
    """Kill the broker, which loses its stored messages."""
    world.kill(world.broker)
    time.sleep(rng.uniform(0.2, 1.0))
    port = int(world.url.rpartition(":")[2])
    until = time.monotonic() + 5
    while is_listening(port) and time.monotonic() < until:
        time.sleep(0.05)
    world.start_broker()
    return Struck(1, "broker")


def cut_devices(world: World, _rng: random.Random) -> Struck:
    """Reset every device's connection at one moment: all of them reconnect at once."""
    return Struck(tell(world.ports["control"], "cut devices"), "connections")


def cut_aggregator(world: World, _rng: random.Random) -> Struck:
    return Struck(tell(world.ports["control"], "cut aggregator"), "connections")


def silence(world: World, rng: random.Random) -> Struck:
    """Keep sockets open without traffic for seconds, then reset them."""
    order = f"hold devices {rng.uniform(2.0, 5.0):.1f}"
    return Struck(tell(world.ports["control"], order), "connections")


def clock_jump(world: World, rng: random.Random) -> Struck:
    """Move ten devices' clocks: to 1970, one day back, or ten years ahead."""
    number = rng.randrange(len(world.processes))
    where = rng.choice(sorted(_CLOCKS))
    (world.folder / f"process-{number}.off").write_text(str(_CLOCKS[where]))
    return Struck(PER_PROCESS, f"devices, to {where}")


def hostile(world: World, rng: random.Random) -> Struck:
    """Publish noise, bombs, forgeries and replays as an unknown client."""
    names = [device.id for device in world.prepared.devices]
    stranger = Stranger(world.url, "storm", names, rng.getrandbits(32))
    return Struck(stranger.volley(_VOLLEY), "payloads")


def half_open(world: World, _rng: random.Random) -> Struck:
    """Open many idle sockets on page and broker; the page must answer meanwhile."""
    ports = world.ports["page"], int(world.url.rpartition(":")[2])
    try:
        sockets = [one for port in ports for one in opened(port, _HALF_OPEN)]
    except OSError as error:
        return Struck(0, "sockets", f"no sockets: {error}")
    is_fine = answers(world.ports["page"], "/healthz")
    time.sleep(2.0)
    for one in sockets:
        one.close()
    return Struck(len(sockets), "sockets", "" if is_fine else "/healthz did not answer")


def fill_server(world: World, rng: random.Random) -> Struck:
    """Fill the aggregator's disk for seconds."""
    if world.server_disk.why_not:
        return Struck(0, "disk", f"skipped: {world.server_disk.why_not}")
    world.server_disk.fill()
    time.sleep(rng.uniform(2.0, 4.0))
    world.server_disk.free()
    return Struck(1, "disk")


def fill_devices(world: World, rng: random.Random) -> Struck:
    """Fill the disk of ten devices for seconds."""
    if world.device_disk.why_not:
        return Struck(0, "disk", f"skipped: {world.device_disk.why_not}")
    world.device_disk.fill()
    time.sleep(rng.uniform(2.0, 5.0))
    world.device_disk.free()
    return Struck(1, "disk")


def back_up(world: World, _rng: random.Random) -> Struck:
    """Copy the database during the other faults."""
    path = backup_of(world.folder)
    path.unlink(missing_ok=True)
    config = str(world.prepared.aggregator)
    path.unlink(missing_ok=True)
    run(command("gridfed-aggregator", "backup", str(path), "--config", config))
    return Struck(1, "backup")


def backup_of(folder: Path) -> Path:
    return folder / "backup.db"


FAULTS: Final[Mapping[str, tuple[Strike, int]]] = {
    "kill -9 of ten devices": (kill_devices, 6),
    "kill -9 of the aggregator": (kill_aggregator, 4),
    "kill -9 of the broker": (kill_broker, 2),
    "all devices' links cut": (cut_devices, 2),
    "the aggregator's link cut": (cut_aggregator, 1),
    "links open and silent": (silence, 1),
    "clocks that jump": (clock_jump, 3),
    "hostile payloads": (hostile, 3),
    "half-open sockets": (half_open, 1),
    "aggregator's disk full": (fill_server, 1),
    "devices' disk full": (fill_devices, 1),
    "backup under load": (back_up, 1),
}
"""Every fault, and its weight in the random draw."""
