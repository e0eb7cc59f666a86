"""What a round of split learning is made of: its settings, and where it stands.

``play`` says how it goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.base.server_optim import Corrected
from aggregator.methods.split.activation_clipping import MEDIANS
from edge_sdk.wire.contract.method import Array, Signal
from edge_sdk.wire.schema import Between

Ids = NDArray[np.int32]


class HostedGraph(Protocol):
    """The graph model that is lent (``aggregator.graph.GraphModel`` says more)."""

    @property
    def capacity(self) -> int:
        """How many stations there can be."""

    def init(self, seed: int) -> Array:
        """Draw first parameters."""

    def forward(self, p: Array, h: Array, present: Array) -> Array:
        """Compute z of all stations' h, ``(B, N, F, L)`` both."""

    def pullback(self, p: Array, h: Array, present: Array, gz: Array) -> tuple[Array, Array]:
        """Return the gradients in h and in p."""


@dataclass(frozen=True, slots=True)
class SplitTurns:
    """The turns of a round.

    Attributes:
        batch: Windows of one iteration, the same for all stations.
        deadline: Seconds that a turn waits for a station.
        schedule: ``joint``: every iteration moves the devices and the graph. ``alternating``: first
            the graph alone for ``server`` iterations; then its word on ``refresh`` batches goes to
            the devices, which step on these without asking again. Not the same descent, for a
            hundredth of the bytes.
        server: Iterations of the graph alone, where they alternate.
        refresh: Batches whose ``z`` the devices get, where they alternate.
        rate: Learning rate of the graph model.
        guard: Activations and gradients may be so many medians long; 0: any length.
        mask: Whether a station that most others leave out of their models is left out of the graph
            too: its activations are its last accepted mean, its loss moves nobody.
        own_loss_only: A device gets only its own loss's gradient, as problem (7) is printed: one
            backward pass a station.
        half: Arrays cross the wire in float16.
        gather: Seconds in which devices that want a forecast are answered together.
        judge: Batches of held-back windows that a round is judged by, where the fleet chooses.
        z_dropout: Share of windows of which a device that learns is told nothing, ``z = 0``: so it
            learns to forecast alone, which it must when the server is away.
    """

    batch: Annotated[int, Between(1, 1024)] = 32
    deadline: Annotated[float, Between(0.05, 3600.0)] = 20.0
    schedule: Literal["joint", "alternating"] = "joint"
    server: Annotated[int, Between(0, 65536)] = 4
    refresh: Annotated[int, Between(1, 64)] = 4
    rate: Annotated[float, Between(0.0, 1e3)] = 5e-4
    guard: Annotated[float, Between(0.0, 1e6)] = MEDIANS
    mask: bool = True
    own_loss_only: bool = False
    half: bool = False
    gather: Annotated[float, Between(0.0, 60.0)] = 0.5
    judge: Annotated[int, Between(1, 64)] = 4
    z_dropout: Annotated[float, Between(0.0, 1.0)] = 0.0

    def program(self, steps: int, *, judges: bool = False) -> tuple[str, ...]:
        """Return the iterations of a round, by what they are for.

        >>> SplitTurns().program(2)
        ('joint', 'joint')
        >>> SplitTurns(schedule="alternating", server=2, refresh=1, judge=1).program(100, judges=True)
        ('server', 'server', 'refresh', 'local', 'judge')
        """
        last = ("judge",) * self.judge if judges else ()
        if self.schedule == "joint":
            return ("joint",) * steps + last
        return ("server",) * self.server + ("refresh",) * self.refresh + ("local", *last)

    def uplink(self, steps: int, shape: tuple[int, int]) -> int:
        """Return the bytes that a station sends in one round, without envelopes.

        >>> SplitTurns().uplink(1, (64, 32))  # the paper's sizes: H and the gradient in Z
        524288
        >>> SplitTurns(schedule="alternating", half=True).uplink(10_000, (16, 32))
        393216
        """
        program = self.program(steps)
        said = 2 * sum(what in {"joint", "server"} for what in program) + program.count("refresh")
        return said * self.batch * shape[0] * shape[1] * (2 if self.half else 4)

    @property
    def most(self) -> float:
        """The guard, infinite where there is none."""
        return self.guard or np.inf


@dataclass(frozen=True, slots=True)
class SplitBinding:
    """What a play is bound to.

    Attributes:
        graph: The model between the stations.
        turns: Of every round.
        steps: Iterations of a round; local steps, where they alternate.
        shape: F and L of activations.
        enough: So many stations begin a round when the deadline of the first turn passes.
        quorum: So many begin it at once.
        seed: Of the draws of windows.
        by_fleet: Whether rounds are judged, and forecasts made with the graph of the best one.
    """

    graph: HostedGraph
    turns: SplitTurns
    steps: int
    shape: tuple[int, int]
    enough: int
    quorum: int
    seed: int = 0
    by_fleet: bool = False

    @property
    def program(self) -> tuple[str, ...]:
        """The iterations of a round."""
        return self.turns.program(self.steps, judges=self.by_fleet)


class RoundView(Protocol):
    """What a play reads of its half's state."""

    round: int
    attempt: int
    settled: int
    is_open: bool
    taken: int
    kept: int
    net: Mapping[str, Array]
    chosen: Mapping[str, Array]
    slots: Mapping[str, int]
    masked: Mapping[str, bool]
    means: Mapping[str, Array]
    past: Mapping[str, Mapping[str, float]]

    @property
    def here(self) -> Iterable[str]:
        """Who is linked."""


@dataclass(frozen=True, slots=True, eq=False)
class ServingSettings:
    """Forecasts on demand. Mappings are by client.

    Attributes:
        latest: The number of its newest window, and the activations, ``(F, L)``.
        asking: Who waits for the graph's word, on which window.
    """

    latest: Mapping[str, tuple[int, Array]] = field(default_factory=dict)
    asking: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class SplitPlay:
    """A round in play. Mappings are by client.

    Attributes:
        round: Of the half.
        attempt: How often it was begun anew.
        phase: ``ready`` until it begins, ``encode`` or ``decode`` inside a turn, ``share`` when the
            turns are over, ``idle`` when no round is open.
        at: Which iteration of the program.
        step: Its number; one nobody answered is done over under the next number.
        p: The graph's parameters.
        memory: What their optimiser remembers.
        slots: Where each station stands on the graph's axis.
        masked: Whom most others left out: its loss moves nobody else.
        means: The mean activations of each, last time.
        past: The largest accepted lengths of each one's activations ``h`` and gradients ``g``.
        astray: In how many phases each was left out, for they left the range of its past.
        here: Who is linked.
        served: The parameters to forecast with, where these are not ``p``.
        kept: The round that they are of.
        spans: First and last window of those who take part.
        held: The same of windows held back, of those who have some.
        cast: Who is waited for.
        joining: Who will be, from the next turn on.
        ids: Windows of this turn.
        took: Whose activations are in it.
        heard: What came in this phase.
        h: All activations, as the graph sees them, ``(B, N, F, L)``.
        factors: How much of each its guard left, ``(B, N)``.
        known: Activations of windows of earlier turns, by station and number.
        losses: Mean losses of the turns.
        record: Who took part: a line where that is not as in the turn before.
        serving: Forecasts on demand; goes on from round to round.
    """

    round: int
    attempt: int
    phase: str
    p: Array
    memory: Corrected
    slots: Mapping[str, int]
    masked: frozenset[str] = frozenset()
    means: Mapping[str, Array] = field(default_factory=dict)
    past: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    astray: Mapping[str, int] = field(default_factory=dict)
    at: int = 0
    step: int = -1
    here: frozenset[str] = frozenset()
    served: Array | None = None
    kept: int = 0
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    held: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    cast: frozenset[str] = frozenset()
    joining: frozenset[str] = frozenset()
    ids: Ids = field(default_factory=lambda: np.zeros(0, np.int32))
    took: frozenset[str] = frozenset()
    heard: Mapping[str, Signal] = field(default_factory=dict)
    h: Array = field(default_factory=lambda: np.zeros((0, 0, 0, 0)))
    factors: Array = field(default_factory=lambda: np.zeros((0, 0)))
    known: Mapping[tuple[str, int], Array] = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    record: tuple[str, ...] = ()
    serving: ServingSettings = field(default_factory=ServingSettings)
