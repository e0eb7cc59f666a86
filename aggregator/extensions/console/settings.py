"""Define the section ``[console]`` of the aggregator's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ConsoleSection:
    """Operator's console, which ``gridfed-console`` serves."""

    listen: str = "127.0.0.1:9470"  # host:port
    cert_file: Path | None = None  # certificate for HTTPS, with its chain
    key_file: Path | None = None  # private key of that certificate
    behind_proxy: bool = False  # a proxy on this machine or network ends HTTPS before it
    hosts: tuple[str, ...] = ()  # names in the browser's address, beside the loopback ones
