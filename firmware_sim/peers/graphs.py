"""Graph of a run among peers: its links in every exchange, and the weights with which models are mixed.

Undirected links have a symmetric mixing matrix. One-way links are mixed by push-sum: a device gives
equal shares of a mass of 1 to itself and the devices that it sends to, and weighs a received model by
the mass that came with it.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from edge_sdk.app.schema import Between, Length, SchemaError
from edge_sdk.extensions.peers import mixing_matrix
from firmware_sim.scenario import GRAPHS

Links = frozenset[tuple[str, str]]
"""Links from a sender to a receiver; an undirected one is in both directions."""

Weights = Mapping[str, Mapping[str, float]]
"""Weight of each received model, by receiver and sender; the rest to 1 is the receiver's own."""

Mixing = Literal["metropolis", "maximum_degree", "best_constant"]

HEADER = ["client", "neighbour"]
DRAWS = 1000  # most draws of a random graph until one is connected

_MATRICES: Mapping[Mixing, Callable[[mixing_matrix.Matrix], mixing_matrix.Matrix]] = {
    "metropolis": mixing_matrix.metropolis,
    "maximum_degree": mixing_matrix.maximum_degree,
    "best_constant": mixing_matrix.best_constant,
}


@dataclass(frozen=True, slots=True)
class PeerGraph:
    """Settings of the graph: ``[run.graph]`` of a scenario, or ``--graph`` and ``--graph-option``."""

    # ring, torus, erdos_renyi, complete, or a CSV file with the first line ``client,neighbour``
    name: Annotated[str, Length(1, 4096)] = "ring"
    reach: Annotated[int, Between(1, 1000)] = 1  # ring: number of neighbours to either side
    probability: Annotated[float, Between(1e-6, 1.0)] = 0.4  # erdos_renyi: of each link
    directed: bool = False  # true: links go one way (a file's from client to neighbour), push-sum
    # probability of each link to exist in an exchange; below 1 the graph varies over time
    present: Annotated[float, Between(1e-6, 1.0)] = 1.0

    @property
    def is_fixed(self) -> bool:
        """Return whether both ends of a link mix, and in every exchange: what devices can do."""
        return not self.directed and self.present == 1.0

    def links(self, devices: Sequence[str], seed: int = 0) -> Links:
        """Return the links of the graph.

        Args:
            devices: Ids of all devices, in any order.
            seed: Seed of a random graph; one that is not connected is drawn again.

        Raises:
            SchemaError: A file that does not fit, or a graph that does not connect the devices.

        >>> sorted(PeerGraph("ring", directed=True).links("abc"))
        [('a', 'b'), ('b', 'c'), ('c', 'a')]
        >>> len(PeerGraph("torus").links("abcdefghi")) == 9 * 4
        True
        """
        names = sorted(devices)
        if self.name not in GRAPHS:
            return self._connected(names, self._both(_read(Path(self.name), names)))
        if self.name != "erdos_renyi":
            return self._connected(names, self._both(_regular(self.name, names, self.reach)))
        draws = random.Random(f"graph {seed}")  # noqa: S311 - reproducible
        pairs = [(a, b) for a in names for b in names if (a != b if self.directed else a < b)]
        for _ in range(DRAWS):
            drawn = self._both(pair for pair in pairs if draws.random() < self.probability)
            if is_connected(names, drawn):
                return drawn
        expected = "a probability at which the graph is connected"
        raise SchemaError("run.graph.probability", expected, str(self.probability))

    def _both(self, pairs: Iterable[tuple[str, str]]) -> Links:
        one_way = frozenset(pairs)
        return one_way if self.directed else one_way | {(b, a) for a, b in one_way}

    def _connected(self, names: Sequence[str], links: Links) -> Links:
        if not is_connected(names, links):
            raise SchemaError("run.graph.name", "a graph that connects all devices", self.name)
        return links

    def drawn(self, links: Links, exchange: int, seed: int = 0) -> Links:
        """Return the links that exist in an exchange.

        >>> graph = PeerGraph("ring", present=0.5)
        >>> whole = graph.links("abcdefgh")
        >>> some = [graph.drawn(whole, t) for t in range(40)]
        >>> all((b, a) in one for one in some for a, b in one), frozenset().union(*some) == whole
        (True, True)
        """
        if self.present == 1.0:
            return links
        draws = random.Random(f"links {seed} {exchange}")  # noqa: S311 - reproducible
        ways = sorted(links if self.directed else {(a, b) for a, b in links if a < b})
        return self._both(way for way in ways if draws.random() < self.present)


def is_connected(names: Sequence[str], links: Links) -> bool:
    """Return whether every device receives, perhaps through others, what any other one sends.

    >>> is_connected("ab", frozenset({("a", "b")})), is_connected("ab", frozenset({("a", "b"), ("b", "a")}))
    (False, True)
    """
    return all(
        len(_reached(names[0], ways)) == len(names) for ways in (links, {(b, a) for a, b in links})
    )


def _reached(start: str, links: Iterable[tuple[str, str]]) -> set[str]:
    after: dict[str, set[str]] = {}
    for one, other in links:
        after.setdefault(one, set()).add(other)
    seen, coming = set(), [start]
    while coming:
        name = coming.pop()
        if name not in seen:
            seen.add(name)
            coming += after.get(name, ())
    return seen


def _regular(name: str, names: Sequence[str], reach: int) -> Links:
    """Return a ring, torus or complete graph, with each link in one direction."""
    count = len(names)
    if name == "complete":
        pairs = [(i, j) for i in range(count) for j in range(count)]
    elif name == "ring":
        pairs = [(i, (i + step) % count) for i in range(count) for step in range(1, reach + 1)]
    else:
        rows = max(n for n in range(1, count + 1) if count % n == 0 and n * n <= count)
        if rows == 1:
            raise SchemaError(
                "run.graph.name", "ring: a torus has rows and columns", f"{count} devices"
            )
        wide = count // rows
        right = [(i, i - i % wide + (i + 1) % wide) for i in range(count)]
        pairs = right + [(i, (i + wide) % count) for i in range(count)]
    return frozenset((names[i], names[j]) for i, j in pairs if i != j)


def _read(path: Path, names: Sequence[str]) -> Links:
    try:
        lines = list(csv.reader(path.read_text("utf-8").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        expected = f"{', '.join(GRAPHS)}, or a readable CSV file"
        raise SchemaError("run.graph.name", expected, str(error)) from error
    rows = [line for line in lines[1:] if line]
    if not lines or lines[0] != HEADER or any(len(row) != len(HEADER) for row in rows):
        expected = f"a first line {','.join(HEADER)} and two names a line"
        raise SchemaError("run.graph.name", expected, path.name)
    if strangers := sorted({name for row in rows for name in row} - set(names)):
        raise SchemaError("run.graph.name", "names of devices of this run", strangers[0])
    return frozenset((row[0], row[1]) for row in rows if row[0] != row[1])


def weights_of(names: Sequence[str], links: Links, mixing: Mixing) -> Weights:
    """Return the weights of undirected links in one exchange; a device without one keeps its model.

    Raises:
        SchemaError: ``best_constant`` where the links of the exchange do not connect the devices.

    >>> ring = PeerGraph("ring").links("abcd")
    >>> weights_of("abcd", ring, "best_constant")["a"] == {"b": 1 / 3, "d": 1 / 3}
    True
    """
    ordered = sorted(names)
    at = {name: number for number, name in enumerate(ordered)}
    adjacent = np.zeros((len(ordered), len(ordered)))
    for one, other in links:
        adjacent[at[one], at[other]] = 1.0
    if mixing == "best_constant" and not is_connected(ordered, links):
        raise SchemaError("run.settings.mixing", "another one where the graph varies", mixing)
    matrix = _MATRICES[mixing](adjacent)
    found: dict[str, dict[str, float]] = {name: {} for name in ordered}
    for sender, receiver in sorted(links):
        found[receiver][sender] = float(matrix[at[receiver], at[sender]])
    return found


@dataclass(frozen=True, slots=True)
class PushSum:
    """Masses of the devices of a directed graph; they add up to the number of devices.

    >>> start = PushSum.of("abc")
    >>> first, weights = start.exchanged(frozenset({("a", "b"), ("b", "c"), ("c", "a"), ("a", "c")}))
    >>> {name: round(mass, 3) for name, mass in first.masses.items()}, round(sum(first.masses.values()), 12)
    ({'a': 0.833, 'b': 0.833, 'c': 1.333}, 3.0)
    >>> {name: round(weight, 3) for name, weight in weights["c"].items()}
    {'a': 0.25, 'b': 0.375}

    Reference:
        Nedic and Olshevsky, Distributed Optimization over Time-Varying Directed Graphs, 2015; with
        steps divided by the mass, Assran et al., Stochastic Gradient Push, 2019.
    """

    masses: Mapping[str, float]

    @classmethod
    def of(cls, names: Iterable[str]) -> PushSum:
        """Return a mass of 1 for each device."""
        return cls(dict.fromkeys(sorted(names), 1.0))

    def exchanged(self, links: Links) -> tuple[PushSum, Weights]:
        """Return the masses after an exchange, and the weights of the models received in it."""
        sent = dict.fromkeys(self.masses, 1.0)
        for sender, _ in links:
            sent[sender] += 1.0
        shares = {name: mass / sent[name] for name, mass in self.masses.items()}
        given: dict[str, dict[str, float]] = {name: {} for name in self.masses}
        for sender, receiver in sorted(links):
            given[receiver][sender] = shares[sender]
        after = {name: shares[name] + sum(given[name].values()) for name in self.masses}
        weights = {
            name: {one: share / after[name] for one, share in some.items()}
            for name, some in given.items()
        }
        return replace(self, masses=after), weights
