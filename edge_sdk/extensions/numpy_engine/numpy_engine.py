"""Run graphs with numpy alone, for devices whose platform has no onnxruntime wheel.

A graph is planned once: every node is built with the known constants, and every intermediate array
is freed after its last use, so that memory holds live arrays only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edge_sdk.extensions.numpy_engine import operators  # noqa: F401 - enter their operators
from edge_sdk.extensions.numpy_engine.operators import Run, build
from edge_sdk.protocol.contract.method import Array
from edge_sdk.runtime import GraphError, require_inputs
from edge_sdk.runtime.onnx_reader import OnnxModel, OnnxNode, TensorInfo, read_onnx

_FROM_NUMPY = (ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError, MemoryError)
"""Errors of an operator whose arrays or attributes contradict each other."""


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One node of the plan: slots it reads and writes, and slots to free after it."""

    run: Run
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]
    kind: str


class NumpyGraph:
    """A graph run by numpy, in float32 as the engine computes it.

    Results repeat to the bit on one machine; they differ from onnxruntime's in the last digits,
    as sums are taken in another order.
    """

    def __init__(self, data: bytes, *, threads: int = 1) -> None:  # noqa: ARG002 - numpy has its own
        """Decode the graph and plan its run; numpy uses as many threads as it is configured with.

        Raises:
            GraphError: The bytes are no graph, or it uses an operator that numpy does not run here.
        """
        try:
            model = read_onnx(data)
            self._steps, self._values, slots = _plan(model)
            self._results = tuple(slots[feed.name] for feed in model.outputs)
        except KeyError as error:
            raise GraphError(
                f"numpy cannot load the graph: no operator produces {error}"
            ) from error
        except (*_FROM_NUMPY, GraphError) as error:
            raise GraphError(f"numpy cannot load the graph: {error}") from error
        self._feeds = tuple((feed, slots[feed.name]) for feed in model.inputs)
        self.inputs = tuple(feed.name for feed in model.inputs)
        self.outputs = tuple(feed.name for feed in model.outputs)

    def __call__(self, **feeds: Array) -> tuple[Array, ...]:
        """Run the graph once. Feeds are float32 arrays by input name; results in output order.

        Raises:
            GraphError: A feed is missing, unknown, or of a shape or type the graph refuses.
        """
        require_inputs(self.inputs, feeds)
        values: list[Array | None] = list(self._values)
        for feed, slot in self._feeds:
            values[slot] = _fitting(feed, feeds[feed.name])
        with np.errstate(all="ignore"):  # as an engine: the caller checks for infinities and NaN
            for step in self._steps:
                _take(step, values)
        return tuple(_own(values[slot]) for slot in self._results)


def _take(step: _Step, values: list[Array | None]) -> None:
    try:
        made = step.run(*[values[slot] if slot >= 0 else None for slot in step.reads])
    except (*_FROM_NUMPY, GraphError) as error:
        raise GraphError(f"the graph could not run: {step.kind}: {error}") from error
    if len(step.writes) == 1 and not isinstance(made, tuple):
        values[step.writes[0]] = made
    else:
        for slot, one in zip(step.writes, made, strict=False):
            if slot >= 0:
                values[slot] = one
    for slot in step.frees:
        values[slot] = None


def _fitting(feed: TensorInfo, value: Array) -> Array:
    array = np.asarray(value, np.float32)
    fits = array.ndim == len(feed.sizes) and all(
        wanted is None or wanted == size
        for wanted, size in zip(feed.sizes, array.shape, strict=True)
    )
    if not fits:
        shape = ", ".join("?" if size is None else str(size) for size in feed.sizes)
        raise GraphError(f"the graph could not run: {feed.name} is [{shape}], not {array.shape}")
    return array


def _own(value: Array | None) -> Array:
    return np.array(value, np.float32)


def _plan(model: OnnxModel) -> tuple[tuple[_Step, ...], list[Array | None], Mapping[str, int]]:
    """Assign a slot to every array, build every node, and free slots after their last use."""
    names = [*model.constants, *(feed.name for feed in model.inputs)]
    slots = {name: slot for slot, name in enumerate(names)}
    values: list[Array | None] = [*model.constants.values(), *(None for _ in model.inputs)]
    built: list[tuple[OnnxNode, Run, tuple[int, ...], tuple[int, ...]]] = []
    for node in model.nodes:
        reads = tuple(slots[name] if name else -1 for name in node.inputs)
        run = build(node, tuple(values[slot] if slot >= 0 else None for slot in reads))
        for name in filter(None, node.outputs):
            slots[name] = len(values)
            values.append(None)
        writes = tuple(slots[name] if name else -1 for name in node.outputs)
        built.append((node, run, reads, writes))
    kept = {*range(len(names)), *(slots[feed.name] for feed in model.outputs)}
    frees = _frees([(reads, writes) for _, _, reads, writes in built], kept)
    steps = (
        _Step(run, reads, writes, free, node.kind)
        for (node, run, reads, writes), free in zip(built, frees, strict=True)
    )
    return tuple(steps), values, slots


def _frees(
    nodes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], kept: set[int]
) -> list[tuple[int, ...]]:
    seen, found = set(kept), list[tuple[int, ...]]()
    for reads, writes in reversed(nodes):
        last = {slot for slot in (*reads, *writes) if slot >= 0} - seen
        seen |= last
        found.append(tuple(sorted(last)))
    return found[::-1]
