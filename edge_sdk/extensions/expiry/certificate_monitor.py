"""Monitor the expiry of the device's certificate and authority, and warn before it.

With ``[ca] url`` the device renews its certificate; the authority, and a
certificate without that key, are an operator's. An expired certificate stops nothing here: the device
forecasts without a link, its clock may be wrong, and the broker decides.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from edge_sdk.agent import AgentExtension, SourceHealth
from edge_sdk.app.cli import fields
from edge_sdk.app.extensions import is_set
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.client import Client
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.link.tls_validity import (
    HORIZON,
    ExpiredFileError,
    File,
    TlsFileState,
    Watch,
    X509Error,
    files,
    look,
    refuse_expired,
)
from edge_sdk.store.store import DeviceStore

logger = logging.getLogger(__name__)

_EVERY = 60.0  # seconds between two checks of the files


def tls_files(config: Config) -> tuple[File, ...]:
    return files(config.broker.url, config.broker.ca_file, config.broker.cert_file)


def checked(config: Config) -> dict[str, str]:
    """Return the remaining validity of each file, in words, by its role.

    Raises:
        ConfigError: A file cannot be read, or has expired, so that no broker accepts the device. A
            certificate that the device renews itself may have expired.
    """
    now = time.time()
    own = [
        file
        for file in tls_files(config)
        if is_set(config.tables, "ca.url") and file.kind == "certificate"
    ]
    try:
        found = refuse_expired([file for file in tls_files(config) if file not in own], now)
        found += [TlsFileState(file, file.read()) for file in own]
    except ExpiredFileError as error:
        hint = "put another one in place, or set this machine's clock"
        raise ConfigError(str(error), hint=hint) from error
    except X509Error as error:
        raise ConfigError(str(error)) from error
    return {
        seen.file.kind: seen.told(now)
        + ("; the device renews it" if seen.file in own else _renew_it(seen, now))
        for seen in found
    }


def _renew_it(seen: TlsFileState, now: float) -> str:
    return "; renew it" if seen.is_near(now, HORIZON) else ""


def saved_status(config: Config, _store: DeviceStore) -> dict[str, Any]:
    days = days_left(config)
    return {"certificate days left": days} if days else {}


def days_left(config: Config) -> dict[str, int | str | None]:
    """Return the whole days left of each file by role, negative once expired; or the error text.

    None stands for a file that never expires.
    """
    days: dict[str, int | str | None] = {}
    now = time.time()
    for seen in look(tls_files(config)):
        days[seen.file.kind] = seen.days(now) if seen.expiry is not None else seen.why
    return days


@dataclass(slots=True)
class ExpiryReminder:
    """Log a warning once a day about certificates that expire soon."""

    config: Config  # configuration that names the files
    warnings: int = 0
    _watch: Watch = field(init=False)
    _due: float = float("-inf")

    def __post_init__(self) -> None:
        self._watch = Watch(tls_files(self.config))

    def turn(self, now: float) -> None:
        """Check the files if a check is due."""
        if now < self._due:
            return
        self._due, wall = now + _EVERY, time.time()
        for seen in self._watch.warnings(wall):
            self.warnings += 1
            details = {"kind": seen.file.kind, "file": seen.file.path, "is": seen.told(wall)}
            logger.warning("certificate expiring %s", fields(**details))

    def status(self) -> dict[str, object]:
        """Return days left and warnings, for the agent's status; empty without TLS."""
        if not self._watch.files:
            return {}
        state = {"days left": days_left(self.config), "warnings": self.warnings}
        return {"certificates": state}


class AgentExpiry(AgentExtension):
    """The reminders of one agent, for every participation."""

    def __init__(self, config: Config, clients: Sequence[Client], _sources: SourceHealth) -> None:
        self._client = clients[0]
        self._reminders = [ExpiryReminder(one) for one in config.participants()]

    @staticmethod
    def prepare(config: Config) -> None:
        """Do nothing."""

    def turn(self) -> None:
        """Check the files that are due."""
        for reminder in self._reminders:
            reminder.turn(self._client.now)

    def close(self) -> None:
        """Do nothing."""

    def status(self) -> dict[str, object]:
        return self._reminders[0].status()
