"""Send the hourly metrics message of a device."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping

from edge_sdk.protocol.messages import MetricsMessage
from edge_sdk.session.durable_outbox import DurableOutbox
from edge_sdk.session.server_clock import ServerClock
from edge_sdk.session.signed_link import SignedLink
from edge_sdk.store.store import DeviceStore


class MetricsReporter:
    """The metrics of one device.

    Args:
        link: Link, for the bytes that crossed it, and to send the report.
        time: Clock, for the seconds since the start.
    """

    def __init__(
        self,
        store: DeviceStore,
        link: SignedLink,
        counts: Mapping[str, int],
        time: ServerClock,
        outbox: DurableOutbox,
    ) -> None:
        self._store, self._link, self._counts = store, link, counts
        self._time, self._outbox = time, outbox
        self._exchanged: Mapping[str, int] = {}
        self._new_rows: Callable[[], int] | None = None

    def record_exchange(self, counters: Mapping[str, int]) -> None:
        self._exchanged = counters

    def count_new_rows(self, new: Callable[[], int]) -> None:
        """Report the number of rows recorded since the last update from now on."""
        self._new_rows = new

    def send(self) -> None:
        """Send the present counters; a report that is lost is not repeated."""
        counts = self._counts
        report = MetricsMessage(
            up=int(self._time.seconds_running),
            sent=counts["sent"],
            resent=counts["resent"],
            refused=counts["refused"],
            bytes_up=self._link.bytes_up,
            bytes_down=self._link.bytes_down,
            outbox=len(self._outbox.state.entries),
            flash=self._store.size() // 1024,
            rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            **self._exchanged,
            new=None if self._new_rows is None else self._new_rows(),
        )
        self._link.send(report, qos=0)
