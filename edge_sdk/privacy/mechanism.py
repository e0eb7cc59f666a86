"""Define the privacy mechanism between readings, training and outbox; and the default one.

A mechanism is called before a round, for the readings and the graphs to train with, and after it,
for the update that may be sent and its cost. Noise is drawn once per release, from the operating
system, and stored with it; a resend has the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from edge_sdk.forecasting.series import Series
from edge_sdk.methods.training_context import Graph
from edge_sdk.privacy.datasheet import guarantee
from edge_sdk.privacy.event import PrivacyCharge
from edge_sdk.privacy.noise import Entropy
from edge_sdk.privacy.noise_calibration import NoisePlan
from edge_sdk.wire.contract.method import Update


class Mechanism(Protocol):
    """Privacy mechanism between a device's readings and the outbox."""

    @property
    def plan(self) -> NoisePlan:
        """Return the calibrated numbers."""

    @property
    def origin(self) -> str:
        """Return the data that learned layers come from; layers of another origin are discarded."""

    @property
    def guarantee_text(self) -> str:
        """Return the guarantee of this mechanism as a sentence."""

    @property
    def scale(self) -> tuple[float, float] | None:
        """Return a public scale to train on, where the device's own scale would reveal readings."""

    @property
    def may_select_by_loss(self) -> bool:
        """Return whether a loss on held-back windows may select the model to train from."""

    def learnable(self, series: Series) -> Series:
        """Return the readings to train on: possibly perturbed, always with the same noise."""

    def graphs(self, graphs: Mapping[str, Graph]) -> Mapping[str, Graph]:
        """Return the graphs that a half may run."""

    def begin(self) -> None:
        """Reset the counts: the draws of an abandoned round are not saved."""

    def release(self, update: Update) -> Update:
        """Return the update to send. Called once per release; the result is stored, then sent."""

    def cost(self, time: int, releases: int) -> tuple[PrivacyCharge, ...]:
        """Return the charges of the round since ``begin``, with so many numbered messages."""


@dataclass(slots=True)
class NoMechanism:
    """Default of all mechanisms: leave readings and graphs unchanged; withhold measured scalars.

    Attributes:
        plan: Calibrated numbers.
        measured: Names of the update's scalars from readings; withheld unless configured otherwise.
        entropy: Source of randomness; only a test passes another one.
    """

    plan: NoisePlan
    measured: frozenset[str] = frozenset({"n", "loss"})
    entropy: Entropy = os.urandom

    @property
    def origin(self) -> str:
        """Return the origin of the layers: plain readings, unless noise is added to the input."""
        point = self.plan.mechanism.point
        is_before = point in {"input", "gradient"} and not self.plan.is_paper
        return point if is_before else "none"

    @property
    def guarantee_text(self) -> str:
        """Return the sentence of ``datasheet.guarantee``."""
        return guarantee(self.plan)

    @property
    def scale(self) -> tuple[float, float] | None:
        """Return None: no public scale."""
        return None

    @property
    def may_select_by_loss(self) -> bool:
        """Return True: the readings are already noisy, or noise is added to every update."""
        return True

    def learnable(self, series: Series) -> Series:
        """Return the readings as they are."""
        return series

    def graphs(self, graphs: Mapping[str, Graph]) -> Mapping[str, Graph]:
        """Return the graphs as they are."""
        return graphs

    def begin(self) -> None:
        """Do nothing: there is nothing to count."""

    def release(self, update: Update) -> Update:
        """Return the update without its measured scalars, unless they may be sent."""
        if self.plan.sends_metrics:
            return update
        values = {k: v for k, v in update.values.items() if k not in self.measured}
        return replace(update, values=values)

    def cost(self, time: int, releases: int) -> tuple[PrivacyCharge, ...]:
        """Charge each numbered message."""
        return tuple(self.plan.release(time) for _ in range(releases))
