"""Hosting a topology: the server half of DFL-SGD and DFL-GT says who is whose neighbour, no more.

It sees no model and is in nobody's way: devices go on without it. What it says is an *epoch*: the
devices that are there, and their links. Who comes is linked in by the next epoch, and where a
tracker could be held up by a device that left, it is linked out by the next epoch too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np

from aggregator.methods.base.averaging import OPEN
from aggregator.methods.base.geo_neighbours import NeighbourGraph, paired, read
from aggregator.methods.base.parameters import Rate
from aggregator.methods.base.types import Setup, has_no_use
from edge_sdk.shared_math import mixing_matrix
from edge_sdk.wire.contract.method import Array, Due, Effects, Event, Half, Member, Task
from edge_sdk.wire.contract.parameter_layout import Vector
from edge_sdk.wire.protocol.messages import NEIGHBOURS_LIMIT
from edge_sdk.wire.schema import Between, SchemaError

BEGIN, GONE = "begin", "gone"

Seconds = Annotated[float, Between(0.05, 1e7)]
Links = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """How devices learn among neighbours.

    Attributes:
        neighbours: A CSV with the first line ``client,latitude,longitude``, or pairs with the first
            line ``client,neighbour``. Relative to the configuration. Left out: a ring in order of
            name.
        threshold: Devices at most so many km apart are neighbours; left out: the median distance.
        reach: On the ring, how many devices to either side are neighbours.
        mixing: What a neighbour counts: found by the devices from degrees (``metropolis``); the
            same for all links (``maximum_degree``); or the same and as much as mixes fastest
            (``best_constant``), which may count a device's own model less than nothing.
        steps: Local steps from one exchange to the next, that of the exchange included.
        rate: Length of a step.
        fading: Whether it is divided by the square root of the step's number.
        order: The gradient step beside the mixing (``dgd``, as printed), or before it (``atc``).
        every: Seconds from one exchange to the next.
        deadline: Seconds after which a neighbour is missing in an exchange.
        last: Steps in all; left out: no end.
        drop_after: Seconds after which a device that left is linked out; left out: never, its
            neighbours keep its place.
    """

    neighbours: str | None = None
    threshold: Annotated[float, Between(1e-6, 20_038.0)] | None = None
    reach: Annotated[int, Between(1, NEIGHBOURS_LIMIT // 2)] = 1
    mixing: Literal["metropolis", "maximum_degree", "best_constant"] = "metropolis"
    steps: Annotated[int, Between(1, 65536)] = 1
    rate: Rate = 1e-3
    fading: bool = False
    order: Literal["dgd", "atc"] = "dgd"
    every: Seconds = 900.0
    deadline: Seconds = 120.0
    last: Annotated[int, Between(1, 2**31)] | None = None
    drop_after: Seconds | None = None

    def __post_init__(self) -> None:
        """Refuse what says two things, or nothing.

        Raises:
            ValueError: Naming the key first, so that a configuration can name it too.
        """
        if self.threshold is not None and self.neighbours is None:
            raise ValueError("threshold: expected none without neighbours")
        if self.reach > 1 and self.neighbours is not None:
            raise ValueError("reach: expected 1, for neighbours says who is near")

    @property
    def values(self) -> dict[str, float]:
        """The numbers of ``begin``."""
        out = {
            "steps": float(self.steps),
            "rate": self.rate,
            "fading": float(self.fading),
            "order": float(self.order == "atc"),
            "every": self.every,
            "deadline": self.deadline,
        }
        return out | ({"last": float(self.last)} if self.last is not None else {})


@dataclass(frozen=True, slots=True)
class DflSgd(ExchangeSettings):
    """Steps and mixing among neighbours; a device may doubt what they say.

    Attributes:
        robust: Take over ``none`` less than all; ``clip`` how a neighbour differs; or ``trim`` the
            extremes, number by number.
        radius: With ``clip``: at most so much (Euclidean) of each.
        trim: With ``trim``: so many neighbours at either end.
        insist: Wait for a neighbour's word however long it takes, as trackers must: both ends of a
            link then always decide alike, and who left holds neighbours up until ``drop_after``.
    """

    robust: Literal["none", "clip", "trim"] = "none"
    radius: Annotated[float, Between(1e-12, 1e12)] = 1.0
    trim: Annotated[int, Between(0, NEIGHBOURS_LIMIT)] = 1
    insist: bool = False

    @property
    def values(self) -> dict[str, float]:
        """The numbers of ``begin``."""
        out = ExchangeSettings.values.__get__(self) | ({"insist": 1.0} if self.insist else {})
        match self.robust:
            case "clip":
                return {**out, "robust": 1.0, "radius": self.radius}
            case "trim":
                return {**out, "robust": 2.0, "trim": float(self.trim)}
        return dict(out)


@dataclass(frozen=True, slots=True)
class DflGt(ExchangeSettings):
    """Steps along a tracker of everybody's gradient; who left holds it up, and is linked out.

    Attributes:
        drop_after: Seconds after which that happens.
        robust: Only ``none``.
    """

    drop_after: Seconds | None = 600.0
    robust: Literal["none", "clip", "trim"] = "none"

    def __post_init__(self) -> None:
        """Refuse as before, and what would spoil trackers.

        Raises:
            ValueError: As before.
        """
        ExchangeSettings.__post_init__(self)
        if self.robust != "none":
            raise ValueError(
                f"robust: expected none with dfl_gt, for trackers that are cut no longer add up to "
                f"the gradients; dfl_sgd can doubt a neighbour; got {self.robust}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class TopologyState:
    """Who is there, and who is linked to whom.

    Attributes:
        round: The epoch; 0 before ``OPEN``, 1 before there were links.
        w: The first model of all; it never moves here.
        here: Whether each device that ever came is there (1) or has left (0).
        links: What every device makes of each neighbour, in the present epoch.
        weighs: Whether devices are told what; else they find it from degrees.
    """

    round: int
    w: Array
    weighs: bool = False
    here: Mapping[str, int] = field(default_factory=dict)
    links: Links = field(default_factory=dict)

    @property
    def version(self) -> int:
        """Nothing common moves."""
        return 0

    @property
    def is_open(self) -> bool:
        """Whether devices are to be asked."""
        return self.round > 0

    @property
    def waiting(self) -> int:
        """No answers are waited for."""
        return 0

    @property
    def credit(self) -> Links:
        """The mixing matrix without its diagonal: status and page show it."""
        return self.links

    @property
    def credits(self) -> Mapping[int, Links]:
        """The same; only the present epoch's is kept."""
        return {self.version: self.links} if self.links else {}


@dataclass(frozen=True, slots=True)
class _Street:
    """What the half is bound to: its settings, the graph if one is given, who begins together."""

    settings: ExchangeSettings
    near: NeighbourGraph | None
    quorum: int


def hosting(setup: Setup) -> Half[TopologyState]:
    """Return the half that hosts the topology of a run. ``quorum`` devices begin together.

    Raises:
        SchemaError: What the method has no use for, or a graph that cannot be exchanged over.
    """
    has_no_use(setup, "rule", "weighting", "share")
    settings: ExchangeSettings = setup.settings
    street = _Street(settings, _near(setup), setup.rounds.quorum)

    def apply(state: TopologyState, event: Event) -> tuple[TopologyState, Effects]:
        match event:
            case Due() if event == OPEN and state.round == 0:
                return replace(state, round=1), ()
            case Member(client=name, present=True) if state.round:
                return _came(state, name, street)
            case Member(client=name) if state.here.get(name):
                return _left(state, name, settings)
            case Due(ask="gone") if settings.drop_after is not None:
                return _relinked(state, [n for n in state.links if state.here.get(n)], street)
        return state, ()

    def init(w: Vector) -> TopologyState:
        return TopologyState(0, np.asarray(w, np.float64), settings.mixing != "metropolis")

    return Half(init, apply, model=lambda state: {"p": state.w})


def _came(state: TopologyState, name: str, street: _Street) -> tuple[TopologyState, Effects]:
    if not state.here.get(name):
        state = replace(state, here={**state.here, name: 1})
    if name in state.links:
        return state, _told(state, [name], street.settings)
    there = [one for one, present in state.here.items() if present]
    return _relinked(state, [*state.links, *there], street)


def _left(
    state: TopologyState, name: str, settings: ExchangeSettings
) -> tuple[TopologyState, Effects]:
    state = replace(state, here={**state.here, name: 0})
    after = settings.drop_after
    return state, () if after is None else (Due(state.round + 1, GONE, after=after),)


def _relinked(
    state: TopologyState, members: list[str], street: _Street
) -> tuple[TopologyState, Effects]:
    """Begin the next epoch with these members, if that changes anything.

    The first one waits until they are enough; who is left goes on, however few.
    """
    names = sorted(frozenset(members))
    links = linked(names, street.near, street.settings)
    if links == state.links or (not state.links and len(names) < street.quorum):
        return state, ()
    after = replace(state, round=state.round + 1, links=links)
    told = [name for name in names if links[name] or state.links.get(name)]
    return after, _told(after, told, street.settings)  # who lost its last neighbour, too


def _told(state: TopologyState, names: list[str], settings: ExchangeSettings) -> Effects:
    return tuple(
        Task(name, state.round, BEGIN, values=settings.values)
        for name in names
        if state.here.get(name)
    )


def linked(
    members: Sequence[str], near: NeighbourGraph | None, settings: ExchangeSettings
) -> Links:
    """Return what every member makes of each of its neighbours; a part that is cut off has its own.

    >>> ring = linked(["a", "b", "c", "d"], None, ExchangeSettings())
    >>> {name: round(weight, 4) for name, weight in ring["a"].items()}
    {'b': 0.3333, 'd': 0.3333}
    """
    names = sorted(members)
    whole = near if near is not None else _ring(names, settings.reach)
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
    """Read the graph; refuse one that no fleet could agree over.

    Raises:
        SchemaError: A device with too many neighbours, or a graph that is not connected.
    """
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
        said = f"at most {NEIGHBOURS_LIMIT} neighbours for each device"
        raise SchemaError("run.settings.neighbours", said, f"{int(degrees.max())}")
    return near
