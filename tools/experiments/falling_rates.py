"""Follow the gradients of stations under rates as PFGL's Theorem 1 asks: do their norms go to 0?

The theorem is about local steps along a station's own loss, with a pull towards its mixture, at rates
whose sum has no bound while the sum of their cubes has one: ``first / sqrt(t)`` in round t. A
station's loss depends on its own model alone there; so the run is the paper's ``LSTM-PFL``, its
Algorithm 1 without the graph, with plain steps and the paper's batch. The gradient is that of a
station's loss over all its training windows, without the pull.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from aggregator.methods import METHODS, Rounds, Setup
from aggregator.rules import bind
from edge_sdk.protocol.contract.method import Effects, Event, Half
from edge_sdk.protocol.contract.parameter_layout import Vector
from tools.experiments import chargers, charging, ev
from tools.experiments.charging import Arm, Ground, Learnt
from tools.experiments.ev import Floats
from tools.experiments.joint_loop import key, redrawn
from tools.experiments.resumable import Checkpoint
from tools.papers.curves import rounded

ARM = Arm("e1", ev.PALO_ALTO, 6, "LSTM-PFL", 0, 256, 20)
FIRST = 0.1
"""Rate of the first round."""

POWERS: Mapping[str, float] = {"rate 0.1 / sqrt(round)": 0.5, "rate 0.1": 0.0}
"""The rate of round t is ``FIRST * t ** -power``, by the name of the run."""

BASE = 4
"""Rounds of which the gradient is measured: powers of it, and 0, before the first."""

BLOCK = 1024
"""Windows of one pass of a measurement."""


@dataclass(frozen=True, slots=True)
class GradientPoint:
    """Scores of a round's models; means over stations."""

    squared: float  # squared norm of a station's gradient
    loss: float  # loss over its training windows
    held_back: float  # QS on the choosing part, in standard deviations of training


def rate_of(power: float, number: int) -> float:
    """Return the rate of a round.

    >>> rate_of(0.5, 4), rate_of(0.0, 4)
    (0.05, 0.1)
    """
    return FIRST * math.pow(number, -power)


def with_rates(half_of: Callable[[int], Half[Any]]) -> Half[Any]:
    """Return the half whose tasks of a round are those of ``half_of(round)``."""
    first = half_of(1)

    def apply(state: Any, event: Event) -> tuple[Any, Effects]:  # noqa: ANN401 - the half's own
        return half_of(state.round + 1).apply(state, event)  # its tasks open the next round

    return Half(first.init, apply, first.model)


def gradients(base: Ground, vectors: Mapping[str, Vector]) -> dict[str, tuple[float, Floats]]:
    """Return each station's mean loss over its training windows, and its gradient."""
    found = {}
    for name, windows in base.windows().items():
        loss, total = 0.0, np.zeros(len(vectors[name]), np.float64)
        for start in range(0, len(windows), BLOCK):
            batch = windows.select(windows.origins[start : start + BLOCK])
            share = len(batch) / len(windows)
            one, g = base.bundle.graphs["gradient"](p=vectors[name], x=batch.x, y=batch.y)
            loss, total = loss + share * float(one), total + share * np.asarray(g, np.float64)
        found[name] = (loss, total)
    return found


def point(base: Ground, vectors: Mapping[str, Vector]) -> GradientPoint:
    """Measure some models."""
    found = gradients(base, vectors).values()
    return GradientPoint(
        float(np.mean([g @ g for _, g in found])),
        float(np.mean([loss for loss, _ in found])),
        float(np.mean([*charging.chosen_by(base, Learnt(vectors)).values()])),
    )


def followed(arm: Arm, base: Ground, power: float, kept: Checkpoint) -> dict[int, GradientPoint]:
    """Run an arm with falling or constant rates; return the measured points by round."""
    spec, name = base.bundle.manifest.spec(("",)), arm.row.method
    common = redrawn(spec, base.bundle.initial, key(arm.seed, "_agg", "initial", 0))
    plain = {**chargers.settings_of(arm, base), "optimiser": "sgd"}

    def half_of(number: int) -> Half[Any]:
        settings = METHODS[name].settings(**plain | {"rate": rate_of(power, number)})
        rounds = Rounds(quorum=len(base.frames), limit=arm.rounds)
        return METHODS[name].half(Setup(bind("mean"), settings, rounds, spec, seed=arm.seed))

    stage = chargers.stage_of(arm, base, plain, arm.rounds, common)
    stage.server = with_rates(half_of)
    if (before := kept.load()) is None:
        done, points = 0, {0: point(base, dict.fromkeys(base.frames, common))}
    else:
        done, points = before["done"], before["points"]
        stage.restore(before["stage"])
    wanted = {BASE**k for k in range(arm.rounds.bit_length())} | {arm.rounds}
    for number, _ in enumerate(stage.steps(spec.shared(common)), done + 1):
        if number in wanted:
            points[number] = point(base, chargers.learnt_now(arm, base, stage).vectors)
        kept.save({"done": number, "points": points, "stage": stage.saved()})
    return points


def falling(options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the record of both runs; None without the set.

    A run writes its points to ``--out``, and is not made again.
    """
    if not (options.data / ARM.dataset).is_dir():
        return None
    base = charging.ground(ARM, options.data)
    options.out.mkdir(parents=True, exist_ok=True)
    runs = {}
    for title, power in POWERS.items():
        path = options.out / f"pfgl-rates-power{power:g}.json"
        if not path.exists():
            kept = Checkpoint(path.with_suffix(".resume"))
            points = followed(ARM, base, power, kept)
            path.write_text(json.dumps({x: asdict(one) for x, one in points.items()}))
            kept.drop()
        known = json.loads(path.read_text())
        runs[title] = {int(x): GradientPoint(**one) for x, one in known.items()}
    return record(runs)


def record(runs: Mapping[str, Mapping[int, GradientPoint]]) -> dict[str, Any]:
    """Return the picture's record: three panels over the rounds, in powers of two.

    >>> one = {0: GradientPoint(10.0, 2.0, 1.5), 3: GradientPoint(0.1, 1.0, 0.5)}
    >>> made = record({"falling": one})
    >>> made["across"], [x["lines"]["falling"] for x in made["panels"]]
    ([0.0, 2.0], [[1.0, -1.0], [2.0, 1.0], [1.5, 0.5]])
    """
    numbers = sorted({number for points in runs.values() for number in points})
    panels = []
    for title, of in (
        ("squared norm of the gradient, log10", lambda one: math.log10(one.squared)),
        ("training part: loss", lambda one: one.loss),
        ("held-back part: QS, standard deviations", lambda one: one.held_back),
    ):
        lines = {x: rounded([of(points[n]) for n in numbers]) for x, points in runs.items()}
        panels.append({"title": title, "lines": lines})
    return {
        "x": f"log2 of 1 + round, {ARM.steps} iterations each",
        "y": "Palo Alto 2011-2013, p=6, mean over stations",
        "across": [round(math.log2(1 + number), 3) for number in numbers],
        "panels": panels,
    }
