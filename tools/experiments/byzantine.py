"""The simulator's attacks in an experiment: Byzantine clients, targets and spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edge_sdk.protocol.contract.method import Contract, Task, Up, Update
from firmware_sim.attacks import ATTACKS, bind
from firmware_sim.attacks.attack_context import AttackContext, Row, in_space, sendable
from tools.experiments.joint_loop import key
from tools.experiments.simulated_clock import Tamper

KEPT = 8
"""Rounds that a liar remembers: enough for the attacks that look back."""


@dataclass(slots=True, eq=False)
class Liar:
    """One Byzantine device: it trains as instructed and then sends the attack's result."""

    name: str
    # a key of ``ATTACKS`` whose kind is ``model``, and its options after a colon
    # (``ipm:epsilon=2``)
    attack: str
    contract: Contract  # of the method, for what is answered and what the question carried
    devices: int  # how many there are in all
    count: int  # how many of them lie
    seed: int  # of attacks that draw
    models: list[Row] = field(default_factory=list)  # what it was sent in earlier rounds
    past: list[Row] = field(default_factory=list)  # what it would have answered honestly

    def __call__(self, own: Update, task: Task, honest: Mapping[str, Update]) -> Update:
        ask = self.contract[task.ask]
        received = np.asarray(task.arrays[ask.down[0]], np.float64)
        vector = np.asarray(own.vector, np.float64)
        rows = [np.asarray(honest[x].vector, np.float64) for x in sorted(honest)]
        scene = AttackContext(
            own=vector,
            honest=np.stack(rows) if rows else vector[None],
            received=received,
            past=tuple(self.past),
            models=tuple(self.models),
            devices=self.devices,
            byzantine=self.count,
            rng=key(self.seed, self.name, "attack", task.round),
        )
        lie = self._lie(scene, ask.up)
        self.models = [*self.models, received][-KEPT:]
        self.past = [*self.past, vector][-KEPT:]
        return replace(own, vector=lie)

    def _lie(self, scene: AttackContext, part: Up) -> Row:
        known, _, options = self.attack.partition(":")
        words = dict(x.split("=") for x in options.split(",") if x)
        bound = bind(known, words)
        if part in (Up.DELTA, Up.WEIGHTS):
            return sendable(in_space(bound.space, part, bound.act)(scene))
        return np.asarray(np.sign(bound.act(scene)))


def liars(
    attack: str, names: Sequence[str], devices: int, contract: Contract, seed: int
) -> dict[str, Tamper]:
    """Return the attack of each Byzantine client; empty without an attack on updates."""
    if not attack or ATTACKS[attack.partition(":")[0]].kind != "model":
        return {}
    return {x: Liar(x, attack, contract, devices, len(names), seed) for x in names}


def lied_to(attack: str, traffic: Row, name: str, seed: int) -> Row:
    """Return a series after a data attack, in the unit interval of the device."""
    known, _, options = attack.partition(":")
    words = dict(x.split("=") for x in options.split(",") if x)
    return np.asarray(bind(known, words).act(traffic, key(seed, name, "attack", 0)))
