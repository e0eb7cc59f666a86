"""Optimisers over one flat vector in optax's shape, for device and aggregator.

A ``Transform`` maps a gradient to a step; ``chain`` applies several in order, and ``optimiser_step`` adds the
result to the parameters. The state is a mapping of named arrays, so that it is saved leaf by leaf
whatever the optimiser is. Everything is a pure function over explicit values; no argument is
changed in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from edge_sdk.protocol.contract.method import Array
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

State = Mapping[str, Array]
"""State of a transform between two steps, by name; empty where nothing is remembered."""


class Transform(NamedTuple):
    """Two pure functions, as in optax.

    ``init(p)`` returns the state of a fresh start. ``update(g, state, p)`` returns the transformed
    gradient and the next state: it reads the entries that its ``init`` made, and returns exactly
    these. The last transform of an optimiser returns the step that is added to ``p``.
    """

    init: Callable[[Array], State]
    update: Callable[[Array, State, Array], tuple[Array, State]]


Rated = Callable[[float], Transform]
"""Function from a learning rate, which a task sets, to an optimiser."""


def stateless(function: Callable[[Array, Array], Array]) -> Transform:
    """Return the transform ``function(g, p)``, which remembers nothing."""
    return Transform(lambda _p: {}, lambda g, _state, p: (function(g, p), {}))


IDENTITY = stateless(lambda g, _p: g)
"""The transform that changes nothing."""


def optimiser_step(
    optimiser: Transform, p: Array, g: Array, state: State, after: Transform = IDENTITY
) -> tuple[Array, State]:
    """Return the parameters after one step along a gradient, in the dtype of ``p``, and the state.

    ``after`` transforms the moved parameters (a projection, a proximal operator, noise); its third
    argument is the parameters before the step, and its state has names of its own.
    """
    moved, one = optimiser.update(g, state, p)
    placed, two = after.update(p + moved, state, p)
    return placed.astype(p.dtype, copy=False), {**one, **two}


def chain(*transforms: Transform) -> Transform:
    """Return the transform that applies several, from left to right.

    Its state is the union of their states, so each needs names of its own.

    >>> chain(adam(0.9), adam(0.5)).init(np.zeros(1))
    Traceback (most recent call last):
    ValueError: chain: two transforms have a state named first, second, taken; expected different names
    """

    def init(p: Array) -> State:
        state: dict[str, Array] = {}
        for one in transforms:
            own = one.init(p)
            if twice := sorted(state.keys() & own.keys()):
                names = ", ".join(twice)
                raise ValueError(
                    f"chain: two transforms have a state named {names}; expected different names"
                )
            state |= own
        return state

    def update(g: Array, state: State, p: Array) -> tuple[Array, State]:
        after: dict[str, Array] = {}
        for one in transforms:
            g, own = one.update(g, state, p)
            after |= own
        return g, after

    return Transform(init, update)


def resumed(optimiser: Transform, p: Array, kept: State | None) -> State:
    """Return a state kept from earlier steps, or a fresh one where another optimiser made it.

    >>> p = np.zeros(2)
    >>> resumed(adam(0.1), p, {"taken": np.array(3), "first": p, "second": p})["taken"].item()
    3
    >>> resumed(adam(0.1), p, sgd(0.1).init(p))["first"].shape
    (2,)
    """
    fresh = optimiser.init(p)
    is_same = kept is not None and _shapes(kept) == _shapes(fresh)
    return kept if kept is not None and is_same else fresh


def saved(arrays: Mapping[str, Array]) -> State | None:
    """Return the state of ``sgd`` or ``adam`` among named arrays, or None if there is none.

    Raises:
        KeyError: A part of it is missing.
    """
    names = ("taken", "first", "second")
    return {name: arrays[name] for name in names} if "taken" in arrays else None


# --- gradients ------------------------------------------------------------------------------------


def scale(factor: float) -> Transform:
    """Return ``factor * g``; with minus a rate, this is plain gradient descent.

    >>> optimiser_step(scale(-0.1), np.ones(1), np.full(1, 2.0), {})[0].tolist()
    [0.8]
    """
    return stateless(lambda g, _p: factor * g)


def add_proximal(spec: ParamSpec, weight: float, anchor: Array) -> Transform:
    """Return ``g + weight (w - anchor)`` on the shared layers w: FedProx's term.

    It is the gradient of half the squared distance to the anchor, times ``weight``.

    Reference:
        Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

    >>> spec = ParamSpec.of([("w", (1,)), ("head", (1,))], shared=["w"])
    >>> pull = add_proximal(spec, 0.5, np.zeros(1))
    >>> pull.update(np.ones(2), {}, np.array([2.0, 2.0]))[0].tolist()
    [2.0, 1.0]
    """
    if weight == 0.0:
        return IDENTITY

    def pulled(g: Array, p: Array) -> Array:
        return g + spec.lift((spec.shared(p) - anchor) * p.dtype.type(weight))

    return stateless(pulled)


# --- optimisers -----------------------------------------------------------------------------------


def sgd(rate: float, momentum: float = 0.0) -> Transform:
    """Return gradient descent, ``p - rate * b`` with ``b = momentum * b + g`` (heavy ball).

    Its state has the names of ``adam``'s, with empty vectors where nothing is remembered.

    >>> plain = sgd(0.1)
    >>> optimiser_step(plain, np.ones(1), np.full(1, 2.0), plain.init(np.ones(1)))[0].tolist()
    [0.8]
    """

    def init(p: Array) -> State:
        none = np.zeros(0, p.dtype)
        return {
            "taken": np.array(0),
            "first": np.zeros_like(p) if momentum else none,
            "second": none,
        }

    def update(g: Array, state: State, _p: Array) -> tuple[Array, State]:
        ball = momentum * state["first"] + g if momentum else g
        first, taken = ball if momentum else state["first"], np.array(int(state["taken"]) + 1)
        return -rate * ball, {"taken": taken, "first": first, "second": state["second"]}

    return Transform(init, update)


def adam(rate: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Transform:
    """Return Adam as ``torch.optim.Adam`` computes it, with float64 bias correction.

    The correction must not be taken in float32: ``1 - 0.999**t`` is then wrong by 1e-5, always in
    the same direction, which is a visible drift after a hundred steps. It uses the second moment of
    *this* step: with that of the step before, the first step would be ``g / eps``, some 1e7.

    Reference:
        Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015.

    >>> optimiser, theta = adam(0.1), np.zeros(1)
    >>> theta, state = optimiser_step(optimiser, theta, theta - 3.0, optimiser.init(theta))
    >>> round(float(theta[0]), 9)
    0.1
    """

    def init(p: Array) -> State:
        return {"taken": np.array(0), "first": np.zeros_like(p), "second": np.zeros_like(p)}

    def update(g: Array, state: State, _p: Array) -> tuple[Array, State]:
        taken = int(state["taken"]) + 1
        first = g - state["first"]  # m + (1 - b1)(g - m): one rounding less than b1 m + (1 - b1) g
        first *= 1.0 - beta1
        first += state["first"]
        scratch = g * g
        scratch *= 1.0 - beta2
        second = state["second"] * beta2
        second += scratch
        np.sqrt(second, out=scratch)
        scratch /= math.sqrt(1.0 - beta2**taken)
        scratch += eps
        np.divide(first, scratch, out=scratch)
        scratch *= -rate / (1.0 - beta1**taken)
        return scratch, {"taken": np.array(taken), "first": first, "second": second}

    return Transform(init, update)


def _shapes(state: State) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in state.items()}
