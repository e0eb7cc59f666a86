"""Add noise during training, to the gradient of every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from edge_sdk.methods.training_context import Graph
from edge_sdk.privacy import PrivacySection, noise
from edge_sdk.privacy.ledger import PrivacyCharge
from edge_sdk.privacy.mechanism import Mechanism, SubstitutedGraphs
from edge_sdk.privacy.noise import clipped_noise, range_faults
from edge_sdk.privacy.noise_calibration import Complaint, DeviceFacts, Noise, NoisePoint
from edge_sdk.protocol.contract.manifest import CLIPPED_GRADIENT, GRADIENT
from edge_sdk.protocol.contract.method import Array, Contract

_MARGIN = 1.0 - 2.0**-10  # a graph clips in float32, and its norm may come out too small by this


@dataclass(slots=True)
class GradientNoise(Mechanism):
    """Clip the gradient of each window inside the graph, and add noise to their sum, every step."""

    drawn: int = 0

    @property
    def scale(self) -> tuple[float, float] | None:
        """Return the configured range: a scale from readings would reveal them in every window."""
        low_high = self.plan.mechanism.range
        return (low_high[0], low_high[1]) if low_high else None

    @property
    def may_select_by_loss(self) -> bool:
        """Return False: no noise covers this loss, and the choice would affect later updates."""
        return False

    def graphs(self, graphs: Mapping[str, Graph]) -> Mapping[str, Graph]:
        def gradient(**feeds: Array) -> tuple[Array, ...]:
            return self._step(graphs[CLIPPED_GRADIENT], feeds)

        return SubstitutedGraphs(
            graphs, lambda name, graph: gradient if name == GRADIENT else graph
        )

    def begin(self) -> None:
        """Reset the count of a round's steps."""
        self.drawn = 0

    def cost(self, time: int, releases: int) -> tuple[PrivacyCharge, ...]:
        """Charge every step, whether or not its result is sent: it remains in the state."""
        if not (self.drawn or releases):
            return ()
        return (replace(self.plan.charge(time, count=self.drawn), releases=releases),)

    def _step(self, graph: Graph, feeds: Mapping[str, Array]) -> tuple[Array, ...]:
        reach = self.plan.mechanism.clip_norm or 0.0
        loss, total = graph(**feeds, bound=np.asarray(reach * _MARGIN, np.float32))
        self.drawn += 1
        noisy = total + self.plan.noise * reach * noise.normal(total.size, self.entropy)
        is_swap = self.plan.mechanism.adjacency == "replace"
        count = len(feeds["x"]) if is_swap else self.plan.facts.manifest.training.batch
        return loss, (noisy / count).astype(np.float32)


def _noise(section: PrivacySection, facts: DeviceFacts, unit: str) -> Noise:
    apart = 2.0 if section.mechanism.adjacency == "replace" else 1.0
    windows = facts.occurrences if unit == "reading" else 1
    return clipped_noise(section, apart * windows, draws=facts.max_steps)


def _faults(section: PrivacySection, facts: DeviceFacts) -> Iterator[Complaint]:
    if facts.manifest.target.scale == "device":
        yield from range_faults(section.mechanism, facts)
    if section.mode == "honest" and section.mechanism.adjacency == "add-remove":
        yield (
            "mechanism.adjacency",
            (
                "adding or removing a window changes the windows drawn for a minibatch, so "
                "clip_norm does not bound the difference; use 'replace'"
            ),
        )
    if CLIPPED_GRADIENT not in facts.manifest.graphs:
        yield (
            "mechanism.point",
            (
                f"bundle {facts.manifest.name} has no graph {CLIPPED_GRADIENT!r}, which clips the "
                "gradient of each window; use a bundle that has one, or noise at input or update"
            ),
        )


def _conflicts(contract: Contract) -> Iterator[Complaint]:
    graphs = {graph for one in contract.values() for graph in one.graphs} - {GRADIENT}
    if graphs:
        unsupported = ", ".join(sorted(graphs))
        yield "mechanism.point", f"asks for {unsupported}, whose result is not clipped per window"


GRADIENT_NOISE = NoisePoint(
    "edge_sdk.extensions.noise_points.gradient_noise:GradientNoise",
    names=("gaussian",),
    units=("window", "reading"),
    keys=frozenset(
        {"range", "clip_norm", "noise_multiplier", "epsilon", "calibration", "adjacency"}
    ),
    noise=_noise,
    faults=_faults,
    conflicts=_conflicts,
    is_clipped=True,
    is_each_step=True,
    text="the gradient of every window is clipped to {clip} and every step gets gaussian noise",
)
