"""Collect the daemon's status: gauges for Prometheus and a snapshot for the page."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from aggregator.ingress.cohort import Cohort
from aggregator.ingress.flood_control import FloodControl
from aggregator.methods import METHODS, Clustered, Credited
from aggregator.methods.base.wrappers import innermost
from aggregator.operations.operator_alerts import (
    PATIENCE,
    OperatorAlerts,
    UnansweredRounds,
    audience_of,
    likely_cause,
    warn,
)
from aggregator.operations.server_extensions import ServerExtension
from aggregator.operations.status_document import Snapshot, round_line
from aggregator.rounds.message_isolation import Isolation
from aggregator.rounds.round_engine import RoundEngine, restored
from aggregator.store.types import Version
from edge_sdk.link.transport import Transport

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
    """Read-only view of the daemon's parts."""

    isolation: Isolation  # the runs, the devices and the store
    link: Transport
    alerts: OperatorAlerts
    floods: FloodControl
    cohorts: tuple[Cohort, ...]  # devices of each run
    extensions: Iterable[ServerExtension]  # those that are loaded
    # the newest closed rounds
    closed: deque[Version] = field(default_factory=lambda: deque(maxlen=REMEMBERED), init=False)
    # rounds in a row that nobody has answered
    unanswered: UnansweredRounds = field(default_factory=UnansweredRounds, init=False)

    @property
    def engines(self) -> list[RoundEngine]:
        return [one.engine for one in self.isolation.runs]

    @property
    def engine(self) -> RoundEngine:
        """Return the engine of the first run, which the unlabelled gauges show."""
        return self.engines[0]

    def remember(self) -> None:
        """Read the newest closed rounds from the store, after a start."""
        found = [
            version
            for engine in self.engines
            for version in self.isolation.store.runs.versions(engine.number, REMEMBERED)
        ]
        self.closed.extend(map(restored, sorted(found, key=lambda one: (one.time, one.round))))
        for version in self.closed:
            self.unanswered.count(version)
            if version.moved:
                self.isolation.metrics.moved_at.set(version.time / 1000)

    def count(self, version: Version) -> None:
        self.closed.append(restored(version))
        rounds = self.unanswered.count(version)
        for name, found in self._unanswered(version.run).items():
            warn(name, rounds, found["cause"])
        self.isolation.metrics.rounds.labels("moved" if version.moved else "abandoned").inc()
        self.isolation.metrics.cohort.set(len(version.report.get("cohort", ())))
        if "seconds" in version.report:
            self.isolation.metrics.round_seconds.observe(version.report["seconds"])
        if version.moved:
            self.isolation.metrics.moved_at.set(version.time / 1000)
        else:
            self.isolation.metrics.quorum_failed.inc()

    def count_message(self, kind: str, size: int) -> None:
        """Count a message; all unknown kinds share one label."""
        self.isolation.metrics.messages.labels(kind if kind in _KINDS else "other").inc()
        self.isolation.metrics.payload.labels("up").inc(size)
        self.isolation.metrics.volume.labels("up", kind if kind in _KINDS else "other").inc(size)

    def measure(self) -> None:
        """Update every gauge."""
        self._measure()
        for one in self.extensions:
            one.measure()

    def _measure(self) -> None:
        metrics, state = self.isolation.metrics, self.engine.state
        self._count_refusals()
        metrics.flooding.set(len(self.floods.excluded(self.alerts.clock.monotonic())))
        metrics.round.set(state.round)
        metrics.training.set(self.engine.phase == "train")
        self.alerts.measure(metrics)
        metrics.dead_letters.set(self.isolation.letters.count)
        metrics.halted.set(any(engine.halted for engine in self.engines))
        for engine in self.engines:
            name = engine.run.config.run.name
            metrics.unanswered.labels(name or "-").set(self.unanswered.of(engine.number))
            if name:
                values = {"round": engine.state.round, "version": engine.state.version}
                values |= {"updates": engine.state.waiting, "training": engine.phase == "train"}
                for what, value in values.items():
                    metrics.runs[what].labels(name).set(value)
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
        metrics.excluded.set(len(excluded(self._credit())))
        reports = self.isolation.registry.metrics.values()
        metrics.links.labels("mixed").set(sum(one.mixed or 0 for one in reports))
        metrics.links.labels("missed").set(sum(one.missed or 0 for one in reports))
        metrics.connected.set(self.link.is_up)
        metrics.enrolled.set(len(self.isolation.registry))
        metrics.root_refused.set(sum(self.isolation.registry.refused_roots().values()))
        metrics.bundle_refused.clear()
        for reason, count in self.isolation.registry.refusals.bundle_counts().items():
            metrics.bundle_refused.labels(reason).set(count)
        metrics.quarantined.set(len(self.isolation.registry.quarantined()))
        metrics.store.set(self.isolation.store.size())
        kept = self.isolation.store.retention.kept
        for what in ("vectors", "journal"):
            metrics.kept.labels(what).set(kept.get(what, 0))
        metrics.audit_after.set(kept.get("audit after", 0))
        metrics.disk.set(shutil.disk_usage(self.engine.run.config.state).free)
        states = self.isolation.registry.states()
        for name in _STATES:
            metrics.devices.labels(name).set(states[name])

    def _count_refusals(self) -> None:
        counts = {**self.isolation.ingress.counts, "DROPPED_UNREAD": self.floods.dropped}
        self.isolation.metrics.follow(counts)

    def snapshot(self) -> Snapshot:
        self._count_refusals()
        free = shutil.disk_usage(self.engine.run.config.state).free
        checks = {
            "broker": self.link.is_up,
            "store": not self.isolation.ingress.is_full
            and not any(one.backlog for one in self.isolation.runs),
            "disk": free >= DISK_FLOOR,
        }
        status: dict[str, Any] = {
            "fleet": self.engine.run.config.fleet,
            "run": _run_status(self.engine),
            "schedule": self._schedule(self.engine),
            "devices": {
                "enrolled": len(self.isolation.registry),
                **self.isolation.registry.states(),
            },
            "contacts": self.isolation.registry.contacts(LISTED),
            "refused": self.isolation.metrics.refusals(),
            "payload": self.isolation.metrics.payload_bytes(),
            "rounds": [round_line(version) for version in reversed(self.closed)],
        }
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
        for one in self.extensions:
            status |= one.status()
        if kept := self.isolation.store.retention.kept:
            status["store"] = {"bytes": self.isolation.store.size()} | dict(kept)
        status |= self.alerts.status()
        status |= self._faults()
        return Snapshot(time.monotonic(), checks, status)

    def _faults(self) -> dict[str, Any]:
        """Return the faults that need an operator; a key without faults is left out."""
        status: dict[str, Any] = {}
        halted = [engine.halted for engine in self.engines if engine.halted]
        if halted:
            status["halted"] = f"{'; '.join(halted)}; see {self.isolation.letters.folder}"
        if self.isolation.letters.count:
            status["dead_letters"] = self.isolation.letters.count
        if refusals := self.isolation.registry.refusals.bundle_counts():
            status["bundle_refused"] = dict(refusals)
        if roots := self.isolation.registry.refused_roots():
            status["root_refused"] = dict(roots)
        if unanswered := self._unanswered():
            status["unanswered"] = unanswered
        if declined := self.isolation.registry.declined():
            status["declined"] = {name or "-": dict(one) for name, one in declined.items()}
        if alarms := self.isolation.registry.quarantined():
            status["alarms"] = alarms
        if flooding := self.floods.status(self.alerts.clock.monotonic()):
            status["flooding"] = flooding
        return status

    def _unanswered(self, only: int | None = None) -> dict[str, dict[str, Any]]:
        """Return the runs whose last rounds no device has answered, with the likely cause, by name."""
        found: dict[str, dict[str, Any]] = {}
        for engine, cohort in zip(self.engines, self.cohorts, strict=True):
            rounds = self.unanswered.of(engine.number)
            if rounds < PATIENCE or only not in (None, engine.number):
                continue
            audience = audience_of(
                cohort,
                access=next(filter(None, (one.obstacle for one in self.extensions)), ""),
                no_windows=self.isolation.ingress.counts["NO_WINDOWS_ON_DEVICE"],
                declined=self.isolation.registry.declined().get(cohort.run, {}),
            )
            found[cohort.run or "-"] = {"rounds": rounds, "cause": likely_cause(audience)}
        return found

    def _schedule(self, engine: RoundEngine) -> dict[str, Any]:
        schedule, start = engine.run.schedule, engine.next_round_at
        if schedule.is_continuous:
            return {"rounds a day": "continuous"}
        found: dict[str, Any] = {"rounds a day": schedule.rounds}
        if start is None or engine.is_paused:
            return found
        now = self.alerts.clock.wall()
        moment = schedule.text(start) if start > now else "when enough devices have new data"
        return found | {"next round": moment}

    def _credit(self) -> dict[str, dict[str, float]]:
        state: object = innermost(self.engine.state)
        if not isinstance(state, Credited):
            return {}
        return {client: dict(row) for client, row in state.credit.items()}

    def _clusters(self) -> dict[str, list[str]]:
        state: object = innermost(self.engine.state)
        if not isinstance(state, Clustered):
            return {}
        return {label: list(names) for label, names in state.clusters.items()}


def _run_status(engine: RoundEngine) -> dict[str, Any]:
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
