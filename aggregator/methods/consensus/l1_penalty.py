"""The l1 pull of RSA and BAFDP: every client has the weight of a sign, at any size of its values.

No client moves a coordinate of z by more than ``rate (l1 + bound of its dual) / R`` a firing where
pulls are averaged over R clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from aggregator.methods.consensus.consensus_engine import ConsensusServerState, without
from edge_sdk.shared_math.consensus_dual import damping
from edge_sdk.wire.contract.method import Array, Scalars, Update


@dataclass(frozen=True, slots=True)
class Budget:
    """The dual of BAFDP's constraint that a client's budget stays below its cap.

    Attributes:
        lowest: Lower bound of a claimed budget.
        cap: Upper bound of a claimed budget (the paper's a).
        rate: Step of the dual (alpha_lambda).
        least: Floor of its damping.
    """

    lowest: float
    cap: float
    rate: float
    least: float = 0.0

    def claimed(self, eps: float) -> float:
        """Return a claimed budget within its bounds."""
        return min(max(eps, self.lowest), self.cap)

    def next_dual(self, dual: float, eps: float, fired: int) -> float:
        """Return the dual after a firing; it stays 0 while the budget is below its cap.

        Source:
            BAFDP (21).

        >>> Budget(lowest=0.01, cap=10.0, rate=0.1).next_dual(0.5, 10.0, 15)
        0.25
        """
        if self.rate == 0.0:
            return dual
        kappa = damping(self.rate, fired, self.least)
        return max(0.0, dual + self.rate * ((eps - self.cap) - kappa * dual))


@dataclass(frozen=True, slots=True)
class Budgets:
    """State of the clients' budgets; mappings are by client.

    Attributes:
        eps: Claimed budgets within their bounds.
        dual: Duals of the constraint that each stays below the cap.
    """

    eps: Mapping[str, float] = field(default_factory=dict)
    dual: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class L1:
    """Family of BAFDP and RSA.

    Attributes:
        weight: Weight of the l1 term.
        numbers_at: Returns the numbers of a task for its version.
        budget: Constraint on the budgets; None has none (RSA).
        votes: True if updates are signs of ``z - w``; they count in one firing only.
        gain: Factor of a sign, which corrects the bias of noisy ones.
    """

    weight: float
    numbers_at: Callable[[int], Scalars]
    budget: Budget | None = None
    votes: bool = False
    gain: float = 1.0

    def start(self) -> Budgets:
        """Return a state without budgets."""
        return Budgets()

    def numbers(self, own: Budgets, client: str, version: int) -> Scalars:
        """Return the version's numbers, and the client's own dual of its budget."""
        values = self.numbers_at(version)
        if self.budget is None:
            return values
        return {**values, "eps_dual": own.dual.get(client, 0.0)}

    def kept(self, vector: Array) -> Array:
        """Return a vote clamped to -1, 0 or 1; weights unchanged."""
        return np.sign(vector) if self.votes else vector

    def accepted(self, own: Budgets, update: Update) -> Budgets:
        """Keep the claimed budget within its bounds."""
        if self.budget is None:
            return own
        eps = self.budget.claimed(update.values.get("eps", self.budget.lowest))
        return replace(own, eps={**own.eps, update.sender: eps})

    def pull(self, state: ConsensusServerState, z: Array) -> Array:
        """Return ``weight gain sum_j sign(z - w_j)``."""
        total = np.zeros_like(state.w)
        for client in sorted(state.held):
            total += state.held[client] if self.votes else np.sign(z - state.held[client])
        return total * (self.weight * self.gain)

    def closed(self, state: ConsensusServerState, cohort: list[str]) -> ConsensusServerState:
        """Remove votes; take the steps of the budgets' duals."""
        if self.votes:
            state = replace(state, held={})
        if self.budget is None:
            return state
        own: Budgets = state.own
        risen = {
            name: self.budget.next_dual(own.dual.get(name, 0.0), own.eps[name], state.version)
            for name in cohort
        }
        return replace(state, own=replace(own, dual={**own.dual, **risen}))

    def without(self, own: Budgets, clients: Iterable[str]) -> Budgets:
        """Remove some clients' budgets."""
        removed = frozenset(clients)
        return Budgets(without(own.eps, removed), without(own.dual, removed))

    def report(self, own: Budgets) -> Mapping[str, Any]:
        """Return the mean budget."""
        eps = [own.eps[name] for name in sorted(own.eps)]
        return {"eps": float(np.mean(eps))} if eps else {}
