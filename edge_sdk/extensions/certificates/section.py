"""Define the section ``[ca]``, and refuse settings under which a certificate cannot be renewed."""

from __future__ import annotations

from pathlib import Path

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.config import Config


@dataclass(frozen=True, slots=True)
class CaSection:
    """EST server (RFC 7030) that issues and renews this device's certificate."""

    url: str = ""  # https://host:port, with a path label where the server has one; unset: none
    ca_file: Path | None = None  # authority of the server's certificate; unset: broker.ca_file
    shared: bool = False  # the common name is FLEET.ID, for a broker that fleets share

    def __post_init__(self) -> None:
        if self.url and not self.url.startswith("https://"):
            raise ValueError(f"url: {self.url!r} is not an address of HTTPS")


def ca_of(config: Config) -> CaSection:
    found: CaSection = config.extensions.get("ca", CaSection())
    return found


def refuse_two_files(config: Config) -> None:
    """Refuse settings under which a certificate cannot be renewed in one step.

    Raises:
        ValueError: The files of certificate and key differ, or are missing, or there are further
            participations.
    """
    broker = config.broker
    if not broker.url:
        return  # refused elsewhere, with the settings that a fleet needs
    if broker.cert_file is None or broker.cert_file != broker.key_file:
        raise ValueError(
            "ca.url: expected broker.cert_file and broker.key_file to be one file, in which "
            "key and certificate change together"
        )
    if config.participation:
        raise ValueError(
            "ca.url: expected no [[participation]], whose certificate it does not renew"
        )
