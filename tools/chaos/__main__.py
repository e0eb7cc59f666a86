"""``make chaos``: five minutes of faults of every kind, and then the history check.

    python -m tools.chaos --out chaos-run [--devices 200] [--seconds 150] [--seed 1]

Ends with 0 if no receipted update was lost, none applied twice, every round recomputes to the same
bits, every database is intact, and every device has sent its pending messages.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from pathlib import Path

from aggregator import config as configs
from aggregator.extensions.audit.recompute import recompute
from aggregator.store.opener import open_store
from edge_sdk.errors import Failure
from firmware_sim.fleet.processes import ProcessGroup, stoppable
from tools.chaos.delivery_audit import books, judge, lines
from tools.chaos.faults import FAULTS, backup_of
from tools.chaos.report import Event, Outcome
from tools.chaos.world import World

_LOOK = 0.25
_START = 150.0
_CALM = 240.0


def main(argv: list[str] | None = None) -> int:
    """Run a storm, write its report, and return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.chaos", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("chaos-run"))
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=150.0, help="of storm, before the calm")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", default="auto", help="embedded or mosquitto")
    parser.add_argument("--quorum", type=int, default=0, help="default: a fifth of them")
    parser.add_argument("--deadline", default="30s")
    args = parser.parse_args(argv)
    shutil.rmtree(args.out, ignore_errors=True)
    outcome = Outcome(args.devices, args.seed, args.seconds)
    with ProcessGroup(args.out / "logs") as family, stoppable():
        quorum = args.quorum or -(-args.devices // 5)
        world = World(family, args.out, args.devices, args.seed, args.kind, quorum, args.deadline)
        try:
            _run(world, outcome)
            family.stop([*world.processes])
            family.stop([world.aggregator])
            _judge(world, outcome)
        finally:
            family.stop(family.members)
            world.close()
    (args.out / "report.md").write_text(outcome.page())
    (args.out / "report.json").write_text(json.dumps(outcome.data(), indent=1, default=str))
    print(outcome.page())
    return 0 if outcome.is_sound else 1


def _run(world: World, outcome: Outcome) -> None:
    print(f"starting {world.devices} devices; logs in {world.folder / 'logs'}", flush=True)
    world.start()
    until = time.monotonic() + _START
    while not (world.version() or 0):
        world.tend()
        if time.monotonic() > until:
            raise Failure("the model did not move before the storm", hint=str(world.alone))
        time.sleep(_LOOK)
    _storm(world, outcome)
    for number in range(len(world.processes)):
        (world.folder / f"process-{number}.off").unlink(missing_ok=True)
    outcome.version = world.version() or 0
    outcome.calm = world.settle(_CALM)
    outcome.alone = dict(world.alone)


def _storm(world: World, outcome: Outcome) -> None:
    """Inject faults, each once and then by random draw, until the time is over."""
    rng, began = random.Random(world.seed), time.monotonic()  # noqa: S311 - a storm, repeatable
    names, weights = list(FAULTS), [weight for _, weight in FAULTS.values()]
    first = rng.sample(names, len(names))
    version = world.version() or 0
    while (at := time.monotonic() - began) < outcome.storm or first:
        name = first.pop() if first else rng.choices(names, weights)[0]
        struck = FAULTS[name][0](world, rng)
        if struck.fault:
            outcome.notes.append(f"{name}: {struck.fault}")
        if struck.count:
            print(f"{at:6.1f} s  {name}: {struck.count} {struck.what}", flush=True)
            outcome.events.append(Event(name, at, struck.count, struck.what, version))
        version = _look(world, outcome, began, version, rng.uniform(0.5, 2.5))
    _look(world, outcome, began, version, 5.0)


def _look(world: World, outcome: Outcome, began: float, version: int, seconds: float) -> int:
    """Watch for a while; record the faults after which the model has moved."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        world.tend()
        version = max(version, world.version() or 0)
        now = time.monotonic() - began
        for event in outcome.events:
            if event.recovered is None and version > event.version:
                event.recovered = now - event.at
        time.sleep(_LOOK)
    return version


def _judge(world: World, outcome: Outcome) -> None:
    """Compare all records with each other, after every program has stopped."""
    config = configs.AggregatorConfig.load(world.prepared.aggregator)
    bound = configs.bind(config)
    with open_store(config.database, read_only=True) as store:
        outcome.audit = recompute(store, bound.half, bound.spec.shared(bound.bundle.initial))
        outcome.verdict = judge(lines(world.diaries), books(store))
        outcome.broken += [f"the aggregator's database: {x}" for x in store.integrity()]
    copy = backup_of(world.folder)
    if copy.exists():
        with open_store(copy, read_only=True) as store:
            outcome.broken += [f"the backup: {x}" for x in store.integrity()]
    stopped = [why for process in world.device_status() for why in process.get("stopped", [])]
    outcome.broken += [f"a device stopped for good: {why}" for why in stopped]


if __name__ == "__main__":
    sys.exit(main())
