"""Settings and state of a round of split learning.

``split_rounds.play`` defines its transitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.graph.model import GraphModel
from aggregator.extensions.papers.split.activation_clipping import MEDIANS
from edge_sdk.app.schema import Between
from edge_sdk.protocol.contract.method import Array, Signal
from edge_sdk.shared_math.optim import State, Transform

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SplitTurns:
    """Settings of the turns of a round."""

    # windows of one iteration, the same for all stations
    batch: Annotated[int, Between(1, 1024)] = 32
    # seconds that a turn waits for a station
    deadline: Annotated[float, Between(0.05, 3600.0)] = 20.0
    # ``joint``: every iteration moves the devices and the graph. ``alternating``: first the graph
    # alone for ``server_iterations``; then its output on ``refresh_batches`` batches goes to the
    # devices, which step on these without asking again. Not the same descent, for a hundredth of
    # the bytes.
    schedule: Literal["joint", "alternating"] = "joint"
    # iterations of the graph alone, in the alternating schedule
    server_iterations: Annotated[int, Between(0, 65536)] = 4
    # batches whose ``z`` the devices get, in the alternating schedule
    refresh_batches: Annotated[int, Between(1, 64)] = 4
    rate: Annotated[float, Between(0.0, 1e3)] = 5e-4  # learning rate of the graph model
    # largest norm of activations and gradients, in medians; 0: no limit
    clip_factor: Annotated[float, Between(0.0, 1e6)] = MEDIANS
    # true leaves a station that most others leave out of their models out of the graph too: its
    # activations are its last accepted mean, its loss has no effect
    mask_excluded: bool = True
    # true sends a device only its own loss's gradient, as problem (7) is printed: one backward pass
    # a station
    own_loss_only: bool = False
    float16: bool = False  # true sends arrays in float16
    # seconds in which requests for forecasts are collected and served together
    forecast_batch_delay: Annotated[float, Between(0.0, 60.0)] = 0.5
    # batches of held-back windows that a round is judged by, where the fleet chooses
    validation_batches: Annotated[int, Between(1, 64)] = 4
    # fraction of windows for which a training device receives ``z = 0``: it learns to forecast
    # without the server, as it must when the server is away
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
        return self.clip_factor or np.inf


@dataclass(frozen=True, slots=True)
class SplitBinding:
    """Settings that a run's machine is bound to."""

    graph: GraphModel  # model between the stations
    turns: SplitTurns  # settings of every round's turns
    steps: int  # iterations of a round; local steps, in the alternating schedule
    shape: tuple[int, int]  # F and L of activations
    enough: int  # number of stations that begins a round at the deadline of the first turn
    quorum: int  # number of stations that begins a round at once
    seed: int = 0  # seed of the draws of windows
    by_fleet: bool = False  # true judges rounds, and forecasts with the graph of the best one

    @property
    def program(self) -> tuple[str, ...]:
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
    """State of forecasts on demand. Mappings are by client."""

    # number of the newest window, and its activations, ``(F, L)``
    latest: Mapping[str, tuple[int, Array]] = field(default_factory=dict)
    # window for which a station waits for the graph's output
    asking: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class SplitRoundState:
    """State of a round's turns. Mappings are by client."""

    round: int
    attempt: int  # number of times it was begun again
    # ``ready`` until it begins, ``encode`` or ``decode`` inside a turn, ``share`` when the turns
    # are over, ``idle`` when no round is open
    phase: str
    p: Array  # parameters of the graph
    memory: State
    slots: Mapping[str, int]  # slot of each station on the graph's axis
    # stations that most others left out: their loss moves no other model
    masked: frozenset[str] = frozenset()
    # mean activations of each, in the last turns
    means: Mapping[str, Array] = field(default_factory=dict)
    # largest accepted norms of each station's activations ``h`` and gradients ``g``
    past: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # number of phases in which each was left out for leaving the range of its past
    astray: Mapping[str, int] = field(default_factory=dict)
    at: int = 0  # index of the iteration in the program
    step: int = -1  # number of the iteration; one without signals is repeated under the next number
    linked: frozenset[str] = frozenset()
    served: Array | None = None  # parameters to forecast with, where these are not ``p``
    kept: int = 0
    # first and last window of the participants
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # the same of held-back windows, of stations that have some
    held: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    awaited: frozenset[str] = frozenset()
    joining: frozenset[str] = frozenset()  # stations that are waited for from the next turn on
    ids: Ids = field(default_factory=lambda: np.zeros(0, np.int32))  # windows of this turn
    participants: frozenset[str] = frozenset()  # stations whose activations are in it
    received: Mapping[str, Signal] = field(default_factory=dict)
    # all activations, as the graph receives them, ``(B, N, F, L)``
    h: Array = field(default_factory=lambda: np.zeros((0, 0, 0, 0)))
    # factor that clipping left of each, ``(B, N)``
    factors: Array = field(default_factory=lambda: np.zeros((0, 0)))
    # activations of windows of earlier turns, by station and number
    known: Mapping[tuple[str, int], Array] = field(default_factory=dict)
    losses: tuple[float, ...] = ()  # mean losses of the turns
    record: tuple[str, ...] = ()  # participants: a line where they differ from the turn before
    # forecasts on demand; continues from round to round
    serving: ForecastRequests = field(default_factory=ForecastRequests)


def corrected_adam(
    rate: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8
) -> Transform:
    """Return Adam with bias correction, for parameters that only the server has.

    It equals ``edge_sdk.shared_math.optim.adam`` but for the order of the operations, on which the
    last bits depend: journals that were written with it must replay exactly.

    >>> from edge_sdk.shared_math.optim import optimiser_step
    >>> opt = corrected_adam(0.1)
    >>> p, state = optimiser_step(opt, np.zeros(1), np.array([-3.0]), opt.init(np.zeros(1)))
    >>> round(float(p[0]), 9), int(state["taken"])
    (0.1, 1)
    """

    def init(p: Array) -> State:
        return {"taken": np.array(0), "first": np.zeros_like(p), "second": np.zeros_like(p)}

    def update(g: Array, state: State, p: Array) -> tuple[Array, State]:
        taken, kind = int(state["taken"]) + 1, p.dtype
        first = beta1 * state["first"] + (1.0 - beta1) * g
        second = beta2 * state["second"] + (1.0 - beta2) * g * g
        root = np.sqrt(second / (1.0 - beta2**taken)) + eps
        moved = -rate / (1.0 - beta1**taken) * first / root
        kept = {"first": first.astype(kind), "second": second.astype(kind)}
        return moved, {"taken": np.array(taken), **kept}

    return Transform(init, update)
