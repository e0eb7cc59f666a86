"""Draw the windows of a turn, and combine the stations' activations into the arrays of the graph."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.split.split_types import Ids, SplitBinding, SplitRoundState
from edge_sdk.protocol.contract.method import Array

KNOWN = 4096  # largest number of single windows whose activations a round keeps for later turns


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


def drawn(state: SplitRoundState, binding: SplitBinding) -> Ids:
    """Draw the numbers of a turn's windows, the same in every attempt.

    They lie between the medians of the stations' first and last windows, which most stations have
    and a minority cannot move. For judging, every round draws the same numbers until new readings
    arrive.
    """
    is_judged = binding.program[state.at] == "judge"
    spans = state.held if is_judged else state.spans
    first, last = (int(np.median(ends)) for ends in zip(*spans.values(), strict=True))
    first, last = min(first, last), max(first, last)
    if is_judged:
        rng = keyed("held", binding.seed, state.at - binding.program.index("judge"))
    else:
        rng = keyed("windows", binding.seed, state.round, state.at)
    size = min(binding.turns.batch, last - first + 1)
    return np.sort(first + rng.choice(last - first + 1, size, replace=False)).astype(np.int32)


def keyed(purpose: str, *numbers: int) -> np.random.Generator:
    """Return a generator for these numbers: every attempt, and every restart, draws the same."""
    text = "\0".join((f"gridfed/1/{purpose}", *map(str, numbers)))
    key = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")
    return np.random.Generator(np.random.Philox(key=key))


def silenced(state: SplitRoundState, binding: SplitBinding) -> NDArray[np.bool_]:
    """Draw the mask of windows whose ``z`` is withheld from each station, ``(B, N)``.

    Only for stations that train in the turn; the same in every attempt.
    """
    shape = len(state.ids), binding.graph.capacity
    if not binding.turns.z_dropout or binding.program[state.at] not in ("joint", "refresh"):
        return np.zeros(shape, np.bool_)
    chances = keyed("silence", binding.seed, state.round, state.at).random(shape)
    found: NDArray[np.bool_] = chances < binding.turns.z_dropout
    return found
