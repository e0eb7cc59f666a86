"""Define the sections ``[encryption]`` and ``[scores]`` of the aggregator's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from edge_sdk.wire.schema import Between

EncryptedKind = Literal["update", "signal", "metrics", "forecast", "trial", "score"]


@dataclass(frozen=True, slots=True)
class EncryptionSection:
    """Encryption of messages to this aggregator and to single devices, so that no broker reads them."""

    kinds: tuple[EncryptedKind, ...] = ()  # messages that devices must encrypt
    require_device_keys: bool = False  # refuse devices that announce no key of their own
    folder: Path | None = None  # private keys; left out: encryption-keys in the state folder


@dataclass(frozen=True, slots=True)
class ScoreCollectionSection:
    """Histogram of the devices' scores, from noisy answers that their owners allow."""

    collect: bool = False  # ask for answers, and estimate the histogram of every day
    min_epsilon: Annotated[float, Between(0.1, 10.0)] = 0.5  # answers with more noise are refused
    keep_days: Annotated[int, Between(1, 3650)] = 60  # days whose answers are stored
