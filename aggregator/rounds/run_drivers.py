"""Drive all runs of a daemon: pass each message on to the runs that it concerns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aggregator.ingress.replies import IngressResult
from aggregator.rounds.publisher import Publisher
from aggregator.rounds.run_driver import RunDriver


@dataclass(frozen=True, slots=True)
class RunDrivers:
    """Drivers of the runs, in the order of the configuration.

    Attributes:
        drivers: One driver a run; at least one.
        publisher: Queue of replies.
    """

    drivers: tuple[RunDriver, ...]
    publisher: Publisher

    def __iter__(self) -> Iterator[RunDriver]:
        """Return an iterator over the drivers."""
        return iter(self.drivers)

    def accept(self, admitted: IngressResult) -> None:
        """Apply the journalled entries of a message, then queue its replies.

        A membership change concerns the run that the device takes part in.
        """
        for driver in self.drivers:
            driver.append(entry for entry in admitted.entries if entry.run == driver.number)
        self.publisher.reply(admitted.answers)
        for driver in self.drivers:
            if admitted.signal is not None and admitted.run == driver.number:
                driver.receive_signal(admitted.signal)
            member = admitted.member
            if member is not None and driver.cohort.takes(member.client):
                driver.accept_member(member, is_greeting=admitted.greeted is not None)
            if admitted.rekeyed is not None:
                driver.announce_key(admitted.rekeyed)

    def wake(self) -> None:
        """Apply every timer that is due."""
        for driver in self.drivers:
            driver.wake()

    def report_closed(self) -> None:
        """Pass on the rounds that were closed since."""
        for driver in self.drivers:
            driver.report_closed()

    def forget_closed(self) -> None:
        """Forget the rounds that were closed since: their transaction was rolled back."""
        for driver in self.drivers:
            driver.forget_closed()

    def hurry(self, now: float) -> None:
        """Repeat open tasks soon, after the loss of the link and its queue."""
        for driver in self.drivers:
            driver.tasks.hurry(now)
