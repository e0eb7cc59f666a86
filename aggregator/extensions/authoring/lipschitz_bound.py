"""Bound the Lipschitz constant of a model's loss in its data, from the weights alone.

BAFDP's Proposition 1 bounds the worst risk over a Wasserstein ball of radius rho around the data by
the risk plus rho times a Lipschitz constant of the loss in (x, y). The training graph's ``slope``
estimates that constant from below, at given readings; a certificate needs this upper bound, which
uses no readings. It is a product of norms and therefore loose, the more so the more steps a
recurrent layer takes.

The order of the layers is not inferred from names: the bundle's author gives it (``paths`` of the
manifest), and the exporter measures that the bound holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_sdk.protocol.contract.manifest import LipschitzStage, Loss, Manifest

Floats = NDArray[np.float64]
Weights = Mapping[str, Floats]

# squarings of the Gram matrix; excess at most ``n ** 2**-21``, a millionth for 64 columns
SQUARINGS = 20


class LipschitzBoundError(Exception):
    """A model or a loss without a finite bound."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Euclidean Lipschitz constants, in scaled units."""

    forecast: float  # constant of the forecast ``[H]`` in the window ``[L, C]``
    loss: float  # constant of an example's loss in its forecast
    data: float  # constant of an example's loss in window and targets together, as in ``slope``


def certificate(manifest: Manifest, vector: Floats, *, error: float | None = None) -> Certificate:
    """Bound the Lipschitz constants of a model.

    Args:
        manifest: Manifest with ``paths``.
        vector: All parameters, shape ``(P,)``.
        error: Largest possible ``|yhat - y|``, scaled units. A squared error requires it, because
            its slope is unbounded; a Huber loss does not, and its bound improves below delta.

    Raises:
        LipschitzBoundError: No ``paths``, a missing layer, or a squared error without a range.
    """
    if manifest.paths is None:
        raise LipschitzBoundError(
            f"bundle {manifest.name!r} does not say which layer follows which"
        )
    weights = named(manifest, vector)
    forecast = sum(
        math.prod(stage_bound(stage, weights) for stage in path) for path in manifest.paths
    )
    loss = loss_bound(manifest.loss, manifest.window.horizon, error)
    quantiles = len(
        manifest.loss.levels or (0.5,)
    )  # one target changes the errors of all its quantiles
    return Certificate(forecast, loss, loss * math.hypot(math.sqrt(quantiles), forecast))


def named(manifest: Manifest, vector: Floats) -> Weights:
    """Split a whole vector into its layers, float64."""
    ends = np.cumsum([math.prod(dims) for _, dims in manifest.layers])
    parts = np.split(np.asarray(vector, np.float64), ends[:-1])
    return {
        name: part.reshape(dims) for (name, dims), part in zip(manifest.layers, parts, strict=True)
    }


def loss_bound(loss: Loss, horizon: int, error: float | None = None) -> float:
    """Return the largest slope of an example's loss in its forecast.

    Most losses are a mean over the horizon, so their slope ``l'(e) / H`` has a norm of at most
    ``max |l'| / sqrt(H)``. A pinball loss is a sum, and is nowhere steeper than ``max(q, 1 - q)``.

    >>> loss_bound(Loss("huber", 0.1), 4), loss_bound(Loss("mse"), 4, error=0.5)
    (0.05, 0.5)
    >>> round(loss_bound(Loss("pinball", levels=(0.1, 0.5, 0.9)), 4) ** 2, 6)  # 4 (.81 + .25 + .81)
    7.48

    Raises:
        LipschitzBoundError: A squared error without a range.
    """
    if loss.levels is not None:
        return math.sqrt(horizon * sum(max(q, 1 - q) ** 2 for q in loss.levels))
    if loss.name == "huber":
        delta = loss.delta or 1.0
        steepest = delta if error is None else min(delta, error)
    elif error is None:
        raise LipschitzBoundError(
            "a squared error has no finite slope: give the largest possible error (--error)"
        )
    else:
        steepest = 2 * error
    return steepest / math.sqrt(horizon)


def stage_bound(stage: LipschitzStage, weights: Weights) -> float:
    """Return the factor of one stage. ReLU, tanh and sigmoid are at most 1 and need no stage.

    Raises:
        LipschitzBoundError: The model has no such layer.
    """
    if stage.kind == "read":
        return stage.times
    try:
        if stage.kind == "linear":
            return spectral_norm(weights[f"{stage.layer}.weight"])
        if stage.kind == "prelu":
            return max(1.0, float(np.abs(weights[f"{stage.layer}.weight"]).max()))
        return _recurrent(stage, weights)
    except KeyError as missing:
        raise LipschitzBoundError(
            f"there is no layer {missing.args[0]!r} in this model"
        ) from missing


def spectral_norm(matrix: Floats, squarings: int = SQUARINGS) -> float:
    """Return an upper bound on the largest singular value.

    A power iteration on vectors converges from below and proves no bound. Squaring the Gram matrix
    instead, ``|A|_2 <= |(A'A)^(2^k)|_F ^ (1 / 2^(k+1))``, comes from above, for every k
    (Delattre et al. 2023, arXiv:2305.16173, theorem 2), and doubles the correct digits each time.

    >>> 2.0 <= spectral_norm(np.diag([2.0, 1.0])) < 2.00001
    True
    >>> spectral_norm(np.diag([2.0, 2.0]), squarings=0) > 2.3
    True
    """
    gram = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
    log_scale = 0.0  # logarithm of the divided-out scale, per power of the first Gram matrix
    for k in range(squarings + 1):
        size = float(np.linalg.norm(gram))
        if size == 0.0:
            return 0.0
        log_scale += math.log(size) / 2**k
        gram = gram / size
        gram = gram @ gram
    return math.exp(log_scale / 2) * (1 + 1e-12)


def _recurrent(stage: LipschitzStage, weights: Weights) -> float:
    chained = np.eye(stage.steps)
    for depth in range(_depth(stage.layer, weights)):
        into, back = (weights[f"{stage.layer}.weight_{way}_l{depth}"] for way in ("ih", "hh"))
        if stage.kind == "lstm":
            chained = lstm_steps(into, back, stage.steps) @ chained
        else:
            bias = weights.get(f"{stage.layer}.bias_hh_l{depth}")
            chained = gru_steps(into, back, bias, stage.steps) @ chained
    return spectral_norm(chained if stage.whole else chained[-1:])


def _depth(layer: str, weights: Weights) -> int:
    prefix = f"{layer}.weight_ih_l"
    found = [name for name in weights if name.startswith(prefix)]
    if not found or any(name.endswith("_reverse") for name in found):
        raise KeyError(prefix + "0")
    return len(found)


def lstm_steps(w_ih: Floats, w_hh: Floats, steps: int) -> Floats:
    """Bound the influence of step s's input on step t's output: ``M[t, s] >= |d h_t / d x_s|``.

    With ``|sigmoid'| <= 1/4``, ``|tanh'| <= 1``, gates at most 1 and, from a zero state,
    ``|c_t| <= t``, one step obeys::

        |dc_t| <= |dc_(t-1)| + (|W_i|/4 + (t-1)|W_f|/4 + |W_g|)(|dx_t|, |dh_(t-1)|)
        |dh_t| <= |dc_t| + tanh(t) |W_o|/4 (|dx_t|, |dh_(t-1)|)

    Args:
        w_ih: ``[4H, I]``, gates in torch's order: input, forget, cell, output.
        w_hh: ``[4H, H]``.

    Returns:
        Shape ``(T, T)``, lower triangular.
    """
    into, back = ([spectral_norm(block) for block in np.split(w, 4)] for w in (w_ih, w_hh))
    held, out, rows = np.zeros(steps), np.zeros(steps), []
    for t in range(steps):
        now = np.eye(steps)[t]
        cell, last = ((n[0] + t * n[1]) / 4 + n[2] for n in (into, back))
        shown = math.tanh(t + 1) / 4
        held = held + cell * now + last * out
        out = held + shown * (into[3] * now + back[3] * out)
        rows.append(out)
    return np.array(rows)


def gru_steps(w_ih: Floats, w_hh: Floats, bias: Floats | None, steps: int) -> Floats:
    """Bound the influence of step s's input on step t's output: ``M[t, s] >= |d h_t / d x_s|``.

    Candidates and states lie in -1 to 1, the first state is zero. So with ``s`` = 0 at the first
    step and 1 later, and ``q = max_i s sum_j |U_n,ij| + |b_n,i|``::

        |dh_t| <= |dh_(t-1)| + (|W_n| + q |W_r| / 4 + (1 + s) |W_z| / 4)(|dx_t|, |dh_(t-1)|)

    Args:
        w_ih: ``[3H, I]``, gates in torch's order: reset, update, new.
        w_hh: ``[3H, H]``.
        bias: The recurrent one, ``[3H]``; None for none.

    Returns:
        Shape ``(T, T)``, lower triangular.
    """
    into, back = ([spectral_norm(block) for block in np.split(w, 3)] for w in (w_ih, w_hh))
    new = np.abs(np.split(w_hh, 3)[2]).sum(1)
    added = np.zeros_like(new) if bias is None else np.abs(np.split(bias, 3)[2])
    out, rows = np.zeros(steps), []
    for t in range(steps):
        reach = min(t, 1)
        gain = float((reach * new + added).max())
        cell, last = (n[2] + gain * n[0] / 4 + (1 + reach) * n[1] / 4 for n in (into, back))
        out = (1 + last) * out + cell * np.eye(steps)[t]
        rows.append(out)
    return np.array(rows)
