"""The five methods of the graph chapter and three baselines on real neighbouring devices.

Marks are learning alone, FedAvg, and FedAvg with a personal head (PL-FL). Each method's step is
chosen on a part before the test; who is near whom and what is learned is ``near``'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_sdk.shared_math.optim import adam, sgd
from tools.experiments.joint_loop import key, redrawn
from tools.experiments.located_devices import PLACES, Part, Place
from tools.experiments.related_methods import Course, Field, course

STEPS, ROUNDS = 10, 40
HEAD = "head."


@dataclass(frozen=True, slots=True)
class Kind:
    """Settings with which one method is run."""

    method: str  # a key of ``METHODS``, or ``local``
    rates: tuple[float, ...]  # steps to choose from
    settings: Mapping[str, Any]
    head: bool = False  # whether the last layer stays on the device
    is_plain: bool = False  # whether local steps follow the gradient itself; otherwise Adam


ADAM: Final = (3e-4, 1e-3, 3e-3)
PLAIN: Final = (0.03, 0.1, 0.3, 1.0)
LEANING: Final = {"optimiser": "bundle", "smooth": 0.1}
KINDS: Final[Mapping[str, Kind]] = {
    "local": Kind("local", ADAM, {}),
    "FedAvg": Kind("fedavg", ADAM, {}),
    "PL-FL": Kind("fedavg", ADAM, {}, head=True),
    "FedAvg, plain steps": Kind("fedavg", PLAIN, {}, is_plain=True),
    "DFL-SGD": Kind("dfl_sgd", PLAIN, {}, is_plain=True),
    "DFL-GT": Kind("dfl_gt", PLAIN, {}, is_plain=True),
    "FeSEM": Kind("fesem", ADAM, {"centres": 3}),
    "BiG-FL": Kind("bigfl", ADAM, {"map": "diagonal", **LEANING}),
    "BiG-FL, phi = I": Kind("bigfl", ADAM, {"map_rate": 0.0, **LEANING}),
}


def file(place: str, name: str, seed: int, rounds: int) -> str:
    return f"{place}-{name.replace(' ', '')}-r{rounds}-s{seed}.json"


def run(
    place: str, name: str, seed: int, folder: Path, out: Path, *, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Choose the step on the part before the test, train again, and score on the test.

    Steps are tried for a third of the rounds; seeds after the first take the first one's.
    """
    path = out / file(place, name, seed, rounds)
    if not path.exists():
        kind, ground = KINDS[name], PLACES[place](folder)
        tried: dict[float, float] = {}
        if seed:
            best = float(run(place, name, 0, folder, out, rounds=rounds)["rate"])
        else:
            for rate in kind.rates:
                some = max(1, rounds // 3)
                found = _learned(kind, rate, seed, ground, judge="choose", rounds=some)
                tried[rate] = found[-1][ground.score]
            best = min(tried, key=lambda rate: tried[rate])
        shown = _learned(kind, best, seed, ground, judge="test", rounds=rounds)
        values = {"name": name, "seed": seed, "rate": best, "tried": list(tried.items())}
        values |= {"title": ground.title, "said": ground.said, "score": ground.score}
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps({**values, "shown": shown}))
        draft.replace(path)
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def _learned(
    kind: Kind, rate: float, seed: int, place: Place, *, judge: Part, rounds: int
) -> list[dict[str, float]]:
    """Train on everything before the scored part; return errors at intervals and at the end."""
    bundle, windows = place.bundle, place.windows("train" if judge == "test" else "learn")
    layout = bundle.manifest.spec(())
    layers = [layer.name for layer in layout.layers]
    shared = tuple(x for x in layers if not (kind.head and HEAD in x))
    first = redrawn(layout, bundle.initial, key(seed, "_agg", "initial", 0))
    optimiser = sgd if kind.is_plain else adam
    ground = Field(
        layout.with_shared(shared), first, bundle.graphs, windows, place.links, 64, optimiser
    )
    plan = Course(kind.method, rounds, STEPS, rate, _settings(kind, place), seed=seed)
    kept = []
    for shown in course(plan, ground):
        if shown.round in {1, 2, 5} or shown.round % 10 == 0 or shown.round == rounds:
            errors = place.errors(shown.vectors, judge)
            kept.append({"round": shown.round, "said": shown.said, **errors})
    return kept


def _settings(kind: Kind, place: Place) -> Mapping[str, Any]:
    if kind.method != "bigfl" or "hvp" in place.bundle.graphs:
        return kind.settings
    return {**kind.settings, "solver": "first_order"}
