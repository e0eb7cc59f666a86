"""Define the properties in which the averaging methods differ from each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.base.round_machine import Rounds, mean_loss
from aggregator.rules import Rows, Rule, RuleVerdict
from aggregator.rules.parameters import by_samples, uniform
from edge_sdk.protocol.contract.method import Update
from edge_sdk.shared_math.optim import IDENTITY, Transform

Shares = NDArray[np.float64]
Averaged = Any  # state of the family: ``aggregator.methods.fedavg.Averaged``, or a subclass


class Scheme(Protocol):
    """Hooks that a method of this family adds to a round; ``Claims`` is the default."""

    def shares(self, state: Averaged, ids: tuple[str, ...]) -> Shares:
        """Return the weight of each client, shape ``(len(ids),)``."""

    def keep(self, state: Averaged, w: Shares) -> Mapping[str, Any]:
        """Return the state to keep after a round that moved the model to ``w``."""

    def is_over(self, version: int, kept: Mapping[str, Any]) -> bool:
        """Return True if the run ends with this version before its limit."""

    def final(self, state: Averaged) -> Shares:
        """Return the model to publish when the run ends."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Default scheme: equal weights, or weights by capped sample counts."""

    rounds: Rounds  # settings of the rounds, with the weighting

    def shares(self, state: Averaged, ids: tuple[str, ...]) -> Shares:
        """Return equal weights, or weights by the claimed sample counts."""
        if self.rounds.weighting == "samples":
            return by_samples([state.counts[name] for name in ids], self.rounds.cap)
        return uniform(len(ids))

    def keep(self, state: Averaged, w: Shares) -> Mapping[str, Any]:
        del state, w
        return {}

    def is_over(self, version: int, kept: Mapping[str, Any]) -> bool:
        del version, kept
        return False

    def final(self, state: Averaged) -> Shares:
        """Return the last model."""
        last: Shares = state.w
        return last


@dataclass(frozen=True, slots=True)
class Averaging:
    """The properties in which the methods of the family differ."""

    optimiser: Transform  # step of the server
    rounds: Rounds = field(default_factory=Rounds)
    values: Mapping[str, float] = field(default_factory=dict)  # numbers of every task
    scheme: Scheme | None = None  # weights and what is kept; None is ``Claims``
    weights: bool = False  # clients send whole weights, from which the difference is taken
    after: Transform = IDENTITY  # applied to the model after the optimiser's step
    values_at: Callable[[int], Mapping[str, float]] | None = None  # by version, for ``values``
    rule_at: Callable[[Averaged], Rule] | None = None  # by state, instead of the run's rule
    record: Callable[[Averaged, Update], Mapping[str, Any]] | None = None  # ``kept`` with an update
    state: type[Any] | None = None  # with properties for a page; None is ``Averaged``

    @property
    def manner(self) -> Scheme:
        return Claims(self.rounds) if self.scheme is None else self.scheme


def round_report(state: Averaged, rows: Rows, verdict: RuleVerdict) -> dict[str, Any]:
    return {
        "cohort": list(rows.ids),
        "norms": dict(zip(rows.ids, map(float, rows.norms()), strict=True)),
        "weights": dict(verdict.weights),
        "dropped": dict(verdict.dropped),
        "step": float(np.linalg.norm(verdict.value)),
        **verdict.report,
        **mean_loss(state.losses),
    }
