"""Collect the daemon's status: gauges for Prometheus and a snapshot for the page."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from aggregator.ingress.dead_letters import DeadLetters
from aggregator.ingress.flood_control import FloodControl
from aggregator.ingress.message_ingress import MessageIngress
from aggregator.ingress.registry import Registry
from aggregator.ingress.score_book import newest_histogram
from aggregator.methods import METHODS, Clustered, Credited
from aggregator.metrics import Metrics
from aggregator.operations.http_status import Snapshot, round_line
from aggregator.operations.operator_alerts import OperatorAlerts
from aggregator.rounds.round_engine import RoundEngine, restored
from aggregator.store.types import Store, Version
from aggregator.store.update_queue import WorkerStatus
from edge_sdk.app.clock import DAY
from edge_sdk.wire.link.transport import Transport

DISK_FLOOR = 64 * 1024 * 1024  # free bytes below which the daemon is not ready
LISTED = 1000  # devices whose last message the status document shows, those heard last
REMEMBERED = 10  # closed rounds on the page

_STATES = ("online", "sleeping", "draining", "offline", "lost")
_KINDS = frozenset(
    (
        "status",
        "hello",
        "offer",
        "chunk",
        "have",
        "receipt",
        "refusal",
        "update",
        "signal",
        "metrics",
    )
)


@dataclass(frozen=True)
class StatusView:
    """Read-only view of the daemon's parts.

    Attributes:
        engines: Round engine of each run.
        ingress: Message ingress.
        registry: Enrolled devices.
        store: Database.
        link: Link to the broker.
        backlogs: Journalled events of each run that wait for disk space.
        alerts: Operator alerts.
        letters: Dead letters.
        floods: Flood control.
        parent: Returns the status in the parent's fleet; empty without a parent.
        metrics: Metrics.
        closed: The newest closed rounds.
        workers: Admission workers that are alive, or have updates in the queue.
    """

    engines: tuple[RoundEngine, ...]
    ingress: MessageIngress
    registry: Registry
    store: Store
    link: Transport
    backlogs: tuple[Sized, ...]
    alerts: OperatorAlerts
    letters: DeadLetters
    floods: FloodControl
    parent: Callable[[], Mapping[str, Any]] = dict
    metrics: Metrics = field(default_factory=Metrics)
    closed: deque[Version] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    workers: list[WorkerStatus] = field(default_factory=list)

    @property
    def engine(self) -> RoundEngine:
        """Return the engine of the first run, which the unlabelled gauges show."""
        return self.engines[0]

    def remember(self) -> None:
        """Read the newest closed rounds from the store, after a start."""
        found = [
            version
            for engine in self.engines
            for version in self.store.versions(engine.number, REMEMBERED)
        ]
        self.closed.extend(map(restored, sorted(found, key=lambda one: (one.time, one.round))))
        for version in self.closed:
            if version.moved:
                self.metrics.moved_at.set(version.time / 1000)

    def count(self, version: Version) -> None:
        """Record a closed round."""
        self.closed.append(restored(version))
        self.metrics.rounds.labels("moved" if version.moved else "abandoned").inc()
        self.metrics.cohort.set(len(version.report.get("cohort", ())))
        if "seconds" in version.report:
            self.metrics.round_seconds.observe(version.report["seconds"])
        if version.moved:
            self.metrics.moved_at.set(version.time / 1000)
        else:
            self.metrics.quorum_failed.inc()

    def count_message(self, kind: str, size: int) -> None:
        """Count a message; all unknown kinds share one label."""
        self.metrics.messages.labels(kind if kind in _KINDS else "other").inc()
        self.metrics.payload.labels("up").inc(size)
        self.metrics.volume.labels("up", kind if kind in _KINDS else "other").inc(size)

    def measure_workers(self, found: Sequence[WorkerStatus]) -> None:
        """Record the admission workers."""
        self.workers[:] = found
        metrics = self.metrics
        metrics.workers.set(sum(one.is_alive for one in found))
        metrics.queued.clear()
        metrics.checked.clear()
        for one in found:
            metrics.queued.labels(one.name).set(one.queued)
            for result, number in one.counts.items():
                metrics.checked.labels(one.name, result).set(number)

    def measure(self) -> None:
        """Update every gauge."""
        metrics, state = self.metrics, self.engine.state
        metrics.follow({**self.ingress.counts, "DROPPED_UNREAD": self.floods.dropped})
        metrics.flooding.set(len(self.floods.excluded(self.alerts.clock.monotonic())))
        metrics.round.set(state.round)
        metrics.training.set(self.engine.phase == "train")
        self.alerts.measure(metrics)
        metrics.dead_letters.set(self.letters.count)
        metrics.halted.set(any(engine.halted for engine in self.engines))
        for engine in self.engines:
            if name := engine.run.config.run.name:
                values = {"round": engine.state.round, "version": engine.state.version}
                values |= {"updates": engine.state.waiting, "training": engine.phase == "train"}
                for what, value in values.items():
                    metrics.runs[what].labels(name).set(value)
        self.alerts.measure(metrics)
        metrics.dead_letters.set(self.letters.count)
        metrics.version.set(state.version)
        start = self.engine.next_round_at
        metrics.next_round.set(0 if start is None else start / 1000)
        metrics.pending.set(state.waiting)
        metrics.clusters.clear()
        for label, members in self._clusters().items():
            metrics.clusters.labels(label).set(len(members))
        metrics.credit.clear()
        weights = from_others(self._credit())
        for client, weight in weights.items():
            metrics.credit.labels(client).set(weight)
        self._measure_scores()
        metrics.excluded.set(len(excluded(self._credit())))
        reports = self.registry.metrics.values()
        metrics.links.labels("mixed").set(sum(one.mixed or 0 for one in reports))
        metrics.links.labels("missed").set(sum(one.missed or 0 for one in reports))
        metrics.connected.set(self.link.is_up)
        if parent := self.parent():
            metrics.parent["connected"].set(parent["linked"])
            metrics.parent["pending"].set(parent["pending"])
            metrics.parent["alone"].set(parent["state"] == "alone")
        metrics.enrolled.set(len(self.registry))
        metrics.bundle_refused.clear()
        for reason, count in self.registry.bundle_refusals().items():
            metrics.bundle_refused.labels(reason).set(count)
        metrics.quarantined.set(len(self.registry.quarantined()))
        metrics.store.set(self.store.size())
        kept = self.store.kept
        for what in ("vectors", "journal"):
            metrics.kept.labels(what).set(kept.get(what, 0))
        metrics.audit_after.set(kept.get("audit after", 0))
        metrics.disk.set(shutil.disk_usage(self.engine.run.config.state).free)
        states = self.registry.states()
        for name in _STATES:
            metrics.devices.labels(name).set(states[name])

    def snapshot(self) -> Snapshot:
        """Return the current status."""
        free = shutil.disk_usage(self.engine.run.config.state).free
        checks = {
            "broker": self.link.is_up,
            "store": not self.ingress.is_full and not any(map(len, self.backlogs)),
            "disk": free >= DISK_FLOOR,
        }
        status: dict[str, Any] = {
            "fleet": self.engine.run.config.fleet,
            "run": _run_status(self.engine),
            "schedule": self._schedule(self.engine),
            "devices": {"enrolled": len(self.registry), **self.registry.states()},
            "contacts": self.registry.contacts(LISTED),
            "refused": self.metrics.refusals(),
            "payload": self.metrics.payload_bytes(),
            "rounds": [round_line(version) for version in reversed(self.closed)],
        }
        if parent := self.parent():
            status["parent"] = dict(parent)
        if self.workers:
            status["workers"] = {one.name: _worker_status(one) for one in self.workers}
        if len(self.engines) > 1:
            status["runs"] = [
                _run_status(engine) | {"schedule": self._schedule(engine)}
                for engine in self.engines
            ]
        clusters, credit = self._clusters(), self._credit()
        if clusters:
            status["clusters"] = clusters
        if credit:
            status["credit"] = credit
        if scores := self._scores():
            status["scores"] = scores
        if kept := self.store.kept:
            status["store"] = {"bytes": self.store.size()} | dict(kept)
        status |= self.alerts.status()
        status |= self._faults()
        return Snapshot(time.monotonic(), checks, status)

    def _faults(self) -> dict[str, Any]:
        """Return what needs an operator; each key is left out where there is nothing."""
        status: dict[str, Any] = {}
        halted = [engine.halted for engine in self.engines if engine.halted]
        if halted:
            status["halted"] = f"{'; '.join(halted)}; see {self.letters.folder}"
        if self.letters.count:
            status["dead_letters"] = self.letters.count
        if refusals := self.registry.bundle_refusals():
            status["bundle_refused"] = dict(refusals)
        if declined := self.registry.declined():
            status["declined"] = {name or "-": dict(one) for name, one in declined.items()}
        if alarms := self.registry.quarantined():
            status["alarms"] = alarms
        if flooding := self.floods.status(self.alerts.clock.monotonic()):
            status["flooding"] = flooding
        return status

    def _schedule(self, engine: RoundEngine) -> dict[str, Any]:
        """Return the schedule, and the start of the next round while none is open."""
        schedule, start = engine.run.schedule, engine.next_round_at
        if schedule.is_continuous:
            return {"rounds a day": "continuous"}
        found: dict[str, Any] = {"rounds a day": schedule.rounds}
        if start is None or engine.is_paused:
            return found
        now = self.alerts.clock.wall()
        moment = schedule.text(start) if start > now else "when enough devices have new data"
        return found | {"next round": moment}

    def _measure_scores(self) -> None:
        """Update the gauges of the newest histogram of scores."""
        metrics, scores = self.metrics, self._scores()
        metrics.scores.clear()
        metrics.score_errors.clear()
        metrics.score_answers.set(scores.get("answers", 0))
        for one in scores.get("cells", ()):
            metrics.scores.labels(one["cell"]).set(one["devices"])
            metrics.score_errors.labels(one["cell"]).set(one["error"])

    def _scores(self) -> Mapping[str, Any]:
        """Return the newest histogram of scores; empty unless it is collected."""
        book = self.registry.scores
        return {} if book is None else newest_histogram(book, self.alerts.clock.wall() // DAY)

    def _credit(self) -> dict[str, dict[str, float]]:
        """Return the newest credit weights, if the method has them."""
        state: object = self.engine.state
        if not isinstance(state, Credited):
            return {}
        return {client: dict(row) for client, row in state.credit.items()}

    def _clusters(self) -> dict[str, list[str]]:
        """Return the devices of each cluster, if the method has clusters."""
        state: object = self.engine.state
        if not isinstance(state, Clustered):
            return {}
        return {label: list(names) for label, names in state.clusters.items()}


def _worker_status(worker: WorkerStatus) -> dict[str, Any]:
    """Return the status of one admission worker."""
    state = "alive" if worker.is_alive else "gone"
    return {"state": state, "queued": worker.queued, **worker.counts}


def _run_status(engine: RoundEngine) -> dict[str, Any]:
    """Return the status of one run."""
    state, run = engine.state, engine.run.config.run
    name = {"name": run.name} if run.name else {}
    return {
        "run": engine.number,
        **name,
        "method": run.method,
        "bundle": engine.run.bundle.manifest.name,
        "rule": "its own" if METHODS[run.method].own else run.rule["name"],
        "phase": engine.phase,
        "round": state.round,
        "version": state.version,
        "updates": f"{state.waiting} of {run.quorum}",
        **_traffic(engine),
    }


def _traffic(engine: RoundEngine) -> dict[str, int]:
    """Return the bytes since the open round began; empty without an open round."""
    found = engine.round_traffic() if engine.phase == "train" else {}
    return {"bytes received": found["up"], "bytes sent": found["down"]} if found else {}


def excluded(credit: Mapping[str, Mapping[str, float]]) -> tuple[str, ...]:
    """Return the devices to whose models at least half of the others give no weight.

    A median, not a mean: colluding Byzantine devices give each other large weights.

    >>> excluded({"a": {"a": 0.6, "b": 0.4}, "b": {"b": 1.0}, "c": {"b": 0.2, "c": 0.8}})
    ('a', 'c')
    """
    given = {
        name: [row.get(name, 0.0) for other, row in credit.items() if other != name]
        for name in sorted(credit)
    }
    return tuple(name for name, weights in given.items() if weights and median(weights) == 0.0)


def from_others(credit: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the mean weight that the other devices give each device's model.

    >>> from_others({"a": {"a": 0.6, "b": 0.4}, "b": {"b": 1.0}, "c": {"b": 0.2, "c": 0.8}})
    {'a': 0.0, 'b': 0.30000000000000004, 'c': 0.0}
    """
    others = max(len(credit) - 1, 1)
    return {
        name: sum(row.get(name, 0.0) for client, row in credit.items() if client != name) / others
        for name in credit
    }
