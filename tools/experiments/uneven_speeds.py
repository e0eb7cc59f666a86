"""Byzantine devices among devices of very different speeds: three ways to collect rows for one rule.

Ten clients of the synthetic task take 1 to 20 seconds for an answer; two of them lie. The same trimmed
mean (f = 2) receives a round of all devices (``fedavg``), a buffer of 2 f + 3 (``fedbuff``), or the
newest difference of every device (``cached``). An error is that of the common model on the honest
clients, over that of FedAvg without liars after as many answers as ``cached`` receives; mean over seeds.

    python -m tools.experiments.uneven_speeds --seeds 3
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from aggregator.methods import METHODS as SERVER
from aggregator.methods import Rounds, Setup
from aggregator.rules import bind
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.forecasting.windows import Drawable
from edge_sdk.methods import METHODS as DEVICE
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.protocol.contract.method import CONTRACTS
from edge_sdk.shared_math.optim import adam
from tools.experiments import cells as data
from tools.experiments import synthetic
from tools.experiments.byzantine import liars
from tools.experiments.joint_loop import key, redrawn
from tools.experiments.matrix import BATCH, STEPS, model_error
from tools.experiments.simulated_clock import World

CLIENTS, LIARS, SPREAD = 10, 2, 20.0
ATTACKS = ("", "flipping", "scaling", "gaussian", "alie", "ipm", "mimic")


@dataclass(frozen=True, slots=True)
class Way:
    """A method, and how it collects rows."""

    method: str
    quorum: int
    settings: Mapping[str, Any]
    # true if it has the time for as many answers as the devices give without waiting
    as_many: bool = False


REFERENCE = "fedavg, as many answers"
WAYS = {
    REFERENCE: Way("fedavg", CLIENTS, {}, as_many=True),
    "fedavg, as much time": Way("fedavg", CLIENTS, {}),
    "fedbuff, buffer of 7": Way("fedbuff", 2 * LIARS + 3, {"max_staleness": 256}),
    "cached, quorum 1": Way("cached", 1, {"min_rows": CLIENTS}),
    "cached, quorum 3": Way("cached", 3, {"min_rows": CLIENTS}),
}


def seconds_of(names: list[str], seed: int) -> dict[str, float]:
    """Return the seconds that each client takes: from 1 to ``SPREAD``, evenly on a logarithm.

    Liars and honest clients receive places by the seed.

    >>> sorted(seconds_of(["a", "b", "c"], 0).values())
    [1.0, 4.47213595499958, 20.0]
    """
    steps = np.linspace(0.0, math.log(SPREAD), len(names))
    places = key(seed, "_clock", "places", 0).permutation(len(names))
    return {name: math.exp(steps[place]) for name, place in zip(names, places, strict=True)}


def seconds_for_as_many(seconds: float) -> float:
    """Return the time in which rounds of all devices take as many answers as come without waiting.

    >>> round(seconds_for_as_many(100.0))
    681
    """
    each = seconds_of([str(i) for i in range(CLIENTS)], 0).values()
    return SPREAD * seconds * sum(1.0 / one for one in each) / CLIENTS


def errors(way: Way, attack: str, seed: int, ends: float) -> tuple[float, int]:
    """Return the common model's error after ``ends`` simulated seconds, and how often it moved."""
    bundle = Bundle.open("cells-mlp-1", trust=TrustedKeys())
    cells = {one.name: one for one in synthetic.cells(CLIENTS, seed)}
    names = sorted(cells)
    picks = key(seed, "_clock", "liars", 0).choice(CLIENTS, LIARS, replace=False)
    lying = [names[i] for i in sorted(picks)] if attack else []
    spec = bundle.manifest.spec(("",))
    first = redrawn(spec, bundle.initial, key(seed, "_agg", "initial", 0))
    devices, states = {}, {}
    frames = {name: data.frame(cell, bundle.manifest) for name, cell in cells.items()}
    for name, cell in cells.items():
        windows = Drawable(frames[name], data.origins(cell, frames[name], "train"))
        keyed = partial(key, seed, name)
        lent = TrainingContext(name, spec, bundle.graphs, _given(windows), BATCH, keyed)
        devices[name] = DEVICE[way.method](lent, LocalSgd(adam, minibatch="fresh"))
        states[name] = devices[name].init(first)
    server = SERVER[way.method]
    settings = server.settings(steps=STEPS, rate=1e-3, **way.settings)
    rounds = Rounds(quorum=way.quorum, deadline=1e9)
    ends = seconds_for_as_many(ends) if way.as_many else ends
    half = server.half(Setup(bind("trimmed_mean", f=LIARS), settings, rounds, spec, seed))
    lies = liars(attack, lying, CLIENTS, CONTRACTS[way.method], seed)
    seconds = seconds_of(names, seed)
    world = World(half, devices, lambda name, _number: seconds[name], lies, {}, states)
    common, moved = spec.shared(first), 0
    for moment in world.moments(common):
        if moment.time > ends:
            break
        common, moved = np.asarray(half.model(moment.state)["p"], np.float32), moved + 1
    honest = [name for name in names if name not in lying]
    found = [model_error(bundle, common, cells[name], frames[name]) for name in honest]
    return float(np.mean(found)), moved


def _given(windows: Drawable) -> Callable[[], Drawable]:
    return lambda: windows


def table(seeds: int, ends: float) -> str:
    """Return the errors over FedAvg's without an attack as a Markdown table."""
    found = {  # error and moves
        (name, attack, seed): errors(way, attack, seed, ends)
        for name, way in WAYS.items()
        for attack in ATTACKS
        for seed in range(seeds)
    }
    lines = ["| rows | " + " | ".join(x or "no attack" for x in ATTACKS) + " | moves |"]
    lines.append("|---|" + "---|" * (len(ATTACKS) + 1))
    for name in WAYS:
        ratios = [
            np.mean([found[name, x, s][0] / found[REFERENCE, "", s][0] for s in range(seeds)])
            for x in ATTACKS
        ]
        moves = found[name, "", 0][1]
        lines.append(f"| {name} | " + " | ".join(f"{x:.3f}" for x in ratios) + f" | {moves} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=200.0, help="simulated time of a run")
    args = parser.parse_args()
    print(table(args.seeds, args.seconds))


if __name__ == "__main__":
    main()
