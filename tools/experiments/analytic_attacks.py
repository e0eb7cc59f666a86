"""Analytic federation under attack: sum and votes, with 20 % Byzantine devices.

    python -m tools.experiments.analytic_attacks --data DATA --anchors ANCHORS --docs

The windows are those of ``tools.experiments.analytic``, thinned. A Byzantine device poisons its
readings, sends something else in place of its statistic, or invents the statistic of data that nobody
has; what admission refuses does not count. Scored are honest devices only: the fleet's model, and what
a device forecasts with. The constants that standardise features are the bundle's.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from numpy.typing import NDArray

from aggregator.rules import RULES, Rows, bind
from aggregator.rules.parameters import uniform
from edge_sdk.extensions.analytic.personal import fit_personal
from edge_sdk.extensions.analytic.random_units import RandomUnits
from edge_sdk.extensions.analytic.reweighting import QuantileLoss
from edge_sdk.extensions.analytic.solve import fleet_solution, leave_one_out, predicted, votes
from edge_sdk.extensions.analytic.standardise import CLIP, FeatureSums, Standardiser
from edge_sdk.extensions.analytic.statistics import Statistic, from_vector, gather, to_vector, total
from edge_sdk.extensions.analytic.validation import StatisticBounds, statistic_fault
from firmware_sim.attacks import ATTACKS
from firmware_sim.attacks import bind as bound_attack
from firmware_sim.attacks.attack_context import AttackContext
from tools.experiments.analytic import PAGE, AnalyticForm, device_rows
from tools.experiments.marked_block import replace_block

Floats = NDArray[np.float64]

SETS: Mapping[str, str] = {
    "building_bdg2_fl_az_ca:1": "BDG2",
    "building_resstock_ca_alameda:1": "ResStock",
}
MARKER = "<!-- attacks -->"
SHARE, CLIPPED, WINDOWS, PASSES, UNITS = 0.2, 4.0, 2500, 3, 60
VOTES = ("median", "trimmed_mean", "multi_krum", "geometric_median", "centred_clipping")
DATA_ATTACKS = tuple(name for name, attack in ATTACKS.items() if attack.kind == "data")
READINGS_ATTACKS = ("none", "opposite", "invented", *DATA_ATTACKS)
"""Attacks on readings; ``opposite`` negates the changes, ``invented`` also enlarges them fourfold."""

MODEL_ATTACKS = tuple(name for name, attack in ATTACKS.items() if attack.kind == "model")


@dataclass(frozen=True, slots=True, eq=False)
class Home:
    """One device: design rows and targets to learn and to score with, and its error's unit."""

    learn: NDArray[np.float32]
    targets: Floats
    judge: NDArray[np.float32]
    judged: Floats
    unit: float
    days: float


def homes(
    task: Any,  # noqa: ANN401 - the anchors' types
    *,
    units: int = UNITS,
    windows: int = WINDOWS,
    form: AnalyticForm | None = None,
    part: str = "test",
) -> dict[str, Home]:
    """Return every second device of a task, with design rows of the fleet's constants."""
    rows = list(device_rows(task, form or AnalyticForm(), 1, part))[::2]
    sums = {d.name: FeatureSums.of(d.learn.astype(np.float64)) for d in rows}
    standard, width = Standardiser.of_fleet(sums), rows[0].learn.shape[1]
    drawn = RandomUnits.draw("experiment", 0, width, units, 4)
    changes = {s.name: np.diff(s.value[s.val[0] : s.val[1]]) / s.scale for s in task.series}
    found = {}
    for d in rows:
        thin = slice(None, None, max(1, len(d.learn) // windows))
        found[d.name] = Home(
            drawn.design(standard.apply(d.learn[thin]).astype(np.float32)),
            np.clip(d.learn_targets[thin], -CLIPPED, CLIPPED),
            drawn.design(standard.apply(d.judge).astype(np.float32)),
            d.judge_targets,
            float(np.nanmean(np.abs(changes[d.name]))),
            d.days,
        )
    return found


def poisoned(home: Home, attack: str, seed: int) -> Home:
    """Return a Byzantine device's own windows after an attack on its data."""
    if attack in ("opposite", "invented"):
        factor = -4.0 if attack == "invented" else -1.0
        return replace(home, targets=np.clip(factor * home.targets, -CLIPPED, CLIPPED))
    if attack in DATA_ATTACKS:
        rng = np.random.default_rng(seed)
        low, high = home.targets.min(), home.targets.max()
        unit = (home.targets[:, 0] - low) / max(high - low, 1e-9)
        told = np.asarray(bound_attack(attack, {}).act(unit, rng)) * (high - low) + low
        return replace(home, targets=np.clip(np.nan_to_num(told)[:, None], -CLIPPED, CLIPPED))
    return home


class Run:
    """One run of the method among honest and Byzantine devices.

    Args:
        rule: Rule for votes; None adds statistics up.
    """

    def __init__(
        self, known: Mapping[str, Home], byzantine: Sequence[str], attack: str, rule: str | None
    ) -> None:
        self.attack, self.rule, self.byzantine = attack, rule, frozenset(byzantine)
        self.known = {
            name: poisoned(home, attack, i) if name in self.byzantine else home
            for i, (name, home) in enumerate(known.items())
        }
        self.width = next(iter(known.values())).learn.shape[1]
        self.refused = 0
        self.past: list[Floats] = []

    def fit(self) -> tuple[Floats, dict[str, Statistic]]:
        """Return the fleet's model, and the statistics of which it was solved last."""
        fleet, sent = np.zeros((1, self.width)), {}
        memory: Any = {}
        for number in range(PASSES):
            sent = self._admitted(self._statistics(fleet if number else None))
            if self.rule is None:
                fleet = fleet_solution(total(sent))
                continue
            names, rows = votes(sent, 1e-3)
            stacked = Rows.of(dict(zip(names, fleet.ravel() - rows, strict=True)))
            options = (
                {"f": len(self.byzantine)} if self.rule in ("multi_krum", "trimmed_mean") else {}
            )
            verdict = bind(self.rule, **options)(stacked, uniform(len(stacked)), memory)
            memory = verdict.memory
            fleet = fleet - np.asarray(verdict.value, np.float64)[None]
        return fleet, sent

    def _statistics(self, fleet: Floats | None) -> dict[str, Statistic]:
        found = {}
        for name, home in self.known.items():
            missed = None if fleet is None else home.targets - predicted(home.learn, fleet)
            weights = None if missed is None else QuantileLoss().weights(missed)
            missed = home.targets if missed is None else missed
            bounded = np.clip(missed, -2 * CLIPPED, 2 * CLIPPED)
            found[name] = gather(home.learn, home.targets, weights, bounded)
        return found

    def _admitted(self, own: Mapping[str, Statistic]) -> dict[str, Statistic]:
        if self.attack not in MODEL_ATTACKS:
            return dict(own)
        honest = np.stack([to_vector(own[n]) for n in own if n not in self.byzantine]).astype(float)
        bound, sent = (
            bound_attack(self.attack, {}),
            {n: own[n] for n in own if n not in self.byzantine},
        )
        bounds = StatisticBounds(
            self.width, 1, 1, np.sqrt(CLIP**2 * (self.width - 1) + 1.0), CLIPPED, 20_000.0
        )
        for i, name in enumerate(sorted(self.byzantine)):
            vector = to_vector(own[name]).astype(np.float64)
            scene = AttackContext(
                vector, honest, np.zeros_like(vector), tuple(self.past), (), len(own),
                len(self.byzantine), np.random.default_rng(i),
            )  # fmt: skip
            with np.errstate(all="ignore"):
                told = np.asarray(bound.act(scene), np.float64)
            statistic = from_vector(told.astype(np.float32), 1, self.width)
            if statistic_fault(statistic, bounds) is None:
                sent[name] = statistic
            else:
                self.refused += 1
        self.past.append(to_vector(own[min(self.byzantine)]).astype(np.float64))
        return sent

    def scored(self) -> tuple[float, float]:
        """Return the mean error of honest devices: the fleet's model, and the personal ones."""
        fleet, sent = self.fit()
        others = leave_one_out(sent) if self.rule is None else {}
        errors = []
        for name, home in self.known.items():
            if name in self.byzantine:
                continue
            towards = others.get(name, fleet)
            own = fit_personal(home.learn, home.targets, towards, QuantileLoss(), days=home.days)
            errors.append([
                float(np.abs(home.judged - predicted(home.judge, m)).mean()) / home.unit
                for m in (fleet, own.coefficients)
            ])  # fmt: skip
        both = np.mean(errors, axis=0)
        return float(both[0]), float(both[1])


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the served forecasts' errors and their changes under attack, in per cent, as Markdown."""
    lines = []
    for name, found in results.items():
        rules = list(found["none"])
        lines += [f"| {SETS[name]} | " + " | ".join(rules) + " |", "|---|" + "---|" * len(rules)]
        for attack, row in found.items():
            cells = []
            for rule in rules:
                _, own, refused = row[rule]
                calm = found["none"][rule][1]
                if attack == "none":
                    cells.append(f"{own:.3f}")
                elif refused:
                    cells.append("refused")
                else:
                    cells.append(f"{100 * (own / calm - 1):+.1f}")
            lines.append(
                f"| {'no attack' if attack == 'none' else attack} | " + " | ".join(cells) + " |"
            )
        lines.append("")
    return "\n".join(lines).strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every attack against every rule; print and write the tables."""

    def made(options: argparse.Namespace, name: str) -> dict[str, Any]:
        return attacked(homes(importlib.import_module("datasets").load(options.data, name)))

    out = Path("runs/analytic-attacks")
    return run_tables(__doc__, out, MARKER, made=made, table=table, arguments=arguments)


def run_tables(
    title: str | None,
    out: Path,
    marker: str,
    *,
    made: Callable[[argparse.Namespace, str], Any],
    table: Callable[[dict[str, Any]], str],
    arguments: Sequence[str] | None,
) -> int:
    """Read the options of a command on ``SETS``, compute missing results, print and write its tables.

    Args:
        out: Folder of the results, one file a set, unless the command line names another.
    """
    parser = argparse.ArgumentParser(
        description=title, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--anchors", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--tasks", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--docs", action="store_true", help=f"write the tables into {PAGE.name}")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(options.anchors.resolve()))
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    for name in options.tasks:
        path = options.out / f"{name.replace(':', '_')}.json"
        if not path.exists():
            path.write_text(json.dumps(made(options, name)))
        results[name] = json.loads(path.read_text())
    text = table(results)
    if options.docs:
        replace_block(PAGE, marker, text)
    print(text)
    return 0


def attacked(known: Mapping[str, Home]) -> dict[str, dict[str, tuple[float, float, bool]]]:
    """Return fleet and personal error, and whether all of them were refused, by attack and rule."""
    names = sorted(known)
    byzantine = names[:: max(1, round(1 / SHARE))][: round(SHARE * len(names))]
    found: dict[str, dict[str, tuple[float, float, bool]]] = {}
    for attack in (*READINGS_ATTACKS, *MODEL_ATTACKS):
        found[attack] = {}
        for rule in (None, *(r for r in VOTES if r in RULES)):
            run = Run(known, byzantine, attack, rule)
            fleet, own = run.scored()
            title = "sum" if rule is None else f"votes, {rule}"
            is_refused = run.refused == PASSES * len(byzantine)
            found[attack][title] = (fleet, own, is_refused)
            print(
                attack, title, f"{fleet:.4f} {own:.4f} {run.refused}", file=sys.stderr, flush=True
            )
            if is_refused:
                found[attack] = dict.fromkeys(found["none"], (fleet, own, True))
                break
    return found


if __name__ == "__main__":
    sys.exit(main())
