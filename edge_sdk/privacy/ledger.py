"""What has been released, counted before anything leaves."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edge_sdk.errors import EdgeError


class BudgetSpent(EdgeError):  # noqa: N818 - the protocol's own word
    """No further release is allowed. The device keeps learning for itself and forecasting."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How many releases were made, and how many may be.

    Attributes:
        spent: Releases charged so far; only rises, and is saved in the transaction that fills the
            outbox.
        most: Highest count allowed; None is no limit.
    """

    spent: int = 0
    most: int | None = None

    def charge(self, releases: int = 1) -> Budget:
        """Return the budget after so many more releases.

        Raises:
            BudgetSpent: They do not fit; nothing is charged.

        >>> Budget(11).charge()
        Budget(spent=12, most=None)
        >>> Budget(11, most=11).charge()
        Traceback (most recent call last):
        edge_sdk.privacy.ledger.BudgetSpent: 11 of 11 releases are spent
        """
        if self.most is not None and self.spent + releases > self.most:
            raise BudgetSpent(f"{self.spent} of {self.most} releases are spent")
        return replace(self, spent=self.spent + releases)
