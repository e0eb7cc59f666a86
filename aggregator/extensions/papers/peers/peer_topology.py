"""Topology of peer-to-peer methods: the server half of DFL-SGD and DFL-GT, which links neighbours.

It receives no model, and devices continue without it. It announces *epochs*: the present devices
and their links. A new device is linked by the next epoch; where a tracker would wait for a device
that left, it is unlinked by the next epoch too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np

from aggregator.extensions.papers.geo_neighbours import NeighbourGraph, paired, read
from aggregator.methods.base.round_machine import OPEN
from aggregator.methods.base.types import Method, Rate, Setup, has_no_use
from edge_sdk.app.schema import Between, SchemaError
from edge_sdk.extensions.peers import mixing_matrix
from edge_sdk.protocol.contract.method import Array, Due, Effects, Event, Half, Member, Task
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.protocol.messages import NEIGHBOURS_LIMIT

BEGIN, GONE = "begin", "gone"

Seconds = Annotated[float, Between(0.05, 1e7)]
Links = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """Settings of the exchange among neighbours."""

    # a CSV with the first line ``client,latitude,longitude``, or pairs with the first line
    # ``client,neighbour``. Relative to the configuration. Left out: a ring in order of name.
    neighbours: str | None = None
    # largest distance of neighbours in km; left out: the median distance
    threshold: Annotated[float, Between(1e-6, 20_038.0)] | None = None
    # on the ring, number of neighbours to either side
    ring_neighbours: Annotated[int, Between(1, NEIGHBOURS_LIMIT // 2)] = 1
    # weight of a neighbour: computed by the devices from degrees (``metropolis``); the same for all
    # links (``maximum_degree``); or the same and with the fastest mixing (``best_constant``), at
    # which a device's own model may have negative weight
    mixing: Literal["metropolis", "maximum_degree", "best_constant"] = "metropolis"
    # local steps from one exchange to the next, that of the exchange included
    steps: Annotated[int, Between(1, 65536)] = 1
    rate: Rate = 1e-3  # length of a step
    rate_decay: bool = False  # true divides it by the square root of the step's number
    # the gradient step beside the mixing (``dgd``, as printed), or before it (``atc``)
    order: Literal["dgd", "atc"] = "dgd"
    interval: Seconds = 900.0  # seconds from one exchange to the next
    deadline: Seconds = 120.0  # seconds after which a neighbour is missing in an exchange
    # total number of steps; left out: no end
    total_steps: Annotated[int, Between(1, 2**31)] | None = None
    # seconds after which a device that left is unlinked; left out: never, its neighbours keep its
    # place
    drop_after: Seconds | None = None
    renamed: ClassVar[Mapping[str, str]] = {
        "reach": "ring_neighbours",
        "fading": "rate_decay",
        "every": "interval",
        "last": "total_steps",
    }

    def __post_init__(self) -> None:
        """Refuse contradictory or missing settings.

        Raises:
            ValueError: The message begins with the key, so that a configuration can name it too.
        """
        if self.threshold is not None and self.neighbours is None:
            raise ValueError("threshold: expected none without neighbours")
        if self.ring_neighbours > 1 and self.neighbours is not None:
            raise ValueError("ring_neighbours: expected 1 with a file of neighbours")

    @property
    def values(self) -> dict[str, float]:
        """Return the numbers of ``begin``."""
        out = {
            "steps": float(self.steps),
            "rate": self.rate,
            "fading": float(self.rate_decay),
            "order": float(self.order == "atc"),
            "every": self.interval,
            "deadline": self.deadline,
        }
        return out | ({"last": float(self.total_steps)} if self.total_steps is not None else {})

    def neighbours_of(self, members: set[str], folder: Path) -> Mapping[str, set[str]]:
        """Return the neighbours of each of these devices: all others, unless a file names pairs."""
        if self.neighbours is None:
            return {name: members - {name} for name in members}
        near: dict[str, set[str]] = {}
        for pair in read(folder / self.neighbours, self.threshold).pairs:
            if members.issuperset(pair):
                for one, other in (pair, pair[::-1]):
                    near.setdefault(one, set()).add(other)
        return near


@dataclass(frozen=True, slots=True)
class DflSgd(ExchangeSettings):
    """Steps and mixing among neighbours, with optional robust mixing."""

    # ``none`` mixes unchanged; ``clip`` bounds the difference to a neighbour; ``trim`` drops the
    # extremes of each coordinate
    robust: Literal["none", "clip", "trim"] = "none"
    # with ``clip``: largest norm of a difference
    radius: Annotated[float, Between(1e-12, 1e12)] = 1.0
    # with ``trim``: number of neighbours to drop at either end
    trim: Annotated[int, Between(0, NEIGHBOURS_LIMIT)] = 1
    # true waits for a neighbour's vector without a limit, as trackers must: both ends of a link
    # then take the same decision, and a device that left delays its neighbours until ``drop_after``
    wait_for_neighbours: bool = False
    renamed: ClassVar[Mapping[str, str]] = {
        **ExchangeSettings.renamed,
        "insist": "wait_for_neighbours",
    }

    @property
    def values(self) -> dict[str, float]:
        out = ExchangeSettings.values.__get__(self) | (
            {"insist": 1.0} if self.wait_for_neighbours else {}
        )
        match self.robust:
            case "clip":
                return {**out, "robust": 1.0, "radius": self.radius}
            case "trim":
                return {**out, "robust": 2.0, "trim": float(self.trim)}
        return dict(out)


@dataclass(frozen=True, slots=True)
class DflGt(ExchangeSettings):
    """Steps along a tracker of the mean gradient; a device that left delays it, and is unlinked."""

    drop_after: Seconds | None = 600.0  # seconds after which a device that left is unlinked
    robust: Literal["none", "clip", "trim"] = "none"  # only ``none``

    def __post_init__(self) -> None:
        """Refuse contradictory settings, and those that would invalidate trackers."""
        ExchangeSettings.__post_init__(self)
        if self.robust != "none":
            raise ValueError(
                f"robust: expected none with dfl_gt, for trackers that are cut no longer add up to "
                f"the gradients; dfl_sgd can doubt a neighbour; got {self.robust}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class TopologyState:
    """Present devices and their links."""

    round: int  # epoch; 0 before ``OPEN``, 1 before there were links
    w: Array  # first model of all; it never moves here
    weighs: bool = False  # true if devices receive the weights; else they compute them from degrees
    # 1 for a present device, 0 for one that has left
    present: Mapping[str, int] = field(default_factory=dict, metadata={"leaf": "here"})
    # weight of each neighbour for every device, in the present epoch
    links: Links = field(default_factory=dict)

    @property
    def version(self) -> int:
        """Return 0: there is no common model to move."""
        return 0

    @property
    def is_open(self) -> bool:
        return self.round > 0

    @property
    def waiting(self) -> int:
        """Return 0: no updates are waited for."""
        return 0

    @property
    def credit(self) -> Links:
        """Return the mixing matrix without its diagonal, for status and page."""
        return self.links


@dataclass(frozen=True, slots=True)
class _Street:
    """Inputs that the half is bound to: settings, an optional graph, and the size of the start."""

    settings: ExchangeSettings
    near: NeighbourGraph | None
    quorum: int


def hosting(setup: Setup) -> Half[TopologyState]:
    """Return the half that announces the topology of a run. ``quorum`` devices begin together.

    Raises:
        SchemaError: A setting that the method does not use, or a graph without exchange.
    """
    has_no_use(setup, "rule", "weighting", "share")
    settings: ExchangeSettings = setup.settings
    street = _Street(settings, _near(setup), setup.rounds.quorum)

    def apply(state: TopologyState, event: Event) -> tuple[TopologyState, Effects]:
        match event:
            case Due() if event == OPEN and state.round == 0:
                return replace(state, round=1), ()
            case Member(client=name, present=True) if state.round:
                return _joined_street(state, name, street)
            case Member(client=name) if state.present.get(name):
                return _left(state, name, settings)
            case Due(ask="gone") if settings.drop_after is not None:
                return _relinked(state, [n for n in state.links if state.present.get(n)], street)
        return state, ()

    def init(w: Vector) -> TopologyState:
        return TopologyState(0, np.asarray(w, np.float64), settings.mixing != "metropolis")

    return Half(init, apply, model=lambda state: {"p": state.w})


def _joined_street(
    state: TopologyState, name: str, street: _Street
) -> tuple[TopologyState, Effects]:
    if not state.present.get(name):
        state = replace(state, present={**state.present, name: 1})
    if name in state.links:
        return state, _informed(state, [name], street.settings)
    linked_now = [one for one, present in state.present.items() if present]
    return _relinked(state, [*state.links, *linked_now], street)


def _left(
    state: TopologyState, name: str, settings: ExchangeSettings
) -> tuple[TopologyState, Effects]:
    state = replace(state, present={**state.present, name: 0})
    after = settings.drop_after
    return state, () if after is None else (Due(state.round + 1, GONE, after=after),)


def _relinked(
    state: TopologyState, members: list[str], street: _Street
) -> tuple[TopologyState, Effects]:
    """Begin the next epoch with these members, if that changes a link.

    The first epoch waits for ``quorum`` members; the remaining ones continue, however few.
    """
    names = sorted(frozenset(members))
    links = linked(names, street.near, street.settings)
    if links == state.links or (not state.links and len(names) < street.quorum):
        return state, ()
    after = replace(state, round=state.round + 1, links=links)
    informed = [name for name in names if links[name] or state.links.get(name)]
    return after, _informed(
        after, informed, street.settings
    )  # also devices that lost their last neighbour


def _informed(state: TopologyState, names: list[str], settings: ExchangeSettings) -> Effects:
    return tuple(
        Task(name, state.round, BEGIN, values=settings.values)
        for name in names
        if state.present.get(name)
    )


def linked(
    members: Sequence[str], near: NeighbourGraph | None, settings: ExchangeSettings
) -> Links:
    """Return the weight of each neighbour for every member; a separate component has its own.

    >>> ring = linked(["a", "b", "c", "d"], None, ExchangeSettings())
    >>> {name: round(weight, 4) for name, weight in ring["a"].items()}
    {'b': 0.3333, 'd': 0.3333}
    """
    names = sorted(members)
    whole = near if near is not None else _ring(names, settings.ring_neighbours)
    beside = whole.among(names)
    out: dict[str, dict[str, float]] = {name: {} for name in names}
    for part in _parts(beside):
        weights = _MATRICES[settings.mixing](beside[np.ix_(part, part)].astype(np.float64))
        for i, row in zip(part, weights, strict=True):
            for j, weight in zip(part, row, strict=True):
                if beside[i, j]:
                    out[names[i]][names[j]] = float(weight)
    return out


_MATRICES = {
    "metropolis": mixing_matrix.metropolis,
    "maximum_degree": mixing_matrix.maximum_degree,
    "best_constant": mixing_matrix.best_constant,
}


def _ring(names: list[str], reach: int) -> NeighbourGraph:
    count = len(names)
    return paired(
        (names[i], names[(i + step) % count]) for i in range(count) for step in range(1, reach + 1)
    )


def _parts(beside: Array) -> list[list[int]]:
    """Return the connected parts of a graph, each in order."""
    left, out = set(range(len(beside))), []
    while left:
        part, coming = set(), [min(left)]
        while coming:
            i = coming.pop()
            if i not in part:
                part.add(i)
                coming += map(int, np.flatnonzero(beside[i]))
        out.append(sorted(part))
        left -= part
    return out


def _near(setup: Setup) -> NeighbourGraph | None:
    """Read the graph; refuse one on which no fleet could reach consensus."""
    settings: ExchangeSettings = setup.settings
    if settings.neighbours is None:
        return None
    near = read(setup.folder / settings.neighbours, settings.threshold)
    names = sorted({name for pair in near.pairs for name in pair})
    try:
        degrees = mixing_matrix.adjacency(names, near.pairs).sum(axis=1)
    except mixing_matrix.TopologyError as error:
        raise SchemaError("run.settings.neighbours", "a connected graph", str(error)) from error
    if names and degrees.max() > NEIGHBOURS_LIMIT:
        expected = f"at most {NEIGHBOURS_LIMIT} neighbours for each device"
        raise SchemaError("run.settings.neighbours", expected, f"{int(degrees.max())}")
    return near


DFL_SGD = Method(DflSgd, hosting, own=True)
DFL_GT = Method(DflGt, hosting, own=True)
