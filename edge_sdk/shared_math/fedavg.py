"""FedAvg from end to end: the device's half, the server's half, and an example of both.

1. The server sends its model ``w`` to the devices as float32.
2. Each device takes local steps from it (``local_steps``) and answers with ``w`` minus its result.
3. The server weighs the devices (``by_samples``), averages their differences (``weighted_sum``; a
   robust rule may stand in its place) and subtracts the average from its model (``server_sgd``).

Around the device's half, ``edge_sdk.methods.local_sgd`` reads tasks and keeps personal layers. Around
the server's, ``aggregator.methods.averaging`` opens rounds, awaits updates and applies the run's rule.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017.
Reddi et al., Adaptive Federated Optimization, 2021, for other optimisers of the server.

Example:
    Three devices learn ``y = 2 x`` in memory: no broker, no keys, no files.

    >>> def gradient(p, x):  # of the mean squared error, as a bundle's graph returns it
    ...     error = p * x - 2 * x
    ...     return float((error**2).mean()), np.array([(2 * error * x).mean()], np.float32)
    >>> readings = [np.array(x, np.float32) for x in ([1, 2], [3], [0.5, 1, 1.5])]
    >>> own, step = optim.sgd(0.03), server_sgd()  # a device's optimiser, and the server's
    >>> w, moments = np.zeros(1), {}  # the server's model, in float64
    >>> for number in range(20):
    ...     received = w.astype(np.float32)
    ...     trained = [local_steps([x] * 4, gradient, own, received, steps=4) for x in readings]
    ...     differences = np.stack([received - one.p for one in trained])
    ...     shares = by_samples([one.report["n"] for one in trained])
    ...     average = weighted_sum(differences, shares)
    ...     w, moments = optim.optimiser_step(step, w, average, moments)
    >>> w.round(3).tolist()
    [2.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.shared_math import optim

# --- on the device

# function from parameters and a minibatch to the loss and its gradient
Gradient = Callable[[Vector, Any], tuple[float, Vector]]


class TrainingResult(NamedTuple):
    """Result of local training."""

    p: Vector  # whole vector after the steps
    moments: optim.State
    # mean ``loss`` and number ``n`` of windows; empty if there were no windows
    report: dict[str, float]
    batch: Any = None  # last minibatch; None if there were no windows

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.p).all()) and all(map(math.isfinite, self.report.values()))


def local_steps(
    batches: Iterable[Any],
    gradient: Gradient,
    optimiser: optim.Transform,
    p: Vector,
    moments: optim.State | None = None,
    *,
    steps: int,
    fresh: bool = False,
    after: optim.Transform = optim.IDENTITY,
) -> TrainingResult:
    """Take one step of an optimiser on each minibatch.

    Args:
        batches: Minibatches with a length: one for each step, and one to measure where there is none.
        p: Vector before the steps, float32, shape ``(P,)``.
        moments: State of the optimiser from earlier rounds; a fresh one where it does not fit.
        steps: Number of steps; with 0 the loss is measured and nothing moves.
        fresh: Whether every minibatch has other windows, which ``n`` then adds up.
        after: Applied to the weights after every step.
    """
    moments, losses, used, batch = optim.resumed(optimiser, p, moments), [], 0, None
    for batch in batches:
        loss, g = gradient(p, batch)
        losses.append(loss)
        used = used + len(batch) if fresh else len(batch)
        if steps:
            p, moments = optim.optimiser_step(optimiser, p, g, moments, after)
    report = {"loss": float(np.mean(losses)), "n": float(used)} if losses else {}
    return TrainingResult(p, moments, report, batch)


# --- on the server


def by_samples(counts: Sequence[float], cap: float = 10.0) -> NDArray[np.float64]:
    """Return shares proportional to claimed sample counts, capped at ``cap`` times their median.

    The client claims its count, so a claim is capped; one below 1 counts as 1.

    >>> by_samples([1, 1, 2]).tolist()
    [0.25, 0.25, 0.5]
    >>> by_samples([1, 1, 1_000_000]).round(3).tolist()
    [0.083, 0.083, 0.833]
    """
    if not len(counts):
        return np.zeros(0)
    claimed = np.maximum(np.asarray(counts, np.float64), 1.0)
    capped = np.minimum(claimed, cap * np.median(claimed))
    return np.asarray(capped / capped.sum())


def weighted_sum(rows: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[Any]:
    """Return ``sum_i weights[i] * rows[i]``, shape ``(P,)``, in the precision of the rows; no BLAS.

    >>> weighted_sum(np.array([[1.0], [2.0], [4.0]]), np.array([0.25, 0.25, 0.5])).tolist()
    [2.75]
    """
    return np.asarray(np.einsum("i,ij->j", weights.astype(rows.dtype), rows))


def server_sgd(rate: float = 1.0) -> optim.Transform:
    """Return plain steps, ``w - rate * average``: a difference is received minus trained."""
    return optim.scale(-rate)
