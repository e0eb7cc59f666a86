"""Solve the fleet's model of tomorrow's profile at some stages of known days; interpolate the others.

Every pass weighs rows by the residuals of the median before it, which is the bundle's own in the
beginning, and goes ``RELAXATION`` times as far as its solution; the first and the last go as far as it
says. Every pass is drawn to the bundle's coefficients, so that a fleet of a few devices stays near
them. A stage that no device teaches moves as far from the bundle's coefficients as the taught ones
beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

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

PASSES = 3
"""Rounds of a run, unless its settings say otherwise: from a bundle's prior, further ones change next to nothing."""

PRIOR = 0.03
"""Weight of the bundle's coefficients, in devices: of 0.01 to 1, about the best for four to eight homes."""


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

    def weighted(self, _version: int) -> float:
        return 1.0

    def tasks(self, state: Statistics, clients: Iterable[str]) -> method.Effects:
        """Return the tasks of a pass; the last one alone brings the vector of all others.

        In a pass before it every device weighs its rows under the same vector: with vectors of all
        others a small fleet's passes move apart instead of together.
        """
        is_last = state.version >= self.last - 1
        state = state if is_last else replace(state, others={})
        return StatisticFleet.tasks(self, state, clients)

    def moved(self, state: Statistics) -> tuple[Floats, Memory]:
        known = self.statistics(state.held)
        step = RELAXATION if 0 < state.version < self.last - 1 else 1.0
        after = self._solved(state.w, total(known), len(known), state, step)
        return after, state.memory

    def others(
        self, before: Statistics, _w: Floats, held: Mapping[str, method.Array]
    ) -> dict[str, Vector]:
        if not 1 < len(held) <= SMALL:
            return {}
        known = self.statistics(held)
        whole, found = total(known), {}
        for name, one in known.items():
            after = self._solved(before.w, whole - one, len(known) - 1, before, 1.0)
            found[name] = published(after)
        return {name: vector for name, vector in found.items() if np.isfinite(vector).all()}

    def _solved(
        self, w: Floats, sums: Statistic, devices: int, state: Statistics, step: float
    ) -> Floats:
        """Return a vector after the state's pass; one without rows keeps its solution.

        The penalty draws to the bundle's coefficients as strongly as ``PRIOR`` devices would.
        """
        stages, found = self._stages(sums), w.copy()
        if not stages:
            return found
        layer = self._layer("coefficients")
        before, prior = (one[layer].reshape(len(STAGES), WIDTH) for one in (w, state.prior["w"]))
        after = next_coefficients(before, stages, PRIOR / devices, step=step, towards=prior)
        found[layer] = (prior + _shares(stages) @ (after - prior)[list(stages)]).ravel()
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


def _shares(taught: Iterable[int]) -> Floats:
    """Return the share of each taught stage in the step of every stage, ``(stages, taught)``.

    It is linear in the logarithm of the known days; beyond the taught stages it is the nearest's.
    """
    known = np.log(STAGES)
    rows = np.array(list(taught))
    return np.stack([np.interp(known, known[rows], one) for one in np.eye(len(rows))], axis=1)


def profile_fleet(setup: Setup) -> ProfileFleet:
    """Return the inputs of a fleet's profile.

    Raises:
        SchemaError: Votes, or noise, or sums: they are for bundles with one solution per device.
    """
    settings, section, spec = setup.settings, setup.analytic, setup.spec
    assert isinstance(section, ProfileSection)
    assert spec is not None
    if settings.combine != "sum":
        raise SchemaError("run.settings.combine", "'sum' for a bundle of profiles")
    if settings.noise:
        raise SchemaError("run.settings.noise", "0 for a bundle of profiles")
    if settings.contract:
        raise SchemaError("run.settings.contract", "none for a bundle of profiles")
    last = setup.rounds.limit or settings.passes or PASSES
    return ProfileFleet(section=section, outputs=len(section.stages), spec=spec, last=last)
