"""Define the state of split learning's device half."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge_sdk.methods.chosen_model import ChosenModel
from edge_sdk.methods.training_context import Batch
from edge_sdk.shared_math.optim import State
from edge_sdk.wire.contract.method import (
    Array,
    Task,
)
from edge_sdk.wire.contract.parameter_layout import Vector

NO_ARRAY: NDArray[np.float32] = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class SplitIteration:
    """The current iteration: one batch on its way through the graph.

    Attributes:
        step: Number of the iteration in the round.
        ids: Numbers of the requested windows, ``(B,)``.
        here: Mask of those that this device has, ``(B,)``.
        batch: Those windows, ``B' <= B``.
        h: Activations of those windows, ``(B', F, L)``.
        frozen: Whether the device takes no step: only the server learns from the iteration.
        g: Decoder's gradient, ``(P,)``, once ``z`` has arrived; with it ``gh`` and ``loss``.
        gh: Gradient of the loss in ``h`` on the direct path, ``(B', F, L)``.
        loss: Mean loss of the batch.
    """

    step: int
    ids: Array
    here: NDArray[np.bool_]
    batch: Batch
    h: Array
    frozen: bool = False
    g: Array | None = None
    gh: Array = field(default_factory=lambda: NO_ARRAY)
    loss: float = math.nan


@dataclass(frozen=True, slots=True, eq=False)
class SplitRound:
    """State of a round in progress; never saved.

    Attributes:
        task: Task that opened the round.
        attempt: How often the round was restarted.
        p: Present whole vector.
        moments: Present moments of the optimiser.
        turn: Current iteration, if any.
        last: Number of the newest iteration; -1 before the first.
        losses: Losses of the iterations that ended with a step.
        used: Number of windows in these iterations.
        known: The graph's output for windows, by their numbers; kept for one round.
        judged: Losses on held-back windows, each with their number.
    """

    task: Task
    attempt: int
    p: Vector
    moments: State
    turn: SplitIteration | None = None
    last: int = -1
    losses: tuple[float, ...] = ()
    used: int = 0
    known: Mapping[int, Array] = field(default_factory=dict)
    judged: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class SplitState(ChosenModel):
    """State of a device. ``live`` and ``served`` are not persistent.

    Attributes:
        live: Round in progress.
        served: Number of the last window that the graph answered for, and its output.
    """

    live: SplitRound | None = None
    served: tuple[int, Array] | None = None
