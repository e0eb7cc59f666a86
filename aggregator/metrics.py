"""Prometheus metrics of the aggregator. None has a label per device.

The Prometheus client renders them; each daemon has its own registry, so that one process may
contain two daemons.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from edge_sdk.app.cli import installed_version
from edge_sdk.errors import Reason

_OF_RUNS = {
    "round": "Number of the open round of a named run.",
    "version": "Version of the model of a named run.",
    "updates": "Updates recorded in the open round of a named run.",
    "training": "1 while rounds of a named run are opened, 0 while paused or finished.",
}
_ROUND_SECONDS = (1, 5, 15, 60, 300, 900, 3600, 21_600, 86_400)
_LAG_SECONDS = (0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 30)


class Metrics:
    """Counters and gauges of one daemon, in a registry of their own.

    >>> metrics = Metrics()
    >>> metrics.refuse(Reason.TOO_STALE)
    >>> metrics.refusals()
    {'TOO_STALE': 1}
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._counter = partial(Counter, registry=self.registry)
        self._gauge = partial(Gauge, registry=self.registry)
        self._histogram = partial(Histogram, registry=self.registry)
        self._register_traffic()
        self._register_rounds()
        self._register_machine()

    def _register_traffic(self) -> None:
        self.messages = self._counter(
            "gridfed_messages", "Messages that arrived from devices.", ["kind"]
        )
        self.updates = self._counter(
            "gridfed_updates_accepted", "Updates recorded, without duplicates."
        )
        self.refused = self._counter("gridfed_refused", "Messages refused, by reason.", ["reason"])
        self.replayed = self._counter(
            "gridfed_replayed", "Duplicates that were answered from the ledger."
        )
        self.sent = self._counter("gridfed_sent", "Messages published.", ["kind"])
        self.payload = self._counter(
            "gridfed_payload_bytes", "Payload bytes; up is from the devices.", ["way"]
        )
        self.volume = self._counter("gridfed_kind_bytes", "Payload bytes by kind.", ["way", "kind"])
        self.unknown_fields = self._counter(
            "gridfed_unknown_fields", "Unknown header keys that were ignored."
        )
        self.events = self._counter(
            "gridfed_events", "Other events of the message ingress, by name.", ["what"]
        )
        self._followed: dict[str, int] = {}
        for reason in Reason:
            if reason is not Reason.ACCEPTED:
                self.refused.labels(reason.name)

    def _register_rounds(self) -> None:
        self.round = self._gauge("gridfed_round", "Number of the open round.")
        self.version = self._gauge("gridfed_model_version", "Version of the common model.")
        self.runs = {
            what: self._gauge(f"gridfed_run_{what}", text, ["run"])
            for what, text in _OF_RUNS.items()
        }
        self.pending = self._gauge("gridfed_round_updates", "Updates recorded in the open round.")
        self.cohort = self._gauge(
            "gridfed_round_participants", "Updates used by the last closed round."
        )
        self.clusters = self._gauge("gridfed_cluster_devices", "Devices by cluster.", ["cluster"])
        self.credit = self._gauge(
            "gridfed_credit",
            "Mean weight that the other devices give a device's model; 0 if they all exclude it.",
            ["device"],
        )
        self.excluded = self._gauge(
            "gridfed_devices_excluded",
            "Devices whose model at least half of the others exclude, where the method weighs models.",
        )
        self.links = self._gauge(
            "gridfed_neighbour_links",
            "Links between devices that were mixed in an exchange or were missing, as devices report.",
            ["how"],
        )
        self.rounds = self._counter(
            "gridfed_rounds", "Rounds that moved the model or were abandoned.", ["how"]
        )
        self.quorum_failed = self._counter(
            "gridfed_quorum_failed", "Rounds abandoned because too few updates arrived."
        )
        self.round_seconds = self._histogram(
            "gridfed_round_seconds",
            "Duration of rounds, from opening to closing.",
            buckets=_ROUND_SECONDS,
        )
        self.training = self._gauge(
            "gridfed_training",
            "1 while a round is open; 0 before its start, while paused, and after the last one.",
        )
        self.next_round = self._gauge(
            "gridfed_next_round_timestamp_seconds",
            "Start of the next round by the schedule, Unix time; 0 while a round is open.",
        )
        self.bundle_refused = self._gauge(
            "gridfed_bundle_refused_devices",
            "Devices that refuse the announced bundle, by reason.",
            ["reason"],
        )
        self.root_refused = self._gauge(
            "gridfed_root_refused_devices",
            "Devices that refuse the aggregator's keys because they trust another root.",
        )
        self.unanswered = self._gauge(
            "gridfed_unanswered_rounds",
            "Rounds of a run in a row that no device has answered.",
            ["run"],
        )
        self.moved_at = self._gauge(
            "gridfed_last_moved_timestamp_seconds",
            "Unix time at which a round last moved the model.",
        )

    def _register_machine(self) -> None:
        self.devices = self._gauge("gridfed_devices", "Devices by last reported status.", ["state"])
        self.enrolled = self._gauge("gridfed_devices_enrolled", "Devices enrolled.")
        self.quarantined = self._gauge(
            "gridfed_devices_quarantined", "Devices quarantined after a forgery."
        )
        self.flooding = self._gauge(
            "gridfed_devices_flooding", "Devices excluded because they send too much."
        )
        self.connected = self._gauge(
            "gridfed_broker_connected", "1 while the aggregator is connected to the broker."
        )
        self.lag = self._histogram(
            "gridfed_loop_seconds",
            "Busy time of one iteration of the main loop, without waiting.",
            buckets=_LAG_SECONDS,
        )
        self.waiting = self._gauge("gridfed_outgoing_waiting", "Messages queued for publishing.")
        self.store = self._gauge("gridfed_store_bytes", "Size of the database.")
        self.kept = self._gauge(
            "gridfed_store_kept_bytes",
            "Bytes stored: vectors and states, and the journal without its vectors.",
            ["what"],
        )
        self.audit_after = self._gauge(
            "gridfed_store_audit_after_round",
            "Last round whose vectors were dropped: an audit recomputes the rounds after it.",
        )
        self.disk = self._gauge(
            "gridfed_disk_free_bytes", "Free bytes on the disk of the database."
        )
        self.expires = self._gauge(
            "gridfed_certificate_expires_timestamp_seconds",
            "Unix time at which a certificate or revocation list expires; 0 if unreadable.",
            ["file", "kind"],
        )
        self.reloaded = self._gauge(
            "gridfed_config_last_reload_successful",
            "1 if the configuration read last is in force, 0 if it was refused.",
        )
        self.reloaded_at = self._gauge(
            "gridfed_config_last_reload_success_timestamp_seconds",
            "Unix time at which a configuration was last put into force.",
        )
        self.errors = self._counter(
            "gridfed_internal_errors", "Internal errors, by the step in process.", ["where"]
        )
        self.dead_letters = self._gauge(
            "gridfed_dead_letters", "Dead letters: messages stored after an internal error."
        )
        self.halted = self._gauge(
            "gridfed_run_halted", "1 while the run is halted by an internal error."
        )
        for where in ("reload", "deadline", "update"):
            self.errors.labels(where)
        info = self._gauge("gridfed_build_info", "Always 1.", ["version"])
        info.labels(installed_version()).set(1)
        for state in ("online", "sleeping", "draining", "offline", "lost"):
            self.devices.labels(state).set(0)
        for how in ("moved", "abandoned"):
            self.rounds.labels(how)

    def refuse(self, reason: Reason | int) -> None:
        self.refused.labels(Reason(reason).name).inc()

    def follow(self, counts: Mapping[str, int]) -> None:
        """Update the counters from the ingress counts, which never decrease.

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
        return generate_latest(self.registry)
