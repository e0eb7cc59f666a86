"""ASPIRE-EASE: the worst-case weighting of clients, approximated by cutting planes.

Minimises ``max_q sum_j q_j f_j(w_j)`` over the constrained D-norm set, with all ``w_j`` equal to a
consensus z. The maximum is an epigraph variable h above planes ``q^l``, each with a multiplier; a
client's own loss has weight ``sum_l lambda_l q_j^l``. Pulls are quadratic and unbounded: one
Byzantine client moves the consensus without bound, and its claimed losses shift the weights. Not
robust.

The preprint (arXiv 2210.07588) was read in a public copy of its whole text. It differs from the
first specification of this project: a plane is new if it exceeds the other planes, (18), not h; a
plane whose multiplier is 0 is removed at once, (20); damping decreases with the power 1/8, not
1/4; h and the multipliers are projected on [0, a_2] and [0, a_3] of unnamed size. ``cut_condition``,
``drop_after``, ``damping_exponent``, ``h_min`` and ``plane_max`` choose. Where the text leaves it open: the
prior is a plane that stays, its multiplier begins at 1, and h where that is at rest.

The set is ``P = {q : |q_j - prior_j| <= deviation_j, sum_j |q_j - prior_j| / deviation_j <= budget,
sum_j q_j = 1}``, (16). Budget 0 is the prior alone; with the number of clients as budget every weight may
change by its full deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.consensus.consensus_engine import ConsensusServerState, without
from edge_sdk.extensions.papers.consensus_dual import damping
from edge_sdk.protocol.contract.method import Array, Scalars, Update

Floats = NDArray[np.float64]


def worst(losses: Floats, prior: Floats, deviation: Floats, budget: float) -> Floats:
    """Return the weights of the set under which the weighted loss is largest, shape ``(n,)``.

    With equal deviations the solution is greedy: take from the smallest losses and give to the
    largest, one pair of clients for every two units of budget. In general it is a linear program
    with one equation: for a given price of weight every client's move is independent, and the price
    at which the moves cancel is found by bisection. Equal losses leave the prior.

    Args:
        losses: One a client, finite, shape ``(n,)``.
        prior: Weights before any shift; sum 1.
        deviation: Largest change of each weight, above 0 and at most its prior.
        budget: Number of clients that may be moved by their full deviation, from 0.

    Raises:
        ValueError: A maximum deviation exceeds its prior, so a weight may be negative, or is not positive.

    Source:
        ASPIRE-EASE (17), which sorts ``deviation_j f_j``; that is the optimum for equal deviations only.

    >>> f, even = np.array([1.0, 2.0, 3.0, 6.0]), np.full(4, 0.25)
    >>> for budget in (0, 1, 2, 4):
    ...     q = worst(f, even, even, budget)
    ...     print(q.round(6), round(float(q @ f), 6))
    [0.25 0.25 0.25 0.25] 3.0
    [0.125 0.25  0.25  0.375] 3.625
    [0.   0.25 0.25 0.5 ] 4.25
    [0.  0.  0.5 0.5] 4.5
    """
    if not ((deviation > 0.0) & (deviation <= prior)).all():
        raise ValueError("deviation: expected above 0 and at most the prior")
    low, high = float(losses.min()), float(losses.max())
    while low < (middle := 0.5 * (low + high)) < high:
        wanted = _moves(losses - middle, deviation, budget)
        low, high = (middle, high) if wanted.sum() >= 0.0 else (low, middle)
    cheap = _moves(losses - low, deviation, budget)
    dear = -_moves(high - losses, deviation, budget)
    return prior + _balanced(cheap, dear)


def _moves(gains: Floats, deviation: Floats, budget: float) -> Floats:
    """Move each client by its deviation towards its gain, the largest gain first, within the budget.

    A client without gain in either direction moves up.
    """
    order = np.argsort(-(deviation * np.abs(gains)), kind="stable")
    share = np.zeros_like(deviation)
    share[order] = np.clip(budget - np.arange(len(order)), 0.0, 1.0)
    moves: Floats = share * deviation * np.where(gains >= 0.0, 1.0, -1.0)
    return moves


def _balanced(cheap: Floats, dear: Floats) -> Floats:
    """Mix the moves at a price just too low and one just too high, so that their sum is 0."""
    over, under = float(cheap.sum()), -float(dear.sum())
    if over + under <= 0.0:
        return cheap
    mixed: Floats = (under * cheap + over * dear) / (over + under)
    return mixed


def even(count: int) -> Floats:
    """Return the uniform prior, ``1/n`` each.

    >>> even(4)
    array([0.25, 0.25, 0.25, 0.25])
    """
    filled: NDArray[Any] = np.full(count, 1.0 / count)
    return filled


PRIOR = "prior"  # the plane that weighs all known clients equally


@dataclass(frozen=True, slots=True)
class Cut:
    """State of the worst-case weighting. Planes are by name, their weights by client."""

    is_begun: bool = False  # true after the first firing
    h: float = 0.0  # epigraph variable
    made: int = 0  # number of planes ever made
    # weights of each plane; the prior's are not stored, they follow the known clients
    planes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    multiplier: Mapping[str, float] = field(default_factory=dict)
    # number of checks in a row that found the multiplier at 0
    idle: Mapping[str, int] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)  # latest loss of each client

    def weight(self, client: str) -> float:
        """Return the weight of a client's loss; before the first firing the total weight."""
        if not self.is_begun:
            return self.share(PRIOR, client)
        total = 0.0
        for name in sorted(self.multiplier):
            total += self.multiplier[name] * self.share(name, client)
        return total

    def share(self, plane: str, client: str) -> float:
        """Return a client's weight in a plane."""
        if plane == PRIOR:
            return 1.0 / max(len(self.losses), 1)
        return self.planes[plane].get(client, 0.0)

    def value(self, plane: str, losses: Mapping[str, float]) -> float:
        return sum(self.share(plane, name) * losses[name] for name in sorted(losses))


@dataclass(frozen=True, slots=True)
class Worst:
    """Family of ASPIRE-EASE."""

    numbers_at: Callable[[int], Scalars]  # returns the numbers of a task for its version
    kappa: float = 1.0  # weight of the quadratic pull
    # Gamma, as a fraction of the clients: count of weights that may change in full
    budget: float = 0.2
    max_deviation: float = 1.0  # largest change of a weight, as a fraction of its prior
    h_rate: float = 0.1  # step of the epigraph variable
    h_min: float = -math.inf  # floor of the epigraph variable
    plane_rate: float = 0.1  # step of the multipliers (rho_1)
    plane_max: float = 10.0  # bound of the multipliers
    damping_exponent: float = 0.25  # Exponent with which the damping decreases with the firing
    every: int = 10  # firings between two checks for a new plane
    # a new plane must exceed the other ``planes``, or ``h``
    cut_condition: Literal["planes", "h"] = "planes"
    drop_after: int = 2  # number of checks in a row at 0 after which a plane is removed
    # largest number of planes; a further one replaces that with the least multiplier
    most: int = 50
    loss_cap: float = 10.0  # largest loss, as a multiple of the median; 0 uses losses as claimed
    scaled: bool = True  # true multiplies a client's weight by the number of clients

    def start(self) -> Cut:
        """Return a state without clients."""
        return Cut()

    def numbers(self, own: Cut, client: str, version: int) -> Scalars:
        count = max(len(own.losses), 1) if self.scaled else 1
        return {**self.numbers_at(version), "weight": own.weight(client) * count}

    def kept(self, vector: Array) -> Array:
        return vector

    def accepted(self, own: Cut, update: Update) -> Cut:
        """Keep the loss; a client that reports none keeps its last, or is in no plane."""
        if "loss" not in update.values:
            return own
        return replace(own, losses={**own.losses, update.sender: float(update.values["loss"])})

    def pull(self, state: ConsensusServerState, z: Array) -> Array:
        """Return ``kappa sum_j (z - w_j)``."""
        total = np.zeros_like(state.w)
        for client in sorted(state.held):
            total += z - state.held[client]
        return total * self.kappa

    def closed(self, state: ConsensusServerState, cohort: list[str]) -> ConsensusServerState:
        """Step h, then the multipliers at the new h; at intervals search for a new plane."""
        del cohort  # every client's latest loss counts
        own: Cut = state.own
        if not own.losses:
            return state
        losses = self.capped(own.losses)
        own = self._stepped(self._begun(own, losses), losses, state.version)
        if state.version % self.every == 0:
            own = self._joined(self._pruned(own), losses)
        return replace(state, own=own)

    def without(self, own: Cut, clients: Iterable[str]) -> Cut:
        """Remove some clients: their weight in old planes applies to no loss any more."""
        return replace(own, losses=without(own.losses, clients))

    def report(self, own: Cut) -> Mapping[str, Any]:
        """Return the number of planes, and the largest loss."""
        if not own.losses:
            return {}
        return {"planes": len(own.planes), "worst": max(own.losses.values())}

    def capped(self, losses: Mapping[str, float]) -> Mapping[str, float]:
        """Bound losses by a multiple of their median, because they are only claimed.

        >>> Worst(lambda _: {}).capped({"a": 1.0, "b": 2.0, "c": 1e30})["c"]
        20.0
        """
        if self.loss_cap == 0.0:
            return losses
        bound = self.loss_cap * float(np.median([losses[name] for name in sorted(losses)]))
        return {name: min(loss, bound) for name, loss in losses.items()}

    def _begun(self, own: Cut, losses: Mapping[str, float]) -> Cut:
        """Begin with the prior alone, its multiplier at 1 and at rest."""
        if own.is_begun:
            return own
        h = max(own.value(PRIOR, losses) - 1.0 / self.plane_rate, self.h_min)
        return replace(own, is_begun=True, h=h, multiplier={PRIOR: 1.0})

    def _stepped(self, own: Cut, losses: Mapping[str, float], fired: int) -> Cut:
        total = sum(own.multiplier[name] for name in sorted(own.multiplier))
        h = max(own.h - self.h_rate * (1.0 - total), self.h_min)
        kappa = damping(self.plane_rate, fired, fading=self.damping_exponent)
        risen = {}
        for name, held in own.multiplier.items():
            slope = own.value(name, losses) - h - kappa * held
            risen[name] = min(max(held + self.plane_rate * slope, 0.0), self.plane_max)
        return replace(own, h=h, multiplier=risen)

    def _pruned(self, own: Cut) -> Cut:
        idle = {name: own.idle.get(name, 0) + 1 for name in own.planes if not own.multiplier[name]}
        return _cut(replace(own, idle=idle), [n for n in idle if idle[n] >= self.drop_after])

    def _joined(self, own: Cut, losses: Mapping[str, float]) -> Cut:
        names = sorted(losses)
        prior = even(len(names))
        claims = np.array([losses[name] for name in names])
        shares = worst(claims, prior, self.max_deviation * prior, self.budget * len(names))
        held = max(own.value(name, losses) for name in own.multiplier)
        bar = held if self.cut_condition == "planes" else own.h
        if not float(shares @ claims) > bar + 1e-12 * abs(bar):
            return own
        if len(own.planes) >= self.most:
            own = _cut(own, [min(own.planes, key=lambda name: (own.multiplier[name], name))])
        name = f"cut{own.made:09d}"
        plane = dict(zip(names, shares.tolist(), strict=True))
        return replace(
            own,
            made=own.made + 1,
            planes={**own.planes, name: plane},
            multiplier={**own.multiplier, name: 0.0},
        )


def _cut(own: Cut, planes: Iterable[str]) -> Cut:
    removed = frozenset(planes)
    return replace(
        own,
        planes=without(own.planes, removed),
        multiplier=without(own.multiplier, removed),
        idle=without(own.idle, removed),
    )
