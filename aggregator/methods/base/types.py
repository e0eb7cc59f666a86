"""What a server half is made of, and what the shell needs of any half's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.base.averaging import Rounds
from aggregator.rules import Rule
from edge_sdk.wire.contract.method import Half
from edge_sdk.wire.contract.parameter_layout import ParamSpec
from edge_sdk.wire.schema import SchemaError


class Course(Protocol):
    """How far a run has come: all that the shell reads of a server half's state.

    Everything else is the half's own. A state is a frozen dataclass of leaves, of mappings by
    client and of mappings of those (``aggregator.store.state_codec``); its first state, from ``init``, has
    every mapping by client empty. ``w`` is a field of it: a next run begins with that leaf.
    """

    @property
    def round(self) -> int:
        """The round that is open, or was last; 0 before ``OPEN``. Rises at every opening."""

    @property
    def version(self) -> int:
        """How often the model has moved."""

    @property
    def is_open(self) -> bool:
        """Whether answers are wanted."""

    @property
    def waiting(self) -> int:
        """How many answers wait for the round to close."""

    @property
    def w(self) -> NDArray[np.float64]:
        """The common model (the consensus, if a paper calls it so), shape ``(P,)``."""


@runtime_checkable
class Clustered(Protocol):
    """A half's state that sorts clients into clusters; page and metrics show them."""

    @property
    def clusters(self) -> Mapping[str, tuple[str, ...]]:
        """Clients by cluster, in order; empty clusters too."""


@runtime_checkable
class Credited(Protocol):
    """A half's state that weighs every client's model for every other; status and metrics do."""

    @property
    def credit(self) -> Mapping[str, Mapping[str, float]]:
        """What each client made of each other last; empty before that."""

    @property
    def credits(self) -> Mapping[int, Mapping[str, Mapping[str, float]]]:
        """The same by version, for the rounds that are kept."""


@dataclass(frozen=True, slots=True)
class BoundGraph:
    """A graph model that is bound to the run's stations.

    Attributes:
        model: The model (``aggregator.graph.GraphModel``).
        shape: F and L of the bundle's activations.
        places: Slots of the stations whose place on the graph is known.
    """

    model: Any
    shape: tuple[int, int]
    places: Mapping[str, int] = field(default_factory=dict)


@runtime_checkable
class Linked(Protocol):
    """A half's state that says who is whose neighbour; ``begin`` tells each device its own."""

    @property
    def links(self) -> Mapping[str, Mapping[str, float]]:
        """What every device makes of each neighbour."""

    @property
    def weighs(self) -> bool:
        """Whether devices are told so, or find it from degrees."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a server half is made of.

    Attributes:
        rule: Combines rows; a half that has no use for one ignores it.
        settings: The method's own settings, as configured.
        rounds: When a round ends; ``quorum`` is the S of S-of-M methods, the K of buffered ones.
        spec: The layout of the vector, with the run's shared layers; None where no half looks.
        seed: Of draws the server makes.
        share: Probability that a device takes part in a round.
        folder: Where the configuration lies: files that settings name are relative to it.
        graph: The model between the devices, where a run has one.
    """

    rule: Rule
    settings: Any
    rounds: Rounds = field(default_factory=Rounds)
    spec: ParamSpec | None = None
    seed: int = 0
    share: float = 1.0
    folder: Path = Path()
    graph: BoundGraph | None = None


class Method(NamedTuple):
    """A server half, and the settings a configuration builds strictly for it.

    Where the contract's ask is ``patient``, the settings have ``max_staleness``: an answer that
    started from an older version than so many before the present one is refused at the door. They
    may have ``graphs``: those of the contract's that a device needs for these numbers. A method
    that combines answers on its ``own`` refuses a rule, so none is shown.
    """

    settings: type[Any]
    half: Callable[[Setup], Half[Any]]
    own: bool = False


Unused = Literal["rule", "weighting", "share"]


def has_no_use(setup: Setup, *unused: Unused) -> None:
    """Refuse what a run says and its method would ignore; the defaults stand for nothing said.

    Raises:
        SchemaError: Naming the key.

    Example:
        >>> def kind(rows, shares, memory): ...
        >>> has_no_use(Setup(kind, None, Rounds(weighting="samples")), "rule", "weighting")
        Traceback (most recent call last):
        edge_sdk.wire.schema.SchemaError: run.weighting: expected uniform, for this method ...
    """
    name = str(getattr(setup.rule, "name", "mean"))
    mixes = bool(getattr(setup.rule, "before", ()))
    weighting, share = setup.rounds.weighting, setup.share
    if "rule" in unused and (name != "mean" or mixes):
        raise SchemaError(
            "run.rule", "none, for this method combines answers by itself", repr(name)
        )
    if "weighting" in unused and weighting != "uniform":
        said = "uniform, for this method says itself what an answer counts"
        raise SchemaError("run.weighting", said, repr(weighting))
    if "share" in unused and share < 1.0:
        said = "1, for this method asks every device by itself"
        raise SchemaError("run.share", said, str(share))


def takes_no_rule(setup: Setup) -> None:
    """Refuse a rule where the method combines answers by itself.

    Raises:
        SchemaError: There is one.
    """
    has_no_use(setup, "rule")
