"""Process the updates that admission workers have checked, in a running daemon."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from aggregator.config import AggregatorConfig
from aggregator.extensions.postgres.update_queue import WorkerStatus, open_queue
from aggregator.operations.server_extensions import Process, ServerExtension, ServerParts
from edge_sdk.app.cli import fields
from edge_sdk.app.settings import SettingsError
from edge_sdk.link.transport import LinkUp

logger = logging.getLogger(__name__)

LOOK = 0.02  # s between two looks into the queue
AT_ONCE = 64  # updates of the queue that share a commit
IN_A_TURN = 8  # such commits in one turn of the loop


def gauges(own: CollectorRegistry) -> tuple[Gauge, Gauge, Gauge]:
    """Register and return the gauges of workers, of queued updates, and of those that were handled."""
    workers = Gauge("gridfed_admission_workers", "Admission workers that are alive.", registry=own)
    queued = Gauge(
        "gridfed_queued_updates",
        "Updates in the queue, by the admission worker that checked them.",
        ["worker"],
        registry=own,
    )
    checked = Gauge(
        "gridfed_worker_updates",
        "Updates that an admission worker has handled since it started, by result.",
        ["worker", "result"],
        registry=own,
    )
    return workers, queued, checked


class QueuedUpdates(ServerExtension):
    """Processes queued updates; receives those of the link while there is no worker.

    Without workers in the configuration it drops the subscriptions that an earlier process had for them.
    """

    def __init__(self, parts: ServerParts, config: AggregatorConfig) -> None:
        super().__init__(parts, config)
        has_workers = config.admission.workers
        parts.subscriptions.share_updates(is_shared=has_workers)
        self._queue = open_queue(config.database) if has_workers else None
        self._workers: list[WorkerStatus] = []
        self._alive: int | None = None
        self._processed = 0  # updates that were processed in the last turn
        self._gauges = gauges(parts.isolation.metrics.registry)

    def check_link(self, link: LinkUp) -> None:
        """Raise SettingsError for a broker without shared subscriptions."""
        if self._queue is not None and not link.shares:
            raise SettingsError(
                "admission.workers: workers need shared subscriptions of MQTT 5, which this "
                "broker does not have",
                hint="use a broker that has them, such as Mosquitto, or set it to false",
            )

    def receive(self, process: Process) -> None:
        """Process queued updates, and remove them after the commit.

        What is processed and not removed is processed again, and answered from the ledger.
        """
        self._processed = 0
        for _ in range(IN_A_TURN if self._queue is not None else 0):
            assert self._queue is not None
            updates = self._queue.oldest(AT_ONCE)
            if not updates:
                return
            process(updates)
            self._queue.remove(updates)
            self._processed += len(updates)

    @property
    def next_due(self) -> float | None:
        """Return when the queue is looked into again."""
        if self._queue is None:
            return None
        return self.parts.isolation.clock.monotonic() + (0.0 if self._processed else LOOK)

    def on_tick(self, now: float) -> None:  # noqa: ARG002 - it looks each second
        """Count the workers; receive the updates in their place while there are none."""
        if self._queue is None:
            return
        self._workers = self._queue.workers()
        before, self._alive = self._alive, sum(one.is_alive for one in self._workers)
        if before is not None and bool(before) == bool(self._alive):
            return
        if self._alive:
            logger.info("workers admit updates %s", fields(workers=self._alive))
        else:
            logger.warning("no worker admits updates %s", fields(do="gridfed-aggregator worker"))
        self.parts.subscriptions.receive_updates(is_alone=not self._alive)

    def measure(self) -> None:
        """Show the workers."""
        workers, queued, checked = self._gauges
        workers.set(self._alive or 0)
        queued.clear()
        checked.clear()
        for one in self._workers:
            queued.labels(one.name).set(one.queued)
            for result, number in one.counts.items():
                checked.labels(one.name, result).set(number)

    def status(self) -> Mapping[str, Any]:
        found = {
            one.name: {"state": "alive" if one.is_alive else "gone", "queued": one.queued}
            | dict(one.counts)
            for one in self._workers
        }
        return {"workers": found} if found else {}

    def close(self) -> None:
        if self._queue is not None:
            self._queue.close()
