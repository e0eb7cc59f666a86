"""Solve the fleet's model of tomorrow's profile: some stages of known days, the others stay the bundle's.

The first pass is least squares, and its solution the expected value. Every later one weighs rows by
the residuals of the median before it, which is the bundle's own in the beginning, and goes
``RELAXATION`` times as far as its solution; the first of them and the last go as far as it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from aggregator.extensions.analytic.fleet import SMALL, Floats, StatisticFleet, Statistics
from aggregator.methods.base.round_machine import published
from aggregator.methods.base.types import Setup
from aggregator.rules import Memory
from edge_sdk.app.schema import SchemaError
from edge_sdk.extensions.analytic.profile_form import RELAXATION, STAGES, next_coefficients
from edge_sdk.extensions.analytic.profile_section import WIDTH, ProfileSection
from edge_sdk.extensions.analytic.statistics import Statistic, total
from edge_sdk.protocol.contract import method
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector

PASSES = 8
"""Rounds of a run, unless its settings say otherwise: fewer than eight have not converged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFleet(StatisticFleet[ProfileSection]):
    """Settings that the profile of a fleet depends on, besides its statistics."""

    section: ProfileSection
    spec: ParamSpec  # of the bundle's vector
    last: int  # rounds of the run

    def begun(self, w: Vector) -> Statistics:
        wide = np.asarray(w, np.float64).copy()
        return Statistics(0, 0, False, wide, prior={"w": wide.copy()})

    def forgotten(self, state: Statistics) -> Floats:
        return np.array(state.prior["w"], np.float64)

    def rounds(self, _limit: int | None, _passes: int | None) -> int:
        return self.last

    def cleared(self, state: Statistics) -> Floats:
        """Return the vector with the bundle's expected values: the first pass is not kept by device."""
        found, layer = state.w.copy(), self._layer("expected")
        found[layer] = state.prior["w"][layer]
        return found

    def moved(self, state: Statistics) -> tuple[Floats, Memory]:
        known = self.statistics(state.held)
        return self._solved(state.w, total(known), state.version), state.memory

    def others(
        self, before: Statistics, _w: Floats, held: Mapping[str, method.Array]
    ) -> dict[str, Vector]:
        if not 1 < len(held) <= SMALL:
            return {}
        known = self.statistics(held)
        whole, found = total(known), {}
        for name, one in known.items():
            start = np.asarray(before.others.get(name, before.w), np.float64)
            found[name] = published(self._solved(start, whole - one, before.version))
        return {name: vector for name, vector in found.items() if np.isfinite(vector).all()}

    def _solved(self, w: Floats, statistic: Statistic, version: int) -> Floats:
        """Return a vector after the pass of ``version``; stages without rows keep their solution."""
        stages = self._stages(statistic)
        found, is_first = w.copy(), version == 0
        if not stages:
            return found
        layer = self._layer("expected" if is_first else "coefficients")
        solution = found[layer].reshape(len(STAGES), WIDTH)
        step = RELAXATION if 1 < version < self.last - 1 else 1.0
        penalty = self.section.penalty
        after = next_coefficients(
            None if is_first else solution, stages, penalty, step=1.0 if is_first else step
        )
        rows = list(stages)
        solution[rows] = after[rows]
        return found

    def _stages(self, statistic: Statistic) -> dict[int, Statistic]:
        """Return the sums of the stages that some device has."""
        found = {}
        for place, stage in enumerate(self.section.stages):
            one = slice(place, place + 1)
            gram, cross = statistic.gram[one], statistic.cross[one]
            rest = statistic.squares[one], statistic.residuals[one]
            if float(np.abs(gram).max()) > 0.0:
                found[stage] = Statistic(gram, cross, *rest, statistic.count)
        return found

    def _layer(self, name: str) -> slice:
        one = next(layer for layer in self.spec.layers if layer.name == name)
        return slice(one.offset, one.offset + one.size)


def profile_fleet(setup: Setup) -> ProfileFleet:
    """Return the inputs of a fleet's profile.

    Raises:
        SchemaError: Votes, or noise: both are for one solution per device.
    """
    settings, section, spec = setup.settings, setup.analytic, setup.spec
    assert isinstance(section, ProfileSection)
    assert spec is not None
    if settings.combine != "sum":
        raise SchemaError("run.settings.combine", "'sum' for a bundle of profiles")
    if settings.noise:
        raise SchemaError("run.settings.noise", "0 for a bundle of profiles")
    last = setup.rounds.limit or settings.passes or PASSES
    return ProfileFleet(section=section, outputs=len(section.stages), spec=spec, last=last)
