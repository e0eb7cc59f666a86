"""How what leaves is perturbed. So far: not at all, which must be said aloud."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol

from edge_sdk.wire.method import Update


class Mechanism(Protocol):
    """What stands between a half's answer and the outbox."""

    @property
    def says(self) -> str:
        """What this mechanism promises, in plain words."""

    def release(self, update: Update) -> Update:
        """Return what may leave. Called once a release; the result is stored before it is sent."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """No mechanism: updates leave as they were computed."""

    name: Literal["none"] = "none"

    @property
    def says(self) -> str:
        """Say that nothing is promised."""
        return (
            "no privacy mechanism is active: updates leave as computed, and what they tell about "
            "this device's readings is not bounded"
        )

    def release(self, update: Update) -> Update:
        """Return the update unchanged."""
        return update


MECHANISMS: Mapping[str, Callable[[], Mechanism]] = MappingProxyType({"none": Nothing})
"""Every mechanism by its configured name."""
