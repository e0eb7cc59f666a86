"""BiG-FL: settings, and the bilevel half that they configure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.bilevel.bilevel import Bilevel, Levels, bilevel
from aggregator.extensions.papers.geo_neighbours import Site, checked, read, within
from aggregator.methods.base.types import Method, Rate, Setup, Steps, has_no_use, task
from edge_sdk.app.schema import Between, SchemaError
from edge_sdk.extensions.papers.bilevel_map import Basis, Diagonal, LowRank, MapBlock
from edge_sdk.protocol.contract.method import Half
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.protocol.messages import BODY_LIMIT, HEADER_LIMIT

Weight = Annotated[float, Between(0.0, 1e9)]
Rounds = Annotated[int, Between(1, 2**31 - 1)]
Near = Callable[[tuple[str, ...]], NDArray[np.bool_]]
Products = Annotated[int, Between(1, 1000)]

WIDEST: Final = 2048  # largest model width for which the map may be any matrix
_OPTIMISERS = {"bundle": 0.0, "sgd": 1.0, "adam": 2.0}
_SOLVERS = {"conjugate": 0.0, "neumann": 1.0}


@dataclass(frozen=True, slots=True)
class BiGFL:
    """Bilevel learning on a graph: a model for each device, and a learned map between neighbours.

    A device's model is pulled towards the map of its neighbours' models. The map is trained so that
    neighbours' models align under it and others do not. The method is not Byzantine-robust.
    """

    steps: Steps = 5  # local steps a round (tau)
    rate: Rate = 1e-2  # their learning rate
    # optimiser of the steps: plain ones as in the paper, the bundle's, or Adam
    optimiser: Literal["sgd", "bundle", "adam"] = "sgd"
    # weight of the squared distance of a device's model from the map of its neighbourhood (lambda
    # of the lower level)
    smooth: Weight = 0.1
    ridge: Weight = 1e-3  # weight of a model's own squared length (kappa)
    # form of the map: any matrix (``full``, up to 2048 shared numbers, and with the other content
    # of a message within 8 MiB), a scale for each number (``diagonal``), the identity plus a
    # ``low_rank`` matrix, or any matrix of the ``last_layer`` only
    map: Literal["diagonal", "low_rank", "last_layer", "full"] = "diagonal"
    rank: Annotated[int, Between(1, 256)] = 8  # rank of the low-rank form
    # step of the map. 0 leaves it the identity: plain smoothing over the graph
    map_rate: Rate = 1e-2
    # weight of the map's squared distance from the identity (lambda of the upper one)
    map_regularisation: Weight = 1.0
    # number of non-neighbours drawn for each device, newly in each round
    non_neighbours: Annotated[int, Between(0, 100_000)] = 10
    # solver of the linear system of the map's step: ``conjugate`` gradients, a ``neumann`` series,
    # or none (``first_order``): the server uses the gradient itself, and a round has one task
    # instead of two
    solver: Literal["conjugate", "neumann", "first_order"] = "conjugate"
    iterations: Products = 10  # largest number of products with a device's curvature
    damping: Weight = 1e-3  # number added to the curvature (delta)
    # largest residual, as a fraction of the gradient's norm
    tolerance: Annotated[float, Between(0.0, 1.0)] = 1e-3
    # step of the series; left out, devices compute one
    neumann_step: Annotated[float, Between(1e-9, 1e9)] | None = None
    # Divisor of the gradient where nothing is solved
    curvature: Annotated[float, Between(1e-9, 1e9)] = 1.0
    # minibatches over which a device measures its curvature
    curvature_batches: Annotated[int, Between(1, 64)] = 1
    # number of further solves with the neighbours' solutions (for tests and small fleets): 0 as in
    # the paper; each needs one more task
    coupled_solves: Annotated[int, Between(0, 5)] = 0
    # public coordinates by device id: latitude and longitude in degrees. Without these and
    # ``neighbours`` all devices are neighbours, and there are no others.
    sites: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # the same from a CSV with the first line ``client,latitude,longitude``; or pairs with the first
    # line ``client,neighbour``. Relative to the configuration.
    neighbours: str | None = None
    # largest distance of neighbours in km; left out: the median distance
    threshold: Annotated[float, Between(1e-6, 20_038.0)] | None = None
    stale_after: Rounds = 5  # number of rounds that the last weights of a silent device count
    renamed: ClassVar[Mapping[str, str]] = {
        "strangers": "non_neighbours",
        "map_pull": "map_regularisation",
        "windows": "curvature_batches",
        "coupled": "coupled_solves",
    }

    def __post_init__(self) -> None:
        """Refuse contradictory settings; the error names the key."""
        if self.sites and self.neighbours is not None:
            raise ValueError(
                "neighbours: expected none beside sites: both define the neighbourhood"
            )
        if self.threshold is not None and not (self.sites or self.neighbours is not None):
            raise ValueError("threshold: expected none without sites or neighbours")
        if self.map_rate * self.map_regularisation >= 2.0:
            raise ValueError(
                f"map_rate: expected less than 2 over map_regularisation, or the map swings ever farther "
                f"from the identity, got {self.map_rate:g}"
            )
        if self.coupled_solves and self.solver == "first_order":
            raise ValueError(
                'coupled_solves: expected 0 with solver = "first_order", which solves nothing'
            )

    @property
    def max_staleness(self) -> int:
        return self.stale_after

    @property
    def graphs(self) -> tuple[str, ...]:
        solves = self.map_rate > 0.0 and self.solver != "first_order"
        return ("gradient", "hvp") if solves else ("gradient",)

    def near(self, folder: Path) -> Near:
        """Return the adjacency matrix of devices as a function; raise SchemaError for wrong coordinates or file."""
        if self.neighbours is not None:
            return read(folder / self.neighbours, self.threshold).among
        if not self.sites:
            return all_adjacent
        sites: dict[str, Site] = {k: checked(k, site) for k, site in self.sites.items()}
        return within(sites, self.threshold).among

    def bound(self, setup: Setup, near: Near) -> Levels:
        """Return the half's settings."""
        drawn = {"smooth": self.smooth, "ridge": self.ridge}
        values = task(self.steps, self.rate, optimiser=_OPTIMISERS[self.optimiser], **drawn)
        solving = {
            "solver": _SOLVERS.get(self.solver, 0.0),
            "iterations": float(self.iterations),
            "damping": self.damping,
            "tolerance": self.tolerance,
            "curvature": self.curvature,
            "batches": float(self.curvature_batches),
            **drawn,
        }
        if self.neumann_step is not None:
            solving["step"] = self.neumann_step
        return Levels(
            setup.rounds,
            near,
            values,
            solving,
            self._first(setup),
            smooth=self.smooth,
            ridge=self.ridge,
            damping=self.damping,
            map_rate=self.map_rate,
            map_pull=self.map_regularisation,
            non_neighbours=self.non_neighbours,
            solve="server" if self.solver == "first_order" else "device",
            curvature=self.curvature,
            outer=self.coupled_solves,
            stale_after=self.stale_after,
            seed=setup.seed,
        )

    def _first(self, setup: Setup) -> Callable[[int], Basis]:
        if self.map == "diagonal":
            return lambda width: Diagonal(np.ones(width))
        if self.map == "low_rank":
            return lambda width: _low_rank(width, self.rank, setup.seed)
        if self.map == "full":
            return lambda width: MapBlock(np.eye(width))
        begin, side = last_layer(setup.spec) if setup.spec is not None else (0, 1)
        return lambda _width: MapBlock(np.eye(side), begin)


def bigfl(setup: Setup) -> Half[Bilevel]:
    """Return BiG-FL's server half.

    Raises:
        SchemaError: Neighbours that cannot be read; a map too large to be learned or sent; or a
            setting that the method does not use.
    """
    has_no_use(setup, "rule", "weighting", "share")
    settings: BiGFL = setup.settings
    if setup.spec is not None:
        _check_size(settings, setup.spec)
    return bilevel(settings.bound(setup, settings.near(setup.folder)))


def all_adjacent(ids: tuple[str, ...]) -> NDArray[np.bool_]:
    """Return the adjacency matrix in which all are neighbours.

    >>> all_adjacent(("a", "b")).tolist()
    [[False, True], [True, False]]
    """
    return ~np.eye(len(ids), dtype=np.bool_)


def last_layer(spec: ParamSpec) -> tuple[int, int]:
    """Return the start and the length of the last module in the shared vector.

    >>> layers = [("body.weight", (3,)), ("head.weight", (2,)), ("head.bias", (1,))]
    >>> last_layer(ParamSpec.of(layers))
    (3, 3)
    """
    shared = [layer for layer in spec.layers if layer.name in spec.shared_names]
    module = shared[-1].name.rpartition(".")[0]
    side = 0
    for layer in reversed(shared):
        if layer.name.rpartition(".")[0] != module:
            break
        side += layer.size
    return spec.shared_size - side, side


def _low_rank(width: int, rank: int, seed: int) -> LowRank:
    rng = np.random.Generator(np.random.Philox(key=seed % 2**64))
    drawn = rng.standard_normal((width, rank)) / np.sqrt(width)
    return LowRank(np.zeros((width, rank)), drawn)


def _check_size(settings: BiGFL, spec: ParamSpec) -> None:
    """Refuse a map that is too large."""
    width = spec.shared_size
    side = {"full": width, "last_layer": last_layer(spec)[1]}.get(settings.map, 0)
    if side > WIDEST:
        expected = f"a smaller form: any matrix of {side} numbers has too many (at most {WIDEST})"
        raise SchemaError("run.settings.map", expected, repr(settings.map))
    numbers = {"diagonal": width, "low_rank": 2 * settings.rank * width}.get(settings.map, side**2)
    if 4 * (numbers + 2 * width) > BODY_LIMIT - HEADER_LIMIT:
        expected = f"a smaller form: {4 * numbers} bytes cannot be sent to a device at once"
        raise SchemaError("run.settings.map", expected, repr(settings.map))


METHOD = Method(BiGFL, bigfl, own=True)
