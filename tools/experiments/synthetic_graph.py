"""E7: five nodes with different functions, and fifty nodes whose neighbours are similar.

The paper's figures 10.1 and 10.3. It prints no numbers: what is judged is the order of its curves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.bilevel.bilevel import Bilevel
from aggregator.extensions.papers.clustered.clustering import Centres
from edge_sdk.methods.training_context import Batch
from tools.experiments.joint_loop import key
from tools.experiments.nets import Net
from tools.experiments.related_methods import Course, Field, Links, Shown, course

Floats = NDArray[np.float64]

RANGES = ((-30.0, 30.0), (40.0, 100.0), (-55.0, -50.0), (-1.0, 1.0), (-0.1, 0.1))
LARGEST = 100.0
SEEN, HELD = 200, 200
FIVE, FIFTY = Net((8, 16, 16, 1), "tanh"), Net((8, 16, 16, 8), biases=False)
LINE = Net((8, 1))
STEPS = 5


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Examples to draw from: ``x (N, 1, inputs)`` and ``y (N, outputs)``."""

    x: NDArray[np.float32]
    y: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.x)

    def draw(self, rng: np.random.Generator, size: int) -> Batch:
        """Draw examples without replacement."""
        some = rng.choice(len(self.x), min(size, len(self.x)), replace=False)
        return Batch(self.x[some], self.y[some])


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """Synthetic fleet: training and test examples of its devices."""

    field: Field
    net: Net
    held: Mapping[str, Samples]

    def loss(self, shown: Shown, *, common: bool) -> float:
        """Return the mean test loss of the common model, or of each device's own."""
        losses = []
        for name, some in self.held.items():
            p = shown.common if common else shown.vectors[name]
            losses.append(self.net.loss(p, some.x, some.y))
        return float(np.mean(losses))


def five(seed: int, net: Net) -> Made:
    """Make figure 10.1's nodes: one linear map, five functions of it, five ranges of inputs."""
    rng = key(seed, "e7", "five", 0)
    direction = rng.normal(0, 1, 8)
    bends: tuple[Callable[[Floats], Floats], ...]
    bends = (np.tanh, _logistic, _ramp, np.sin, np.cos)
    seen, held = {}, {}
    for number, ((low, high), bend) in enumerate(zip(RANGES, bends, strict=True)):
        x = rng.uniform(low, high, (SEEN + HELD, 8)) / LARGEST
        y = bend(x @ direction)[:, None]
        seen[f"n{number}"], held[f"n{number}"] = _parted(x, y)
    names = sorted(seen)
    ring = frozenset(zip(names, [*names[1:], names[0]], strict=True))
    first = net.first(key(seed, "e7", "first", 0))
    return Made(Field(net.spec, first, net.graphs, seen, ring, batch=SEEN), net, held)


def fifty(seed: int, *, part: str = "train", nodes: int = 50) -> Made:
    """Make figure 10.3's nodes: maps of a mixture of three, smoothed over a graph of four nearest.

    ``part`` names one of two graphs of the same mixture: ``train`` and ``test``.
    """
    centres = key(seed, "e7", "centres", 0).uniform(-0.5, 0.5, (3, 64))
    rng = key(seed, "e7", part, 0)
    raw = centres[rng.integers(0, 3, nodes)] + rng.normal(0, 0.5, (nodes, 64))
    names = [f"{part}-{number:02d}" for number in range(nodes)]
    links = nearest(names, raw, 4)
    smooth = _smoothed(names, raw, links)
    seen, held = {}, {}
    for name, w in zip(names, smooth, strict=True):
        x = rng.uniform(-60, 60, (100 + HELD, 8)) / 60.0
        seen[name], held[name] = _parted(x, x @ w.reshape(8, 8), 100)
    first = FIFTY.first(key(seed, "e7", "first", 0))
    return Made(Field(FIFTY.spec, first, FIFTY.graphs, seen, links), FIFTY, held)


def nearest(names: Sequence[str], points: Floats, count: int) -> Links:
    """Return the links of each node to its nearest, symmetric; components are joined at their closest nodes.

    >>> sorted(nearest("abcd", np.array([[0.0], [1.0], [9.0], [10.0]]), 1))
    [('a', 'b'), ('b', 'c'), ('c', 'd')]
    """
    apart = np.sum((points[:, None] - points[None]) ** 2, axis=2)
    np.fill_diagonal(apart, np.inf)
    pairs = {(min(i, j), max(i, j)) for i, row in enumerate(apart) for j in np.argsort(row)[:count]}
    while len(part := _reached(pairs)) < len(names):
        rest = [i for i in range(len(names)) if i not in part]
        grid = apart[np.ix_(sorted(part), rest)]
        at = np.unravel_index(int(np.argmin(grid)), grid.shape)
        one, other = sorted(part)[int(at[0])], rest[int(at[1])]
        pairs.add((min(one, other), max(one, other)))
    return frozenset((names[int(i)], names[int(j)]) for i, j in pairs)


def _reached(pairs: set[tuple[int, int]]) -> set[int]:
    part = {0}
    while more := {x for p in pairs if part & set(p) for x in p} - part:
        part |= more
    return part


def _smoothed(names: Sequence[str], raw: Floats, links: Links) -> Floats:
    at = {name: i for i, name in enumerate(names)}
    near = np.eye(len(names))
    for one, other in links:
        near[at[one], at[other]] = near[at[other], at[one]] = 1.0
    smooth: Floats = near @ raw / near.sum(axis=1, keepdims=True)
    return smooth


def _parted(x: Floats, y: Floats, seen: int = SEEN) -> tuple[Samples, Samples]:
    first, second = x[:, None].astype(np.float32), y.astype(np.float32)
    return Samples(first[:seen], second[:seen]), Samples(first[seen:], second[seen:])


def _logistic(z: Floats) -> Floats:
    s: Floats = 1.0 / (1.0 + np.exp(-z))
    return s


def _ramp(z: Floats) -> Floats:
    return np.maximum(z, 0.0)


# --- the arms -------------------------------------------------------------------------------------

SPEEDS: Final = ("fedavg", "dfl_gt", "dfl_sgd")
LITERAL: Final = 2 / 8
"""Ratio of the nets' loss, the mean over eight outputs, to the paper's, half their sum."""

KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "fedavg": {},
    "dfl_sgd": {},
    "dfl_gt": {},
    "fesem": {"centres": 3, "mu": 0.01 * LITERAL, "first_steps": 50},
    "bigfl": {"map": "full", "smooth": 0.1 * LITERAL, "ridge": 1e-3 * LITERAL},
    "local": {},
}


def parts() -> Iterator[tuple[str, str]]:
    yield from (("10.1", method) for method in SPEEDS)
    yield from (("10.3", method) for method in KINDS)


RATES: Final = (0.05, 0.1, 0.14, 0.2)
"""Constant steps of figure 10.1. The paper's 15 over the root of the step's number is longer than
all of them for as long as we run; the longest of these already is too long."""

RATE: Final = 0.1
"""Step at which figure 10.1 is judged; also the first of fading steps."""


def ways(*, quick: bool) -> Iterator[tuple[Net, bool, float]]:
    """Return the variants of figure 10.1: net, decay of the steps, and their length."""
    yield from ((FIVE, False, rate) for rate in ((RATE,) if quick else RATES))
    yield from ((FIVE, True, RATE), (LINE, False, RATE))


def _speeds(method: str, seed: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """Run figure 10.1 on whole data sets, so that only the methods differ.

    Also once with a linear model, which comes to an end.
    """
    rounds = 100 if quick else 300
    for net, fading, rate in ways(quick=quick):
        made = five(seed, net)
        plan = Course(method, rounds, STEPS, rate, fading=fading, seed=seed)
        with np.errstate(all="ignore"):  # steps that are too long
            shown = [_point(made, x, common=True) for x in _looked_at(plan, made.field)]
        more = {"fading": fading, "linear": net is LINE, "rate": rate, "rounds": rounds}
        yield _kept("10.1", method, seed, shown, **more)


def _kinds(method: str, seed: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """Run figure 10.3, and transfer the result to a graph of other devices.

    That is a model, or centres, or a model and a map; of the methods without a server the average.
    """
    nodes, rounds = (10, 12) if quick else (50, 120)
    made, settings = fifty(seed, nodes=nodes), KINDS[method]
    plan = Course(method, rounds, STEPS, 3.0, settings, seed=seed)
    points, common, state = [], made.field.first, None
    for one in _looked_at(plan, made.field):
        points.append(_both(made, one, method))
        common, state = one.common, one.state
    yield _kept("10.3", method, seed, points, part="train")
    other = fifty(seed, part="test", nodes=nodes)
    ground, after = other.field, plan
    if method != "local":
        ground = replace(ground, first=common)
        after = replace(plan, begin=partial(carried, state))
    if method == "bigfl":
        after = replace(after, settings={**settings, "map_rate": 0.0})
    again = [_both(other, x, method) for x in _looked_at(after, ground)]
    yield _kept("10.3", method, seed, again, part="test")


def _looked_at(plan: Course, ground: Field) -> Iterator[Shown]:
    for one in course(plan, ground):
        if one.round <= 20 or one.round % 5 == 0 or one.round == plan.rounds:
            yield one


def _both(made: Made, one: Shown, method: str) -> tuple[float, ...]:
    own = _point(made, one, common=method == "fedavg")
    return (*own, made.loss(one, common=True))


def carried(before: Any, state: Any) -> Any:  # noqa: ANN401 - each half has its own
    """Start on other devices with the trained model, centres or map."""
    if isinstance(state, Centres):
        return replace(state, w=before.w, centres=before.centres, seeded=True)
    if isinstance(state, Bilevel):
        return replace(state, w=before.w, phi=before.phi, moved=before.moved)
    return replace(state, w=before.w)


def _point(made: Made, shown: Shown, *, common: bool) -> tuple[int, float, float, float]:
    return shown.round, shown.said, made.loss(shown, common=common), _apart(shown)


def _apart(shown: Shown) -> float:
    rows = np.stack([shown.vectors[x] for x in sorted(shown.vectors)]).astype(np.float64)
    return float(np.mean(np.sum((rows - rows.mean(0)) ** 2, axis=1)))


def _kept(figure: str, method: str, seed: int, shown: Sequence[Any], **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"figure": figure, "method": method, "seed": seed, "shown": shown, **more}


def file(figure: str, method: str, seed: int, *, quick: bool) -> str:
    return f"e7-{figure}-{method}-{'quick-' if quick else ''}s{seed}.json"


def run(part: tuple[str, str], seed: int, out: Path, *, quick: bool) -> list[dict[str, Any]]:
    """Run a part of a seed unless its result is there; the file appears whole."""
    figure, method = part
    path = out / file(figure, method, seed, quick=quick)
    if not path.exists():
        makes = _speeds if figure == "10.1" else _kinds
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps(list(makes(method, seed, quick=quick))))
        draft.replace(path)
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found
