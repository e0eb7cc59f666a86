"""Add noise to a statistic: rows, targets and weights bounded, one Gaussian release for each pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from edge_sdk.analytic.private_release import released
from edge_sdk.analytic.statistic_vector import from_vector, to_vector
from edge_sdk.methods.training_context import Graph
from edge_sdk.privacy import noise
from edge_sdk.privacy.gradient_noise import SubstitutedGraphs
from edge_sdk.privacy.mechanism import NoMechanism
from edge_sdk.wire.contract.analytic import BOUNDED_STATISTIC, STATISTIC
from edge_sdk.wire.contract.method import Array, Update


@dataclass(slots=True)
class StatisticNoise(NoMechanism):
    """Bound every window's share of a statistic, then add noise to its sums."""

    @property
    def scale(self) -> tuple[float, float] | None:
        """Return the configured range: a scale from readings would reveal them in every window."""
        low_high = self.plan.mechanism.range
        return (low_high[0], low_high[1]) if low_high else None

    @property
    def judges(self) -> bool:
        """Return False: no noise covers a loss on held-back windows."""
        return False

    def graphs(self, graphs: Mapping[str, Graph]) -> Mapping[str, Graph]:
        """Replace the statistic with the one whose rows and weights are bounded."""
        bound = np.asarray(self.plan.mechanism.clip_norm or 0.0)

        def statistic(**feeds: Array) -> tuple[Array, ...]:
            return graphs[BOUNDED_STATISTIC](**feeds, bound=bound)

        return SubstitutedGraphs(
            graphs, lambda name, graph: statistic if name == STATISTIC else graph
        )

    def release(self, update: Update) -> Update:
        """Return the update with noise in its sums, and no sum that noise does not cover."""
        section = self.plan.facts.manifest.analytic
        assert section is not None  # the plan was refused otherwise
        outputs = math.prod(self.plan.facts.manifest.forecast_shape)
        own = from_vector(np.nan_to_num(update.vector), outputs, section.width)
        sent = released(
            own,
            self.plan.noise,
            row=self.plan.mechanism.clip_norm or 0.0,
            target=section.clip,
            normal=lambda count: noise.normal(count, self.entropy),
        )
        return replace(NoMechanism.release(self, update), vector=to_vector(sent))
