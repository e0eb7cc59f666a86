"""Add noise to a statistic: rows, targets and weights bounded, one Gaussian release for each pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from edge_sdk.extensions.analytic.bundle_section import BOUNDED_STATISTIC
from edge_sdk.extensions.analytic.private_release import released, sensitivity
from edge_sdk.extensions.analytic.statistics import from_vector, to_vector
from edge_sdk.methods.training_context import Graph
from edge_sdk.privacy import PrivacySection, noise
from edge_sdk.privacy.mechanism import Mechanism, SubstitutedGraphs
from edge_sdk.privacy.noise import clipped_noise, range_faults
from edge_sdk.privacy.noise_calibration import Complaint, DeviceFacts, Noise, NoisePoint
from edge_sdk.protocol.contract.manifest import STATISTIC
from edge_sdk.protocol.contract.method import Array, Contract, Update, answered


@dataclass(slots=True)
class StatisticNoise(Mechanism):
    """Bound every window's share of a statistic, then add noise to its sums."""

    @property
    def scale(self) -> tuple[float, float] | None:
        """Return the configured range: a scale from readings would reveal them in every window."""
        low_high = self.plan.mechanism.range
        return (low_high[0], low_high[1]) if low_high else None

    @property
    def may_select_by_loss(self) -> bool:
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
        return replace(Mechanism.release(self, update), vector=to_vector(sent))


def _noise(section: PrivacySection, facts: DeviceFacts, unit: str) -> Noise:
    outputs = math.prod(facts.manifest.forecast_shape)
    windows = facts.windows_of_a_reading if unit == "reading" else 1
    return clipped_noise(section, sensitivity(outputs) * windows)


def _faults(section: PrivacySection, facts: DeviceFacts) -> Iterator[Complaint]:
    if facts.manifest.target.scale == "device":
        yield from range_faults(section.mechanism, facts)
    if facts.manifest.analytic is None:
        yield (
            "mechanism.point",
            (
                f"bundle {facts.manifest.name} is no model in closed form, so no statistic leaves; use "
                "load-analytic, or noise at input, gradient or update"
            ),
        )
    elif BOUNDED_STATISTIC not in facts.manifest.functions:
        yield (
            "mechanism.point",
            f"bundle {facts.manifest.name} has no statistic in which a window's share is bounded",
        )


def _conflicts(contract: Contract) -> Iterator[Complaint]:
    ask = answered(contract)[1]
    if not ask.has_statistic:
        yield "mechanism.point", f"answers {ask.up.value!r}, not a statistic"


STATISTIC_NOISE = NoisePoint(
    "edge_sdk.extensions.analytic.statistic_noise:StatisticNoise",
    names=("gaussian",),
    units=("window", "reading"),
    keys=frozenset({"range", "clip_norm", "noise_multiplier", "epsilon", "calibration"}),
    noise=_noise,
    faults=_faults,
    conflicts=_conflicts,
    is_clipped=True,
    text="in every statistic the row of a window is clipped to {clip} and its weight to 1, and the "
    "sums get gaussian noise",
)
