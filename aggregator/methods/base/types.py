"""Types of a server half: its inputs, and the part of its state that the shell reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.base.pending_rows import AddRow, with_row
from aggregator.methods.base.round_machine import Rounds
from aggregator.rules import Rule
from edge_sdk.wire.contract.analytic import AnalyticSection
from edge_sdk.wire.contract.method import Half
from edge_sdk.wire.contract.parameter_layout import ParamSpec
from edge_sdk.wire.schema import SchemaError


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
    """A graph model that is bound to the run's stations.

    Attributes:
        model: The model (``aggregator.graph.GraphModel``).
        shape: F and L of the bundle's activations.
        places: Slots of the stations whose position on the graph is known.
    """

    model: Any
    shape: tuple[int, int]
    places: Mapping[str, int] = field(default_factory=dict)


@runtime_checkable
class Linked(Protocol):
    """State of a half that links neighbours; ``begin`` sends each device its own."""

    @property
    def links(self) -> Mapping[str, Mapping[str, float]]:
        """Return the weight of each neighbour for every device."""

    @property
    def weighs(self) -> bool:
        """Return True if devices receive the weights, False if they compute them from degrees."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Inputs of a server half.

    Attributes:
        rule: Combines rows; a half that does not use a rule ignores it.
        settings: Settings of the method, as configured.
        rounds: Settings of rounds; ``quorum`` is the S of S-of-M methods, the K of buffered ones.
        spec: Layout of the vector, with the run's shared layers; None if no half reads it.
        seed: Seed of the server's random draws.
        share: Probability that a device takes part in a round.
        folder: Folder of the configuration: files that settings name are relative to it.
        graph: The model between the devices, where a run has one.
        analytic: The bundle's section of a model in closed form, where it is one.
        add_row: Adds an update to those that wait for the round to close.
    """

    rule: Rule
    settings: Any
    rounds: Rounds = field(default_factory=Rounds)
    spec: ParamSpec | None = None
    seed: int = 0
    share: float = 1.0
    folder: Path = Path()
    graph: BoundGraph | None = None
    analytic: AnalyticSection | None = None
    add_row: AddRow = with_row


class Method(NamedTuple):
    """A server half, and the settings that a configuration builds strictly for it.

    Where the contract's ask is ``patient``, the settings have ``max_staleness``: a staler update is
    refused at ingress. They may have ``graphs``: those of the contract's that a device needs for
    these numbers. A method that combines updates on its ``own`` refuses a rule, so none is shown.
    One that ``is_stepped`` adopts new models as eight-bit steps where the run wants it.
    """

    settings: type[Any]
    half: Callable[[Setup], Half[Any]]
    own: bool = False
    is_stepped: bool = False


Unused = Literal["rule", "weighting", "share"]


def has_no_use(setup: Setup, *unused: Unused) -> None:
    """Refuse settings of a run that its method would ignore; defaults are accepted.

    Raises:
        SchemaError: Naming the key.

    Example:
        >>> def kind(rows, shares, memory): ...
        >>> has_no_use(Setup(kind, None, Rounds(weighting="samples")), "rule", "weighting")
        Traceback (most recent call last):
        edge_sdk.wire.schema.SchemaError: run.weighting: expected uniform: this method ...
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
