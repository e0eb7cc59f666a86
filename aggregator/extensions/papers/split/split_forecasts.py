"""Serve forecasts on demand: collect requests, and send each station the graph's output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from aggregator.extensions.papers.split.activation_clipping import (
    LONGEST,
    bound,
    clipped_features,
    longest,
)
from aggregator.extensions.papers.split.split_arrays import marked, numbers
from aggregator.extensions.papers.split.split_types import (
    ForecastRequests,
    SplitBinding,
    SplitRoundState,
)
from edge_sdk.protocol.contract.method import Array, Due, Effects, Signal, Task


def queued(
    state: SplitRoundState, binding: SplitBinding, signal: Signal
) -> tuple[SplitRoundState, Effects]:
    """Keep a request until those of some seconds can be served together."""
    before = state.serving
    serving = ForecastRequests(
        {**before.latest, signal.sender: (signal.step, signal.array[0])},
        {**before.asking, signal.sender: signal.step},
    )
    effects = (
        () if before.asking else (Due(0, "serve", 0, after=binding.turns.forecast_batch_delay),)
    )
    return replace(state, serving=serving), effects


def _served_within_range(
    state: SplitRoundState, binding: SplitBinding, of: Mapping[str, Array]
) -> dict[str, Array]:
    if not np.isfinite(binding.turns.most):
        return dict(of)
    lengths = {n: longest(np.asarray(h)[None]) for n, h in of.items() if n not in state.masked}
    past = state.past.get("h", {})
    out = {n for n, length in lengths.items() if not length <= min(bound(n, past), LONGEST)}
    return {name: h for name, h in of.items() if name not in out}


def sent(state: SplitRoundState, binding: SplitBinding) -> tuple[SplitRoundState, Effects]:
    """Send all waiting stations a forecast from their neighbours' newest activations of that time.

    A masked station's activations are its mean here too: what it sends affects no other forecast.
    """
    asking, tasks = state.serving.asking, []
    for number in sorted(set(asking.values())):
        of = {
            n: h for n, (at, h) in state.serving.latest.items() if at == number and n in state.slots
        }
        of = _served_within_range(state, binding, of)
        h = np.zeros((1, binding.graph.capacity, *binding.shape), state.p.dtype)
        for name, row in of.items():
            is_masked = name in state.masked
            h[0, state.slots[name]] = state.means.get(name, 0.0) if is_masked else row
        h, _ = clipped_features(
            h, marked(state, binding, of.keys() - state.masked), binding.turns.most
        )
        p = state.p if state.served is None else state.served
        z = binding.graph.forward(p, h, marked(state, binding, of))
        tasks += [
            Task(
                name,
                0,
                "serve",
                step=number,
                values=numbers(binding) | ({"kept": float(state.kept)} if state.kept else {}),
                arrays={"z": z[:, state.slots[name]]},
            )
            for name, at in sorted(asking.items())
            if at == number and name in of
        ]
    return replace(state, serving=replace(state.serving, asking={})), tuple(tasks)
