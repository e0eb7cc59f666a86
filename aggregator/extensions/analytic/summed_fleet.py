"""Solve the fleet's model from one sum of statistics a pass, which a witness has opened.

No device's statistic is known here: all devices receive the common model, and nothing of one of them
can be removed. A pass begins with the period of its sum, which a journalled event names; so the tasks
of a pass, and what devices give to its sum, are of one version of the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from aggregator.extensions.analytic.fleet import AnalyticFleet, Floats, Statistics
from aggregator.methods.base import round_machine
from aggregator.methods.base.round_machine import NOT_FINITE, RoundHooks, RoundOutcome, published
from edge_sdk.protocol.contract import method

PERIOD = "period"
"""Name of the begin of a sum's period, Unix milliseconds: a number of tasks and events, a part of the state."""


def period_of(state: Statistics) -> int:
    """Return the begin of the period whose sum the open pass waits for; 0 before it is known."""
    return int(state.memory.get(PERIOD, 0))


@dataclass(frozen=True, slots=True)
class SummedFleet(AnalyticFleet):
    """A fleet whose statistics arrive as sums."""

    def counts(self, _state: Statistics, _update: method.Update) -> bool:
        return False

    def tasks(self, state: Statistics, clients: Iterable[str]) -> method.Effects:
        """Return the tasks of a pass; none before its period is known."""
        tasks = AnalyticFleet.tasks(self, state, clients) if period_of(state) else ()
        own = {PERIOD: float(period_of(state))}
        found = (one for one in tasks if isinstance(one, method.Task))
        return tuple(replace(one, values={**one.values, **own}) for one in found)

    def played(
        self, hooks: RoundHooks[Statistics], state: Statistics, event: method.Played
    ) -> tuple[Statistics, method.Effects]:
        """Begin a pass, or begin it again, with the sum of a period; end it with that sum's total.

        The total is the fleet's statistic in the layout of a device's; ``deviation`` is that of the
        noise in every entry of its matrices.
        """
        period, before, why = int(event.values[PERIOD]), period_of(state), ""
        if not state.is_open or event.round != state.round or (event.arrays and period != before):
            return state, ()
        if not event.arrays:
            state = replace(state, memory={PERIOD: np.array(period)})
            if not before:
                return state, self.tasks(state, state.quorum.present)
            why = "its sum was not opened"
        else:
            w, why = self._of_total(state, event)
            state = replace(state, w=state.w if why else w, memory={})
        report = {"cohort": [], "windows": {}, **event.values}
        outcome = RoundOutcome(state, report, state.quorum.present, why)
        return round_machine.concluded(hooks, outcome)

    def _of_total(self, state: Statistics, event: method.Played) -> tuple[Floats, str]:
        noisy = replace(self, deviation=event.values["deviation"])
        try:
            w, _ = noisy.moved(replace(state, held={"sum": event.arrays["total"]}))
        except (ValueError, np.linalg.LinAlgError) as error:  # noise hides the number of windows
            return state.w, str(error)
        return w, "" if np.isfinite(published(w)).all() else NOT_FINITE
