"""Wrap a half: a transform of its events and effects, with a state beside the inner state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.base.round_machine import ASK, published
from aggregator.methods.base.types import Count, Rate
from edge_sdk.protocol.codec import pack_tensor
from edge_sdk.protocol.contract import method
from edge_sdk.protocol.model_step import STEP_ENCODING, stepped


@dataclass(frozen=True, slots=True, eq=False)
class WrappedState:
    """State of a wrapped half: the inner state, and the fields that a subclass adds.

    It is read like the inner state; leaves of the inner state are saved under their own names.
    """

    inner: Any = field(metadata={"leaf": ""})

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any field of the inner state
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)


def innermost(state: Any) -> Any:  # noqa: ANN401 - any half's state
    """Return the state that is wrapped, or the state itself."""
    return innermost(state.inner) if isinstance(state, WrappedState) else state


def replaced(state: Any, **changes: Any) -> Any:  # noqa: ANN401 - any half's state
    """Return a state with other values of some fields of the innermost one."""
    if isinstance(state, WrappedState):
        return dataclasses.replace(state, inner=replaced(state.inner, **changes))
    return dataclasses.replace(state, **changes)


# number of completed rounds that a stage lasts, and the learning rate of its local steps
RateStage = tuple[Count, Rate]


def rate_at(stages: Sequence[RateStage], completed: int) -> float:
    """Return the learning rate by the number of completed rounds.

    The last stage lasts to the end of the run.

    >>> [rate_at([(2, 0.1), (1, 0.01)], completed) for completed in range(5)]
    [0.1, 0.1, 0.01, 0.01, 0.01]
    """
    for rounds, rate in stages[:-1]:
        if completed < rounds:
            return rate
        completed -= rounds
    return stages[-1][1]


def takes_stages(contract: method.Contract) -> bool:
    """Return whether a method's rate may change from round to round.

    It may where the rate is that of local steps, which only the device computes with: the contract
    has one ask, answered with a difference or with weights, and no end repeats the computation.

    >>> from edge_sdk.protocol.contract.method import CONTRACTS
    >>> [method for method in ("fedavg", "fedprox", "fedsgd") if takes_stages(CONTRACTS[method])]
    ['fedavg', 'fedprox']
    """
    return tuple(contract) == (ASK,) and all(
        ask.up in (method.Up.DELTA, method.Up.WEIGHTS)
        and not ask.mirrored
        and {method.STEPS.name, method.RATE.name} <= {number.name for number in ask.numbers}
        for ask in contract.values()
    )


def in_stages(half: method.Half[Any], stages: Sequence[RateStage]) -> method.Half[Any]:
    """Return a server half whose tasks carry the rate of their stage.

    The rate of a task follows from its version of the model, so that a task that is sent again, also
    after a restart, carries the same one. Tasks without a rate are unchanged.

    Args:
        stages: Stages in order; none leaves the half unchanged.
    """
    if not stages:
        return half

    def staged(effect: method.Effect) -> method.Effect:
        if not isinstance(effect, method.Task) or method.RATE.name not in effect.values:
            return effect
        values = {**effect.values, method.RATE.name: rate_at(stages, effect.base)}
        return replace(effect, values=values)

    def apply(state: Any, event: method.Event) -> tuple[Any, method.Effects]:  # noqa: ANN401 - the half's own type
        after, effects = half.apply(state, event)
        return after, tuple(map(staged, effects))

    return half._replace(apply=apply)


STEP = "step"  # name of the step among the arrays of a common task: the bytes of its ``q8``, uint8
Leaves = Mapping[str, Any]


def adopted(
    before: NDArray[np.float64], after: NDArray[np.float64], kept: Leaves
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Return the model that devices with the last one reach by an eight-bit step.

    Args:
        before: The announced model, shape ``(P,)``; devices have it in float32.
        after: The method's new model, shape ``(P,)``.
        kept: What this function returned the last time; empty before the first step.

    Returns:
        The adopted model, exact in float32, shape ``(P,)``; and what to keep: the ``step`` (uint8)
        and the ``residual``, shape ``(P,)``.
    """
    base = before.astype(np.float32)
    wanted = after + kept.get("residual", 0.0)
    blob = pack_tensor(wanted - base, STEP_ENCODING)
    w = stepped(base, blob).astype(np.float64)
    return w, {STEP: np.frombuffer(blob, np.uint8), "residual": wanted - w}


# returns the model that devices reach, from the one before and the method's new one
Announce = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]


def exact(_before: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the new model: devices receive it whole."""
    return after


@dataclass(frozen=True, slots=True, eq=False)
class SteppedState(WrappedState):
    """State of a half that announces steps."""

    # the last step and what it left out (``adopted``); empty before the first, and after a model
    # from outside of the run
    downlink: Leaves = field(default_factory=dict)


def with_steps(make: Callable[[Announce], method.Half[Any]]) -> method.Half[SteppedState]:
    """Return a half that announces every new model as an eight-bit step as well.

    Args:
        make: Returns the inner half for a function that it calls with each new model.
    """
    plain = make(exact)

    def announced(state: SteppedState, effect: method.Effect) -> method.Effect:
        if not isinstance(effect, method.Task) or STEP not in state.downlink:
            return effect
        return replace(effect, arrays={**effect.arrays, STEP: state.downlink[STEP]})

    def apply(state: SteppedState, event: method.Event) -> tuple[SteppedState, method.Effects]:
        found: Leaves = {}

        def announce(
            before: NDArray[np.float64], after: NDArray[np.float64]
        ) -> NDArray[np.float64]:
            nonlocal found
            if not np.isfinite(published(after)).all():
                return after
            w, found = adopted(before, after, state.downlink)
            return w

        inner, effects = make(announce).apply(state.inner, event)
        if inner is state.inner:
            return state, effects
        has_moved = inner.version > state.inner.version
        stepped_state = SteppedState(inner, found if has_moved else state.downlink)
        return stepped_state, tuple(announced(stepped_state, effect) for effect in effects)

    def model(state: SteppedState) -> Mapping[str, method.Array]:
        found = plain.model(state.inner)
        is_reached = STEP in state.downlink and np.array_equal(found["p"], published(state.w))
        return {**found, STEP: state.downlink[STEP]} if is_reached else found

    return method.Half(lambda w: SteppedState(plain.init(w)), apply, model)
