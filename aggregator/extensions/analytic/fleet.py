"""Solve the model of a fleet from the newest statistic of every device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.base.quorum import LatestUpdates, outcome
from aggregator.methods.base.round_machine import ASK, NOT_FINITE, RoundOutcome, published
from aggregator.rules import Memory, Rows, Rule, TooFewRows
from aggregator.rules.parameters import uniform
from edge_sdk.extensions.analytic.bundle_section import AnalyticSection, statistic_layout
from edge_sdk.extensions.analytic.private_release import stable_penalty
from edge_sdk.extensions.analytic.solve import ridge, votes
from edge_sdk.extensions.analytic.standardise import FeatureSums, Standardiser
from edge_sdk.extensions.analytic.statistics import Statistic, from_vector, total
from edge_sdk.protocol.contract import method
from edge_sdk.protocol.contract.parameter_layout import Vector

Floats = NDArray[np.float64]

PASSES = 3
"""Passes of a run, unless its settings say otherwise."""

SMALL = 100
"""Largest fleet whose devices each receive the model of all others. In a larger one a device's own
share of the sum is below a hundredth, and a solution for every device would take too long."""


@dataclass(frozen=True, slots=True, eq=False)
class Statistics(LatestUpdates):
    """State of the server: ``held`` has every device's newest statistic."""

    memory: Mapping[str, method.Array] = field(default_factory=dict, kw_only=True)
    # for every client whose statistic is in the model, the vector that the statistics of all others
    # give, float32; empty for a fleet above ``SMALL``
    others: Mapping[str, method.Array] = field(default_factory=dict, kw_only=True)
    # the vector that the run began with, where it is a model already: that of a bundle with a prior
    prior: Mapping[str, method.Array] = field(default_factory=dict, kw_only=True)
    # rounds beyond the limit: a client was removed while devices learned in the last one with
    # vectors that contain its windows
    more: int = field(default=0, kw_only=True)


class Section(Protocol):
    """The properties of a section that both kinds of bundles in closed form have."""

    @property
    def width(self) -> int: ...

    @property
    def standardised(self) -> bool: ...


S = TypeVar("S", bound=Section)


@dataclass(frozen=True, slots=True)
class StatisticFleet(Generic[S]):
    """A fleet whose model is solved from the newest statistic of every device."""

    section: S  # the bundle's section
    outputs: int

    @property
    def size(self) -> int:
        return statistic_layout(self.outputs, self.section.width).size

    def is_first(self, version: int) -> bool:
        return version == 0 and not self.section.standardised

    def fits(self, base: int, version: int) -> bool:
        return self.is_first(base) == self.is_first(version)

    def counts(self, state: Statistics, update: method.Update) -> bool:
        """Return whether an update is a statistic for a task after the client's last counted one."""
        is_new = state.quorum.counts(update.sender, update.base, state.version)
        return is_new and update.vector.shape == (self.size,)

    def weighted(self, version: int) -> float:
        return float(version > (0 if self.section.standardised else 1))

    def statistics(self, held: Mapping[str, method.Array]) -> dict[str, Statistic]:
        """Return statistics by device, in order of name."""
        width = self.section.width
        return {name: from_vector(held[name], self.outputs, width) for name in sorted(held)}

    def tasks(self, state: Statistics, clients: Iterable[str]) -> method.Effects:
        """Return the tasks that send some clients the present vector, or that of all others."""
        values, common = {"weighted": self.weighted(state.version)}, published(state.w)
        sent = {name: {"w": state.others.get(name, common)} for name in sorted(clients)}
        return tuple(
            method.Task(name, state.round, ASK, base=state.version, values=values, arrays=arrays)
            for name, arrays in sent.items()
        )

    def outcome(self, state: Statistics) -> RoundOutcome[Statistics]:
        """Return the result of a full round; statistics of the first one are not used again."""
        try:
            w, memory = self.moved(state)
        except (TooFewRows, np.linalg.LinAlgError) as error:
            return outcome(state, {}, str(error))
        if not np.isfinite(published(w)).all():
            return outcome(state, {}, NOT_FINITE)
        held = {} if self.is_first(state.version) else state.held
        report, others = self.report(state), self.others(state, w, held)
        return outcome(replace(state, w=w, memory=memory, held=held, others=others), report)

    def begun(self, w: Vector) -> Statistics:
        return Statistics(0, 0, False, np.asarray(w, np.float64).copy())

    def report(self, state: Statistics) -> dict[str, Any]:
        known = self.statistics(state.held)
        return {"windows": {name: one.count for name, one in known.items()}}

    def cleared(self, state: Statistics) -> Floats:
        """Return the start vector of a client's removal; its coefficients are solved anew."""
        return state.w

    def rounds(self, limit: int | None, passes: int | None) -> int:
        """Return the rounds of the run: ``run.rounds``, or all passes."""
        raise NotImplementedError

    def moved(self, state: Statistics) -> tuple[Floats, Memory]:
        """Return the next vector, and the rule's memory; raise TooFewRows if it needs more devices."""
        raise NotImplementedError

    def others(
        self, before: Statistics, w: Floats, held: Mapping[str, method.Array]
    ) -> dict[str, Vector]:
        """Return for every client the vector of all others; none with a rule, or in a large fleet.

        A device that is drawn towards a fleet which it is part of counts its windows twice.
        """
        raise NotImplementedError

    def forgotten(self, state: Statistics) -> Floats:
        """Return the vector of a run in which no client is left."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class AnalyticFleet(StatisticFleet[AnalyticSection]):
    """Settings that the solution of a fleet depends on, besides its statistics."""

    rule: Rule | None  # combines solutions; None solves the sum
    deviation: float = 0.0  # standard deviation of the noise in every entry of a device's matrix

    def rounds(self, limit: int | None, passes: int | None) -> int:
        return limit or (passes or PASSES) + self.is_first(0)

    def forgotten(self, state: Statistics) -> Floats:
        fixed = 2 * len(self.section.features)
        return np.concatenate([state.w[:fixed], np.zeros(len(state.w) - fixed)])

    def others(
        self, _before: Statistics, w: Floats, held: Mapping[str, method.Array]
    ) -> dict[str, Vector]:
        if self.rule is not None or not 1 < len(held) <= SMALL:
            return {}
        constants = w[: 2 * len(self.section.features)]
        known = self.statistics(held)
        whole = total(known)
        found = {name: self.solution(whole - one, len(known) - 1) for name, one in known.items()}
        vectors = {n: published(np.concatenate([constants, c.ravel()])) for n, c in found.items()}
        return {name: vector for name, vector in vectors.items() if np.isfinite(vector).all()}

    def moved(self, state: Statistics) -> tuple[Floats, Memory]:
        known = self.statistics(state.held)
        if self.is_first(state.version):
            return self._standardised(state, known)
        fixed = 2 * len(self.section.features)
        constants, before = state.w[:fixed], state.w[fixed:]
        if self.rule is None:
            solved, memory = self.solution(total(known), len(known)).ravel(), state.memory
        else:
            names, rows = votes(known, self.section.penalty)
            step, memory = self._combined(names, before - rows, state.memory)
            solved = before - step
        return np.concatenate([constants, solved]), memory

    def solution(self, statistic: Statistic, devices: int) -> Floats:
        """Return the coefficients of a sum of statistics, shape ``(outputs, P)``.

        Independent noise of m devices has √m times the deviation of one.
        """
        lifted = stable_penalty(statistic, self.deviation * math.sqrt(devices))
        return ridge(statistic, self.section.penalty * max(statistic.count, 1.0) + lifted)

    def _standardised(
        self, state: Statistics, known: Mapping[str, Statistic]
    ) -> tuple[Floats, Memory]:
        sums = {name: self._moments(one) for name, one in known.items()}
        memory = state.memory
        if self.rule is None:
            made = Standardiser.of_fleet(sums)
        else:
            rows = np.stack([np.concatenate([s.total, s.squares]) / s.count for s in sums.values()])
            middle, memory = self._combined(list(sums), rows, memory)
            mean, square = np.split(middle, 2)
            one = FeatureSums(1.0, mean, square)
            made = Standardiser.of_fleet({"fleet": one})
        zeros = np.zeros(len(state.w) - 2 * len(made.mean))
        return np.concatenate([made.mean, made.deviation, zeros]), memory

    def _moments(self, statistic: Statistic) -> FeatureSums:
        """Return a device's sums over rows: they are the last column and the diagonal.

        The constant is the last entry of every row, and windows have weight 1 in this round.
        """
        count, outputs = len(self.section.features), self.outputs
        grams = [statistic.matrix(o) for o in range(outputs)]
        sums = np.sum([gram[:count, -1] for gram in grams], axis=0)
        squares = np.sum([np.diag(gram)[:count] for gram in grams], axis=0)
        return FeatureSums(float(sum(gram[-1, -1] for gram in grams)), sums, squares)

    def _combined(self, names: list[str], rows: Floats, memory: Memory) -> tuple[Floats, Memory]:
        assert self.rule is not None
        stacked = Rows.of(dict(zip(names, rows, strict=True)))
        verdict = self.rule(stacked, uniform(len(stacked)), memory)
        return np.asarray(verdict.value, np.float64), verdict.memory
