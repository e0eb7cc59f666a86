"""Which mechanism a plan asks for."""

from __future__ import annotations

import os
from collections.abc import Callable

from edge_sdk.privacy.answers import AtSign, AtUpdate
from edge_sdk.privacy.gate import Mechanism, Plain
from edge_sdk.privacy.graphs import AtGradient, OnPaper
from edge_sdk.privacy.noise import Entropy
from edge_sdk.privacy.plan import Plan
from edge_sdk.privacy.readings import AtInput, Shelf

__all__ = ["Mechanism", "mechanism_of"]


def mechanism_of(
    plan: Plan,
    shelf: Shelf,
    clock: Callable[[], int],
    *,
    measured: frozenset[str],
    entropy: Entropy = os.urandom,
) -> Mechanism:
    """Return the mechanism of a plan, to be attached where it belongs.

    Args:
        plan: From ``terms.plan_of``.
        shelf: Where perturbed readings are kept.
        clock: Milliseconds since 1970, for the ledger.
        measured: Names of an answer's numbers that come from readings.
        entropy: Random bytes; only a test passes another source.
    """
    point = plan.mechanism.point
    if point == "input" and not plan.is_paper:
        return AtInput(plan, measured, entropy, shelf=shelf, clock=clock)
    kinds = {"update": AtUpdate, "sign": AtSign, "gradient": AtGradient, "input": OnPaper}
    return kinds.get(point, Plain)(plan, measured, entropy)
