"""Track what needs the operator's attention: expiring TLS files, a refused configuration."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from aggregator.authority.folder import CERTIFICATE, NEXT
from aggregator.config import AggregatorConfig
from aggregator.metrics import Metrics
from edge_sdk.app.cli import fields
from edge_sdk.app.clock import Clock, SystemClock
from edge_sdk.app.settings import SettingsError, seconds
from edge_sdk.wire.link import tls_files as links
from edge_sdk.wire.link.tls_files import File, TlsFileState, Watch, files, look
from edge_sdk.wire.link.x509_expiry import X509Error, day_of

logger = logging.getLogger(__name__)

_RENEW = {
    "ca": "put the file of a valid authority in place, here and on every device; before its end "
    "gridfed-aggregator rotate ca replaces it without that",
    "certificate": "sign a new certificate for _agg and replace the file",
    "crl": "sign a new list, replace the broker's file and send the broker SIGHUP",
}


def tls_files(config: AggregatorConfig) -> tuple[File, ...]:
    """Return every configured file with an expiry date."""
    broker = config.broker
    return files(broker.url, broker.ca_file, broker.cert_file, broker.crl_file)


def refuse_expired(config: AggregatorConfig, now: float) -> list[TlsFileState]:
    """Read every file with an expiry date; return their states.

    Args:
        config: Configuration that names the files.
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


def authority_warning(config: AggregatorConfig, now: float) -> str:
    """Return a sentence if the fleet's own authority expires soon; empty if not, or without one.

    Args:
        config: Configuration that names the authority's folder.
        now: Unix seconds.
    """
    folder = config.ca.folder
    if folder is None or not (folder / CERTIFICATE).exists():
        return ""
    (seen,) = look([File("ca", folder / CERTIFICATE, "ca.folder")])
    if not seen.is_near(now, horizon_of(config)):
        return ""
    do = "rotate ca --finish" if (folder / NEXT).exists() else "rotate ca"
    command = f"gridfed-aggregator {do} --config {config.file}"
    return f"ca.folder: {seen.file.path}: {seen.told(now)}; replace the authority: {command}"


def offline(config: AggregatorConfig) -> list[dict[str, Any]]:
    """Return the status entries without a running daemon."""
    return rows(look(tls_files(config)), SystemClock().wall() / 1000, horizon_of(config))


@dataclass(slots=True)
class OperatorAlerts:
    """Alerts of a running daemon.

    Attributes:
        clock: Wall time.
        watch: Monitor of the files with an expiry date.
        refused: Reason why the last configuration read is not in force; empty if it is.
        loaded: Time at which the configuration in force was applied, Unix seconds.
    """

    clock: Clock = field(default_factory=SystemClock)
    watch: Watch = field(default_factory=Watch)
    refused: str = ""
    loaded: float = 0.0
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
        """Return the alerts for the status document."""
        found = rows(self.watch.look(), self._now, self.watch.horizon)
        status: dict[str, Any] = {"certificates": found} if found else {}
        return status | ({"configuration": f"refused: {self.refused}"} if self.refused else {})

    @property
    def _now(self) -> float:
        return self.clock.wall() / 1000
