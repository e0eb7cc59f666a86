"""E15: the papers together. Every subset of four ideas, with and without attackers.

One set (Milan), one net, one fleet. The ideas: PL-FL's personal layers (the first layer is shared,
the others stay), PFGL's credit, BAFDP's consensus by signs, and noise on the readings. Both halves
are the product's, but for credit and consensus together (``personal_consensus``).
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from aggregator.methods import METHODS as SERVER
from aggregator.methods import Rounds, Setup
from aggregator.rules import bind
from edge_sdk.forecasting.windows import Drawable
from edge_sdk.methods import METHODS as DEVICE
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.protocol.contract.method import CONTRACTS, Half
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector
from edge_sdk.shared_math.optim import adam
from tools.experiments import cells, cellular_setup
from tools.experiments.byzantine import liars
from tools.experiments.cellular_setup import Ground, ground, judged, together
from tools.experiments.joint_loop import Plan, gather, key, redrawn, rounds
from tools.experiments.method_rows import DUAL, RATE, TIED
from tools.experiments.personal_consensus import PersonalRounds, personal_consensus
from tools.experiments.queue_loop import Stage, Step
from tools.papers.combined import RECORD, page, read, write

EXPERIMENT = "e15"
ROUNDS, CLIENTS = 60, 10
IDEAS = ("layers", "credit", "consensus", "noise")
ATTACKS = ("", "flipping", "alie")
ALONE = "alone"
"""Value of an arm's ``attack`` for training without federation, which no attack reaches."""

LIARS, BATCH, STEPS = 3, 64, 4
BUDGET = 30.0
CREDIT, PROX = 0.8, 0.1
SHARED = ("body.0.",)
"""Layers that are shared where others are personal: the first of three, a tenth of the numbers."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One run: the inputs of its numbers."""

    ideas: tuple[str, ...]  # those of ``IDEAS`` that are in
    attack: str  # what the liars do; empty for none
    seed: int  # of vectors, minibatches, noise and who lies
    rounds: int  # rounds of ``STEPS`` local steps
    clients: int

    @property
    def file(self) -> str:
        words = ["e15", "+".join(self.ideas) or "none", self.attack or "honest"]
        return "-".join((*words, f"n{self.clients}", f"k{self.rounds}", f"s{self.seed}")) + ".json"

    @property
    def shared(self) -> tuple[str, ...]:
        return SHARED if "layers" in self.ideas else ("",)

    @property
    def method(self) -> str:
        if "consensus" in self.ideas:
            return "bsfdp"
        return "pfl" if "credit" in self.ideas else "fedavg"


def subsets() -> Iterator[tuple[str, ...]]:
    """Yield every subset of the ideas, the small ones first.

    >>> len(list(subsets()))
    16
    """
    for size in range(len(IDEAS) + 1):
        yield from itertools.combinations(IDEAS, size)


def arms(*, seeds: int, rounds: int, clients: int) -> list[Arm]:
    """List every arm, seed by seed."""
    every = [(ideas, attack) for ideas in subsets() for attack in ATTACKS]
    every += [((), ALONE), (("noise",), ALONE)]
    return [
        Arm(ideas, attack, seed, rounds, clients)
        for seed in range(seeds)
        for ideas, attack in every
    ]


def main(options: argparse.Namespace) -> int:
    """Run every arm that is not kept, print the table, and write the record of the docs' page."""
    todo = arms(seeds=options.seeds, rounds=ROUNDS, clients=options.cells or CLIENTS)
    options.out.mkdir(parents=True, exist_ok=True)
    results = []
    for arm in todo:
        path = options.out / arm.file
        if not path.exists() and not options.kept:
            draft = path.with_suffix(".part")
            draft.write_text(json.dumps(run(arm, options.data)))
            draft.replace(path)
        if path.exists():
            results.append(json.loads(path.read_text()))
    if len(results) < len(todo):
        print(f"reproduce: {len(results)} of {len(todo)} runs are finished", file=sys.stderr)
        return 2
    record = RECORD if options.docs else options.out / RECORD.name
    write(results, record)
    print(page(read(record), record))
    return 0


def run(arm: Arm, folder: Path) -> dict[str, Any]:
    """Train one arm and score cells with the model that each forecasts with.

    The same cells are scored whatever the attack: those that lie in none of a seed's arms.
    """
    began = time.perf_counter()
    budget = BUDGET if "noise" in arm.ideas else None
    place = cellular_setup.Arm(
        "e15",
        cells.MILAN,
        horizon=1,
        name=arm.method,
        net="mlp",
        budget=budget,
        work=arm.rounds * STEPS,
        seed=arm.seed,
        clients=arm.clients,
    )
    base = ground(place, folder)
    if arm.attack == ALONE:
        return _finished(arm, base, _trained_alone(arm, base), 0, began)
    spec = base.bundle.manifest.spec(arm.shared)
    first = redrawn(spec, base.bundle.initial, key(arm.seed, "_agg", "initial", 0))
    lying = _drawn(arm, base) if arm.attack else []
    stage = _stage(arm, base, spec, first, lying)
    last: Step | None = None
    for step in stage.steps(spec.shared(first)):
        last = step
    if last is None or last.closed.round < arm.rounds:
        raise RuntimeError(f"{arm.file}: the run stopped early")
    vectors = _forecasting(arm, stage, last, spec)
    return _finished(arm, base, vectors, 2 * 4 * spec.shared_size * arm.rounds, began)


def _finished(
    arm: Arm, base: Ground, vectors: Mapping[str, Vector], bytes_: int, began: float
) -> dict[str, Any]:
    """Return a result: the error over the cells that lie in no arm of the seed."""
    drawn = _drawn(arm, base)
    honest = {x: p for x, p in vectors.items() if x not in drawn}
    return {
        "arm": {name: getattr(arm, name) for name in Arm.__slots__},
        "seconds": round(time.perf_counter() - began, 1),
        "liars": drawn if arm.attack in ATTACKS[1:] else [],
        "bytes": bytes_,
        "honest": together(judged(base, honest)),
    }


def _trained_alone(arm: Arm, base: Ground) -> dict[str, Vector]:
    """Train every cell alone for as many steps; its Adam is kept throughout."""
    values = {"steps": STEPS, "rate": RATE}
    plan = Plan("fedavg", values, (), arm.rounds, BATCH, "fresh", arm.seed, own_heads=False)
    fleet = gather(
        plan,
        layout=base.bundle.manifest.spec(("",)),
        initial=base.bundle.initial,
        gradient=base.bundle.gradient,
        windows=base.windows(),
        keep_moments=True,
    )
    for _, after in rounds(plan, fleet):
        fleet = after
    return fleet.vectors()


def _drawn(arm: Arm, base: Ground) -> list[str]:
    names = sorted(base.cells)
    drawn = key(arm.seed, "_liars", "who", 0).permutation(len(names))
    return sorted(names[i] for i in drawn[:LIARS])


def _stage(arm: Arm, base: Ground, spec: ParamSpec, first: Vector, lying: list[str]) -> Stage:
    name, windows = arm.method, base.windows()
    devices, states = {}, {}
    for client, some in windows.items():
        lent = TrainingContext(
            client, spec, base.bundle.graphs, _given(some), BATCH, partial(key, arm.seed, client)
        )
        devices[client] = DEVICE[name](lent, LocalSgd(adam, minibatch="fresh"))
        states[client] = devices[client].init(first)
    lies = liars(arm.attack, lying, len(devices), CONTRACTS[name], arm.seed)
    return Stage(name, _server(arm, spec, tuple(sorted(windows))), devices, states, lies)


def _server(arm: Arm, spec: ParamSpec, names: tuple[str, ...]) -> Half[Any]:
    settings = SERVER[arm.method].settings(**_settings(arm))
    if {"credit", "consensus"} <= set(arm.ideas):
        values = dict(settings.numbers(0))
        own = PersonalRounds(
            names, arm.rounds, TIED["l1"], TIED["server_rate"] * STEPS, CREDIT, values
        )
        return personal_consensus(own)
    course = Rounds(quorum=len(names), limit=arm.rounds)
    return SERVER[arm.method].half(Setup(bind("mean"), settings, course, spec, arm.seed))


def _settings(arm: Arm) -> Mapping[str, Any]:
    """Return the method's settings; a consensus moves once in ``STEPS`` steps, so as much farther."""
    common = {"steps": STEPS, "rate": RATE}
    if arm.method == "bsfdp":
        tied = {**TIED, "server_rate": TIED["server_rate"] * STEPS}
        return {**common, **tied, "dual_max": DUAL, "eps_cap": BUDGET, "check_every": 0}
    if arm.method == "pfl":
        choice = {"model_selection": "last", "final_tuning": False}
        return {**common, "prox": PROX, "credit": CREDIT, **choice}
    return common


def _forecasting(arm: Arm, stage: Stage, last: Step, spec: ParamSpec) -> dict[str, Vector]:
    own = {x: np.asarray(half.model(stage.states[x])["p"]) for x, half in stage.devices.items()}
    if "credit" in arm.ideas:
        return own
    common = np.asarray(stage.server.model(last.state)["p"], np.float32)
    return {x: spec.place(p, common) for x, p in own.items()}


def _given(windows: Drawable) -> Callable[[], Drawable]:
    return lambda: windows
