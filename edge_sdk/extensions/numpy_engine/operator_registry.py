"""Register the operators that numpy can run, for platforms without an onnxruntime wheel.

An entry is *built* once, when the graph loads, with the attributes and the constant inputs. The
function that it returns is called at every run with all inputs. So a slice with constant ends costs
one indexing at run time, and an unknown attribute is refused when the graph loads.

Source of the semantics: the ONNX operator specification, operator sets 13 to 17.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from edge_sdk.protocol.contract.method import Array
from edge_sdk.runtime import GraphError
from edge_sdk.runtime.onnx_reader import Attribute, OnnxNode

Run = Callable[..., Any]
"""Function from inputs in order to the result, or to a tuple of results."""


LARGEST = 1 << 27
"""Largest number of elements of one array: 512 MiB of float32, more than any device has."""


def require_small(sizes: Iterable[int]) -> None:
    """Refuse an array before it is allocated; a damaged graph may request excessive memory.

    >>> require_small((1 << 20, 1 << 10))
    Traceback (most recent call last):
    edge_sdk.runtime.GraphError: an array of 1073741824 numbers, at most 134217728 are made
    """
    count = math.prod(sizes)
    if count > LARGEST:
        raise GraphError(f"an array of {count} numbers, at most {LARGEST} are made")


@dataclass(frozen=True, slots=True, eq=False)
class OperatorSite:
    """One use of an operator in a graph, as its builder receives it."""

    # every attribute of the operator, with the specification's default where none is set
    attributes: Mapping[str, Any]
    # each input's value where it is a constant, else None; also None for one left out
    known: tuple[Array | None, ...]
    given: tuple[bool, ...]
    results: int

    def constant(self, index: int) -> Array | None:
        return self.known[index] if index < len(self.known) else None

    def has(self, index: int) -> bool:
        return index < len(self.given) and self.given[index]


Build = Callable[[OperatorSite], Run]


@dataclass(frozen=True, slots=True)
class Operator:
    """One row of the table: the builder of an operator, and its attributes with their defaults."""

    build: Build
    defaults: Mapping[str, Any]


OPERATORS: Final[dict[str, Operator]] = {}


def operator(kind: str, **defaults: Attribute | None) -> Callable[[Build], Build]:
    """Register a builder in the table, with its attributes' defaults."""

    def enter(build: Build) -> Build:
        OPERATORS[kind] = Operator(build, defaults)
        return build

    return enter


def build(node: OnnxNode, known: tuple[Array | None, ...]) -> Run:
    """Build one node.

    Args:
        known: Each input's value where it is a constant, else None.

    Raises:
        GraphError: The operator, or one of its attributes, is not in the table.
    """
    row = OPERATORS.get(node.kind)
    if row is None:
        raise GraphError(f"operator {node.kind} is not supported by the numpy engine")
    unknown = sorted(node.attributes.keys() - row.defaults.keys())
    if unknown:
        raise GraphError(f"operator {node.kind}: attribute {unknown[0]!r} is not supported")
    given = tuple(bool(name) for name in node.inputs)
    attributes = {**row.defaults, **node.attributes}
    return row.build(OperatorSite(attributes, known, given, len(node.outputs)))
