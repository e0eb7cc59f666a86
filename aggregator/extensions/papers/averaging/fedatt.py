"""FedAtt, and the clustered rule of FedDA: attention instead of a rule.

Neither is Byzantine-robust: the largest difference gets the largest weight (see
``aggregator.extensions.papers.averaging.attention_weights``). A run of them accepts no further rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.averaging.attention_weights import (
    Matrix,
    Slices,
    Vector64,
    attend,
    shared_slices,
    towards,
)
from aggregator.methods.averaging import Averaged, FedAvg, averaging
from aggregator.methods.base.types import Method, Setup, has_no_use
from aggregator.rules import NOTHING, Memory, Rows, Rule, RuleVerdict, TooFewRows
from edge_sdk.app.schema import Matches, SchemaError
from edge_sdk.protocol.contract.method import Half

UNLISTED = "unlisted"  # the cluster of every client that is in no configured cluster


@dataclass(frozen=True, slots=True)
class FedAtt(FedAvg):
    """Move each layer of the model most towards the update that is farthest from it.

    Attributes:
        steps: Local steps a round.
        rate: Their learning rate.
        server_rate: Step length of the server (the paper's epsilon, 1.0 to 1.2).
    """


def fedatt(setup: Setup) -> Half[Averaged]:
    """Return FedAtt's server half; raise SchemaError if the run names a rule or a weighting."""
    has_no_use(setup, "rule", "weighting")
    return averaging(attentive(slices_of(setup)), setup.settings.bound(setup.rounds))


def slices_of(setup: Setup) -> Slices:
    """Return the layers' slices of the vector; without a layout the vector is one layer."""
    return (slice(None),) if setup.spec is None else shared_slices(setup.spec)


def labelled(clusters: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return every named client's cluster.

    >>> labelled({"north": ("a", "b"), "south": ("c",)})
    {'a': 'north', 'b': 'north', 'c': 'south'}

    Raises:
        SchemaError: A cluster's name is no plain word, or a client is in two clusters.
    """
    out: dict[str, str] = {}
    for label in sorted(clusters):
        if not Matches(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}").admits(label):
            raise SchemaError("run.settings.clusters", "names of letters, digits, - and _", label)
        for client in clusters[label]:
            if client in out:
                raise SchemaError("run.settings.clusters", "each client in one cluster", client)
            out[client] = label
    return out


def attentive(slices: Slices) -> Rule:
    """Return FedAtt's aggregation as a rule."""

    def decide(
        rows: Rows, _shares: NDArray[np.float64], memory: Memory = NOTHING, /
    ) -> RuleVerdict:
        if not len(rows):
            raise TooFewRows(needed=1, got=0)
        step, shares = attend(_matrix(rows), slices)
        return RuleVerdict(step, _average(rows.ids, shares), memory=memory)

    return decide


def clustered(
    slices: Slices, labels: Mapping[str, str], *, epsilon: float, rho: float = 0.0
) -> Rule:
    """Return FedDA's aggregation as a rule.

    Every cluster keeps its own model u, initially the common one. From the updates of its clients
    ``u <- u - epsilon (sum_i a_i (u - w_i) + rho b (u - w^q))``, layer by layer, and from the
    clusters with an update in this round ``w <- w - epsilon (sum_c a_c (w - u_c) + rho b (w -
    w^q))``. With one cluster there is no attention across clusters, and w is its model: with rho 0
    that is FedAtt.

    The memory is relative to the common model, because a rule sees only differences: the offset of
    each cluster's model, and the distance of the common model from its start.

    Reference:
        Zhang et al., Dual Attention-Based Federated Learning for Wireless Traffic Prediction,
        INFOCOM 2021. Checked against the authors' published code: the same two attentions, the same
        softmax over layers. There the clusters' models are never carried over to the next round
        (each starts from the quasi-global model every time); here they are, as the paper has it.
    """
    several = len(set(labels.values())) > 1

    def decide(
        rows: Rows, _shares: NDArray[np.float64], memory: Memory = NOTHING, /
    ) -> RuleVerdict:
        if not len(rows):
            raise TooFewRows(needed=1, got=0)
        groups = _groups(rows.ids, labels)
        strayed = memory.get("strayed", np.zeros(rows.values.shape[1]))
        values, weights = _matrix(rows), dict[str, float]()
        moved: dict[str, Vector64] = {}
        for label in sorted(groups):
            at = memory.get(f"cluster-{label}", np.zeros_like(strayed))
            step, shares = attend(values[groups[label]] + at, slices)
            weights |= _average(tuple(rows.ids[i] for i in groups[label]), shares)
            moved[label] = at - epsilon * (step + rho * towards(at, -strayed, slices))
        across = several or len(groups) > 1
        value = _across(moved, strayed, slices, epsilon, rho) if across else -_only(moved)
        kept = {
            name: where + value for name, where in memory.items() if name.startswith("cluster-")
        }
        kept |= {f"cluster-{label}": where + value for label, where in moved.items()}
        return RuleVerdict(value, weights, memory={**kept, "strayed": strayed - value})

    return decide


def _across(
    moved: Mapping[str, Vector64], strayed: Vector64, slices: Slices, epsilon: float, rho: float
) -> Vector64:
    step, _ = attend(np.stack([-moved[label] for label in sorted(moved)]), slices)
    return epsilon * (step + rho * towards(strayed, np.zeros_like(strayed), slices))


def _only(moved: Mapping[str, Vector64]) -> Vector64:
    (where,) = moved.values()
    return where


def _groups(ids: tuple[str, ...], labels: Mapping[str, str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for number, name in enumerate(ids):
        groups.setdefault(labels.get(name, UNLISTED), []).append(number)
    return groups


def _matrix(rows: Rows) -> Matrix:
    return np.asarray(rows.values, np.float64)


def _average(ids: tuple[str, ...], shares: Matrix) -> dict[str, float]:
    return dict(zip(ids, map(float, shares.mean(axis=0)), strict=True))


METHOD = Method(FedAtt, fedatt, own=True, is_stepped=True)
