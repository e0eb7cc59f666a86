"""Neighbour graph of the clients, from coordinates and a distance or from a list of pairs."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.graph.stations import Site as Place
from aggregator.extensions.papers.graph.stations import adjacency, distances
from edge_sdk.app.schema import SchemaError

Site = tuple[float, float]  # latitude and longitude in degrees
Pairs = frozenset[tuple[str, str]]
_SITES, _PAIRS = ["client", "latitude", "longitude"], ["client", "neighbour"]


@dataclass(frozen=True, slots=True)
class NeighbourGraph:
    """Neighbourhood of clients, by name."""

    pairs: Pairs = frozenset()  # each pair once, its names in order

    def among(self, ids: Sequence[str]) -> NDArray[np.bool_]:
        """Return the adjacency matrix of some clients, symmetric, shape ``(n, n)``.

        >>> NeighbourGraph(frozenset({("a", "c")})).among(["a", "b", "c"]).astype(int).tolist()
        [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
        """
        place = {name: i for i, name in enumerate(ids)}
        out = np.zeros((len(ids), len(ids)), np.bool_)
        for one, other in self.pairs:
            if one in place and other in place:
                i, j = place[one], place[other]
                out[i, j] = out[j, i] = True
        return out


def within(sites: Mapping[str, Site], threshold: float | None = None) -> NeighbourGraph:
    """Return the pairs of sites at most ``threshold`` km apart; sites at one place are no pair.

    Args:
        threshold: Largest distance in km; None is the median distance of all pairs.

    >>> line = {"a": (0.0, 0.0), "b": (0.0, 1.0), "c": (0.0, 3.0)}
    >>> sorted(within(line).pairs)
    [('a', 'b'), ('b', 'c')]
    >>> sorted(within(line, 150.0).pairs)
    [('a', 'b')]
    """
    names = sorted(sites)
    near = adjacency(distances([Place(*sites[name]) for name in names]), threshold)
    return paired((names[i], names[j]) for i, j in np.argwhere(near))


def paired(pairs: Iterable[tuple[str, str]]) -> NeighbourGraph:
    """Return the neighbourhood of some pairs, in either order, with or without repeats.

    >>> sorted(paired([("b", "a"), ("a", "b"), ("c", "c")]).pairs)
    [('a', 'b')]
    """
    return NeighbourGraph(frozenset((min(p), max(p)) for p in pairs if p[0] != p[1]))


def read(path: Path, threshold: float | None = None) -> NeighbourGraph:
    """Read a neighbour graph from CSV.

    Its header is ``client,latitude,longitude`` or ``client,neighbour``.

    Raises:
        SchemaError: The file cannot be read, has another header, or a line that does not fit.
    """
    try:
        lines = list(csv.reader(path.read_text("utf-8").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError("run.settings.neighbours", "a readable CSV file", str(error)) from error
    head, rows = (lines[0], [line for line in lines[1:] if line]) if lines else ([], [])
    if head == _SITES:
        return within({row[0]: _site(row, path) for row in rows}, threshold)
    if head != _PAIRS:
        expected = f"a first line {','.join(_SITES)} or {','.join(_PAIRS)} in {path.name}"
        raise SchemaError("run.settings.neighbours", expected, repr(",".join(head)))
    if threshold is not None:
        raise SchemaError("run.settings.threshold", "none: pairs have no distance", f"{threshold}")
    if any(len(row) != len(_PAIRS) for row in rows):
        raise SchemaError("run.settings.neighbours", "two different names in each line", path.name)
    return paired((row[0], row[1]) for row in rows)


def checked(client: str, site: Site) -> Site:
    """Return a site; raise SchemaError if its latitude or longitude is out of range."""
    if not (abs(site[0]) <= 90.0 and abs(site[1]) <= 180.0):
        expected = "latitude from -90 to 90 and longitude from -180 to 180"
        raise SchemaError(f"run.settings.sites.{client}", expected, str(list(site)))
    return site


def _site(row: list[str], path: Path) -> Site:
    try:
        client, latitude, longitude = row
        return checked(client, (float(latitude), float(longitude)))
    except ValueError as error:
        expected = f"a name and two numbers in each line of {path.name}"
        raise SchemaError("run.settings.neighbours", expected, repr(",".join(row))) from error
