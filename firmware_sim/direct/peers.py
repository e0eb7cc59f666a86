"""Run devices that learn with their neighbours in one loop: their real halves, without links and stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edge_sdk.extensions.peers.gossip import ADAPT, ALONE, BEGIN, MIX, THETA, exchange_parts
from edge_sdk.protocol.contract.method import Array, Task, Up
from edge_sdk.protocol.contract.parameter_layout import Vector
from firmware_sim.attacks.attack_context import AttackContext, sendable
from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.direct.device import DirectDevice
from firmware_sim.peers.graphs import Links, PushSum
from firmware_sim.peers.settings import PeerPlan, disagreement
from firmware_sim.scenario import RunSettings

NO_RUN = 0  # number of the run where no aggregator announces one: minibatches are drawn by it

Offers = Mapping[str, Mapping[str, Vector]]
"""Vectors that the devices offer, by device and part."""


@dataclass
class PeerSimulation:
    """One run of devices among peers, all of which exchange at once."""

    plan: PeerPlan
    devices: Mapping[str, DirectDevice]  # the devices by id
    links: Links
    seed: int = 0  # seed of the links of an exchange, and of attacks
    attack_plan: AttackPlan | None = None  # attack on the offers; None without one
    exchanges: int = 0  # number of exchanges so far
    bytes_up: int = 0  # bytes of the vectors that were offered
    _masses: PushSum = field(init=False)

    @classmethod
    def of(
        cls,
        devices: Mapping[str, DirectDevice],
        run: RunSettings,
        seed: int = 0,
        *,
        attack_plan: AttackPlan | None = None,
    ) -> PeerSimulation:
        """Return a simulation at its beginning; raise SettingsError if settings do not fit."""
        plan = PeerPlan.of(run, len(devices))
        return cls(plan, devices, plan.links(list(devices), seed), seed, attack_plan)

    def __post_init__(self) -> None:
        """Give each device a mass of 1."""
        self._masses = PushSum.of(self.devices)

    def run(self, exchanged: Callable[[], object] = lambda: None) -> None:
        """Run all steps; ``exchanged`` is called after each exchange with its steps alone, and may raise to stop."""
        plan, steps = self.plan, self.plan.section.steps
        for name in self.devices:
            self._apply(name, BEGIN, 0)
        for step in range(0, plan.run.rounds * steps, steps):
            self._exchange(step)
            for alone in range(step + 1, step + steps):
                for name in self.devices:
                    self._apply(name, ALONE, alone)
            self.exchanges += 1
            exchanged()

    @property
    def disagreement(self) -> float:
        """Return the disagreement of the honest devices' shared layers."""
        byzantine = self._byzantine
        found = [
            one.learner.spec.shared(one.state.p)
            for name, one in self.devices.items()
            if name not in byzantine
        ]
        return disagreement(found)

    @property
    def _byzantine(self) -> frozenset[str]:
        plan = self.attack_plan
        return frozenset() if plan is None else plan.malicious(sorted(self.devices))

    def _exchange(self, step: int) -> None:
        plan, names = self.plan, list(self.devices)
        links = plan.graph.drawn(self.links, self.exchanges, self.seed)
        if plan.graph.directed:
            masses, weights = self._masses.exchanged(links)
        else:
            masses, weights = self._masses, plan.weights(names, links)
        for turn, parts in enumerate(exchange_parts(plan.run.method, plan.values)):
            for name in names:
                self._apply(name, ADAPT, step, turn=turn)
            self._masses = masses  # a step before the mixing was at the old ones
            offers = self._offers(parts, step)
            for name in names:
                self._apply(name, MIX, step, self._received(offers, weights[name], parts), turn)
            one = next(iter(offers.values()))
            self.bytes_up += len(links) * sum(4 * vector.size for vector in one.values())

    def _offers(self, parts: tuple[str, ...], step: int) -> Offers:
        offers: dict[str, dict[str, Vector]] = {}
        for name, device in self.devices.items():
            spec, state = device.learner.spec, device.state
            offers[name] = {x: state.offered(spec, x).astype(np.float32) for x in parts}
        plan, byzantine = self.attack_plan, self._byzantine
        if plan is None or THETA not in parts or self.exchanges + 1 < plan.start_round:
            return offers
        honest = np.array([offers[x][THETA] for x in sorted(self.devices) if x not in byzantine])
        for number, name in enumerate(sorted(byzantine)):
            own = offers[name][THETA].astype(np.float64)
            scene = AttackContext(
                own,
                honest.astype(np.float64),
                own,
                devices=len(self.devices),
                byzantine=len(byzantine),
                rng=np.random.default_rng([plan.seed, 0 if plan.colluding else number, step]),
            )
            offers[name][THETA] = sendable(plan.bound.on(Up.WEIGHTS)(scene)).astype(np.float32)
        return offers

    def _received(
        self, offers: Offers, weights: Mapping[str, float], parts: tuple[str, ...]
    ) -> dict[str, Array]:
        near = sorted(weights)
        out: dict[str, Array] = {"weights": np.array([weights[name] for name in near])}
        for part in parts:
            size = next(iter(offers.values()))[part].size
            rows = [offers[name][part].astype(np.float64) for name in near]
            out[part] = np.array(rows).reshape(len(near), size)
        return out

    def _apply(
        self,
        name: str,
        ask: str,
        step: int,
        arrays: Mapping[str, Array] | None = None,
        turn: int = 0,
    ) -> None:
        """Apply a task to a device, which keeps its state where the result fails its test, as over a broker."""
        device, values = self.devices[name], dict(self.plan.values)
        values |= {"turn": float(turn), "rate": values["rate"] / self._masses.masses[name]}
        task = Task(name, 1, ask, step, values=values, arrays=arrays or {})
        state: Any = device.learner.apply_perishable(device.state, task)[0]
        if not device.learner.fault_of(state, device.state):
            device.state = state
