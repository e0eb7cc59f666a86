"""Prometheus metrics of the aggregator. None has a label per device.

The Prometheus client renders them; each daemon has its own registry, so that one process may
contain two daemons.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from edge_sdk.app.cli import installed_version
from edge_sdk.wire.errors import Reason

_OF_RUNS = {
    "round": "Number of the open round of a named run.",
    "version": "Version of the model of a named run.",
    "updates": "Updates recorded in the open round of a named run.",
    "training": "1 while rounds of a named run are opened, 0 while paused or finished.",
}
_OF_PARENT = {
    "connected": "1 while this site is connected to its parent's broker.",
    "pending": "Updates of this site without a receipt of its parent.",
    "alone": "1 while this site runs rounds without waiting for its parent.",
}
_ROUND_SECONDS = (1, 5, 15, 60, 300, 900, 3600, 21_600, 86_400)
_LAG_SECONDS = (0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 30)


class Metrics:
    """Counters and gauges of one daemon, in a registry of their own.

    Example:
        >>> metrics = Metrics()
        >>> metrics.refuse(Reason.TOO_STALE)
        >>> metrics.refusals()
        {'TOO_STALE': 1}
    """

    def __init__(self) -> None:
        """Register every metric with its help text."""
        self.registry = CollectorRegistry(auto_describe=True)
        self._register_traffic()
        self._register_rounds()
        self._register_machine()

    def _register_traffic(self) -> None:
        own = self.registry
        self.messages = Counter(
            "gridfed_messages", "Messages that arrived from devices.", ["kind"], registry=own
        )
        self.updates = Counter(
            "gridfed_updates_accepted", "Updates recorded, without duplicates.", registry=own
        )
        self.refused = Counter(
            "gridfed_refused", "Messages refused, by reason.", ["reason"], registry=own
        )
        self.replayed = Counter(
            "gridfed_replayed", "Duplicates that were answered from the ledger.", registry=own
        )
        self.sent = Counter("gridfed_sent", "Messages published.", ["kind"], registry=own)
        self.payload = Counter(
            "gridfed_payload_bytes", "Payload bytes; up is from the devices.", ["way"], registry=own
        )
        self.volume = Counter(
            "gridfed_kind_bytes", "Payload bytes by kind.", ["way", "kind"], registry=own
        )
        self.unknown_fields = Counter(
            "gridfed_unknown_fields", "Unknown header keys that were ignored.", registry=own
        )
        self.events = Counter(
            "gridfed_events",
            "Other events of the message ingress, by name.",
            ["what"],
            registry=own,
        )
        self._followed: dict[str, int] = {}
        for reason in Reason:
            if reason is not Reason.ACCEPTED:
                self.refused.labels(reason.name)

    def _register_rounds(self) -> None:
        own = self.registry
        self.round = Gauge("gridfed_round", "Number of the open round.", registry=own)
        self.version = Gauge("gridfed_model_version", "Version of the common model.", registry=own)
        self.runs = {
            what: Gauge(f"gridfed_run_{what}", text, ["run"], registry=own)
            for what, text in _OF_RUNS.items()
        }
        self.pending = Gauge(
            "gridfed_round_updates", "Updates recorded in the open round.", registry=own
        )
        self.cohort = Gauge(
            "gridfed_round_participants", "Updates used by the last closed round.", registry=own
        )
        self.clusters = Gauge(
            "gridfed_cluster_devices", "Devices by cluster.", ["cluster"], registry=own
        )
        self.credit = Gauge(
            "gridfed_credit",
            "Mean weight that the other devices give a device's model; 0 if they all exclude it.",
            ["device"],
            registry=own,
        )
        self.excluded = Gauge(
            "gridfed_devices_excluded",
            "Devices whose model at least half of the others exclude, where the method weighs models.",
            registry=own,
        )
        self.rollout_stage = Gauge(
            "gridfed_rollout_stage",
            "Waves of the newest rollout that may serve its version, by phase.",
            ["phase"],
            registry=own,
        )
        self.rollout_harm = Gauge(
            "gridfed_rollout_harmful",
            "1 if the newest rollout was taken back because members lost too many days with it.",
            registry=own,
        )
        self.score_answers = Gauge(
            "gridfed_score_answers",
            "Answers in the newest histogram of scores.",
            registry=own,
        )
        self.scores = Gauge(
            "gridfed_score_devices",
            "Estimated number of devices whose score is in a cell; noise may make it negative.",
            ["cell"],
            registry=own,
        )
        self.score_errors = Gauge(
            "gridfed_score_devices_error",
            "Standard error of gridfed_score_devices.",
            ["cell"],
            registry=own,
        )
        self.links = Gauge(
            "gridfed_neighbour_links",
            "Links between devices that were mixed in an exchange or were missing, as devices report.",
            ["how"],
            registry=own,
        )
        self.rounds = Counter(
            "gridfed_rounds",
            "Rounds that moved the model or were abandoned.",
            ["how"],
            registry=own,
        )
        self.quorum_failed = Counter(
            "gridfed_quorum_failed",
            "Rounds abandoned because too few updates arrived.",
            registry=own,
        )
        self.round_seconds = Histogram(
            "gridfed_round_seconds",
            "Duration of rounds, from opening to closing.",
            buckets=_ROUND_SECONDS,
            registry=own,
        )
        self.training = Gauge(
            "gridfed_training",
            "1 while a round is open; 0 before its start, while paused, and after the last one.",
            registry=own,
        )
        self.next_round = Gauge(
            "gridfed_next_round_timestamp_seconds",
            "Start of the next round by the schedule, Unix time; 0 while a round is open.",
            registry=own,
        )
        self.bundle_refused = Gauge(
            "gridfed_bundle_refused_devices",
            "Devices that refuse the announced bundle, by reason.",
            ["reason"],
            registry=own,
        )
        self.moved_at = Gauge(
            "gridfed_last_moved_timestamp_seconds",
            "Unix time at which a round last moved the model.",
            registry=own,
        )

    def _register_machine(self) -> None:
        own = self.registry
        self.devices = Gauge(
            "gridfed_devices", "Devices by last reported status.", ["state"], registry=own
        )
        self.enrolled = Gauge("gridfed_devices_enrolled", "Devices enrolled.", registry=own)
        self.quarantined = Gauge(
            "gridfed_devices_quarantined", "Devices quarantined after a forgery.", registry=own
        )
        self.flooding = Gauge(
            "gridfed_devices_flooding", "Devices excluded because they send too much.", registry=own
        )
        self.workers = Gauge(
            "gridfed_admission_workers", "Admission workers that are alive.", registry=own
        )
        self.queued = Gauge(
            "gridfed_queued_updates",
            "Updates in the queue, by the admission worker that checked them.",
            ["worker"],
            registry=own,
        )
        self.checked = Gauge(
            "gridfed_worker_updates",
            "Updates that an admission worker has handled since it started, by result.",
            ["worker", "result"],
            registry=own,
        )
        self.parent = {
            what: Gauge(f"gridfed_parent_{what}", text, registry=own)
            for what, text in _OF_PARENT.items()
        }
        self.connected = Gauge(
            "gridfed_broker_connected",
            "1 while the aggregator is connected to the broker.",
            registry=own,
        )
        self.lag = Histogram(
            "gridfed_loop_seconds",
            "Busy time of one iteration of the main loop, without waiting.",
            buckets=_LAG_SECONDS,
            registry=own,
        )
        self.waiting = Gauge(
            "gridfed_outgoing_waiting", "Messages queued for publishing.", registry=own
        )
        self.store = Gauge("gridfed_store_bytes", "Size of the database.", registry=own)
        self.kept = Gauge(
            "gridfed_store_kept_bytes",
            "Bytes stored: vectors and states, and the journal without its vectors.",
            ["what"],
            registry=own,
        )
        self.audit_after = Gauge(
            "gridfed_store_audit_after_round",
            "Last round whose vectors were dropped: an audit recomputes the rounds after it.",
            registry=own,
        )
        self.disk = Gauge(
            "gridfed_disk_free_bytes", "Free bytes on the disk of the database.", registry=own
        )
        self.expires = Gauge(
            "gridfed_certificate_expires_timestamp_seconds",
            "Unix time at which a certificate or revocation list expires; 0 if unreadable.",
            ["file", "kind"],
            registry=own,
        )
        self.reloaded = Gauge(
            "gridfed_config_last_reload_successful",
            "1 if the configuration read last is in force, 0 if it was refused.",
            registry=own,
        )
        self.reloaded_at = Gauge(
            "gridfed_config_last_reload_success_timestamp_seconds",
            "Unix time at which a configuration was last put into force.",
            registry=own,
        )
        self.errors = Counter(
            "gridfed_internal_errors",
            "Internal errors, by what was being processed.",
            ["where"],
            registry=own,
        )
        self.dead_letters = Gauge(
            "gridfed_dead_letters",
            "Dead letters: messages stored after an internal error.",
            registry=own,
        )
        self.halted = Gauge(
            "gridfed_run_halted", "1 while the run is halted by an internal error.", registry=own
        )
        for where in ("reload", "deadline", "update"):
            self.errors.labels(where)
        info = Gauge("gridfed_build_info", "Always 1.", ["version"], registry=own)
        info.labels(installed_version()).set(1)
        for state in ("online", "sleeping", "draining", "offline", "lost"):
            self.devices.labels(state).set(0)
        for how in ("moved", "abandoned"):
            self.rounds.labels(how)

    def refuse(self, reason: Reason | int) -> None:
        """Count one refused message."""
        self.refused.labels(Reason(reason).name).inc()

    def follow(self, counts: Mapping[str, int]) -> None:
        """Update the counters from the ingress counts, which never decrease.

        Example:
            >>> metrics = Metrics()
            >>> metrics.follow({"LATE": 2, "ACCEPTED": 1})
            >>> metrics.follow({"LATE": 3, "ACCEPTED": 1})
            >>> metrics.refusals()
            {'LATE': 3}
        """
        named: Mapping[str, Counter] = {
            Reason.ACCEPTED.name: self.updates,
            "REPLAYED": self.replayed,
            "UNKNOWN_KEYS": self.unknown_fields,
        }
        for name, count in counts.items():
            more = count - self._followed.get(name, 0)
            self._followed[name] = count
            if name in named:
                named[name].inc(more)
            elif name in Reason.__members__:
                self.refused.labels(name).inc(more)
            else:
                self.events.labels(name.lower()).inc(more)

    def refusals(self) -> dict[str, int]:
        """Return the number of refusals by reason, for the status page."""
        counted = {
            sample.labels["reason"]: int(sample.value)
            for metric in self.refused.collect()
            for sample in metric.samples
            if sample.name.endswith("_total") and sample.value
        }
        return dict(sorted(counted.items()))

    def payload_bytes(self) -> dict[str, int]:
        """Return the payload bytes since the start: up is from the devices."""
        found = {"up": 0, "down": 0}
        for metric in self.payload.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total"):
                    found[sample.labels["way"]] = int(sample.value)
        return found

    def text(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        return generate_latest(self.registry)
