"""Track the operator's alerts: expiring TLS files, a refused configuration, rounds without an answer."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from aggregator.config import AggregatorConfig
from aggregator.ingress.cohort import Cohort
from aggregator.metrics import Metrics
from aggregator.store.types import Version
from edge_sdk.app.cli import fields
from edge_sdk.app.clock import Clock, SystemClock
from edge_sdk.app.settings import SettingsError, seconds
from edge_sdk.link import tls_validity as links
from edge_sdk.link.tls_validity import File, TlsFileState, Watch, X509Error, day_of, files, look

logger = logging.getLogger(__name__)

PATIENCE = 2  # rounds in a row without an answer


@dataclass(frozen=True, slots=True)
class RunAudience:
    """Facts about the devices of a run."""

    labels: Mapping[str, str] = field(default_factory=dict)  # labels of the run's cohort
    devices: int = 0  # enrolled devices that take part
    online: int = 0
    refusing_root: int = 0
    refusing_bundle: int = 0
    # devices that have declined the run, by reason
    declined: Mapping[str, int] = field(default_factory=dict)
    no_windows: int = 0  # times that devices have reported too few readings
    access: str = ""  # how the broker's access rules differ; empty if nothing is known


def likely_cause(run: RunAudience) -> str:
    """Return the likely causes of missing answers, the surest first, with their remedies.

    >>> likely_cause(RunAudience(labels={"kind": "meter"}))
    'no enrolled device is in its cohort (kind=meter): label devices, or change run.cohort'
    >>> likely_cause(RunAudience(devices=3))[:33]
    'none of its 3 devices is online: '
    """
    share = f"of its {run.devices} devices"
    labels = ", ".join(f"{name}={value}" for name, value in run.labels.items())
    reasons = ", ".join(f"{count} {reason}" for reason, count in run.declined.items())
    causes = (
        (
            not run.devices and run.declined,
            f"all devices of its cohort have declined it: {reasons}",
        ),
        (
            not run.devices and run.labels,
            f"no enrolled device is in its cohort ({labels}): label devices, or change run.cohort",
        ),
        (not run.devices, "no device is enrolled: gridfed-aggregator enrol"),
        (run.access, run.access),
        (
            run.refusing_root,
            (
                f"{run.refusing_root} {share} refuse the announced root: give them the present root.pub, or "
                "put the former state folder back"
            ),
        ),
        (run.refusing_bundle, f"{run.refusing_bundle} {share} refuse the bundle"),
        (
            not run.online,
            (
                f"none {share} is online: check their power and link, and the rules of the broker, which may "
                "not let their status through"
            ),
        ),
        (
            run.no_windows,
            (
                f"{run.online} {share} are online, and devices report that they have too few readings for a "
                "window (NO_WINDOWS): check their source"
            ),
        ),
    )
    unheard = (
        f"{run.online} {share} are online and do not answer: most likely the broker's access rules keep "
        "the run's announcements from them (gridfed-aggregator broker check --file mosquitto.conf); else "
        "they are subscribed to another run (gridfed-edge status), or run.deadline is too short"
    )
    return next((sentence for holds, sentence in causes if holds), unheard)


def audience_of(
    cohort: Cohort, *, access: str, no_windows: int, declined: Mapping[str, int]
) -> RunAudience:
    """Return the facts about the devices of a run.

    Args:
        access: How the broker's access rules differ; empty if nothing is known.
        no_windows: Times that devices have reported too few readings.
    """
    registry = cohort.registry
    members = {device for device in registry.enrolled() if cohort.takes(device)}
    return RunAudience(
        cohort.labels,
        len(members),
        len(members & registry.present()),
        len(members & registry.refusals.roots.keys()),
        len(members & registry.refusals.bundles.keys()),
        declined,
        no_windows,
        access,
    )


@dataclass(slots=True)
class UnansweredRounds:
    """Number of rounds in a row without any answer, by number of the run."""

    _counts: Counter[int] = field(default_factory=Counter)

    def count(self, version: Version) -> int:
        """Count a closed round; return how many in a row no device has answered."""
        if version.moved or version.report.get("cohort"):
            self._counts[version.run] = 0
        else:
            self._counts[version.run] += 1
        return self._counts[version.run]

    def of(self, run: int) -> int:
        return self._counts[run]


def warn(name: str, rounds: int, cause: str) -> None:
    """Log a run whose rounds no device answers, at the second and then at each power of two."""
    if rounds >= PATIENCE and rounds & (rounds - 1) == 0:
        logger.warning("rounds unanswered %s", fields(name=name or "-", rounds=rounds, cause=cause))


_RENEW = {
    "ca": "put the file of a valid authority in place, here and on every device; before its end "
    "gridfed-aggregator rotate ca replaces it without that",
    "certificate": "sign a new certificate for _agg and replace the file",
    "crl": "sign a new list, replace the broker's file and send the broker SIGHUP",
}


def tls_files(config: AggregatorConfig) -> tuple[File, ...]:
    broker = config.broker
    return files(broker.url, broker.ca_file, broker.cert_file, broker.crl_file)


def refuse_expired(config: AggregatorConfig, now: float) -> list[TlsFileState]:
    """Read every file with an expiry date; return their states.

    Args:
        now: Unix seconds.

    Raises:
        SettingsError: A file cannot be read, or an expired one prevents all connections.
    """
    try:
        return links.refuse_expired(tls_files(config), now)
    except links.ExpiredFileError as error:
        hint = _RENEW[error.file.kind]
        raise SettingsError(f"{config.file.name}: {error}", hint=hint) from error
    except X509Error as error:
        raise SettingsError(f"{config.file.name}: {error}") from error


def horizon_of(config: AggregatorConfig) -> float:
    """Return the time before expiry at which warnings begin, in seconds."""
    return seconds(config.alerts.certificate_expiry)


def rows(found: Iterable[TlsFileState], now: float, horizon: float) -> list[dict[str, Any]]:
    """Return the status entries of expiring files; ``soon`` means within ``horizon`` seconds."""
    return [
        {
            "kind": seen.file.kind,
            "file": str(seen.file.path),
            "expires": None if seen.days(now) is None else day_of(seen.until),
            "days": seen.days(now),
            "soon": seen.is_near(now, horizon),
            "status": seen.told(now),
        }
        for seen in found
    ]


def warnings_of(config: AggregatorConfig) -> list[str]:
    """Return the warnings of extensions to the operator."""
    return [text for found in _said(config, "warnings") for text in found if text]


def facts_of(config: AggregatorConfig) -> dict[str, str]:
    """Return the facts of a check that extensions add."""
    return {name: text for found in _said(config, "facts") for name, text in found.items()}


def _said(config: AggregatorConfig, key: str) -> Iterator[Any]:
    """Yield the results of the functions that the rows of configured extensions name."""
    for entry in config.index.configured(config.tables):
        if (function := entry.load(key)) is not None:
            yield function(config)


def offline(config: AggregatorConfig) -> list[dict[str, Any]]:
    """Return the status entries without a running daemon."""
    return rows(look(tls_files(config)), SystemClock().wall() / 1000, horizon_of(config))


@dataclass(slots=True)
class OperatorAlerts:
    """Alerts of a running daemon."""

    clock: Clock = field(default_factory=SystemClock)  # wall time
    watch: Watch = field(default_factory=Watch)  # monitor of the files with an expiry date
    refused: str = ""  # reason why the last configuration read is not in force; empty if it is
    loaded: float = 0.0  # time at which the configuration in force was applied, Unix seconds
    # monitor of the broker's access rules
    _shown: frozenset[tuple[str, str]] = frozenset()

    def follow(self, config: AggregatorConfig) -> None:
        """Record a configuration that is in force from now on."""
        self.watch.files = tls_files(config)
        self.watch.horizon = horizon_of(config)
        self.refused, self.loaded = "", self._now

    def warn(self) -> None:
        """Log the files that expire soon, once a day."""
        for seen in self.watch.warnings(self._now):
            about = {"kind": seen.file.kind, "file": seen.file.path, "is": seen.told(self._now)}
            logger.warning("certificate expiring %s", fields(**about))

    def measure(self, metrics: Metrics) -> None:
        """Update the gauges."""
        found = {(str(seen.file.path), seen.file.kind): seen.until for seen in self.watch.look()}
        for labels in self._shown - found.keys():
            metrics.expires.remove(*labels)
        for labels, until in found.items():
            metrics.expires.labels(*labels).set(until)
        self._shown = frozenset(found)
        metrics.reloaded.set(not self.refused)
        metrics.reloaded_at.set(self.loaded)

    def status(self) -> dict[str, Any]:
        found = rows(self.watch.look(), self._now, self.watch.horizon)
        status: dict[str, Any] = {"certificates": found} if found else {}
        return status | ({"configuration": f"refused: {self.refused}"} if self.refused else {})

    @property
    def _now(self) -> float:
        return self.clock.wall() / 1000
