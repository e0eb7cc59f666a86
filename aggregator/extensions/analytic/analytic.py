"""Solve the fleet's model from the newest statistic of every device.

A statistic is a sum over windows, so the fleet's is the sum over devices: it depends neither on the
order of arrival nor on lateness, and a newer statistic of a device replaces its older one. The first
round computes the constants that standardise features, from sums that its statistics contain; every
later one re-weighs the windows by the residuals of the model before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.analytic.settings import Analytic, fault_of
from aggregator.methods.base import round_machine
from aggregator.methods.base.quorum import LatestUpdates, latest_update_hooks, outcome
from aggregator.methods.base.round_machine import (
    ASK,
    NOT_FINITE,
    RoundHooks,
    RoundOutcome,
    published,
)
from aggregator.methods.base.types import Method, Setup, has_no_use
from aggregator.rules import Memory, Rows, Rule, TooFewRows
from aggregator.rules.parameters import uniform
from edge_sdk.app.schema import SchemaError
from edge_sdk.extensions.analytic.bundle_section import AnalyticSection, statistic_layout
from edge_sdk.extensions.analytic.private_release import stable_penalty
from edge_sdk.extensions.analytic.solve import ridge, votes
from edge_sdk.extensions.analytic.standardise import FeatureSums, Standardiser
from edge_sdk.extensions.analytic.statistics import Statistic, from_vector, total
from edge_sdk.protocol.contract import method
from edge_sdk.protocol.contract.parameter_layout import Vector

Floats = NDArray[np.float64]

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
    # rounds beyond the limit: a client was removed while devices learned in the last one with
    # vectors that contain its windows
    more: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class AnalyticFleet:
    """Settings that the solution of a fleet depends on, besides its statistics."""

    section: AnalyticSection  # the bundle's section
    outputs: int
    rule: Rule | None  # combines solutions; None solves the sum
    deviation: float = 0.0  # standard deviation of the noise in every entry of a device's matrix

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
        report, others = self.report(state), self.others(w, held)
        return outcome(replace(state, w=w, memory=memory, held=held, others=others), report)

    def others(self, w: Floats, held: Mapping[str, method.Array]) -> dict[str, Vector]:
        """Return for every client the vector of all others; none with a rule, or in a large fleet.

        A device that is drawn towards a fleet which it is part of counts its windows twice.
        """
        if self.rule is not None or not 1 < len(held) <= SMALL:
            return {}
        constants = w[: 2 * len(self.section.features)]
        known = self.statistics(held)
        whole = total(known)
        found = {name: self.solution(whole - one, len(known) - 1) for name, one in known.items()}
        vectors = {n: published(np.concatenate([constants, c.ravel()])) for n, c in found.items()}
        return {name: vector for name, vector in vectors.items() if np.isfinite(vector).all()}

    def report(self, state: Statistics) -> dict[str, Any]:
        known = self.statistics(state.held)
        return {"windows": {name: one.count for name, one in known.items()}}

    def moved(self, state: Statistics) -> tuple[Floats, Memory]:
        """Return the next vector, and the rule's memory; raise TooFewRows if it needs more devices."""
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


def analytic(setup: Setup) -> method.Half[Statistics]:
    """Return the server half.

    Raises:
        SchemaError: A rule where statistics are added, or a setting that the method does not use.
    """
    settings: Analytic = setup.settings
    has_no_use(setup, "weighting", "share")
    if settings.combine == "sum":
        has_no_use(setup, "rule")
    fleet = fleet_of(setup)
    limit = setup.rounds.limit or settings.passes + fleet.is_first(0)
    rounds = replace(setup.rounds, limit=limit)
    hooks = replace(latest_update_hooks(rounds, fleet.tasks, fleet.outcome), counts=fleet.counts)

    def init(w: Vector) -> Statistics:
        return Statistics(0, 0, False, np.asarray(w, np.float64).copy())

    return method.Half(init, partial(_apply, fleet, hooks), lambda state: {"p": published(state.w)})


def _apply(
    fleet: AnalyticFleet, hooks: RoundHooks[Statistics], state: Statistics, event: method.Event
) -> tuple[Statistics, method.Effects]:
    if isinstance(event, method.Unlearned):
        return _unlearned(state, event.client, fleet, hooks.rounds.limit or 0)
    if (
        isinstance(event, method.Update)
        and state.is_open
        and not fleet.fits(event.base, state.version)
    ):
        return state, fleet.tasks(state, [event.sender])
    limit = (hooks.rounds.limit or 0) + state.more
    hooks = replace(hooks, rounds=replace(hooks.rounds, limit=limit))
    return round_machine.apply(hooks, state, event)


def fleet_of(setup: Setup) -> AnalyticFleet:
    """Return the inputs of a fleet's solution; raise SchemaError for a bundle that is not in closed form."""
    if setup.analytic is None or setup.spec is None:
        raise SchemaError("run.bundle", "a model in closed form, such as load-analytic")
    shape = next(one.shape for one in setup.spec.layers if one.name == "coefficients")
    rule = setup.rule if setup.settings.combine == "votes" else None
    return AnalyticFleet(setup.analytic, shape[0], rule, setup.settings.deviation)


def _unlearned(
    state: Statistics, client: str, fleet: AnalyticFleet, limit: int
) -> tuple[Statistics, method.Effects]:
    """Remove a client's statistic; after the run, also solve and publish the model without it.

    In an open round the next model is without it; if that round is the last, one more follows,
    after which no device is drawn towards a vector that contains the client's windows. Sums are taken in
    order of name over what is held, so they have the bits of a fleet that never had this client.
    """
    if client not in state.held and client not in state.quorum.arrived:
        return state, ()
    state = replace(
        state,
        held={name: one for name, one in state.held.items() if name != client},
        losses={name: one for name, one in state.losses.items() if name != client},
        others={},  # they contain its windows
        quorum=replace(
            state.quorum,
            arrived={name: base for name, base in state.quorum.arrived.items() if name != client},
        ),
    )
    if state.is_open:
        is_last = state.version + 1 >= limit + state.more
        return replace(state, more=state.more + is_last), ()
    try:
        w, memory = fleet.moved(state) if state.held else (_forgotten(state, fleet), state.memory)
    except TooFewRows:
        w, memory = _forgotten(state, fleet), state.memory
    report = {"unlearned": client, **fleet.report(state), "cohort": [], "stop": True}
    state = replace(state, w=w, memory=memory, round=state.round + 1, version=state.version + 1)
    return state, (method.Closed(state.round, state.version, moved=True, report=report),)


def _forgotten(state: Statistics, fleet: AnalyticFleet) -> Floats:
    fixed = 2 * len(fleet.section.features)
    return np.concatenate([state.w[:fixed], np.zeros(len(state.w) - fixed)])


# the server half, its settings, and the check of a received statistic
ANALYTIC = Method(Analytic, analytic, fault=fault_of)
