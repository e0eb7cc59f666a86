"""Attacks on the update: functions from the honest updates of a round to a Byzantine one.

Every function is pure: a context and its own numbers in, one vector out, shape ``(P,)``, float64.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from firmware_sim.attacks.attack_context import AttackContext, Row

LEAST_Z = 0.3  # least z of ALIE: with few devices the formula gives 0, which changes nothing


def flipping(scene: AttackContext) -> Row:
    """Return ``-own``.

    >>> flipping(AttackContext.alone(np.array([1.0, -2.0]))).tolist()
    [-1.0, 2.0]
    """
    return -scene.own


def scaling(scene: AttackContext, *, factor: float = 10.0) -> Row:
    """Return ``factor * own``; 0.1 and -4 are attacks as well."""
    return factor * scene.own


def gaussian(scene: AttackContext, *, variance: float = 1.0) -> Row:
    """Return noise ``N(0, variance I)`` that *replaces* the update; it is not added to it.

    >>> row = gaussian(AttackContext.alone(np.full(100_000, 1e6)), variance=4.0)
    >>> bool(abs(row.mean()) < 0.05), round(float(row.std()), 1)
    (True, 2.0)
    """
    return scene.rng.normal(0.0, math.sqrt(variance), scene.own.shape)


def constant(scene: AttackContext, *, value: float = 1e3) -> Row:
    """Return the same number in every coordinate."""
    return np.full(scene.own.shape, value)


def z_max(devices: int, byzantine: int) -> float:
    """Return the largest offset in deviations that still has a majority behind it.

    With ``s = floor(n/2) + 1 - f`` supporters needed among the honest, ``z`` is the quantile
    ``(n - f - s) / (n - f)`` of the normal distribution. Where Byzantine devices are the majority
    (s < 1) it is taken for s = 1.

    >>> round(z_max(50, 24), 8), z_max(8, 2)
    (1.42607687, 0.0)

    Reference:
        Baruch, Baruch, Goldberg: A Little Is Enough: Circumventing Defenses For Distributed
        Learning, NeurIPS 2019, algorithm 3.
    """
    honest = devices - byzantine
    supporters = max(devices // 2 + 1 - byzantine, 1)
    share = (honest - supporters) / honest if honest else 0.0
    return NormalDist().inv_cdf(share) if share > 0 else -math.inf


def alie(
    scene: AttackContext, *, z: float | None = None, floor: float = LEAST_Z, ddof: int = 1
) -> Row:
    """Return ``mean - z * deviation`` of the honest updates, coordinate by coordinate.

    Args:
        z: Offset in deviations; None takes ``z_max``.
        floor: Lower bound of ``z_max``; a given ``z`` is used as it is.
        ddof: 1 divides the squares by h - 1, 0 by h.

    >>> honest = np.array([(1, 0), (0, 1), (1, 1), (2, 1)], float)
    >>> alie(AttackContext.among(honest), z=1.5, ddof=0).round(8).tolist()
    [-0.06066017, 0.10048095]

    Reference:
        Baruch, Baruch, Goldberg: A Little Is Enough, NeurIPS 2019.
    """
    used = max(z_max(scene.devices, scene.byzantine), floor) if z is None else z
    mean, count = scene.honest.mean(axis=0), len(scene.honest)
    spread = scene.honest.std(axis=0, ddof=ddof) if count > ddof else np.zeros_like(mean)
    return np.asarray(mean - used * spread)


def ipm(scene: AttackContext, *, epsilon: float = 0.5) -> Row:
    """Return ``-epsilon * mean`` of the honest updates: inner product manipulation.

    0.5 stays inside the honest spread; 2 reverses the mean with a fifth of Byzantine devices.

    Reference:
        Xie, Koyejo, Gupta: Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product
        Manipulation, UAI 2019.
    """
    return np.asarray(-epsilon * scene.honest.mean(axis=0))


def mimic(scene: AttackContext, *, victim: int = 0) -> Row:
    """Return a copy of one honest device's update: it counts twice.

    Args:
        victim: Index of the device, in order of ids, modulo their number.

    Reference:
        Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing,
        ICLR 2022.
    """
    row: Row = scene.honest[victim % len(scene.honest)]
    return row.copy()


def near_copy(scene: AttackContext, *, drift: float = 1e-3, victim: int = 0) -> Row:
    """Return one honest device's update times ``1 + drift``: its nearest possible neighbour.

    Rules that reward nearness (credit, Krum) prefer it to every honest answer.
    """
    return (1.0 + drift) * mimic(scene, victim=victim)


def free_rider(scene: AttackContext, *, deviation: float | None = None) -> Row:
    """Return the received model with noise: nothing was trained. Computed on weights.

    Args:
        deviation: Deviation of the noise; None takes that of the last change of the common model,
            which an honest update resembles; before the first change, it is 0.

    >>> free_rider(AttackContext.alone(np.array([3.0, 4.0]), np.array([1.0, 2.0]))).tolist()
    [1.0, 2.0]
    """
    spread = deviation
    if spread is None:
        spread = float(np.std(scene.received - scene.models[-1])) if scene.models else 0.0
    return scene.received + scene.rng.normal(0.0, spread, scene.received.shape)


def replay(scene: AttackContext, *, rounds: int = 5) -> Row:
    """Return its own honest update of ``rounds`` rounds ago, or its oldest, as if new.

    >>> from dataclasses import replace
    >>> scene = replace(AttackContext.alone(np.array([9.0])), past=(np.array([1.0]), np.array([2.0])))
    >>> replay(scene, rounds=1), replay(scene, rounds=5)
    (array([2.]), array([1.]))
    """
    if not scene.past or rounds < 1:
        return scene.own
    return scene.past[-min(rounds, len(scene.past))]
