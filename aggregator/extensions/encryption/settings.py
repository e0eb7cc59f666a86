"""Define the section ``[encryption]`` of the aggregator's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aggregator.config import AggregatorConfig

EncryptedKind = Literal["update", "signal", "metrics", "forecast", "trial", "score"]


@dataclass(frozen=True, slots=True)
class EncryptionSection:
    """Encryption of messages to this aggregator and to single devices, so that no broker reads them."""

    kinds: tuple[EncryptedKind, ...] = ()  # messages that devices must encrypt
    require_device_keys: bool = False  # refuse devices that announce no key of their own
    folder: Path | None = None  # private keys; left out: encryption-keys in the state folder


def section_of(config: AggregatorConfig) -> EncryptionSection:
    found: EncryptionSection = config.section("encryption")
    return found


def folder_of(config: AggregatorConfig) -> Path:
    return section_of(config).folder or config.state / "encryption-keys"
