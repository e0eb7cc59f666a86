"""Element-wise operators in numpy. Importing this module registers them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, Final

import numpy as np

from edge_sdk.runtime.graph import GraphError
from edge_sdk.runtime.operator_registry import (
    LARGEST,
    OPERATORS,
    Operator,
    OperatorSite,
    Run,
    operator,
    require_small,
)
from edge_sdk.wire.contract.method import Array


def sigmoid(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))`` in one new array; far below zero it is 0, without overflow.

    >>> sigmoid(np.array([-200.0, 0.0, 200.0], np.float32))
    array([0. , 0.5, 1. ], dtype=float32)
    """
    with np.errstate(over="ignore"):
        out: Array = np.exp(np.negative(x))
    out = np.add(out, 1, dtype=x.dtype)
    return np.asarray(np.reciprocal(out))


def erf(x: Array) -> Array:
    """Return the error function, with an error of at most 1.5e-7.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, formula 7.1.26.

    >>> erf(np.array([-1.0, 0.0, 1.0], np.float32)).round(6)
    array([-0.842701,  0.      ,  0.842701], dtype=float32)
    """
    far = np.abs(x, dtype=np.float64)
    t = 1.0 / (1.0 + 0.3275911 * far)
    series = np.zeros_like(t)
    for term in _ERF:
        series = (series + term) * t
    return np.asarray(np.sign(x) * (1.0 - series * np.exp(-far * far)), x.dtype)


_ERF: Final = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def divide(a: Array, b: Array) -> Array:
    """Divide; whole numbers (sizes) towards zero, as C does.

    >>> divide(np.array(-7), np.array(2)), np.array(-7) // np.array(2)
    (array(-3), np.int64(-4))
    """
    if np.result_type(a) != np.int64:
        return np.asarray(np.divide(a, b))
    return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)))


def _fold(two: Callable[[Array, Array], Array], *inputs: Array) -> Array:
    return reduce(two, inputs)


_PLAIN: Final[dict[str, Run]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": divide,
    "Pow": np.power,
    "Max": partial(_fold, np.maximum),
    "Min": partial(_fold, np.minimum),
    "Neg": np.negative,
    "Abs": np.abs,
    "Sign": np.sign,
    "Sqrt": np.sqrt,
    "Exp": np.exp,
    "Log": np.log,
    "Sin": np.sin,
    "Cos": np.cos,
    "Floor": np.floor,
    "Tanh": np.tanh,
    "Reciprocal": np.reciprocal,
    "Relu": lambda x: np.maximum(x, 0, dtype=x.dtype),
    "Sigmoid": sigmoid,
    "Erf": erf,
    "Not": np.logical_not,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Where": np.where,
    "Identity": lambda x: x,
}


_OF_SEVERAL: Final = frozenset(
    ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "And", "Or", "Equal", "Where"]
).union(kind for kind in _PLAIN if kind.startswith(("Greater", "Less")))
"""Operators that broadcast their inputs; all others have one input and a result of its shape."""


def _of_several(run: Run, *inputs: Array) -> Array:
    """Run an operator with broadcast inputs, after checking the size of its result."""
    if math.prod(one.size for one in inputs) > LARGEST:
        require_small(np.broadcast_shapes(*(one.shape for one in inputs)))
    out: Array = run(*inputs)
    return out


def _as_it_is(run: Run, _site: OperatorSite) -> Run:
    return run


OPERATORS.update(
    {
        kind: Operator(
            partial(_as_it_is, partial(_of_several, run) if kind in _OF_SEVERAL else run), {}
        )
        for kind, run in _PLAIN.items()
    }
)

_TYPES: Final[dict[Any, type[np.generic]]] = {1: np.float32, 7: np.int64, 9: np.bool_}


@operator("Cast", to=None)
def _cast(site: OperatorSite) -> Run:
    wanted = _TYPES.get(site.attributes["to"])
    if wanted is None:
        raise GraphError(f"Cast: element type {site.attributes['to']} is not supported")
    return lambda x: np.asarray(x).astype(wanted)
