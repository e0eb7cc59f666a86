"""Define what counts a release before a store commits it (``edge_sdk.store.second_count``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from edge_sdk.privacy.ledger import PrivacyCharge

COUNTED: Final = "counted outside"
"""Fact: the store has had a second count. Without one it is not made again from the ledger."""


class ReleaseGate(Protocol):
    """The count that every release of one store must pass before it is committed."""

    @property
    def newest(self) -> int:
        """Unix seconds of the newest release, by the machine's clock."""

    def reserve(self, line: int, releases: int, charges: Iterable[PrivacyCharge]) -> None:
        """Count releases before their transaction is committed.

        Args:
            line: Last line of the ledger before it.
            releases: Number of all releases after it.
            charges: What they cost.

        Raises:
            SignerUnavailable: They cannot be counted now; nothing is changed.
            StoreFull: The same, for want of space.
        """

    def settle(self, line: int) -> None:
        """Record that a store which was lost continues from this line of its new ledger."""
