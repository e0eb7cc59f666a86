"""Measure the cost of q8 and q4 in accuracy, under attack and against damaged bytes.

    python -m tools.encodings accuracy --out runs       # three shipped sets, three seeds
    python -m tools.encodings attacks --out runs        # five rules, every attack of E13, three seeds
    python -m tools.encodings mutations --count 1000000 # damaged blobs: refused, or finite numbers

``accuracy`` and ``attacks`` keep one JSON file a run in --out; a call stops after --minutes, and the
next one continues. Each prints its table and ends with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from edge_sdk.errors import Refused
from edge_sdk.extensions.encodings.block_quantisation import quantise
from edge_sdk.extensions.evaluation.forecast_metrics import mae, naive_lag1, quantile_score
from edge_sdk.forecasting.forecast import fan
from edge_sdk.protocol.codec import UpdateEncoding, unpack_tensor
from firmware_sim.direct.fleet import DirectFleet
from firmware_sim.direct.simulation import DirectSimulation
from firmware_sim.samples import sample_set
from firmware_sim.scenario import LONG_DEADLINE, Scenario
from tools.experiments import matrix

ENCODINGS: tuple[UpdateEncoding, ...] = ("f4", "q8", "q4")
SEEDS = (0, 1, 2)
MOST_CHANGE = 0.005
"""Largest change of MASE or QS over float32, as a share."""

MOST_RISE = 0.02
"""Largest rise of a rule's worst error under attack, in errors of the undisturbed mean."""

BEST = (
    ("fltrust", "bucketing"),
    ("median", "bucketing"),
    ("trimmed_mean", "bucketing"),
    ("centred_clipping", ""),
    ("fltrust", ""),
)
"""The five rules of E13 with the best worst case, each with its pre-aggregation."""

SIZES = (1, 63, 64, 65, 200)


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet whose accuracy is measured."""

    samples: str  # shipped set of readings
    bundle: str
    shared: tuple[str, ...]  # prefixes of the shared layers
    rounds: int = 20


FLEETS = (
    Fleet("homes", "load-lstm-week", ("lstm",)),
    Fleet("chargers", "chargers-week-1", ("",)),
    Fleet("cells", "cells-mlp-1", ("",)),
    Fleet("cells", "cells-mlp-1", ("",), 100),
)


def accuracy_run(fleet: Fleet, encoding: UpdateEncoding, seed: int) -> dict[str, float]:
    """Train a fleet of eight devices and score it on the week after its histories.

    Returns:
        Means over the devices: ``mase``, the error of the median in errors of the last value, and
        ``qs``, the sum of the pinball losses of all quantiles in the same unit (half the error for
        a model without quantiles); and ``bytes``, those of an update's vector.
    """
    run = replace(LONG_DEADLINE, rounds=fleet.rounds, shared=fleet.shared, encoding=encoding)
    samples = sample_set(fleet.samples)
    chosen = Scenario("accuracy", fleet.samples, 8, fleet.bundle, run).first_days(28, samples)
    made = DirectFleet.of(chosen.with_seed(seed), samples.with_seed(seed), seed=seed)
    simulation = made.simulation()
    simulation.run()
    scores = [device_scores(made, simulation, name) for name in simulation.devices]
    sent = simulation.server.bytes_up / simulation.updates
    mase, score = (float(np.mean(column)) for column in zip(*scores, strict=True))
    return {"mase": mase, "qs": score, "bytes": sent}


def device_scores(
    made: DirectFleet, simulation: DirectSimulation, name: str
) -> tuple[float, float]:
    """Return MASE and scaled quantile score of a device after a run."""
    judged = made.judged(simulation, name)
    frame, p = judged.frame(), judged.vector(simulation.devices[name].state)
    rows = frame.origins(observed=False)
    first = frame.times[rows] + judged.series.step
    begin, end = made.scenario.span
    rows = rows[(first >= begin) & (first < end)]
    fans = fan(judged.bundle.graphs["forecast"], p, frame, rows, judged.levels)
    truth = frame.truth(rows)
    known, naive = np.isfinite(truth), naive_lag1(truth[:, 0])
    levels = {q: fans[:, :, i][known] for i, q in enumerate(judged.levels)}
    error = mae(truth[known], levels[0.5])
    return error / naive, quantile_score(truth[known], levels) / naive


def attack_run(rule: str, before: str, attack: str, encoding: str, seed: int) -> dict[str, float]:
    """Return the error of E13's honest clients, who encode their answers; liars send exact ones."""
    square = matrix.Square(rule, attack, before, seed, encoding=encoding)
    return {"error": float(matrix.run(square)["error"])}


Job = tuple[str, Callable[[], Mapping[str, float]]]


def accuracy_jobs() -> list[Job]:
    """List the runs of ``accuracy``: name and function, one seed after the other."""
    return [
        (accuracy_name(fleet, enc, seed), partial(accuracy_run, fleet, enc, seed))
        for seed in SEEDS
        for fleet in FLEETS
        for enc in ENCODINGS
    ]


def accuracy_name(fleet: Fleet, encoding: str, seed: int) -> str:
    """Return the name of a run of ``accuracy``."""
    return f"accuracy-{fleet.samples}-r{fleet.rounds}-{encoding}-s{seed}"


def attack_jobs() -> list[Job]:
    """List the runs of ``attacks``; the mean without an attack is the unit of a seed's errors."""
    return [
        (
            "-".join(("attack", rule, before or "bare", attack or "none", enc, f"s{seed}")),
            partial(attack_run, rule, before, attack, enc, seed),
        )
        for seed in SEEDS
        for rule, before, attack, enc in (
            ("mean", "", "", "f4"),
            *((*one, x, e) for one in BEST for x in matrix.ATTACKS_RUN for e in ("f4", "q4")),
        )
    ]


def completed(jobs: Iterable[Job], out: Path, minutes: float) -> dict[str, dict[str, float]]:
    """Run missing cases until the time is over; return the present results."""
    out.mkdir(parents=True, exist_ok=True)
    until, found = time.monotonic() + 60 * minutes, {}
    for name, job in jobs:
        path = out / f"{name}.json"
        if not path.is_file() and time.monotonic() < until:
            draft = path.with_suffix(".part")
            draft.write_text(json.dumps(job()))
            draft.replace(path)
        if path.is_file():
            found[name] = json.loads(path.read_text())
    return found


def accuracy_report(found: Mapping[str, Mapping[str, float]]) -> tuple[list[str], bool]:
    """Return the table of ``accuracy``, and whether every target is met.

    The change is that of the mean over the seeds.
    """
    lines = [
        "| set, bundle, rounds | encoding | bytes of a vector | MASE | QS | change of MASE | of QS |",
        "|---|---|---|---|---|---|---|",
    ]
    is_met = True
    for fleet in FLEETS:
        exact = _over_seeds(found, fleet, "f4")
        for enc in ENCODINGS:
            mean = _over_seeds(found, fleet, enc)
            changes = [mean[name] / exact[name] - 1 for name in ("mase", "qs")]
            is_met &= max(map(abs, changes)) <= MOST_CHANGE
            lines.append(
                f"| {fleet.samples}, `{fleet.bundle}`, {fleet.rounds} | `{enc}` | {mean['bytes']:,.0f}"
                f" | {mean['mase']:.4f} | {mean['qs']:.4f}"
                f" | {100 * changes[0]:+.2f} % | {100 * changes[1]:+.2f} % |"
            )
    return lines, is_met


def _over_seeds(
    found: Mapping[str, Mapping[str, float]], fleet: Fleet, enc: str
) -> dict[str, float]:
    runs = [found[accuracy_name(fleet, enc, seed)] for seed in SEEDS]
    return {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}


def attack_report(found: Mapping[str, Mapping[str, float]]) -> tuple[list[str], bool]:
    """Return the table of ``attacks``, and whether no rule's worst case rises too far.

    An error is the mean over the seeds, each in errors of the undisturbed mean of its seed.
    """
    lines = ["| rule | worst, `f4` | worst, `q4` | rise | largest rise under one attack |"]
    lines.append("|---|---|---|---|---|")
    is_met = True
    for rule, before in BEST:
        table = {
            enc: {
                attack: float(
                    np.mean([_ratio(found, (rule, before), attack, enc, seed) for seed in SEEDS])
                )
                for attack in matrix.ATTACKS_RUN
            }
            for enc in ("f4", "q4")
        }
        worst = {enc: max(cells.values()) for enc, cells in table.items()}
        rises = {x: table["q4"][x] - table["f4"][x] for x in matrix.ATTACKS_RUN}
        most = max(rises, key=lambda x: rises[x])
        rise = worst["q4"] - worst["f4"]
        is_met &= rise <= MOST_RISE
        name = f"{rule} after {before}" if before else rule
        lines.append(
            f"| {name} | {worst['f4']:.3f} | {worst['q4']:.3f} | {rise:+.3f}"
            f" | {rises[most]:+.3f} ({most or 'no attack'}) |"
        )
    return lines, is_met


def _ratio(
    found: Mapping[str, Mapping[str, float]],
    rule: tuple[str, str],
    attack: str,
    enc: str,
    seed: int,
) -> float:
    words = ("attack", rule[0], rule[1] or "bare", attack or "none", enc, f"s{seed}")
    name = "-".join(words)
    return found[name]["error"] / found[f"attack-mean-bare-none-f4-s{seed}"]["error"]


def damaged(rng: random.Random, blob: bytes) -> bytes:
    """Flip, overwrite, remove or insert up to four bytes of a blob.

    >>> damaged(random.Random(2), bytes(4)) != bytes(4)
    True
    """
    out = bytearray(blob)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(8)
        if kind == 0:
            out[at:at] = rng.randbytes(rng.randrange(1, 5))
        elif kind == 1:
            del out[at : at + rng.randrange(1, 5)]
        elif at < len(out):
            out[at] = rng.randrange(256) if kind < 5 else out[at] ^ 1 << rng.randrange(8)
    return bytes(out)


def mutations(count: int, seed: int) -> Counter[str]:
    """Decode damaged blobs of ``q8`` and ``q4``; each is refused, or gives finite float32 numbers.

    Returns:
        Number of blobs by result: a reason of refusal, or ``finite``.

    Raises:
        ArithmeticError: A blob decoded to a number that is not finite or not exact in float32.

    >>> sum(mutations(50, seed=1).values())
    50
    """
    rng, draws = random.Random(seed), np.random.default_rng(seed)  # noqa: S311 - no secret
    blobs = [
        (enc, size, quantise(draws.normal(0, scale, size), enc))
        for enc in ("q8", "q4")
        for size in SIZES
        for scale in (1e-6, 1e-2, 1e4)
    ]
    results: Counter[str] = Counter()
    for _ in range(count):
        enc, size, blob = rng.choice(blobs)
        broken = damaged(rng, blob)
        try:
            vector = unpack_tensor(broken, enc, size)
        except Refused as refused:
            results[refused.reason.name] += 1
            continue
        if not (np.isfinite(vector).all() and np.array_equal(vector, vector.astype(np.float32))):
            raise ArithmeticError(f"{enc}, {size} scalars: {broken.hex()}")
        results["finite"] += 1
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the measurements and print its table; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.encodings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("accuracy", "attacks", "mutations"))
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of results (runs)")
    words = "start no further run after so long (4)"
    parser.add_argument("--minutes", type=float, default=4.0, help=words)
    parser.add_argument("--count", type=int, default=1_000_000, help="damaged blobs (1000000)")
    parser.add_argument("--seed", type=int, default=0, help="of the damage (0)")
    args = parser.parse_args(argv)
    if args.what == "mutations":
        results = mutations(args.count, args.seed)
        print("\n".join(f"{name:16}{number:>10,}" for name, number in results.most_common()))
        return 0
    jobs = accuracy_jobs() if args.what == "accuracy" else attack_jobs()
    found = completed(jobs, args.out, args.minutes)
    if len(found) < len(jobs):
        print(f"{len(found)} of {len(jobs)} runs are there; give the same command again")
        return 2
    lines, is_met = (accuracy_report if args.what == "accuracy" else attack_report)(found)
    print("\n".join(lines), "", "every target is met" if is_met else "a target is MISSED", sep="\n")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
