"""Run devices that learn with their neighbours: real clients in this process on a real broker, and no server."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from edge_sdk import Client
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.app.schema import build
from edge_sdk.extensions.peers.topology import NeighboursSection
from edge_sdk.protocol.keys import generate, save_public
from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.fleet.federation import POLL_SECONDS, Progress, TooSlow
from firmware_sim.fleet.in_process import (
    Connect,
    Cost,
    Fleet,
    over_mqtt,
    populate,
    processor_seconds,
    uncollected,
)
from firmware_sim.fleet.run_files import Device, device_table, signed_bundle, toml, written
from firmware_sim.peers.settings import PeerPlan, disagreement
from firmware_sim.reports.credit_report import CreditReport
from firmware_sim.reports.forecast_errors import Errors, errors
from firmware_sim.reports.progress_display import Display
from firmware_sim.samples import SampleSet
from firmware_sim.scenario import Scenario

FLEET = "street"  # name of the fleet, in topics and signatures


def prepare_peers(
    folder: Path,
    plan: PeerPlan,
    chosen: Scenario,
    samples: SampleSet,
    *,
    broker: str,
    seed: int = 0,
) -> tuple[Device, ...]:
    """Write the files of every device, each with its neighbours, and return the devices.

    Args:
        folder: Made if missing; must not hold an earlier fleet.
        broker: Address of a running broker.
        seed: Seed of a random graph.

    Raises:
        SettingsError: The graph does not fit the devices.
    """
    make_private_folder(folder)
    chosen = replace(chosen, bundle=signed_bundle(folder, chosen.bundle))
    root = folder / "aggregator" / "root.pub"
    if not root.is_file():  # of an operator who announces nothing
        make_private_folder(root.parent)
        save_public(root, generate().public)
    common = device_table(FLEET, chosen, broker, root, choose_best=False)
    common["accept"] = {"methods": [chosen.run.method]}
    devices = written(folder, common, chosen, samples)
    names = [one.id for one in devices]
    links = plan.links(names, seed)
    weights = plan.weights(names, links)
    keys = {
        one.id: one.config.with_suffix(".pub").read_text(encoding="ascii").strip()
        for one in devices
    }
    return tuple(
        _with_neighbours(
            one, plan, {name: keys[name] for name in sorted(weights[one.id])}, weights[one.id]
        )
        for one in devices
    )


def _with_neighbours(
    device: Device, plan: PeerPlan, keys: Mapping[str, str], weights: Mapping[str, float]
) -> Device:
    table = plan.table(keys, weights)
    with device.config.open("a", encoding="utf-8") as out:
        out.write(toml({"neighbours": table}))
    return replace(device, extensions={"neighbours": build(NeighboursSection, table)})


@dataclass
class PeerRun:
    """One run among peers in one folder, with the attributes of a ``FleetRun`` that a trial reads."""

    scenario: Scenario
    samples: SampleSet
    out: Path
    shown: Display
    broker: str  # address of a running broker
    limit: float = 600.0  # time limit of the run in seconds
    seed: int = 0  # seed of a random graph, and of the links' jitter
    name: str = "peers"
    attack_plan: AttackPlan | None = None  # refused if there is one
    evaluated: tuple[str, ...] = ()  # ids of the devices whose forecasts are evaluated at the end
    errors: Errors | None = None
    credit: CreditReport | None = None  # None: there is no server to weigh models
    refused: dict[str, int] = field(default_factory=dict)  # messages refused by devices, by reason
    moved: int = 0  # number of exchanges that every device has completed
    # disagreement of the devices' models after each exchange that was seen
    disagreements: list[float] = field(default_factory=list)
    connect: Connect | None = None  # makes a device's link; None: over MQTT
    # called with the clients at the end of the run
    ended: Callable[[Sequence[Client]], object] = lambda _clients: None

    def run(self) -> Cost:
        """Run every exchange; ``errors`` and ``disagreements`` are set afterwards.

        Raises:
            SettingsError: A setting or a graph that does not fit, or that only ``--direct`` has.
            TooSlow: The run did not end in time.
        """
        plan = PeerPlan.of(self.scenario.run, self.scenario.devices)
        plan.refuse_over_a_broker(self.attack_plan)
        devices = prepare_peers(
            self.out / "fleet",
            plan,
            self.scenario,
            self.samples,
            broker=self.broker,
            seed=self.seed,
        )
        with Fleet() as fleet:
            connect = self.connect or over_mqtt(self.seed)
            populate(fleet, devices, self.samples, self.scenario, connect)
            self.shown.note(f"{len(fleet.clients)} devices are set up in this process")
            begun, processor = time.monotonic(), processor_seconds()
            with uncollected():
                self._watch(fleet, plan, partial(fleet.serve, 0.02))
            wall, spent = time.monotonic() - begun, processor_seconds() - processor
            traffic = fleet.traffic()
            self.refused = _refused(fleet)
            self.ended(fleet.clients)
            self.errors = errors(fleet, devices, self.evaluated, self.samples, self.scenario)
        up, down = sum(one.up for one in traffic), sum(one.down for one in traffic)
        return Cost(len(devices), self.moved, wall, spent, 0.0, up, down)

    def _watch(self, fleet: Fleet, plan: PeerPlan, serve: partial[None]) -> None:
        begun = looked = time.monotonic()
        rounds, steps = plan.run.rounds, plan.section.steps
        while self.moved < rounds:
            serve()
            now = time.monotonic()
            done = min(_step(client.status()) for client in fleet.clients) // steps
            if done == self.moved and now - looked < POLL_SECONDS:
                continue
            looked = now
            if done > self.moved:
                self.moved = done
                found = [client.learner.spec.shared(client.state.p) for client in fleet.clients]
                self.disagreements.append(disagreement(found))
            self.shown.update(
                self.name,
                "done" if done == rounds else "training",
                self._progress(fleet, now - begun),
            )
            if now - begun > self.limit and done < rounds:
                raise TooSlow(
                    f"time limit of {self.limit:.0f} s: {done} of {rounds} exchanges",
                    hint="more time: --limit; fewer exchanges: --rounds",
                )

    def _progress(self, fleet: Fleet, spent: float) -> Progress:
        traffic, count = fleet.traffic(), len(fleet.clients)
        return Progress(
            round=self.moved,
            version=self.moved,
            rounds=self.scenario.run.rounds,
            seen=count,
            present=count,
            up=sum(one.up for one in traffic),
            down=sum(one.down for one in traffic),
            seconds=spent,
        )


def _step(status: dict[str, object]) -> int:
    told = status.get("neighbours")
    return int(told["step"]) if isinstance(told, dict) else 0


def _refused(fleet: Fleet) -> dict[str, int]:
    found: Counter[str] = Counter()
    for client in fleet.clients:
        for name, count in client.status()["counts"].items():
            kind, _, reason = name.rpartition(" ")
            if kind == "neighbours refused":
                found[reason] += count
    return dict(found)
