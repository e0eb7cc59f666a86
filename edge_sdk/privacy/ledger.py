"""What has been released, counted before anything leaves; and what that adds up to.

Gaussian releases compose exactly: T with noise ``z`` tell as much as one with ``z/√T`` (Dong, Roth
and Su, "Gaussian differential privacy", 2019). Pure mechanisms add up. Nothing is deducted for
sampling: who takes part is chosen by the server or by order of arrival, and that is no secret.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from edge_sdk.errors import EdgeError
from edge_sdk.privacy.analytic_gaussian import epsilon_of
from edge_sdk.privacy.event import PrivacyCharge
from edge_sdk.privacy.pure_dp import advanced

COARSER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"reading": ("day", "device"), "window": ("device",), "day": ("device",), "device": ()}
)
"""The units that contain a unit: what hides a whole day hides each of its readings."""

GAUSSIAN = frozenset({"gaussian"})
_MOST = 1_000_000_000


class BudgetSpent(EdgeError):  # noqa: N818 - the protocol's own word
    """No further release is allowed. The device keeps learning for itself and forecasting."""


@dataclass(frozen=True, slots=True)
class PrivacyLimit:
    """What may be told about one unit in all; infinite is no limit."""

    unit: str = "device"
    epsilon: float = math.inf
    delta: float = 1e-5


@dataclass(frozen=True, slots=True)
class PrivacyAccount:
    """Every charge so far, added up by kind, and the limit.

    Attributes:
        charges: One for each kind.
        limit: The budget.
        most: Numbered releases allowed at most, if an operator said so.
        told: Releases by number, those outside the claim included.
    """

    charges: tuple[PrivacyCharge, ...] = ()
    limit: PrivacyLimit = PrivacyLimit()
    most: int | None = None
    told: int = 0

    @classmethod
    def of(
        cls,
        ledger: Iterable[PrivacyCharge],
        limit: PrivacyLimit,
        *,
        outside: int = 0,
        most: int | None = None,
    ) -> PrivacyAccount:
        """Add a ledger up, from its first line.

        Args:
            ledger: In the order it was written.
            limit: The budget.
            outside: Releases up to this number are outside the claim, as the operator said aloud.
            most: Releases allowed at most.
        """
        account = cls(limit=limit, most=most)
        for charge in ledger:
            told = account.told + charge.releases
            if charge.releases and told <= outside:  # noqa: SIM108 - a sentence each
                account = replace(account, told=told)
            else:
                account = account.plus(charge)
        return account

    def plus(self, *charges: PrivacyCharge) -> PrivacyAccount:
        """Return the account with more charges, whatever they add up to."""
        kinds = {charge.kind: charge for charge in self.charges}
        for charge in charges:
            before = kinds.get(charge.kind)
            count = charge.count + (before.count if before else 0)
            releases = charge.releases + (before.releases if before else 0)
            kinds[charge.kind] = replace(charge, count=count, releases=releases)
        told = self.told + sum(charge.releases for charge in charges)
        return replace(self, charges=tuple(kinds.values()), told=told)

    def charge(self, *charges: PrivacyCharge) -> PrivacyAccount:
        """Return the account after these releases.

        Raises:
            BudgetSpent: They do not fit; nothing is charged.

        Example:
            >>> once = PrivacyCharge(0, "device", "update", "gaussian", multiplier=5.0, releases=1)
            >>> account = PrivacyAccount(limit=PrivacyLimit("device", epsilon=10.0))
            >>> account = account.charge(*[once] * 100)
            >>> f"{account.epsilon():.4f}", account.left(once)
            ('9.9973', 0)
            >>> account.charge(once)
            Traceback (most recent call last):
            edge_sdk.privacy.ledger.BudgetSpent: 100 releases are charged; with 1 more ...
        """
        after = self.plus(*charges)
        if self.most is not None and after.told > self.most:
            raise BudgetSpent(f"{self.told} of {self.most} releases are spent")
        worth = after.epsilon()
        if worth > self.limit.epsilon:
            more = after.told - self.told
            raise BudgetSpent(
                f"{self.told} releases are charged; with {more} more a {self.limit.unit} would be "
                f"worth epsilon {worth:.4g}, and {self.limit.epsilon:g} is allowed",
                hint="the device keeps learning for itself; see gridfed-edge budget CONFIG",
            )
        return after

    def epsilon(self, unit: str | None = None, delta: float | None = None) -> float:
        """Return what all charges together tell about one unit; infinite where nothing bounds it.

        Args:
            unit: Of the claim; the budget's if left out.
            delta: Of the claim; the budget's if left out.
        """
        unit, delta = unit or self.limit.unit, delta or self.limit.delta
        paid = [charge for charge in self.charges if not charge.is_free]
        if any(c.unit != unit and c.unit not in COARSER[unit] for c in paid):
            return math.inf
        drawn_once = [c for c in paid if c.point == "input"]  # each on other readings
        rest = [c for c in paid if c.point != "input"]
        once = [[replace(c, count=1)] for c in drawn_once] or [[]]
        return max(composed([*first, *rest], delta) for first in once)

    @property
    def is_kept(self) -> bool:
        """Whether what was charged so far fits the limit: else no claim holds for what left."""
        return self.epsilon() <= self.limit.epsilon * (1.0 + 1e-9)

    def has_room(self, charge: PrivacyCharge) -> bool:
        """Whether one more release of this cost fits."""
        is_counted = self.most is None or self.told + charge.releases <= self.most
        return is_counted and (math.isinf(self.limit.epsilon) or self._fits(charge, 1))

    def summary(self, charge: PrivacyCharge | None = None) -> dict[str, Any]:
        """Say in numbers what was told and what may be; infinite is None, for it is no number.

        Args:
            charge: What the next release costs, to tell how many of it are left.
        """
        worth, allowed = self.epsilon(), self.limit.epsilon
        said: dict[str, Any] = {
            "unit": self.limit.unit,
            "epsilon": worth if math.isfinite(worth) else None,
            "allowed": allowed if math.isfinite(allowed) else None,
            "delta": self.limit.delta,
            "releases": self.told,
        }
        return said if charge is None else {**said, "left": self.left(charge)}

    def left(self, charge: PrivacyCharge) -> int | None:
        """Return how many more releases of this cost fit; None is no limit."""
        room = None if self.most is None else max(0, self.most - self.told)
        if math.isinf(self.limit.epsilon):
            return room
        low, high = 0, 1
        while high < _MOST and self._fits(charge, high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(charge, middle) else (low, middle)
        if high >= _MOST:
            return room
        return low if room is None else min(low, room)

    def _fits(self, charge: PrivacyCharge, times: int) -> bool:
        after = self.plus(replace(charge, count=charge.count * times))
        return after.epsilon() <= self.limit.epsilon


def composed(charges: Iterable[PrivacyCharge], delta: float) -> float:
    """Return the ε of all these releases together.

    Gaussian ones exactly, pure ones by addition; pure ones alone also by advanced composition,
    where that is less.

    Example:
        >>> hundred = PrivacyCharge(0, "device", "update", "gaussian", multiplier=4.0, count=100)
        >>> f"{composed([hundred], 1e-5):.4f}"
        '13.2067'
        >>> flips = PrivacyCharge(0, "device", "sign", "sign_flip", multiplier=10.0, count=100)
        >>> f"{composed([flips], 1e-5):.4f}", f"{composed([hundred, flips], 1e-5):.4f}"
        ('5.8502', '23.2067')
    """
    charges = list(charges)
    if any(charge.multiplier <= 0.0 for charge in charges):
        return math.inf
    gaussian = [charge for charge in charges if charge.mechanism in GAUSSIAN]
    pure = [charge for charge in charges if charge.mechanism not in GAUSSIAN]
    squares = math.fsum(charge.count / charge.multiplier**2 for charge in gaussian)
    added = math.fsum(charge.count / charge.multiplier for charge in pure)
    if squares:
        return epsilon_of(1.0 / math.sqrt(squares), delta) + added
    if len(pure) == 1 and pure[0].multiplier > 1.0:
        (only,) = pure
        return min(added, advanced(1.0 / only.multiplier, only.count, delta))
    return added
