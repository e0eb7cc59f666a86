"""Steps inside the rounds of a run: none, or those of an extension's methods."""

from __future__ import annotations

from typing import Any

from aggregator.config import BoundRun
from aggregator.ingress.message_ingress import Signals
from edge_sdk.app.clock import Clock
from edge_sdk.app.settings import SettingsError
from edge_sdk.protocol.contract.method import CONTRACTS, Member, Played, Signal
from edge_sdk.protocol.messages import TaskMessage

# task messages, each with the device that receives it
TaskMessages = tuple[tuple[str, TaskMessage], ...]


class RoundSteps:
    """Steps of one run's rounds: none.

    Attributes:
        signals: Transient signals of the devices.
        result: Result of a round that is not yet journalled.
        next_due: Due time of the next timer, on the monotonic clock.
    """

    signals: Signals
    result: Played | None = None

    def __init__(self) -> None:
        self.signals = Signals()

    @property
    def next_due(self) -> float | None:
        return None

    def mark(self) -> Any:  # noqa: ANN401 - of a derived class
        """Return a mark for ``rewind``."""

    def rewind(self, mark: Any) -> None:  # noqa: ANN401 - as above
        """Restore the state at the mark."""

    def follow(self, state: Any) -> TaskMessages:  # noqa: ANN401, ARG002 - the half's own
        """Begin the steps of a state again if the half has moved; return the messages to send."""
        return ()

    def receive(self, event: Signal | Member) -> TaskMessages:  # noqa: ARG002 - of a derived class
        """Apply a signal or a membership change; return the messages to send."""
        return ()

    def wake(self) -> TaskMessages:
        """Apply every timer that is due; return the messages to send."""
        return ()


def steps_of(run: BoundRun, number: int, clock: Clock) -> RoundSteps:
    """Return the steps of a run's rounds; raise SettingsError if its method has some that no extension drives."""
    method = run.config.run.method
    if run.half.play is None:
        return RoundSteps()
    for entry in run.config.index.having("steps"):
        driver = entry.load("steps")
        steps: RoundSteps = driver(run.half.play, CONTRACTS[method], number, run.spec.digest, clock)
        return steps
    raise SettingsError(f"run.method: {method}: the steps of its rounds need an extension")
