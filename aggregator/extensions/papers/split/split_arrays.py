"""Combine the stations' activations into the arrays that the graph receives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.split.split_types import SplitBinding, SplitRoundState
from edge_sdk.protocol.contract.method import Array

KNOWN = 4096
"""Largest number of single windows whose activations a round keeps for later turns."""


def filled(state: SplitRoundState, binding: SplitBinding) -> Array:
    """Combine all activations: of late stations the last known of each window, else zeros."""
    shape = (len(state.ids), binding.graph.capacity, *binding.shape)
    kinds = [np.asarray(signal.array).dtype for signal in state.received.values()]
    h = np.zeros(shape, np.result_type(state.p.dtype, *kinds))
    for name, at in state.slots.items():
        if name in state.masked:
            h[:, at] = state.means.get(name, 0.0)
        elif name in state.received:
            h[:, at] = state.received[name].array
        elif name in state.spans:
            for b, number in enumerate(state.ids):
                h[b, at] = state.known.get((name, int(number)), 0.0)
    return h


def remembered_activations(state: SplitRoundState) -> SplitRoundState:
    """Keep the newest activations of single windows, and the mean of each accepted station's."""
    known, means = dict(state.known), dict(state.means)
    for name in sorted(state.received.keys() - state.masked):
        rows = np.asarray(state.received[name].array)
        means[name] = rows.mean(0).astype(np.float32)
        for number, row in zip(state.ids, rows, strict=True):
            known.pop((name, int(number)), None)
            known[name, int(number)] = row
    for key in list(known)[: max(0, len(known) - KNOWN)]:
        del known[key]
    return replace(state, known=known, means=means)


def participants(state: SplitRoundState, binding: SplitBinding) -> NDArray[np.bool_]:
    return marked(state, binding, state.spans)


def marked(
    state: SplitRoundState, binding: SplitBinding, names: Iterable[str]
) -> NDArray[np.bool_]:
    """Return the mask of some stations on the graph's axis."""
    out = np.zeros(binding.graph.capacity, np.bool_)
    out[[state.slots[name] for name in names]] = True
    return out


def numbers(binding: SplitBinding) -> dict[str, float]:
    return {"half": 1.0} if binding.turns.float16 else {}
