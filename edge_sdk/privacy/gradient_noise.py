"""Add noise during training: to the gradient of every step or, as in papers, to every input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from edge_sdk.methods.training_context import Graph
from edge_sdk.privacy import noise
from edge_sdk.privacy.event import PrivacyCharge
from edge_sdk.privacy.mechanism import NoMechanism
from edge_sdk.wire.contract.manifest import CLIPPED_GRADIENT, FORECAST, GRADIENT
from edge_sdk.wire.contract.method import Array

_MARGIN = 1.0 - 2.0**-10  # a graph clips in float32, and its norm may come out too small by this


@dataclass(slots=True)
class GradientNoise(NoMechanism):
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
        """Replace the gradient graph with the clipped and noisy one."""

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


@dataclass(slots=True)
class PaperInputNoise(NoMechanism):
    """Add noise as a paper does: new noise on every window's inputs, and clean targets."""

    def graphs(self, graphs: Mapping[str, Graph]) -> Mapping[str, Graph]:
        """Perturb the inputs of every training graph, with new noise at every call."""

        def swap(name: str, graph: Graph) -> Graph:
            return graph if name == FORECAST else self._noisy(graph)

        return SubstitutedGraphs(graphs, swap)

    def _noisy(self, graph: Graph) -> Graph:
        def run(**feeds: Array) -> tuple[Array, ...]:
            if "x" not in feeds:  # values computed from noisy inputs
                return graph(**feeds)
            x = feeds["x"]
            spread = self.plan.noise * noise.normal(x.size, self.entropy).reshape(x.shape)
            return graph(**{**feeds, "x": (x + spread).astype(np.float32)})

        return run


class SubstitutedGraphs(Mapping[str, Graph]):
    """Graphs by name, each passed through ``swap`` when it is read."""

    def __init__(self, graphs: Mapping[str, Graph], swap: Callable[[str, Graph], Graph]) -> None:
        self._graphs, self._swap = graphs, swap

    def __getitem__(self, name: str) -> Graph:
        """Return one graph, possibly replaced."""
        return self._swap(name, self._graphs[name])

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._graphs)

    def __len__(self) -> int:
        """Count the graphs."""
        return len(self._graphs)
