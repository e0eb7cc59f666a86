"""AFL: minimise the loss of the worst mixture of clients instead of their average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.averaging import Averaged, averaging
from aggregator.methods.base.round_machine import Averaging, Claims, Rounds
from aggregator.methods.base.types import Method, Rate, Setup, Steps, has_no_use, task
from edge_sdk.app.schema import Between
from edge_sdk.protocol.contract.method import Half
from edge_sdk.shared_math.fedavg import server_sgd

Vector64 = NDArray[np.float64]
Weights = Mapping[str, float]

_WEIGHT = "weight-"  # of a client, among what the half keeps
_AVERAGE = "average"


@dataclass(frozen=True, slots=True)
class AFL:
    """Local steps, with more weight for clients whose loss is high.

    The loss is the mean over a device's steps; with one step, that of the model it received. It is
    claimed by the client, so this does not protect against Byzantine clients: it is only capped.
    """

    # local steps a round. With 1 and plain descent it is the paper's gradient step.
    steps: Steps = 4
    rate: Rate = 1e-3  # their learning rate
    server_rate: Rate = 1.0  # step length of the server (with ``rate``, the paper's gamma_w)
    weight_rate: Rate = 0.01  # step length of the weights (the paper's gamma_q); 0 keeps them equal
    # largest loss that is used, as a multiple of the median of its round
    loss_cap: Annotated[float, Between(1.0, 1e6)] = 10.0
    # model that is published at the end of the run: the ``average`` of the models after every
    # round, as in the theorem, or the ``last``
    output: Literal["average", "last"] = "average"

    def bound(self, rounds: Rounds) -> Averaging:
        values = task(self.steps, self.rate)
        return Averaging(server_sgd(self.server_rate), rounds, values, Agnostic(rounds, self))


def afl(setup: Setup) -> Half[Averaged]:
    """Return AFL's server half; raise Misfit for a rule or a weighting, which AFL replaces."""
    has_no_use(setup, "rule", "weighting")
    return averaging(setup.rule, setup.settings.bound(setup.rounds), setup.add_row)


@dataclass(frozen=True, slots=True)
class Agnostic(Claims):
    """Weights of AFL: a point of the simplex over all clients that have ever sent an update."""

    settings: AFL  # settings of the weights' step

    def shares(self, state: Averaged, ids: tuple[str, ...]) -> Vector64:
        """Return the weights of the round's clients, divided by their sum.

        If the sum is 0 the model stays, and only the weights move.
        """
        weights = joined(_weights(state.kept), ids)
        own = np.array([weights[name] for name in ids])
        return own / own.sum() if own.sum() > 0.0 else own

    def keep(self, state: Averaged, w: Vector64) -> Mapping[str, Any]:
        """Return the next weights, and the average of the models so far."""
        ids = tuple(sorted(state.pending))
        weights = joined(_weights(state.kept), ids)
        losses = capped([state.losses.get(name, 0.0) for name in ids], self.settings.loss_cap)
        gain = dict(zip(ids, map(float, losses), strict=True))
        moved = ascended(weights, gain, self.settings.weight_rate)
        kept = {_WEIGHT + name: np.array(weight) for name, weight in moved.items()}
        before = state.kept.get(_AVERAGE, w)
        return {**kept, _AVERAGE: before + (w - before) / (state.version + 1)}

    def final(self, state: Averaged) -> Vector64:
        if self.settings.output == "last" or _AVERAGE not in state.kept:
            return state.w
        average: Vector64 = state.kept[_AVERAGE]
        return average


def joined(weights: Weights, ids: Sequence[str]) -> dict[str, float]:
    """Return the weights with every new client added at an equal part of the whole.

    >>> joined({}, ["a", "b"])
    {'a': 0.5, 'b': 0.5}
    >>> joined({"a": 0.75, "b": 0.25}, ["b", "c", "d"])
    {'a': 0.375, 'b': 0.125, 'c': 0.25, 'd': 0.25}
    """
    new = [name for name in ids if name not in weights]
    number = len(weights) + len(new)
    old = {name: weight * len(weights) / number for name, weight in weights.items()}
    return dict(sorted((old | dict.fromkeys(new, 1.0 / number)).items()))


def capped(losses: Sequence[float], most: float) -> Vector64:
    """Return losses of at most ``most`` times their median; none below 0.

    >>> capped([1.0, 2.0, 0.5], 10.0).tolist(), capped([1.0, 2.0, 1e30], 10.0).tolist()
    ([1.0, 2.0, 0.5], [1.0, 2.0, 20.0])
    """
    claimed = np.maximum(np.asarray(losses, np.float64), 0.0)
    short: Vector64 = np.minimum(claimed, most * np.median(claimed))
    return short


def ascended(weights: Weights, losses: Weights, rate: float) -> dict[str, float]:
    """Return the weights after one projected step up the losses.

    An absent client reports no loss and its weight does not rise: over a random cohort that is the
    paper's stochastic gradient.

    >>> third = dict.fromkeys("abc", 1 / 3)
    >>> moved = ascended(third, {"a": 1.0, "b": 2.0, "c": 0.5}, 0.1)
    >>> [round(weight, 8) for weight in moved.values()]
    [0.31666667, 0.41666667, 0.26666667]

    Reference:
        Mohri, Sivek and Suresh, Agnostic Federated Learning, ICML 2019, algorithm 1.
    """
    names = sorted(weights)
    raised = np.array([weights[name] + rate * losses.get(name, 0.0) for name in names])
    return dict(zip(names, map(float, onto_simplex(raised)), strict=True))


def _weights(kept: Mapping[str, Any]) -> dict[str, float]:
    return {
        name.removeprefix(_WEIGHT): float(weight)
        for name, weight in kept.items()
        if name.startswith(_WEIGHT)
    }


METHOD = Method(AFL, afl, own=True, is_stepped=True)


def onto_simplex(values: NDArray[np.float64], total: float = 1.0) -> NDArray[np.float64]:
    """Return the point nearest to ``values`` whose entries are not negative and sum to ``total``.

    By sorting, O(n log n). The result does not depend on the order of the entries.

    Args:
        values: Any finite point, shape ``(n,)``, n at least 1.
        total: Sum of the returned entries, above 0.

    >>> third = np.full(3, 1 / 3)
    >>> onto_simplex(third + 0.1 * np.array([1.0, 2.0, 0.5])).round(8).tolist()
    [0.31666667, 0.41666667, 0.26666667]
    >>> onto_simplex(third + np.array([1.0, 2.0, 0.5])).tolist()
    [0.0, 1.0, 0.0]

    Reference:
        Held, Wolfe and Crowder, Validation of Subgradient Optimization, Mathematical Programming
        1974; Duchi et al., Efficient Projections onto the l1-Ball, ICML 2008.
    """
    values = values - values.max()  # a common shift does not change the result, and costs digits
    falling = np.sort(values)[::-1]
    surplus = np.cumsum(falling) - total
    ranks = np.arange(1, len(values) + 1)
    kept = int(ranks[falling - surplus / ranks > 0.0][-1])
    nearest: NDArray[np.float64] = np.maximum(values - surplus[kept - 1] / kept, 0.0)
    return nearest
