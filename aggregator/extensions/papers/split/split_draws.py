"""Draw the windows of a turn, and those whose graph output is withheld; the same in every attempt."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.split.split_types import Ids, SplitBinding, SplitRoundState


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
