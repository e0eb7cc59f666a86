"""Accuracy against epsilon: closed form with noise on its statistics, and gradients with noise.

    python -m tools.experiments.analytic_privacy --data DATA --anchors ANCHORS --docs

Both learn the same linear model of the same few features for the absolute error, from the same windows.
Every release has the noise of the device's own calibration, local and for a window, and all releases
of a run together cost the epsilon of the row. How far rows are clipped, and for gradients how many
steps of which rate, is chosen on the validation part, which costs neither of them anything. The attack
is the distinguishing game of ``tools.experiments.noise``, against the two windows of a device that are
easiest to tell apart, by whoever knows all other windows.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.analytic.personal import fit_personal
from edge_sdk.extensions.analytic.private_release import released, sensitivity, stable_penalty
from edge_sdk.extensions.analytic.random_units import clip_rows
from edge_sdk.extensions.analytic.reweighting import QuantileLoss
from edge_sdk.extensions.analytic.solve import predicted, ridge
from edge_sdk.extensions.analytic.statistics import gather, total
from edge_sdk.privacy.noise import sigma_for
from tools.experiments.analytic import AnalyticForm
from tools.experiments.analytic_attacks import CLIPPED, SETS, Home, homes, run_tables
from tools.experiments.noise import TRIALS, promised

Floats = NDArray[np.float64]

MARKER = "<!-- privacy -->"
DELTA = 1e-5
BUDGETS = (0.3, 1.0, 3.0, 10.0, 30.0, math.inf)
FEW = AnalyticForm(lookback=3, days=(1, 7))
NORMS = (1.0, 2.0, 4.0)
PASSES = (1, 3)
STEPS = ((10, 0.3), (10, 1.0), (30, 0.1), (30, 0.3), (30, 1.0))
Rows = Mapping[str, tuple[Floats, Floats]]


def noise_of(epsilon: float, releases: int, apart: float) -> float:
    """Return the noise of each of so many releases, in units of the bound; none for infinity."""
    if math.isinf(epsilon):
        return 0.0
    return apart * math.sqrt(releases) * sigma_for(epsilon, DELTA)


def clipped(known: Mapping[str, Home], norm: float) -> dict[str, tuple[Floats, Floats]]:
    """Return rows of at most this norm, and bounded targets."""
    return {n: (clip_rows(h.learn.astype(np.float64), norm), h.targets) for n, h in known.items()}


def closed(
    rows: Rows, norm: float, passes: int, epsilon: float, rng: np.random.Generator
) -> Floats:
    """Return the fleet's model after some passes of noisy statistics."""
    sigma, fleet = noise_of(epsilon, passes, sensitivity()), np.zeros((1, 0))
    for number in range(passes):
        sent = {}
        for name, (design, targets) in rows.items():
            weights = None
            if number:
                missed = targets - predicted(design, fleet)
                weights = QuantileLoss().weights(missed, is_normalised=False)
            own = gather(design, targets, weights)
            sent[name] = released(own, sigma, row=norm, target=CLIPPED, normal=rng.standard_normal)
        whole = total(sent)
        lifted = stable_penalty(whole, sigma * norm**2 * math.sqrt(len(sent)))
        fleet = ridge(whole, 1e-3 * whole.gram[0][-1] * bool(not sigma) + lifted + 1e-9)
    return fleet


def descended(  # noqa: PLR0917 - as ``closed``, with a rate
    rows: Rows, norm: float, steps: int, rate: float, epsilon: float, rng: np.random.Generator
) -> Floats:
    """Return the model after full steps, each along the mean of the devices' noisy gradients."""
    sigma = noise_of(epsilon, steps, 2.0)  # replacing a window turns its gradient round
    model = np.zeros((1, next(iter(rows.values()))[0].shape[1]))
    mean = np.zeros_like(model)
    for step in range(steps):
        found = []
        for design, targets in rows.values():
            slope = -np.sign(targets - predicted(design, model)).T @ design
            noisy = slope + sigma * norm * rng.standard_normal(slope.shape)
            found.append(noisy / len(design))
        model = model - rate / norm**2 * np.mean(found, axis=0)
        mean += model * (step >= steps // 2) / max(1, steps - steps // 2)
    return mean


def error(known: Mapping[str, Home], norm: float, model: Floats) -> float:
    """Return the mean error of a common model over devices, in their units."""
    return float(np.mean([
        np.abs(h.judged - predicted(clip_rows(h.judge.astype(np.float64), norm), model)).mean() / h.unit
        for h in known.values()
    ]))  # fmt: skip


def personal(known: Mapping[str, Home], rows: Rows, norm: float, fleet: Floats | None) -> float:
    """Return the mean error of the devices' own models, drawn to the fleet's; alone if None."""
    told = []
    for name, home in known.items():
        design, targets = rows[name]
        zero = np.zeros((1, design.shape[1]))
        options: dict[str, Any] = {"strengths": ()} if fleet is None else {}
        towards = zero if fleet is None else fleet
        own = fit_personal(design, targets, towards, QuantileLoss(), days=home.days, **options)
        judged = predicted(clip_rows(home.judge.astype(np.float64), norm), own.coefficients)
        told.append(float(np.abs(home.judged - judged).mean()) / home.unit)
    return float(np.mean(told))


def attack(rows: Rows, norm: float, passes: int, epsilon: float, rng: np.random.Generator) -> float:
    """Return the success rate of the best attack at telling two windows of a device apart."""
    if math.isinf(epsilon):
        return 1.0
    design, targets = next(iter(rows.values()))
    some = rng.choice(len(design), min(300, len(design)), replace=False)
    row, y = design[some] / norm, targets[some, 0] / CLIPPED
    size = (row**2).sum(1)
    inner = row @ row.T
    gram = size[:, None] ** 2 + size**2 - 2.0 * inner**2
    cross = (y**2 * size)[:, None] + y**2 * size - 2.0 * np.outer(y, y) * inner
    apart = math.sqrt(float((gram + cross).max())) * math.sqrt(passes)
    truth = rng.integers(0, 2, TRIALS)
    spread = noise_of(epsilon, passes, sensitivity())
    seen = apart * truth + spread * rng.standard_normal(TRIALS)
    return float(((seen > apart / 2) == truth).mean())


def rows_of(tuned: Mapping[str, Home], known: Mapping[str, Home]) -> Iterator[dict[str, float]]:
    """Yield the line of every epsilon: chosen on ``tuned``, scored on ``known``."""
    both = {norm: (clipped(tuned, norm), clipped(known, norm)) for norm in NORMS}
    for epsilon in BUDGETS:

        def tried(make: Any, *options: Any, epsilon: float = epsilon) -> float:  # noqa: ANN401
            early = [
                make(both[options[0]][0], *options, epsilon, np.random.default_rng(s))
                for s in range(2)
            ]
            return float(np.mean([error(tuned, options[0], model) for model in early]))

        norm, passes = min(((n, p) for n in NORMS for p in PASSES), key=lambda o: tried(closed, *o))
        n2, steps, rate = min(
            ((n, *s) for n in NORMS for s in STEPS), key=lambda o: tried(descended, *o)
        )
        late = both[norm][1], both[n2][1]
        seeds = [np.random.default_rng(100 + s) for s in range(3)]
        models = [closed(late[0], norm, passes, epsilon, rng) for rng in seeds]
        slopes = [descended(late[1], n2, steps, rate, epsilon, rng) for rng in seeds]
        line = {
            "epsilon": epsilon,
            "closed": float(np.mean([error(known, norm, m) for m in models])),
            "personal": float(np.mean([personal(known, late[0], norm, m) for m in models])),
            "gradient": float(np.mean([error(known, n2, m) for m in slopes])),
            "gradient, personal": float(
                np.mean([personal(known, late[1], n2, m) for m in slopes[:1]])
            ),
            "alone": personal(known, late[0], norm, None),
            "attack": attack(late[0], norm, passes, epsilon, seeds[0]),
            "norm": norm,
            "passes": passes,
            "steps": steps,
        }
        print({k: round(v, 4) for k, v in line.items()}, file=sys.stderr, flush=True)
        yield line


def table(results: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Return the tables as Markdown."""
    head = ["ε", "closed form, fleet", "closed form, personal", "gradients, fleet"]
    head += ["gradients, personal", "alone", "attack is right", "promised", "C, passes, steps"]
    lines = []
    for name, found in results.items():
        lines += [f"| {SETS[name]}: " + " | ".join(head) + " |", "|---|" + "---|" * (len(head) - 1)]
        for one in found:
            epsilon = float(one["epsilon"])
            keys = ("closed", "personal", "gradient", "gradient, personal", "alone")
            cells = ["no noise" if math.isinf(epsilon) else f"{epsilon:g}"]
            cells += [f"{one[key]:.3f}" for key in keys]
            bound = 1.0 if math.isinf(epsilon) else promised(epsilon)
            cells += [f"{100 * one['attack']:.0f} %", f"{100 * bound:.0f} %"]
            cells += [f"{one['norm']:g}, {one['passes']}, {one['steps']}"]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines).strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every epsilon on every set; print and write the tables."""

    def made(options: argparse.Namespace, name: str) -> list[dict[str, float]]:
        task = importlib.import_module("datasets").load(options.data, name)
        tuned, known = (
            homes(task, units=0, windows=10_000, form=FEW, part=part) for part in ("val", "test")
        )
        return list(rows_of(tuned, known))

    out = Path("runs/analytic-privacy")
    return run_tables(__doc__, out, MARKER, made=made, table=table, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main())
