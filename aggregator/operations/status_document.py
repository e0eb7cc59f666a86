"""Define the status document of a running daemon, and the address at which it is served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from aggregator.store.types import Version
from edge_sdk.errors import TEMPORARY, Failure

SCHEMA = 2  # version of the status document, raised when a key is removed or changes its meaning
STALE = 60.0  # s without an iteration of the loop after which the daemon counts as dead

Nothing: Mapping[str, Any] = MappingProxyType({})


class PageError(Failure):
    """A status page that cannot be served on the configured address."""

    exit_code = TEMPORARY


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Status of the daemon at one time."""

    ticked: float = 0.0  # time of the loop's last iteration, monotonic seconds
    # Conditions of readiness, each with its result
    checks: Mapping[str, bool] = field(default_factory=lambda: Nothing)
    # the status document, without its schema number
    status: Mapping[str, Any] = field(default_factory=lambda: Nothing)

    @property
    def is_ready(self) -> bool:
        """Return whether there is at least one check and all checks hold."""
        return bool(self.checks) and all(self.checks.values())

    def is_alive(self, now: float) -> bool:
        """Return whether the loop ran recently.

        >>> Snapshot(ticked=100.0).is_alive(150.0), Snapshot(ticked=100.0).is_alive(170.0)
        (True, False)
        """
        return now - self.ticked < STALE

    def document(self) -> dict[str, Any]:
        """Return the status document of the page and of the ``status`` command."""
        return {
            "schema": SCHEMA,
            "ready": self.is_ready,
            "checks": dict(self.checks),
            **self.status,
        }


def round_line(version: Version) -> dict[str, Any]:
    """Return the entry of a closed round in the status document."""
    report = version.report
    return {
        "run": version.run,
        "round": version.round,
        "version": version.version,
        "result": "moved" if version.moved else f"abandoned: {report.get('why', '')}",
        "updates": len(report.get("cohort", ())),
        "seconds": report.get("seconds"),
        "loss": report.get("loss"),
    }


def split(listen: str) -> tuple[str, int]:
    """Split ``host:port`` into host and port.

    >>> split("127.0.0.1:9464"), split("[::1]:0")
    (('127.0.0.1', 9464), ('::1', 0))

    Raises:
        PageError: The text has another form.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise PageError(f"http.listen: expected host:port, got {listen!r}")
    return host.strip("[]"), int(port)
