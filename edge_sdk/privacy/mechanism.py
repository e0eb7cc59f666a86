"""Define the privacy mechanism between readings, training and outbox; and the default one.

A mechanism is called before a round, for the readings and the graphs to train with, and after it,
for the update that may be sent and its cost. Noise is drawn once per release, from the operating
system, and stored with it; a resend has the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.forecasting.series import Series
from edge_sdk.methods.training_context import Graph
from edge_sdk.privacy.ledger import PrivacyCharge
from edge_sdk.privacy.noise_calibration import NoisePlan
from edge_sdk.protocol.contract.method import Update

Entropy = Callable[[int], bytes]
"""Function that returns random bytes; only a test passes anything but ``os.urandom``."""


@dataclass(slots=True)
class Mechanism:
    """Privacy mechanism between a device's readings and the outbox; this one adds no noise.

    It leaves readings and graphs unchanged, and withholds measured scalars. A point of noise has a
    class that overrides what it changes.
    """

    plan: NoisePlan  # calibrated numbers
    # names of the update's scalars from readings; withheld unless configured otherwise
    measured: frozenset[str] = frozenset({"n", "loss"})
    entropy: Entropy = os.urandom  # source of randomness; only a test passes another one
    shelf: Any = None  # the device's store, for a mechanism that stores its draws
    clock: Callable[[], int] = lambda: 0  # milliseconds since 1970, for the ledger

    @property
    def origin(self) -> str:
        """Return the data that learned layers come from; layers of another origin are discarded."""
        point = self.plan.point
        is_before = (point.is_on_readings or point.is_each_step) and not self.plan.is_paper
        return self.plan.mechanism.point if is_before else "none"

    @property
    def scale(self) -> tuple[float, float] | None:
        """Return a public scale to train on, where the device's own scale would reveal readings."""
        return None

    @property
    def may_select_by_loss(self) -> bool:
        """Return whether a loss on held-back windows may select the model to train from.

        It may: the readings are already noisy, or noise is added to every update.
        """
        return True

    def learnable(self, series: Series) -> Series:
        """Return the readings to train on: possibly perturbed, always with the same noise."""
        return series

    def graphs(self, graphs: Mapping[str, Graph]) -> Mapping[str, Graph]:
        """Return the graphs that a half may run."""
        return graphs

    def begin(self) -> None:
        """Reset the counts, if any: the draws of an abandoned round are not saved."""

    def release(self, update: Update) -> Update:
        """Return the update to send. Called once per release; the result is stored, then sent.

        Here: without its measured scalars, unless they may be sent.
        """
        if self.plan.sends_metrics:
            return update
        values = {k: v for k, v in update.values.items() if k not in self.measured}
        return replace(update, values=values)

    def cost(self, time: int, releases: int) -> tuple[PrivacyCharge, ...]:
        """Return the charges of the round since ``begin``, given its number of numbered messages."""
        return tuple(self.plan.release(time) for _ in range(releases))


class SubstitutedGraphs(Mapping[str, Graph]):
    """Graphs by name, each passed through ``swap`` when it is read."""

    def __init__(self, graphs: Mapping[str, Graph], swap: Callable[[str, Graph], Graph]) -> None:
        self._graphs, self._swap = graphs, swap

    def __getitem__(self, name: str) -> Graph:
        return self._swap(name, self._graphs[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._graphs)

    def __len__(self) -> int:
        return len(self._graphs)


def mechanism_of(
    plan: NoisePlan,
    shelf: Any,  # noqa: ANN401 - the device's store, or a part of it in a test
    clock: Callable[[], int],
    *,
    measured: frozenset[str],
    entropy: Entropy = os.urandom,
) -> Mechanism:
    """Return the mechanism of a plan, to be attached at its point."""
    made: Mechanism = resolve_name(plan.point.mechanism)(plan, measured, entropy, shelf, clock)
    return made
