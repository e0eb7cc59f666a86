"""Ten devices in one process that may be killed at any time, on faulty, recorded links.

    python -m tools.chaos.device_processes PLAN

``PLAN`` is JSON, written by ``tools.chaos.world``. Half of the devices' links send everything
twice, the other half out of order. Every second the process replaces a file that says how it is.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edge_sdk import Client, Config
from edge_sdk.app.cli import start_logging
from edge_sdk.link.broker_options import Broker, Will
from edge_sdk.link.event_loop import Poller
from edge_sdk.link.mqtt import MqttLink
from edge_sdk.protocol.keys import read_public
from firmware_sim.attacks import bind
from firmware_sim.attacks.attack_plan import AttackRole
from firmware_sim.attacks.byzantine_client import TamperingLink
from firmware_sim.fleet.in_process import Connect, Fleet, enlist, readings
from firmware_sim.fleet.run_files import assigned
from firmware_sim.samples import sample_set
from firmware_sim.scenario import Scenario
from tools.chaos.link_recorder import LinkRecord, RecordedLink

HISTORY_UNTIL = "2018-01-15"
RECONNECT_MAX = 10.0
_TURN = 0.05
_TELL = 1.0


@dataclass
class WanderingClock:
    """The machine's clocks, with a configurable offset of the wall clock."""

    off: float = 0.0

    def wall(self) -> int:
        """Return Unix milliseconds of this device's clock; never before 1970."""
        return max(0, int(1e3 * (time.time() + self.off)))

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()


def main(plan: dict[str, Any]) -> None:
    """Run the devices of this process until SIGTERM."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    start_logging("warning")
    clock, told = WanderingClock(), 0.0
    orders, hush, status = (Path(plan[name]) for name in ("orders", "hush", "status"))
    with Fleet() as fleet:
        _start(fleet, plan, clock, hush.exists)
        while not stopping:
            fleet.turn(_TURN)
            if time.monotonic() - told > _TELL:
                told = time.monotonic()
                clock.off = float(orders.read_text()) if orders.exists() else 0.0
                _tell(fleet.clients, status)
        _tell(fleet.clients, status)


def _start(
    fleet: Fleet, plan: dict[str, Any], clock: WanderingClock, is_hushed: Callable[[], bool]
) -> None:
    """Start every device; while training is paused they only send their pending messages."""
    samples = sample_set("homes")
    chosen = Scenario("chaos", until=HISTORY_UNTIL)
    own = dict(assigned(samples.samples, plan["of"]))
    connect = _over_mqtt(plan["seed"])
    for number, path in enumerate(map(Path, plan["devices"])):
        config = Config.load(path)
        is_new = not (config.state / "device.db").exists()
        history = partial(readings, own[config.id], samples, chosen) if is_new else tuple
        make = partial(Client, stopping=is_hushed)
        role = AttackRole(make, around=_around(plan, config, number))
        enlist(fleet, config, role, connect=connect, history=history, clock=clock)


def _over_mqtt(seed: int) -> Connect:
    """Return a maker of links that wait ten seconds at most between two attempts.

    In the field it is ten minutes: a storm of minutes stands for one of days.
    """
    poller, rng = Poller(), random.Random(seed)  # noqa: S311 - jitter

    def connect(config: Config, will: Callable[[], Will | None]) -> MqttLink:
        broker = Broker(
            url=config.broker.url,
            client_id=f"{config.fleet}.{config.id}",
            will=will,
            reconnect_max=RECONNECT_MAX,
        )
        return MqttLink(broker, poller=poller, rng=random.Random(rng.random()))  # noqa: S311

    return connect


def _around(plan: dict[str, Any], config: Config, number: int) -> Callable[[Any], Any]:
    bound = bind("duplicate") if number % 2 else bind("reorder", {"within": "1.0"})
    rng = np.random.default_rng([plan["seed"], number])
    public = read_public(config.keys.device.with_suffix(".pub"))
    diary = Path(plan["diaries"]) / f"{config.id}.jsonl"

    def around(link: Any) -> RecordedLink:  # noqa: ANN401 - any link
        spoilt = TamperingLink(link, bound, clock=time.monotonic, rng=rng)
        server = read_public(plan["aggregator"])
        return RecordedLink(spoilt, LinkRecord(diary, device=public, aggregator=server))

    return around


def _tell(clients: list[Client], status: Path) -> None:
    """Write the status of the devices atomically."""
    each = [client.status() for client in clients]
    values = {
        "owed": sum(one["outbox"] for one in each),
        "linked": sum(one["linked"] for one in each),
        "stopped": [one["stopped"] for one in each if one["stopped"]],
        "time": time.time(),
    }
    beside = status.with_suffix(".part")
    beside.write_text(json.dumps(values))
    beside.replace(status)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
