"""E1 to E4: PFGL and the methods it is compared with, on real charging sites.

Both halves of every method are the product's own, driven in one queue (``stage``). Each device
forecasts with its own model, a liar too: what it uploads is another matter. Paper values are
printed beside ours and never asserted.
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
from edge_sdk.forecasting.windows import Drawable
from edge_sdk.methods import METHODS as DEVICE
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import TrainingContext, Windows
from edge_sdk.protocol.contract.method import CONTRACTS
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.shared_math.optim import adam
from firmware_sim.attacks import bind as attacked
from tools.experiments import charging, ev
from tools.experiments.byzantine import liars
from tools.experiments.charging import Arm, Ground, Learnt, chosen_by, ground, told
from tools.experiments.joint_loop import Plan, Pooled, gather, key, redrawn, rounds
from tools.experiments.queue_loop import Stage, Twist, twisted
from tools.experiments.resumable import Checkpoint

BATCH = 32
LONG = 2000
"""Steps of training alone "to convergence"; the best checkpoint, one in 100 steps, counts."""

LOOKS = 4
"""Number of intermediate evaluations of a staged run."""

STAGES = ((100, 2e-3), (50, 5e-4), (30, 1e-4))
"""Rounds and rates of a staged run; sought on the choosing parts."""

STAGED, WIDE, GENTLE = 20, 64, 3e-4
"""Of a staged run: steps a round, batch size, and rate of the final tuning."""

TOGETHER: Mapping[str, Any] = {
    "steps": STAGED,
    "prox": 0.0,
    "credit": 0.99,
    "start": "received",
    "model_selection": "last",
    "final_tuning": False,
}
"""Settings of a staged run but its rates: models stay together, and begin at the mixture."""

TUNED = 400
"""Steps of tuning alone; the best of the checkpoints, step 0 among them, counts."""

KEPT = ("week, federated", "No_FL converged")
"""Rows whose intervals are calibrated, too."""

Scored = Mapping[str, Mapping[str, float]]


def run(arm: Arm, folder: Path, resume: Path | None = None) -> dict[str, Any]:
    """Train one arm and score every station: forecasts of the model, and as served.

    Args:
        folder: Folder of the data sets.
        resume: File that a federated arm writes every minute and continues from; removed at the end.
    """
    began = time.perf_counter()
    base, kept = ground(arm, folder), Checkpoint(resume)
    looks: list[tuple[int, float]] = []
    if arm.row.way == "federated":
        learnt, history, looks = federated(arm, base, kept)
    else:
        learnt, history = TRAINERS[arm.row.way](arm, base)
    kept.drop()
    trained = time.perf_counter() - began
    test = told(base, learnt, "test")
    scores = charging.judged(base, test)
    result = {
        "arm": {name: getattr(arm, name) for name in Arm.__slots__},
        "seconds": round(trained, 1),
        "liars": lying(arm, base),
        "chosen": chosen_by(base, learnt),
        "stations": scores,
        "mean": ev.mean_of(scores),
        "credits": history,
        "looks": looks,
    }
    if arm.name in KEPT and not arm.attack and arm.experiment == "e1":
        held = charging.calibrated(base, told(base, learnt, "choose"), test)
        result |= {"calibrated": held, "served": ev.mean_of(held), "fan": _fan(base, test)}
    if learnt.net is not None and not arm.attack:
        alone = charging.judged(base, told(base, Learnt(learnt.vectors), "test"))
        result["without graph"] = ev.mean_of(alone)
    return result


def _fan(base: Ground, test: Mapping[str, ev.Floats], days: int = 3) -> dict[str, Any]:
    """Return some days of one station's newest step ahead, to be drawn."""
    name = next(iter(base.frames))
    rows = base.origins(name, "test")
    start = len(rows) // 2
    some = slice(start, start + days * ev.DAY)
    last = base.frames[name].window.horizon - 1
    truth = base.frames[name].truth(rows[some])[:, last]
    return {
        "station": name,
        "truth": truth.round(4).tolist(),
        "fan": test[name][some, last].round(4).tolist(),
    }


def lying(arm: Arm, base: Ground) -> list[str]:
    """Choose the Byzantine stations by seed; in E3 the last station, as in the paper's figure."""
    names = list(base.frames)
    if arm.experiment == "e3":
        return names[len(names) - arm.liars :]
    drawn = key(arm.seed, "_liars", "who", 0).permutation(len(names))[: arm.liars]
    return sorted(names[i] for i in drawn)


# --- alone, and pooled ----------------------------------------------------------------------------


def alone(
    arm: Arm,
    base: Ground,
    windows: Mapping[str, Windows],
    steps: int,
    *,
    rate: float,
    batch: int = BATCH,
    every: int = 100,
    starts: Mapping[str, Vector] | None = None,
) -> Iterator[dict[str, Vector]]:
    """Train each station of ``windows`` alone; yield the vectors at the start and ``every`` steps."""
    values = {"steps": min(every, steps), "rate": rate}
    turns = max(1, steps // every)
    plan = Plan("fedavg", values, (), turns, batch, "fresh", arm.seed, own_heads=False)
    parts: dict[str, Any] = {
        "layout": base.bundle.manifest.spec(("",)),
        "initial": base.bundle.initial,
        "gradient": base.bundle.gradient,
    }
    fleet = gather(plan, **parts, windows=windows, starts=starts, keep_moments=True)
    yield fleet.vectors()
    for _, after in rounds(plan, fleet):
        yield after.vectors()


def _brief(arm: Arm, base: Ground) -> tuple[Learnt, list[Any]]:
    *_, last = alone(arm, base, base.windows(), arm.rounds * arm.steps, rate=arm.row.rate)
    return Learnt(last), []


def _converged(arm: Arm, base: Ground) -> tuple[Learnt, list[Any]]:
    return Learnt(_best(base, alone(arm, base, base.windows(), LONG, rate=arm.row.rate))), []


def _checked(arm: Arm, base: Ground) -> tuple[Learnt, list[Any]]:
    course = alone(arm, base, base.windows(), arm.rounds * arm.steps, rate=arm.row.rate)
    return Learnt(_best(base, course)), []


def _pooled(arm: Arm, base: Ground) -> tuple[Learnt, list[Any]]:
    windows = base.windows()
    everybody = Pooled(tuple(windows[x] for x in sorted(windows)))
    best: tuple[float, Vector] | None = None
    for vectors in alone(
        arm, base, {"_": everybody}, LONG, rate=arm.row.rate, batch=BATCH * len(windows)
    ):
        p = vectors["_"]
        score = float(np.mean([*chosen_by(base, Learnt(dict.fromkeys(windows, p))).values()]))
        if best is None or score < best[0]:
            best = (score, p)
    assert best is not None
    return Learnt(dict.fromkeys(windows, best[1])), []


def _tuned(arm: Arm, base: Ground) -> tuple[Learnt, list[Any]]:
    pooled, _ = _pooled(arm, base)
    return Learnt(_fitted(arm, base, pooled.vectors, BATCH)), []


def _fitted(arm: Arm, base: Ground, starts: Mapping[str, Vector], batch: int) -> dict[str, Vector]:
    course = alone(
        replace(arm, seed=arm.seed + 1000),
        base,
        base.windows(),
        TUNED,
        rate=GENTLE,
        batch=batch,
        every=50,
        starts=starts,
    )
    return _best(base, course)


def _best(base: Ground, course: Iterable[Mapping[str, Vector]]) -> dict[str, Vector]:
    best: dict[str, tuple[float, Vector]] = {}
    for vectors in course:
        for x, score in chosen_by(base, Learnt(vectors)).items():
            if x not in best or score < best[x][0]:
                best[x] = (score, vectors[x])
    return {x: p for x, (_, p) in best.items()}


# --- federated ------------------------------------------------------------------------------------


def federated(
    arm: Arm, base: Ground, kept: Checkpoint
) -> tuple[Learnt, list[Any], list[tuple[int, float]]]:
    """Drive both halves; keep the round whose models are best on the choosing parts of all.

    Returns:
        The best models, the credit of every round, and the error on the choosing parts by round.
    """
    spec = base.bundle.manifest.spec(("",))
    common = redrawn(spec, base.bundle.initial, key(arm.seed, "_agg", "initial", 0))
    settings = settings_of(arm, base)
    stage = stage_of(arm, base, settings, arm.rounds, common)
    best: tuple[float, Learnt] | None = None
    history: list[Any] = []
    looks: list[tuple[int, float]] = []
    done = 0
    if (before := kept.load()) is not None:
        done, best, history = before["done"], before["best"], before["history"]
        looks = before.get("looks", looks)
        stage.restore(before["stage"])
    for number, step in enumerate(stage.steps(spec.shared(common)), done + 1):
        if "credit" in step.closed.report:
            history.append(step.closed.report["credit"])
        if number % max(1, arm.rounds // arm.row.looks) == 0 or number == arm.rounds:
            learnt = _learnt(arm, base, step.state, step.states, stage)
            score = _honest_mean(arm, base, chosen_by(base, learnt))
            looks.append((number, score))
            if best is None or not best[0] <= score:
                best = (score, learnt)
        kept.save(
            {
                "done": number,
                "best": best,
                "history": history,
                "looks": looks,
                "stage": stage.saved(),
            }
        )
    if best is None:
        raise RuntimeError(f"{arm.file}: no round closed")
    return best[1], history, looks


def _honest_mean(arm: Arm, base: Ground, scores: Mapping[str, float]) -> float:
    out = lying(arm, base)
    score = float(np.mean([value for x, value in scores.items() if x not in out or len(out) == 8]))
    return score if math.isfinite(score) else math.inf


def stage_at(arm: Arm, base: Ground, saved: Mapping[str, Any]) -> Stage:
    """Set up both ends of a federated arm as they were when their stage was saved."""
    spec = base.bundle.manifest.spec(("",))
    common = redrawn(spec, base.bundle.initial, key(arm.seed, "_agg", "initial", 0))
    stage = stage_of(arm, base, settings_of(arm, base), arm.rounds, common)
    stage.restore(saved)
    return stage


def learnt_now(arm: Arm, base: Ground, stage: Stage) -> Learnt:
    """Return the models after the newest round of a stage."""
    return _learnt(arm, base, stage.state, stage.states, stage)


def _learnt(
    arm: Arm,
    base: Ground,
    state: Any,  # noqa: ANN401 - the server half's own
    states: Mapping[str, Any],
    stage: Stage,
) -> Learnt:
    if not arm.row.graph and not arm.row.is_personal:
        common = np.asarray(stage.server.model(state)["p"], np.float32)
        return Learnt(dict.fromkeys(base.frames, common))
    vectors = {x: np.asarray(states[x].p) for x in base.frames}
    if not arm.row.is_personal:  # through a graph, from the average on
        vectors = {x: state.mixed[x] for x in base.frames}
    if not arm.row.graph:
        return Learnt(vectors)
    masked = {x: state.means[x] for x, yes in state.masked.items() if yes and x in state.means}
    return Learnt(vectors, np.asarray(state.net["p"]), masked)


def settings_of(arm: Arm, base: Ground) -> dict[str, Any]:
    """Return the server half's settings: the paper's, and our choices where it states none."""
    values: dict[str, Any] = {"steps": arm.steps, "rate": arm.row.rate}
    if arm.row.is_personal:
        sites = base.sites
        alpha = {"sites": sites, "alpha": 0.8 if arm.horizon == 1 else 0.9} if sites else {}
        values |= {"prox": arm.row.prox, "credit": arm.sigma, **alpha}
    if arm.row.method == "pfl":
        values |= {"model_selection": "last", "final_tuning": arm.row.final_tuning}
    elif arm.row.final_tuning:
        values |= {"final_tuning": True}
    if arm.row.graph:
        turns = SERVER[arm.row.method].settings().turns
        values["turns"] = replace(turns, batch=BATCH, rate=arm.row.rate, **arm.row.turns)
    return values


def stage_of(
    arm: Arm,
    base: Ground,
    settings: Mapping[str, Any],
    limit: int,
    common: Vector,
    *,
    batch: int = BATCH,
    states: Mapping[str, Any] | None = None,
) -> Stage:
    """Set up both ends."""
    name, spec = arm.row.method, base.bundle.manifest.spec(("",))
    course = Rounds(quorum=len(base.frames), limit=limit)
    method = SERVER[name]
    built = method.settings(**settings)
    server = method.half(Setup(bind("mean"), built, course, spec, seed=arm.seed, graph=base.graph))
    devices = {}
    for x, some in base.windows().items():
        lent = TrainingContext(
            x, spec, base.bundle.graphs, _given(some), batch, partial(key, arm.seed, x)
        )
        devices[x] = DEVICE[name](lent, LocalSgd(adam, minibatch="fresh"))
    begun = {x: half.init(common) for x, half in devices.items()}
    model, _, part = arm.attack.partition("@")
    out, contract = lying(arm, base), CONTRACTS[name]
    lies = {} if part else liars(model, out, len(devices), contract, arm.seed)
    twists = {x: _twist(model, part) for x in out} if part else {}
    return Stage(name, server, devices, {**begun, **(states or {})}, lies, twists)


def _twist(attack: str, part: str) -> Twist:
    known, _, options = attack.partition(":")
    words = dict(x.split("=") for x in options.split(",") if x)
    return twisted(part, attacked(known, words).act)


def _given(windows: Drawable) -> Callable[[], Drawable]:
    return lambda: windows


# --- ours -----------------------------------------------------------------------------------------


def mixtures(arm: Arm, base: Ground) -> Mapping[str, Vector]:
    """Run stages at falling rates; return the stations' mixtures of the best round.

    Credit is near 1 and steps begin at the mixture, so that models stay together; optimisers keep
    their memory over rounds, as they would not under FedAvg.
    """
    spec = base.bundle.manifest.spec(("",))
    common = redrawn(spec, base.bundle.initial, key(arm.seed, "_agg", "initial", 0))
    best: tuple[float, Mapping[str, Vector]] | None = None
    states: dict[str, Any] = {}
    for number, (limit, rate) in enumerate(STAGES):
        settings = {**TOGETHER, "rate": rate}
        turn = replace(arm, seed=arm.seed + number)
        stage = stage_of(turn, base, settings, limit, common, batch=WIDE, states=states)
        for count, step in enumerate(stage.steps(spec.shared(common)), 1):
            if count % max(1, limit // LOOKS) == 0 or count == limit:
                vectors = {x: step.state.mixed[x] for x in base.frames}
                score = float(np.mean([*chosen_by(base, Learnt(vectors)).values()]))
                if best is None or score < best[0]:
                    best = (score, vectors)
        states = {x: replace(state, answered=0) for x, state in stage.states.items()}
        common = np.asarray(stage.server.model(step.state)["p"], np.float32)
    assert best is not None
    return best[1]


def _staged(arm: Arm, base: Ground) -> tuple[Learnt, list[Any]]:
    return Learnt(_fitted(arm, base, mixtures(arm, base), WIDE)), []


def _lonely(arm: Arm, base: Ground) -> tuple[Learnt, list[Any]]:
    """Train each station alone with the steps, batches, rates and tuning of ``_staged``."""
    starts: Mapping[str, Vector] | None = None
    best: dict[str, tuple[float, Vector]] = {}
    for number, (limit, rate) in enumerate(STAGES):
        turn, steps = replace(arm, seed=arm.seed + number), limit * STAGED
        often = max(STAGED, steps // LOOKS)
        course = alone(
            turn, base, base.windows(), steps, rate=rate, batch=WIDE, every=often, starts=starts
        )
        for vectors in course:
            starts = vectors
            for x, score in chosen_by(base, Learnt(vectors)).items():
                if x not in best or score < best[x][0]:
                    best[x] = (score, vectors[x])
    return Learnt(_fitted(arm, base, {x: p for x, (_, p) in best.items()}, WIDE)), []


TRAINERS: Mapping[str, Callable[[Arm, Ground], tuple[Learnt, list[Any]]]] = {
    "alone": _brief,
    "checked": _checked,
    "converged": _converged,
    "pooled": _pooled,
    "tuned": _tuned,
    "staged": _staged,
    "lonely": _lonely,
}
"""How each kind of row is trained."""
