"""Types of a server half: its inputs, its settings, and the part of its state that the shell reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.base.round_machine import Rounds
from aggregator.rules import Rule
from edge_sdk.app.schema import Between, SchemaError
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.contract.method import Array, Half
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

Steps = Annotated[int, Between(0, 65536)]
Rate = Annotated[float, Between(0.0, 1e3)]
Share = Annotated[float, Between(0.0, 1.0)]
Prox = Annotated[float, Between(0.0, 1e9)]
Length = Annotated[float, Between(1e-9, 1e9)]
Count = Annotated[int, Between(1, 2**31 - 1)]
Behind = Annotated[int, Between(0, 1_000_000)]
Factor = Annotated[float, Between(0.0, 1e6)]


def task(steps: int, rate: float, **more: float) -> dict[str, float]:
    """Return the numbers of a ``train`` task, as the contract names them.

    >>> task(4, 0.001, prox=0.01)
    {'steps': 4.0, 'rate': 0.001, 'prox': 0.01}
    """
    return {"steps": float(steps), "rate": rate, **more}


# returns the waiting updates with one more, and leaves the argument as it is
AddRow = Callable[[Mapping[str, Array], str, Array], Mapping[str, Array]]


def with_row(pending: Mapping[str, Array], name: str, vector: Array) -> Mapping[str, Array]:
    return {**pending, name: vector}


class Course(Protocol):
    """Progress of a run: all that the shell reads of a server half's state.

    The rest is private to the half. A state is a frozen dataclass of leaves, of mappings by
    client and of mappings of those (``aggregator.store.state_codec``); its first state, from
    ``init``, has every mapping by client empty. ``w`` is a field: a next run begins with that leaf.
    """

    @property
    def round(self) -> int:
        """Return the open round, or the last one; 0 before ``OPEN``. Rises with every opening."""

    @property
    def version(self) -> int:
        """Return the number of times the model has moved."""

    @property
    def is_open(self) -> bool:
        """Return True while the round accepts updates."""

    @property
    def waiting(self) -> int:
        """Return the number of updates that wait for the round to close."""

    @property
    def w(self) -> NDArray[np.float64]:
        """Return the common model (the consensus, in some papers), shape ``(P,)``."""


@runtime_checkable
class Clustered(Protocol):
    """State of a half that sorts clients into clusters; status page and metrics show them."""

    @property
    def clusters(self) -> Mapping[str, tuple[str, ...]]:
        """Return the clients of each cluster, in order; empty clusters too."""


@runtime_checkable
class Credited(Protocol):
    """State of a half that weighs clients' models for one another; status and metrics show it."""

    @property
    def credit(self) -> Mapping[str, Mapping[str, float]]:
        """Return the latest weight of each other client for each client; empty before the first."""


@dataclass(frozen=True, slots=True)
class BoundGraph:
    """A graph model that is bound to the run's stations."""

    model: Any  # the model, of the method's own type
    shape: tuple[int, int]  # F and L of the bundle's activations
    # slots of the stations whose position on the graph is known
    places: Mapping[str, int] = field(default_factory=dict)


@runtime_checkable
class Linked(Protocol):
    """State of a half that links neighbours; ``begin`` sends each device its neighbours."""

    @property
    def links(self) -> Mapping[str, Mapping[str, float]]:
        """Return the weight of each neighbour for every device."""

    @property
    def weighs(self) -> bool:
        """Return True if devices receive the weights, False if they compute them from degrees."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Inputs of a server half."""

    rule: Rule  # combines rows; a half that does not use a rule ignores it
    settings: Any  # settings of the method, as configured
    # settings of rounds; ``quorum`` is the S of S-of-M methods, the K of buffered ones
    rounds: Rounds = field(default_factory=Rounds)
    # layout of the vector, with the run's shared layers; None if no half reads it
    spec: ParamSpec | None = None
    seed: int = 0  # seed of the server's random draws
    share: float = 1.0  # probability that a device takes part in a round
    # folder of the configuration: files that settings name are relative to it
    folder: Path = Path()
    graph: BoundGraph | None = None  # the model between the devices, where a run has one
    # the bundle's section of a model in closed form, where it is one
    analytic: Any = None
    add_row: AddRow = with_row  # adds an update to those that wait for the round to close


@runtime_checkable
class Neighbouring(Protocol):
    """Settings of a method whose devices exchange models with their neighbours."""

    def neighbours_of(self, members: set[str], folder: Path) -> Mapping[str, set[str]]:
        """Return the neighbours of each of these devices."""


class Method(NamedTuple):
    """A server half, and the settings that a configuration builds strictly for it.

    Where the contract's ask is ``patient``, the settings have ``max_staleness``: a staler update is
    refused at ingress. They may have ``graphs``: those of the contract's that a device needs for
    these numbers, and ``rule_rows``: the fewest rows that the rule receives, where these are not a
    round's updates. A method that combines updates on its ``own`` refuses a rule, so none is shown.
    One that ``is_stepped`` adopts new models as eight-bit steps where the run wants it. One with a
    model between the devices has a dataclass for ``[run.graph]``, its ``graph``, with a ``kind``
    among the ``kinds``, old names of keys (``renamed``), and ``bound(activation, folder)``, which
    returns a ``BoundGraph``. ``fault`` returns, from the bundle's manifest, the settings and the vector of
    an update, what no honest readings can give; empty if there is nothing.
    """

    settings: type[Any]
    half: Callable[[Setup], Half[Any]]
    own: bool = False
    is_stepped: bool = False
    graph: type[Any] | None = None
    kinds: tuple[str, ...] = ()
    fault: Callable[[Manifest, Any, NDArray[Any]], str] | None = None
    # returns the known weakness with forecasts of a number of steps; empty if there is none
    weakness: Callable[[int], str] = lambda _steps: ""


Unused = Literal["rule", "weighting", "share"]


def has_no_use(setup: Setup, *unused: Unused) -> None:
    """Refuse settings of a run that its method would ignore; defaults are accepted.

    >>> def kind(rows, shares, memory): ...
    >>> has_no_use(Setup(kind, None, Rounds(weighting="samples")), "rule", "weighting")
    Traceback (most recent call last):
    edge_sdk.app.schema.SchemaError: run.weighting: expected uniform: this method ...
    """
    name = str(getattr(setup.rule, "name", "mean"))
    mixes = bool(getattr(setup.rule, "preaggregation", ()))
    weighting, share = setup.rounds.weighting, setup.share
    if "rule" in unused and (name != "mean" or mixes):
        raise SchemaError(
            "run.rule", "none: this method combines updates without a rule", repr(name)
        )
    if "weighting" in unused and weighting != "uniform":
        expected = "uniform: this method defines the weight of an update"
        raise SchemaError("run.weighting", expected, repr(weighting))
    if "share" in unused and share < 1.0:
        expected = "1: this method selects the devices of a round"
        raise SchemaError("run.client_fraction", expected, str(share))
