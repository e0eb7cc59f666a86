"""The device's certificate and authority: how long they last, and who is told before they end.

A device cannot renew them; a person can. Nothing here stops a device that has them expired: it
forecasts without a link, its clock may be wrong, and the broker decides.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from edge_sdk.app.cli import fields
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.wire.link.tls_files import File, Watch, files, look
from edge_sdk.wire.link.x509_expiry import X509Error

logger = logging.getLogger(__name__)

_EVERY = 60.0  # seconds between two looks at the files


def tls_files(config: Config) -> tuple[File, ...]:
    """Return every file of the configuration that expires."""
    return files(config.broker.url, config.broker.ca_file, config.broker.cert_file)


def checked(config: Config, now: float) -> dict[str, str]:
    """Return how long each file lasts, in words, by what it is.

    Args:
        config: Names the files.
        now: Unix seconds.

    Raises:
        ConfigError: One cannot be read, or has expired so that no broker lets the device in.
    """
    told: dict[str, str] = {}
    for file in tls_files(config):
        try:
            found = file.read()
        except X509Error as error:
            raise ConfigError(str(error)) from error
        if found.is_over(now):
            raise ConfigError(
                f"{file.key}: {file.path}: {found.told(now)}",
                hint="put another one in place, or set this machine's clock",
            )
        told[file.kind] = f"{found.told(now)}{'; renew it' if found.is_near(now) else ''}"
    return told


def days_left(config: Config) -> dict[str, int | str | None]:
    """Return whole days left of each file by what it is, negative once it has expired; or why not.

    None is for what never expires.
    """
    told: dict[str, int | str | None] = {}
    now = time.time()
    for seen in look(tls_files(config)):
        told[seen.file.kind] = seen.days(now) if seen.expiry is not None else seen.why
    return told


@dataclass(slots=True)
class ExpiryReminder:
    """Warns in the log once a day of what ends soon, for as long as the agent runs.

    Attributes:
        config: Names the files.
        warnings: How often it has warned.
    """

    config: Config
    warnings: int = 0
    _watch: Watch = field(default_factory=Watch)
    _due: float = float("-inf")

    def __post_init__(self) -> None:
        """Take the files from the configuration."""
        self._watch.files = tls_files(self.config)

    def turn(self, now: float) -> None:
        """Look at the files if it is time to.

        Args:
            now: Seconds of a monotonic clock.
        """
        if now < self._due:
            return
        self._due, wall = now + _EVERY, time.time()
        for seen in self._watch.warnings(wall):
            self.warnings += 1
            told = {"kind": seen.file.kind, "file": seen.file.path, "is": seen.told(wall)}
            logger.warning("certificate expires %s", fields(**told))

    def status(self) -> dict[str, object]:
        """Return days left and warnings, for the agent's status; nothing where there is no TLS."""
        if not self._watch.files:
            return {}
        told = {"days left": days_left(self.config), "warnings": self.warnings}
        return {"certificates": told}
