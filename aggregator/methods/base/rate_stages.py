"""Stages of a run at their own learning rates, for any method whose tasks carry a rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aggregator.methods.base.parameters import Count, Rate
from aggregator.methods.base.round_machine import ASK
from edge_sdk.wire.contract.method import (
    RATE,
    STEPS,
    Contract,
    Effect,
    Effects,
    Event,
    Half,
    Task,
    Up,
)

RateStage = tuple[Count, Rate]
"""Number of completed rounds that a stage lasts, and the learning rate of its local steps."""


def rate_at(stages: Sequence[RateStage], completed: int) -> float:
    """Return the learning rate of the round after so many completed ones.

    The last stage lasts to the end of the run.

    >>> [rate_at([(2, 0.1), (1, 0.01)], completed) for completed in range(5)]
    [0.1, 0.1, 0.01, 0.01, 0.01]
    """
    for rounds, rate in stages[:-1]:
        if completed < rounds:
            return rate
        completed -= rounds
    return stages[-1][1]


def takes_stages(contract: Contract) -> bool:
    """Return whether a method's rate may change from round to round.

    It may where the rate is that of local steps, which only the device computes with: the contract
    has one ask, answered with a difference or with weights, and no end repeats the computation.

    >>> from edge_sdk.wire.contract.method import CONTRACTS
    >>> [method for method in ("fedavg", "pfl", "fedsgd", "bafdp") if takes_stages(CONTRACTS[method])]
    ['fedavg', 'pfl']
    """
    return tuple(contract) == (ASK,) and all(
        ask.up in (Up.DELTA, Up.WEIGHTS)
        and not ask.mirrored
        and {STEPS.name, RATE.name} <= {number.name for number in ask.numbers}
        for ask in contract.values()
    )


def in_stages(half: Half[Any], stages: Sequence[RateStage]) -> Half[Any]:
    """Return a server half whose tasks carry the rate of their stage.

    The rate of a task follows from its version of the model, so that a task that is sent again, also
    after a restart, carries the same one. Tasks without a rate are unchanged.

    Args:
        half: Server half of any method.
        stages: Stages in order; none leaves the half unchanged.
    """
    if not stages:
        return half

    def staged(effect: Effect) -> Effect:
        if not isinstance(effect, Task) or RATE.name not in effect.values:
            return effect
        values = {**effect.values, RATE.name: rate_at(stages, effect.base)}
        return replace(effect, values=values)

    def apply(state: Any, event: Event) -> tuple[Any, Effects]:  # noqa: ANN401 - the half's own type
        after, effects = half.apply(state, event)
        return after, tuple(map(staged, effects))

    return half._replace(apply=apply)
