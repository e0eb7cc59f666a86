"""One device that is killed around its releases, over and over. Started by ``test_ledger.py``.

    python spender.py FOLDER KILLS

A parent with everything loaded forks a device with its aggregator for each kill; four in five fall
between the charge and the send. What the device hands to its link is written to a log first: the
log is at least what went out. After every death the parent compares log and ledger, and prints what
it found as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import sys
from pathlib import Path

import numpy as np

from edge_sdk import client as client_module
from edge_sdk.protocol import codec, topics
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.envelope import AGGREGATOR, digest, unseal
from edge_sdk.store import store as store_module
from edge_sdk.store.store import DeviceStore
from edge_sdk.training import bootstrap

ROOT = Path(__file__).resolve().parents[2]
BETWEEN = ("after the charge", "before the send")
AROUND = ("in the transaction", "after the send", "any time")
W0 = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
PRIVACY = {
    "mechanism": {
        "name": "gaussian",
        "point": "update",
        "clip_norm": 1.0,
        "noise_multiplier": 50.0,
    },
    "mode": "honest",
    "budget": {"epsilon": 100.0, "delta": 1e-6},
}


def parts():
    """The scripted aggregator and the bundle in numpy of the device's own tests."""
    spec = importlib.util.spec_from_file_location("parts", ROOT / "tests/edge_sdk/conftest.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["parts"] = module
    spec.loader.exec_module(module)
    return module


def die() -> None:
    """Power cut."""
    os.kill(os.getpid(), signal.SIGKILL)


class Tap:
    """A link that writes every release to a log before it may leave."""

    def __init__(self, link, log: Path, module) -> None:
        self._link, self._log, self._key = link, log, module.DEVICE_KEY.public
        self._device, self._fleet, self.when = module.DEVICE, module.FLEET, ""

    def __getattr__(self, name):
        return getattr(self._link, name)

    def publish(self, topic, payload, **options):
        address = topics.parse(topic)
        if address.kind not in {"update", "offer"}:
            return self._link.publish(topic, payload, **options)
        if self.when == "before the send":
            die()
        body = unseal(
            payload,
            kind=address.kind,
            sender=self._device,
            recipient=AGGREGATOR,
            fleet=self._fleet,
            key_of=lambda _sender, _kid: self._key,
        ).body
        said = codec.decode(address.kind, body)
        name = said.digest if isinstance(said, m.OfferMessage) else digest(body)
        line = json.dumps([said.life, said.seq, said.spent, name.hex()])
        with self._log.open("a") as log:
            log.write(line + "\n")
        sent = self._link.publish(topic, payload, **options)
        if self.when == "after the send":
            die()
        return sent


def told(log: Path) -> list[tuple[int, int, int, str]]:
    """Read the log back; a last line that a death cut short counts as nothing said."""
    if not log.exists():
        return []
    return [tuple(json.loads(x)) for x in log.read_text().splitlines() if x.endswith("]")]


def live(module, folder: Path, number: int, when: str) -> None:
    """One life of the device: settle what is owed, learn one round, and die at the worst moment."""
    log = folder / "wire.log"
    fleet = module.make_fleet(folder / "device", privacy=PRIVACY, accept={"max_steps": 3})
    fleet.server.highest = max((line[0] for line in told(log)), default=0)
    tap = None

    def link(will):
        nonlocal tap
        tap = Tap(fleet.broker.link(module.DEVICE, will), log, module)
        return tap

    fleet.device.client = client_module.Client(
        fleet.device.config, transport=link, clock=fleet.clock
    )
    fleet.device.observe()
    fleet.run(25, seconds=0.5)  # welcomed; what an earlier life owed is asked for again
    arm(tap, when)
    fleet.server.open_round(number, number, W0)
    fleet.run(30, seconds=0.05)
    die()


def arm(tap: Tap, when: str) -> None:
    """Make the death happen where it shall."""
    tap.when = when
    if when == "after the charge":
        save = DeviceStore.save

        def saved(self, **what):
            save(self, **what)
            die()

        DeviceStore.save = saved
    elif when == "in the transaction":
        store_module._write_charges = lambda _db, _charges: die()
    elif when == "any time":
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 0.02))


def main(folder: Path, kills: int) -> dict[str, object]:
    """Kill so many times; compare after every one."""
    module = parts()
    bundle = module.NumpyBundle()
    for used in (client_module, bootstrap):
        used.open_bundle = lambda _config, _announced: bundle
    deaths = dict.fromkeys((*BETWEEN, *AROUND), 0)
    worst, log = 0, folder / "wire.log"
    for number in range(kills):
        when = BETWEEN[number % 2] if number % 5 else AROUND[number // 5 % len(AROUND)]
        child = os.fork()
        if child == 0:
            random.seed(number)

            live(module, folder, number, when)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"life {number} ended with {status}"
        deaths[when] += 1
        worst = max(worst, compare(folder / "device" / "state", told(log)))
    lines = told(log)
    return {"deaths": deaths, "released": len({x[:2] for x in lines}), "ahead": worst}


def compare(state: Path, lines: list[tuple[int, int, int, str]]) -> int:
    """Hold the ledger against what went out; return by how much the ledger is ahead."""
    with DeviceStore.open(state, read_only=True) as store:
        charged = sum(charge.releases for charge in store.ledger())
        spent = store.numbers().spent
    bodies: dict[tuple[int, int], set[str]] = {}
    for life, seq, _, name in lines:
        bodies.setdefault((life, seq), set()).add(name)
    assert all(len(names) == 1 for names in bodies.values()), "two bodies under one number"
    assert charged == spent, f"the ledger says {charged}, the counter {spent}"
    assert charged >= len(bodies), f"{len(bodies)} went out, {charged} are charged"
    assert all(line[2] <= charged for line in lines), "an update tells more than is charged"
    return charged - len(bodies)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))  # noqa: T201 - its answer
