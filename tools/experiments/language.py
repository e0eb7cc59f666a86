"""E8, reduced: a small language model for domains of text that every machine with Python has.

The paper has sixteen domains of reviews, 63 144 words and embeddings that are not ours to ship; its
map of 1.9e7 squared numbers is impossible. Here a domain is a part of Python's own standard
library, a word is one of the most frequent of all domains (the rest count as one), and the map is a
scale for each number. Domains that use words alike are neighbours.
"""

from __future__ import annotations

import json
import re
import sysconfig
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_sdk.methods.training_context import Batch, Graph
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector
from tools.experiments.joint_loop import key
from tools.experiments.nets import Net
from tools.experiments.related_methods import Course, Field, course
from tools.experiments.synthetic_graph import nearest

DOMAINS = (
    *("asyncio", "concurrent", "email", "html", "http", "importlib", "json", "logging"),
    *("multiprocessing", "pydoc_data", "re", "sqlite3", "unittest", "urllib", "wsgiref", "xml"),
)
WINDOW, WIDTH, HIDDEN = 4, 12, 24
WORD = re.compile(r"[a-z]+")
SEEN = 4000
HELD = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """Windows of one domain: some words and the word that follows, as numbers."""

    x: NDArray[np.int64]
    y: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.x)

    def draw(self, rng: np.random.Generator, size: int) -> Batch:
        """Draw some without repetition."""
        some = rng.choice(len(self.x), min(size, len(self.x)), replace=False)
        return Batch(self.x[some].astype(np.float32), self.y[some].astype(np.float32))


@dataclass(frozen=True, slots=True)
class Speaker:
    """Net that predicts the next word: an embedding, a hidden layer of tanh, a softmax."""

    words: int  # how many it knows

    @property
    def spec(self) -> ParamSpec:
        return ParamSpec.of(
            [("embed", (self.words, WIDTH)), *((x.name, x.shape) for x in self._net.spec.layers)]
        )

    @property
    def _net(self) -> Net:
        return Net((WINDOW * WIDTH, HIDDEN, self.words), "tanh", biases=False)

    def first(self, rng: np.random.Generator) -> Vector:
        embed = rng.normal(0, 0.3, self.words * WIDTH).astype(np.float32)
        return np.concatenate([embed, self._net.first(rng)])

    def loss(self, p: Vector, x: NDArray[np.int64], y: NDArray[np.int64]) -> float:
        """Return the mean negative log-likelihood of the next word."""
        return float(self.gradient(p, x[:, None], y[:, None])[0])

    def gradient(
        self, p: Vector, x: NDArray[Any], y: NDArray[Any]
    ) -> tuple[NDArray[np.float32], Vector]:
        """Return the loss and its gradient."""
        ids, next_ = x.reshape(len(x), -1).astype(np.int64), y.ravel().astype(np.int64)
        embed, first, second = self._parted(p)
        a = embed[ids].reshape(len(ids), -1)
        h = np.tanh(a @ first)
        z = h @ second
        z = z - z.max(axis=1, keepdims=True)
        odds = np.exp(z)
        odds /= odds.sum(axis=1, keepdims=True)
        rows = np.arange(len(ids))
        value = -np.mean(np.log(odds[rows, next_]))
        back = odds
        back[rows, next_] -= 1.0
        back /= len(ids)
        before = (back @ second.T) * (1 - h * h)
        into = np.zeros_like(embed)
        np.add.at(into, ids, (before @ first.T).reshape(len(ids), WINDOW, WIDTH))
        flat = np.concatenate([into.ravel(), (a.T @ before).ravel(), (h.T @ back).ravel()])
        return np.asarray(value, np.float32), flat.astype(np.float32)

    def hvp(
        self, p: Vector, x: NDArray[np.float32], y: NDArray[np.float32], v: Vector
    ) -> tuple[Vector]:
        """Return the product of curvature and vector, by a central difference of gradients."""
        length = float(np.linalg.norm(v))
        if length == 0.0:
            return (np.zeros_like(v),)
        step = 1e-2 / length
        ahead, behind = (
            self.gradient((p + s * v).astype(np.float32), x, y)[1] for s in (step, -step)
        )
        return (((ahead - behind) / (2 * step)).astype(np.float32),)

    def _parted(self, p: Vector) -> tuple[NDArray[np.float64], ...]:
        wide, parts, at = p.astype(np.float64), [], 0
        for layer in self.spec.layers:
            parts.append(wide[at : at + layer.size].reshape(layer.shape))
            at += layer.size
        return tuple(parts)


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """The domains, their model and their test text."""

    field: Field
    speaker: Speaker
    held: Mapping[str, Words]

    def loss(self, vectors: Mapping[str, Vector]) -> float:
        parts = [self.speaker.loss(vectors[x], some.x, some.y) for x, some in self.held.items()]
        return float(np.mean(parts))


def spoken(seed: int, words: int = 300) -> Spoken:
    """Read the domains, and split each into training and test text."""
    texts = {name: _text(name) for name in DOMAINS}
    counted = Counter(word for text in texts.values() for word in text)
    known = {word: i + 1 for i, (word, _) in enumerate(counted.most_common(words - 1))}
    numbers = {x: np.array([known.get(word, 0) for word in text]) for x, text in texts.items()}
    numbers = {x: some for x, some in numbers.items() if len(some) > 2 * HELD}
    seen, held = {}, {}
    for name, some in numbers.items():
        x = np.lib.stride_tricks.sliding_window_view(some, WINDOW + 1)
        cut = min(SEEN, len(x) - HELD - WINDOW)
        seen[name] = Words(x[:cut, :-1], x[:cut, -1])
        rest = x[cut + WINDOW : cut + WINDOW + HELD]
        held[name] = Words(rest[:, :-1], rest[:, -1])
    names = sorted(numbers)
    use = np.stack([np.bincount(numbers[x][:SEEN], minlength=words) / SEEN for x in names])
    speaker = Speaker(words)
    graphs: dict[str, Graph] = {"gradient": speaker.gradient, "hvp": speaker.hvp}
    first = speaker.first(key(seed, "e8", "first", 0))
    links = nearest(names, np.sqrt(use), 3)
    return Spoken(Field(speaker.spec, first, graphs, seen, links, batch=100), speaker, held)


def _text(domain: str) -> list[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    found: list[str] = []
    for path in sorted((library / domain).rglob("*.py")):
        found += WORD.findall(path.read_text("utf-8", errors="replace").lower())
        if len(found) > 3 * (SEEN + HELD):
            break
    return found


# --- the arms -------------------------------------------------------------------------------------

STEPS, ROUNDS, RATE = 5, 60, 1.0
KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "fedavg": {},
    "fesem": {"centres": 3, "first_steps": 50},
    "bigfl": {"map": "diagonal"},
    "local": {},
}


def file(method: str, seed: int, *, quick: bool) -> str:
    """Return where a run is kept, below the output folder."""
    return f"e8-{method}-{'quick-' if quick else ''}s{seed}.json"


def run(method: str, seed: int, out: Path, *, quick: bool) -> dict[str, Any]:
    """Run an arm unless its result is there; the file appears whole."""
    path = out / file(method, seed, quick=quick)
    if not path.exists():
        made, rounds = spoken(seed), 2 if quick else ROUNDS
        plan = Course(method, rounds, STEPS, RATE, KINDS[method], seed=seed)
        shown = [(x.round, x.said, made.loss(x.vectors)) for x in course(plan, made.field)]
        values = {"method": method, "seed": seed, "domains": len(made.held), "shown": shown}
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps({**values, "size": made.field.spec.size}))
        draft.replace(path)
    result: dict[str, Any] = json.loads(path.read_text())
    return result
