"""Define the state of split learning's device half."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.papers.chosen_model import ChosenModel
from edge_sdk.methods.training_context import Batch
from edge_sdk.protocol.contract.method import Array, Task
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.shared_math.optim import State

NO_ARRAY: NDArray[np.float32] = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class SplitIteration:
    """The current iteration: one batch on its way through the graph."""

    step: int
    ids: Array  # numbers of the requested windows, ``(B,)``
    here: NDArray[np.bool_]  # mask of those that this device has, ``(B,)``
    batch: Batch  # those windows, ``B' <= B``
    h: Array  # activations of those windows, ``(B', F, L)``
    # whether the device takes no step: only the server learns from the iteration
    frozen: bool = False
    # decoder's gradient, ``(P,)``, once ``z`` has arrived; with it ``gh`` and ``loss``
    g: Array | None = None
    # gradient of the loss in ``h`` on the direct path, ``(B', F, L)``
    gh: Array = field(default_factory=lambda: NO_ARRAY)
    loss: float = math.nan  # mean loss of the batch


@dataclass(frozen=True, slots=True, eq=False)
class SplitRound:
    """State of a round in progress; never saved."""

    task: Task
    attempt: int  # how often the round was restarted
    p: Vector
    moments: State
    turn: SplitIteration | None = None
    last: int = -1  # number of the newest iteration; -1 before the first
    losses: tuple[float, ...] = ()  # losses of the iterations that ended with a step
    used: int = 0  # number of windows in these iterations
    # the graph's output for windows, by their numbers; kept for one round
    known: Mapping[int, Array] = field(default_factory=dict)
    # losses on held-back windows, each with their number
    judged: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class SplitState(ChosenModel):
    """State of a device. ``live`` and ``served`` are not persistent."""

    live: SplitRound | None = None
    # number of the last window that the graph answered for, and its output
    served: tuple[int, Array] | None = None
