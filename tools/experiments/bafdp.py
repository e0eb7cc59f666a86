"""E9 to E12: BAFDP and the methods it is compared with, on real cellular traffic.

Clients are cells. Both halves of every method are the product's own, on a simulated clock; the
readings a model learns from may carry noise that was drawn once, the ones it forecasts from do not.
Paper values are printed beside ours and never asserted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from aggregator.methods import METHODS as SERVER
from aggregator.methods import Rounds, Setup
from aggregator.rules import bind
from edge_sdk.methods import METHODS as DEVICE
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import TrainingContext, Windows
from edge_sdk.protocol.contract.method import CONTRACTS
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.shared_math.optim import adam
from tools.experiments.byzantine import liars
from tools.experiments.cellular_setup import Arm, Ground, ground, judged, scored, together
from tools.experiments.joint_loop import Plan, Pooled, gather, key, redrawn, rounds
from tools.experiments.method_rows import FIELD, Case, Row
from tools.experiments.noise import mechanism, rebuilt, spread, told_apart
from tools.experiments.simulated_clock import Latency, Moment, World, at_once, drawn, log_normal

BATCH = 64
LONG = 2000
"""Steps of training alone "to convergence"; the best of the checkpoints, 50 steps apart, counts."""

STRAGGLER = 10.0
LOOKS = 40
"""Number of intermediate evaluations of a run."""


def run(arm: Arm, folder: Path) -> dict[str, Any]:
    """Train one arm, evaluate it at intervals, and score every cell."""
    began = time.perf_counter()
    base = ground(arm, folder)
    alone = {"local long": _converged, "pooled": _pooled}.get(arm.name)
    path: list[dict[str, float]] = []
    vectors: Mapping[str, Vector]
    if alone is not None:
        vectors = alone(arm, base)
    else:
        vectors, path = trained(arm, base)
    is_noisy = arm.experiment == "e10" or arm.budget is not None
    values = {"attack": _attacked(arm, base)} if is_noisy else {}
    return {
        **values,
        "arm": {name: getattr(arm, name) for name in Arm.__slots__},
        "seconds": round(time.perf_counter() - began, 1),
        "liars": _liars(arm, base),
        "cells": judged(base, vectors),
        "path": path,
    }


def _attacked(arm: Arm, base: Ground) -> dict[str, float]:
    sigma = 0.0 if arm.budget is None else spread(arm.budget)
    rows = [
        rebuilt(cell, replace(cell, traffic=base.learnt[name].raw), sigma)
        for name, cell in base.cells.items()
    ]
    close, usual = (float(np.mean(x)) for x in zip(*rows, strict=True))
    apart = told_apart(arm.budget, arm.seed)
    return {"told apart": apart, "rebuilt": close, "usual": usual}


def _liars(arm: Arm, base: Ground) -> list[str]:
    names = sorted(base.cells)
    count = math.ceil(arm.ratio * len(names) - 1e-9) if arm.attack else 0
    picked = key(arm.seed, "_liars", "who", 0).permutation(len(names))[:count]
    return sorted(names[i] for i in picked)


def trained(arm: Arm, base: Ground) -> tuple[dict[str, Vector], list[dict[str, float]]]:
    """Return each cell's vector after a federated arm, and the errors on the way."""
    world, common = _world(arm, base, FIELD[arm.name])
    path: list[dict[str, float]] = []
    for number, moment in _looked_at(arm, base, world.moments(common)):
        common = np.asarray(world.server.model(moment.state)["p"], np.float32)
        path.append(_look(arm, base, moment, number, common))
    return dict.fromkeys(base.cells, common), path


def _looked_at(arm: Arm, base: Ground, moments: Iterable[Moment]) -> Iterator[tuple[int, Moment]]:
    """Yield numbered firings, ``LOOKS`` of them in even steps, the last one among them.

    A run is so many firings long, or on a clock so many seconds that its slowest device could give
    ``work`` answers.
    """
    firings = FIELD[arm.name].firings(arm.work, len(base.cells))
    end = STRAGGLER * arm.work if arm.clock == "straggler" else math.inf
    looks, last = 0, None
    for number, moment in enumerate(moments, 1):
        if moment.time > end:
            break
        share = number / firings if math.isinf(end) else moment.time / end
        last = (number, moment)
        if share >= (looks + 1) / LOOKS:
            looks = math.floor(share * LOOKS)
            yield last
            last = None
        if share >= 1.0:
            break
    if last is not None:
        yield last


def _look(arm: Arm, base: Ground, moment: Moment, number: int, common: Vector) -> dict[str, float]:
    lied = set(_liars(arm, base))
    honest = {name: common for name in base.cells if name not in lied}
    seen = {"time": moment.time, "firing": float(number), **together(judged(base, honest))}
    if arm.experiment in {"e11", "e12"}:
        seen["loss"] = _loss(base, common)
    if "eps" in moment.closed.report:
        seen["epsilon"] = float(moment.closed.report["eps"])
    return seen


def _loss(base: Ground, p: Vector) -> float:
    total, count = 0.0, 0
    for windows in base.windows().values():
        batch = windows.select(windows.origins)
        total += len(batch) * float(base.bundle.gradient(p=p, x=batch.x, y=batch.y)[0])
        count += len(batch)
    return total / count


def _world(arm: Arm, base: Ground, row: Row) -> tuple[World, Vector]:
    spec = base.bundle.manifest.spec(("",))
    windows = base.windows()
    enough = row.quorum(len(windows))
    case = Case(
        tuple(sorted(windows)),
        min(map(len, windows.values())),
        row.firings(arm.work, len(windows)),
        arm.budget,
        arm.clock != "even",
    )
    name = row.plain if row.plain and arm.net != row.net else row.method
    method = SERVER[name]
    settings = method.settings(**row.settings(case))
    course = Rounds(quorum=enough, limit=case.rounds if arm.clock == "even" else None)
    setup = Setup(bind("mean"), settings, course, spec, arm.seed)
    first = redrawn(spec, base.bundle.initial, key(arm.seed, "_agg", "initial", 0))
    devices, states, release = {}, {}, {}
    for client, some in windows.items():
        keyed = partial(key, arm.seed, client)
        lent = TrainingContext(client, spec, base.bundle.graphs, _given(some), BATCH, keyed)
        devices[client] = DEVICE[name](lent, LocalSgd(adam, minibatch="fresh", weekly_profile=True))
        states[client] = devices[client].init(first)
        if (section := row.privacy(case)) is not None:
            cell = base.cells[client]
            manifest = base.bundle.manifest
            release[client] = mechanism(section, manifest, cell, arm.seed, spec.size).release
    lies = liars(arm.attack, _liars(arm, base), len(devices), CONTRACTS[name], arm.seed)
    clock = _latency(arm, base)
    world = World(method.half(setup), devices, clock, lies, release, states=states)
    if row.is_drawn:
        world.partakes = drawn(case.names, enough, arm.seed)
    return world, spec.shared(first)


def _latency(arm: Arm, base: Ground) -> Latency:
    if arm.clock == "even":
        return at_once
    return log_normal(arm.seed, slow={min(base.cells): STRAGGLER})


def _given(windows: Windows) -> Callable[[], Windows]:
    return lambda: windows


def _alone(arm: Arm, base: Ground, windows: Mapping[str, Windows]) -> Iterator[dict[str, Vector]]:
    """Train each device of ``windows`` alone and yield the vectors every 50 steps, the first too."""
    plan = Plan("fedavg", {"steps": 50, "rate": 1e-3}, (), LONG // 50, BATCH, "fresh", arm.seed)
    parts: dict[str, Any] = {
        "layout": base.bundle.manifest.spec(("",)),
        "initial": base.bundle.initial,
        "gradient": base.bundle.gradient,
    }
    fleet = gather(plan, **parts, windows=windows)
    yield fleet.vectors()
    for _, after in rounds(plan, fleet):
        yield after.vectors()


def _converged(arm: Arm, base: Ground) -> dict[str, Vector]:
    choosing = replace(base, part="choose")  # by what it learns from: noise is in there too
    best: dict[str, tuple[float, Vector]] = {}
    for vectors in _alone(arm, base, base.windows("learn")):
        for name, p in vectors.items():
            error = scored(choosing, base.learnt[name], name, p)["MAE"]
            if name not in best or error < best[name][0]:
                best[name] = (error, p)
    return {name: p for name, (_, p) in best.items()}


def _pooled(arm: Arm, base: Ground) -> dict[str, Vector]:
    choosing = replace(base, part="choose")
    learn = base.windows("learn")
    everybody = Pooled(tuple(learn[x] for x in sorted(learn)))
    best: tuple[float, Vector] | None = None
    for vectors in _alone(arm, base, {"_": everybody}):
        p = vectors["_"]
        error = together({x: scored(choosing, base.learnt[x], x, p) for x in base.cells})["MAE"]
        if best is None or error < best[0]:
            best = (error, p)
    assert best is not None
    return dict.fromkeys(base.cells, best[1])
