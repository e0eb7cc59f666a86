"""Choose the forecast that a device serves, for all steps or for each block of steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.choice.combination import (
    BY_STEP,
    COLUMNS,
    LAST_GOOD,
    LEAST,
    MARGIN,
    MEAN,
    USUAL,
    HeldBackErrors,
    blocks_of,
)
from edge_sdk.forecasting.forecast import FLEET


@dataclass(frozen=True, slots=True)
class ForecastChoice:
    """A choice between the candidates."""

    name: str = FLEET  # one of ``COLUMNS``; ``by step`` where blocks of steps differ
    # weight of each candidate used; at least 0, with sum 1. Empty for ``by step``.
    weights: Mapping[str, float] = field(default_factory=lambda: {FLEET: 1.0})
    # held-back error of each compared column; empty without enough days. For ``by step`` also that
    # of the choice itself.
    errors: Mapping[str, float] = field(default_factory=dict)
    days: int = 0  # number of held-back days
    # the choice for each block of steps; empty where there is one choice for all
    parts: tuple[ForecastChoice, ...] = ()

    @property
    def by_block(self) -> tuple[ForecastChoice, ...]:
        """Return the choice for each block of steps; this one where there is one for all."""
        return self.parts or (self,)

    @property
    def used(self) -> frozenset[str]:
        return frozenset(name for part in self.by_block for name in part.weights)


def choose(
    table: HeldBackErrors,
    present: str = FLEET,
    available: Collection[str] = USUAL,
    *,
    least: int = LEAST,
) -> ForecastChoice:
    """Choose the candidate, or the weighted mean, with the least held-back error over all steps.

    A choice is beaten only by more than ``MARGIN``. A present choice that cannot be compared is
    replaced by the fleet's model; that too is beaten only by the margin. Without comparable
    candidates the fleet's model is chosen.

    Args:
        available: Names that may be chosen now; the last good model is compared only if it is
            among them.
        least: Days that a candidate must know to be compared.

    >>> from edge_sdk.extensions.choice.combination import CANDIDATES
    >>> seen = np.full((len(CANDIDATES), 7, 1, 1), np.nan)
    >>> seen[0], seen[-2] = 2.0, 1.1
    >>> table = HeldBackErrors.empty().extended(seen, np.ones((7, 1)), np.arange(7)[:, None])
    >>> choose(table).name, choose(table.before(6)).name
    ('last day', 'fleet')
    """
    errors, days = table.compared(least, _compared(available)), len(table.days)
    weights = table.inverse_weights(least)
    if not weights:  # the mean of no candidate is no forecast
        errors = {name: error for name, error in errors.items() if name != MEAN}
    rivals = {name: error for name, error in errors.items() if name in available}
    incumbent = present if present in rivals else FLEET
    if not rivals:
        return ForecastChoice(errors=errors, days=days)
    best = min(rivals, key=lambda name: rivals[name])
    is_beaten = incumbent not in rivals or rivals[best] < (1.0 - MARGIN) * rivals[incumbent]
    name = best if is_beaten else incumbent
    return ForecastChoice(name, weights if name == MEAN else {name: 1.0}, errors, days)


def choose_by_step(
    table: HeldBackErrors,
    before: ForecastChoice,
    available: Collection[str] = USUAL,
    *,
    least: int = LEAST,
) -> ForecastChoice:
    """Choose for every block of steps by ``choose``; one choice where they all agree.

    Args:
        available: Names that may be chosen now, as for ``choose``.
        least: Days that a candidate must know to be compared.
    """
    if table.blocks == 1:
        return choose(table, before.name, available, least=least)
    present = before.parts or table.blocks * (before,)
    if len(present) != table.blocks:
        present = table.blocks * (ForecastChoice(),)
    parts = tuple(
        choose(table.block(number), one.name, available, least=least)
        for number, one in enumerate(present)
    )
    errors, days = table.compared(least, _compared(available)), len(table.days)
    names = {part.name for part in parts}
    if len(names) == 1 and MEAN not in names:
        return replace(parts[0], errors=errors, days=days)
    known = [part.errors.get(part.name, np.nan) for part in parts]
    shares = table.counts.sum(axis=0) / max(int(table.counts.sum()), 1)
    errors = {**errors, BY_STEP: float(np.sum(shares * np.array(known)))}
    return ForecastChoice(BY_STEP, {}, errors, days, parts)


def _compared(available: Collection[str]) -> tuple[str, ...]:
    return COLUMNS if LAST_GOOD in available else USUAL


def by_steps(choice: ForecastChoice, horizon: int) -> dict[str, str]:
    """Return the name of the choice for each block of steps; empty where there is one for all.

    >>> parts = (ForecastChoice("own"), *(2 * (ForecastChoice(),)))
    >>> by_steps(ForecastChoice(BY_STEP, {}, parts=parts), 6)
    {'1': 'own', '2-3': 'fleet', '4-6': 'fleet'}
    """
    spans = blocks_of(horizon) if choice.parts else ()
    ends = [(span.start + 1, span.stop) for span in spans]
    names = [str(a) if a == b else f"{a}-{b}" for a, b in ends]
    return dict(zip(names, (part.name for part in choice.parts), strict=True))
