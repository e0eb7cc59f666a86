"""The one seam where privacy stands between readings, training and the outbox; and the plain gate.

A mechanism is asked four times. Before a round: what may be learned from, and with which graphs.
After it: what may leave of an answer, and what that costs. Noise is drawn once a release, from the
operating system, and stored with it; a resend is the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from edge_sdk.forecasting.series import Series
from edge_sdk.methods.training_context import Graph
from edge_sdk.privacy.datasheet import promise
from edge_sdk.privacy.event import PrivacyCharge
from edge_sdk.privacy.noise import Entropy
from edge_sdk.privacy.noise_calibration import NoisePlan
from edge_sdk.wire.contract.method import Update


class Mechanism(Protocol):
    """What stands between a device's readings and the outbox."""

    @property
    def plan(self) -> NoisePlan:
        """Its calibrated numbers."""

    @property
    def origin(self) -> str:
        """What learned layers were computed from: those of another origin are not taken over."""

    @property
    def says(self) -> str:
        """What this mechanism promises, in plain words."""

    @property
    def scale(self) -> tuple[float, float] | None:
        """A public scale to learn on, where the device's own would tell something."""

    @property
    def judges(self) -> bool:
        """Whether a loss on windows held back may decide which model is learned from."""

    def learnable(self, series: Series) -> Series:
        """Return the readings that may be learned from: perhaps perturbed, and then kept so."""

    def graphs(self, graphs: Mapping[str, Graph]) -> Mapping[str, Graph]:
        """Return the graphs that a half may run."""

    def begin(self) -> None:
        """Count anew: what was drawn for a round that was given up is never saved."""

    def release(self, update: Update) -> Update:
        """Return what may leave. Called once a release; the result is stored before it is sent."""

    def cost(self, time: int, releases: int) -> tuple[PrivacyCharge, ...]:
        """Return the charges of the round since ``begin``, with so many numbered messages."""


@dataclass(slots=True)
class NoMechanism:
    """What all mechanisms do unless they do more: nothing to readings and graphs; and the gate.

    Attributes:
        plan: The calibrated numbers.
        measured: Names of an answer's numbers that come from readings; withheld unless told.
        entropy: Where randomness comes from; only a test passes another source.
    """

    plan: NoisePlan
    measured: frozenset[str] = frozenset({"n", "loss"})
    entropy: Entropy = os.urandom

    @property
    def origin(self) -> str:
        """The readings as they are, unless noise is put in before anything is learned."""
        point = self.plan.mechanism.point
        is_before = point in {"input", "gradient"} and not self.plan.is_paper
        return point if is_before else "none"

    @property
    def says(self) -> str:
        """Say it, as ``words.promise`` does."""
        return promise(self.plan)

    @property
    def scale(self) -> tuple[float, float] | None:
        """No public scale."""
        return None

    @property
    def judges(self) -> bool:
        """Yes: the readings have their noise, or everything that leaves gets it."""
        return True

    def learnable(self, series: Series) -> Series:
        """Return the readings as they are."""
        return series

    def graphs(self, graphs: Mapping[str, Graph]) -> Mapping[str, Graph]:
        """Return the graphs as they are."""
        return graphs

    def begin(self) -> None:
        """Count nothing."""

    def release(self, update: Update) -> Update:
        """Return the update, its measured numbers taken off unless they may be told."""
        if self.plan.tells:
            return update
        values = {k: v for k, v in update.values.items() if k not in self.measured}
        return replace(update, values=values)

    def cost(self, time: int, releases: int) -> tuple[PrivacyCharge, ...]:
        """Charge each numbered message."""
        return tuple(self.plan.release(time) for _ in range(releases))
