"""Replay recorded rounds for every ``f`` and score them on held-out readings: the number of Byzantine devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.audit.held_out import Score
from aggregator.extensions.audit.replay import ReplayScenario, replay
from aggregator.methods.base.round_machine import published
from aggregator.store.store import Store
from edge_sdk.protocol.contract.method import Half
from edge_sdk.protocol.contract.parameter_layout import Vector


@dataclass(frozen=True, slots=True)
class FaultCount:
    """One ``f``, and the error of the models that its rule gives."""

    f: int
    errors: tuple[float, ...]  # by round; the round begins with the recorded model
    error: float  # their mean; infinite if one is


def fault_counts(
    store: Store,
    run: int,
    rounds: tuple[int, int],
    halves: Mapping[int, Half[Any]],
    score: Score,
    *,
    recorded: Half[Any],
    initial: Vector,
) -> list[FaultCount]:
    """Replay rounds of a run once for each ``f``, and score the model after every single round.

    Every round begins with the recorded model, which the devices answered, so each result is that of
    the rule on these very updates.

    Args:
        rounds: The first and the last one.
        halves: Server half with the rule for each ``f``.
        recorded: Server half with the run's rule.
        initial: Any vector of the run's shape.

    Raises:
        ReplayError: As ``replay``.
    """
    found = []
    for f, other in sorted(halves.items()):
        models: list[NDArray[np.float64]] = []
        replay(
            store,
            run,
            ReplayScenario(*rounds),
            recorded=recorded,
            other=other,
            initial=initial,
            seen=models.append,
        )
        errors = [score(published(w)) for w in models]
        found.append(FaultCount(f, tuple(errors), float(np.mean(errors))))
    return found


def named(found: Sequence[FaultCount], within: float) -> FaultCount:
    """Return the least ``f`` whose error is within a share of the least error.

    >>> curve = [FaultCount(f, (), error) for f, error in enumerate((0.5, 0.2, 0.1, 0.0999))]
    >>> named(curve, 0.01).f, named(curve, 0.0).f
    (2, 3)
    """
    least = min(one.error for one in found)
    return next(one for one in found if one.error <= (1.0 + within) * least)
