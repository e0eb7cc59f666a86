"""A consensus for each device, moved by signs that the device's credit weighs: PFGL x BAFDP.

No paper has it, and no method of the product does: an experiment's server half, made of the
product's own parts. Device i keeps BAFDP's l1 term towards its own consensus z_i, and

    z_i <- z_i - rate * l1 * sum_j a_ij sign(z_i - w_j),

where a_ij is PFGL's mixture of models (14) to (18). With a_ij = 1/n for all it is BSFDP's step (20)
without duals; a device whose model is unlike gets no vote, and one that is alike gets a sign only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.personalised.credit import Columns, Credit, credited
from aggregator.rules import Rows
from edge_sdk.protocol.contract.method import (
    Array,
    Closed,
    Due,
    Effects,
    Event,
    Half,
    Task,
    Update,
)
from edge_sdk.protocol.contract.parameter_layout import Vector

Floats = NDArray[np.float64]
ASK = "step"


@dataclass(frozen=True, slots=True)
class PersonalRounds:
    """Settings."""

    devices: tuple[str, ...]  # their names; a round waits for all of them
    limit: int
    l1: float  # weight of the l1 term
    rate: float  # step of a consensus
    credit: float  # PFGL's sigma
    values: Mapping[str, float]  # numbers of a task, as BAFDP's contract names them


@dataclass(frozen=True, slots=True, eq=False)
class PersonalConsensus:
    """State of the server."""

    round: int  # the open round; 0 before the first
    w: Vector
    z: Mapping[str, Floats] = field(default_factory=dict)
    pending: Mapping[str, Array] = field(default_factory=dict)  # weights that came in this round


def voted(z: Floats, rows: Mapping[str, Array], weights: Floats, step: float) -> Floats:
    """Return a consensus after weighted votes, clients in order of name.

    >>> rows = {"a": np.array([1.0]), "b": np.array([-3.0]), "c": np.array([9.0])}
    >>> voted(np.zeros(1), rows, np.array([0.5, 0.2, 0.3]), 0.1).round(6).tolist()
    [0.06]
    """
    pull = sum(w * np.sign(z - rows[x]) for w, x in zip(weights, sorted(rows), strict=True))
    return np.asarray(z - step * pull)


def personal_consensus(settings: PersonalRounds) -> Half[PersonalConsensus]:
    """Return the server half."""

    def init(w: Vector) -> PersonalConsensus:
        first = np.asarray(w, np.float64)
        return PersonalConsensus(0, w, dict.fromkeys(settings.devices, first))

    def apply(state: PersonalConsensus, event: Event) -> tuple[PersonalConsensus, Effects]:
        if isinstance(event, Due) and state.round == 0:
            return _opened(settings, state)
        if not isinstance(event, Update) or event.round != state.round:
            return state, ()
        state = replace(state, pending={**state.pending, event.sender: event.vector})
        return (
            _closed(settings, state) if len(state.pending) == len(settings.devices) else (state, ())
        )

    return Half(init, apply, lambda state: {"p": state.w})


def _opened(
    settings: PersonalRounds, state: PersonalConsensus
) -> tuple[PersonalConsensus, Effects]:
    state = replace(state, round=state.round + 1, pending={})
    return state, tuple(
        Task(
            name,
            state.round,
            ASK,
            base=state.round - 1,
            values=settings.values,
            arrays={"z": np.asarray(state.z[name], np.float32)},
        )
        for name in settings.devices
    )


def _closed(
    settings: PersonalRounds, state: PersonalConsensus
) -> tuple[PersonalConsensus, Effects]:
    rows, n = Rows.of(state.pending), len(settings.devices)
    everything: tuple[Columns, ...] = (np.arange(len(state.w)),)
    sigma, near = np.full(n, settings.credit), np.zeros((n, n), np.bool_)
    weights = credited(rows, sigma, near, everything, Credit()).weights
    step = settings.rate * settings.l1
    z = {
        name: voted(state.z[name], state.pending, weights[i], step)
        for i, name in enumerate(rows.ids)
    }
    is_last = state.round >= settings.limit
    note = Closed(state.round, state.round, moved=True, report={"stop": is_last})
    state = replace(state, z=z)
    if is_last:
        return state, (note,)
    state, tasks = _opened(settings, state)
    return state, (note, *tasks)
