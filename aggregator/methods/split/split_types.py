"""Settings and state of a round of split learning.

``split_rounds.play`` defines its transitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.split.activation_clipping import MEDIANS
from edge_sdk.shared_math.optim import State
from edge_sdk.wire.contract.method import Array, Signal
from edge_sdk.wire.schema import Between

Ids = NDArray[np.int32]


class HostedGraph(Protocol):
    """The hosted graph model (see ``aggregator.graph.GraphModel``)."""

    @property
    def capacity(self) -> int:
        """Return the largest number of stations."""

    def init(self, seed: int) -> Array:
        """Return initial parameters."""

    def forward(self, p: Array, h: Array, present: Array) -> Array:
        """Return z for all stations' h, ``(B, N, F, L)`` both."""

    def pullback(self, p: Array, h: Array, present: Array, gz: Array) -> tuple[Array, Array]:
        """Return the gradients in h and in p."""


@dataclass(frozen=True, slots=True)
class SplitTurns:
    """Settings of the turns of a round.

    Attributes:
        batch: Windows of one iteration, the same for all stations.
        deadline: Seconds that a turn waits for a station.
        schedule: ``joint``: every iteration moves the devices and the graph. ``alternating``: first
            the graph alone for ``server_iterations``; then its output on ``refresh_batches`` batches goes
            to the devices, which step on these without asking again. Not the same descent, for a
            hundredth of the bytes.
        server_iterations: Iterations of the graph alone, in the alternating schedule.
        refresh_batches: Batches whose ``z`` the devices get, in the alternating schedule.
        rate: Learning rate of the graph model.
        clip_factor: Largest norm of activations and gradients, in medians; 0: no limit.
        mask_excluded: True leaves a station that most others leave out of their models out of the graph too:
            its activations are its last accepted mean, its loss has no effect.
        own_loss_only: True sends a device only its own loss's gradient, as problem (7) is printed:
            one backward pass a station.
        float16: True sends arrays in float16.
        forecast_batch_delay: Seconds in which requests for forecasts are collected and served together.
        validation_batches: Batches of held-back windows that a round is judged by, where the fleet chooses.
        z_dropout: Fraction of windows for which a training device receives ``z = 0``: it learns to
            forecast without the server, as it must when the server is away.
    """

    batch: Annotated[int, Between(1, 1024)] = 32
    deadline: Annotated[float, Between(0.05, 3600.0)] = 20.0
    schedule: Literal["joint", "alternating"] = "joint"
    server_iterations: Annotated[int, Between(0, 65536)] = 4
    refresh_batches: Annotated[int, Between(1, 64)] = 4
    rate: Annotated[float, Between(0.0, 1e3)] = 5e-4
    clip_factor: Annotated[float, Between(0.0, 1e6)] = MEDIANS
    mask_excluded: bool = True
    own_loss_only: bool = False
    float16: bool = False
    forecast_batch_delay: Annotated[float, Between(0.0, 60.0)] = 0.5
    validation_batches: Annotated[int, Between(1, 64)] = 4
    z_dropout: Annotated[float, Between(0.0, 1.0)] = 0.0
    renamed: ClassVar[Mapping[str, str]] = {
        "server": "server_iterations",
        "refresh": "refresh_batches",
        "judge": "validation_batches",
        "half": "float16",
        "guard": "clip_factor",
        "mask": "mask_excluded",
        "gather": "forecast_batch_delay",
    }

    def program(self, steps: int, *, judges: bool = False) -> tuple[str, ...]:
        """Return the iterations of a round, by their purpose.

        >>> SplitTurns().program(2)
        ('joint', 'joint')
        >>> turns = SplitTurns(
        ...     schedule="alternating",
        ...     server_iterations=2,
        ...     refresh_batches=1,
        ...     validation_batches=1,
        ... )
        >>> turns.program(100, judges=True)
        ('server', 'server', 'refresh', 'local', 'judge')
        """
        last = ("judge",) * self.validation_batches if judges else ()
        if self.schedule == "joint":
            return ("joint",) * steps + last
        return (
            ("server",) * self.server_iterations
            + ("refresh",) * self.refresh_batches
            + ("local", *last)
        )

    def uplink(self, steps: int, shape: tuple[int, int]) -> int:
        """Return the bytes that a station sends in one round, without envelopes.

        >>> SplitTurns().uplink(1, (64, 32))  # the paper's sizes: H and the gradient in Z
        524288
        >>> SplitTurns(schedule="alternating", float16=True).uplink(10_000, (16, 32))
        393216
        """
        program = self.program(steps)
        arrays = 2 * sum(what in {"joint", "server"} for what in program) + program.count("refresh")
        return arrays * self.batch * shape[0] * shape[1] * (2 if self.float16 else 4)

    @property
    def most(self) -> float:
        """Return the clipping factor, infinite without one."""
        return self.clip_factor or np.inf


@dataclass(frozen=True, slots=True)
class SplitBinding:
    """Settings that a run's machine is bound to.

    Attributes:
        graph: Model between the stations.
        turns: Settings of every round's turns.
        steps: Iterations of a round; local steps, in the alternating schedule.
        shape: F and L of activations.
        enough: Number of stations that begins a round at the deadline of the first turn.
        quorum: Number of stations that begins a round at once.
        seed: Seed of the draws of windows.
        by_fleet: True judges rounds, and forecasts with the graph of the best one.
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
        """Return the iterations of a round."""
        return self.turns.program(self.steps, judges=self.by_fleet)


class RoundView(Protocol):
    """Part of its half's state that a round reads."""

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
    def linked(self) -> Iterable[str]:
        """Return the linked stations."""


@dataclass(frozen=True, slots=True, eq=False)
class ForecastRequests:
    """State of forecasts on demand. Mappings are by client.

    Attributes:
        latest: Number of the newest window, and its activations, ``(F, L)``.
        asking: Window for which a station waits for the graph's output.
    """

    latest: Mapping[str, tuple[int, Array]] = field(default_factory=dict)
    asking: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class SplitRoundState:
    """State of a round's turns. Mappings are by client.

    Attributes:
        round: Round of the half.
        attempt: Number of times it was begun again.
        phase: ``ready`` until it begins, ``encode`` or ``decode`` inside a turn, ``share`` when the
            turns are over, ``idle`` when no round is open.
        at: Index of the iteration in the program.
        step: Number of the iteration; one without signals is repeated under the next number.
        p: Parameters of the graph.
        memory: State of their optimiser.
        slots: Slot of each station on the graph's axis.
        masked: Stations that most others left out: their loss moves no other model.
        means: Mean activations of each, in the last turns.
        past: Largest accepted norms of each station's activations ``h`` and gradients ``g``.
        astray: Number of phases in which each was left out for leaving the range of its past.
        linked: Linked stations.
        served: Parameters to forecast with, where these are not ``p``.
        kept: Round of those parameters.
        spans: First and last window of the participants.
        held: The same of held-back windows, of stations that have some.
        awaited: Stations that are waited for.
        joining: Stations that are waited for from the next turn on.
        ids: Windows of this turn.
        participants: Stations whose activations are in it.
        received: Signals of this phase.
        h: All activations, as the graph receives them, ``(B, N, F, L)``.
        factors: Factor that clipping left of each, ``(B, N)``.
        known: Activations of windows of earlier turns, by station and number.
        losses: Mean losses of the turns.
        record: Participants: a line where they differ from the turn before.
        serving: Forecasts on demand; continues from round to round.
    """

    round: int
    attempt: int
    phase: str
    p: Array
    memory: State
    slots: Mapping[str, int]
    masked: frozenset[str] = frozenset()
    means: Mapping[str, Array] = field(default_factory=dict)
    past: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    astray: Mapping[str, int] = field(default_factory=dict)
    at: int = 0
    step: int = -1
    linked: frozenset[str] = frozenset()
    served: Array | None = None
    kept: int = 0
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    held: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    awaited: frozenset[str] = frozenset()
    joining: frozenset[str] = frozenset()
    ids: Ids = field(default_factory=lambda: np.zeros(0, np.int32))
    participants: frozenset[str] = frozenset()
    received: Mapping[str, Signal] = field(default_factory=dict)
    h: Array = field(default_factory=lambda: np.zeros((0, 0, 0, 0)))
    factors: Array = field(default_factory=lambda: np.zeros((0, 0)))
    known: Mapping[tuple[str, int], Array] = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    record: tuple[str, ...] = ()
    serving: ForecastRequests = field(default_factory=ForecastRequests)
