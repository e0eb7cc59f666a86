"""Count releases before they are sent, and compute their total privacy cost.

Gaussian releases compose exactly: T releases with noise ``z`` reveal as much as one with ``z/√T``
(Dong, Roth and Su, "Gaussian differential privacy", 2019). Pure mechanisms add up. Sampling earns
no amplification: the server or the order of arrival selects participants, and neither is secret.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import EdgeError

COARSER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"reading": ("day", "device"), "window": ("device",), "day": ("device",), "device": ()}
)
"""Units that contain a unit: noise that hides a whole day hides each of its readings."""

SUMMED_UNITS = frozenset({"day", "device"})
"""Units whose losses add up over bundles with different grids and windows."""

UNCOUNTED = (
    "releases may have left that are not counted: gridfed-edge budget CONFIG says what to do"
)
"""Reason for which nothing is released where both counts of the releases are lost."""

UNKNOWN = "the releases of another participation are not known before its first welcome"
"""Reason for which nothing is released where a budget is shared with a new store."""

GAUSSIAN = frozenset({"gaussian"})
_MOST = 1_000_000_000


@dataclass(frozen=True, slots=True)
class PrivacyCharge:
    """Cost of some releases of one kind."""

    time: int  # milliseconds since 1970 by the device's own clock; informational only
    unit: str  # unit of the claim: ``reading``, ``window``, ``day`` or ``device``
    # point at which noise is added: ``input``, ``gradient``, ``update``, ``sign``, ``none``
    point: str
    # ``gaussian``, ``laplace``, ``sign_flip``, …; ``after`` for values computed from noisy data,
    # ``none`` for values released without noise
    mechanism: str
    # noise over sensitivity (L2 for a Gaussian; 1/ε of a pure one). 0 gives no bound, infinity
    # costs nothing
    multiplier: float
    # sampled share of the data. It is recorded and earns no amplification: participation is neither
    # secret nor drawn at random.
    rate: float = 1.0
    count: int = 1  # number of noise draws
    releases: int = 0  # number of numbered messages that this charge covers

    @property
    def kind(self) -> tuple[str, str, str, float]:
        """Return the fields that charges must share to be added up."""
        return self.unit, self.point, self.mechanism, self.multiplier

    @property
    def is_free(self) -> bool:
        return math.isinf(self.multiplier) or not self.count


UNBOUNDED = PrivacyCharge(0, "device", "none", "none", 0.0, count=1, releases=2**31)
"""Charge for an unreadable line: more than any budget allows."""


class BudgetSpent(EdgeError):  # noqa: N818 - the protocol's own word
    """An error: no further release is allowed. Local training and forecasts continue."""


@dataclass(frozen=True, slots=True)
class PrivacyLimit:
    """Limit of the total privacy loss about one unit; infinite means no limit."""

    unit: str = "device"
    epsilon: float = math.inf
    delta: float = 1e-5


@dataclass(frozen=True, slots=True)
class ParticipationCharges:
    """The charges of one participation of a device that has several."""

    charges: tuple[PrivacyCharge, ...] = ()
    released: int = 0
    allowed: int | None = None  # number of releases that the operator allows; None for any
    # false before the first welcome of a new store: an earlier one may have been lost, and with it
    # charges that only the aggregator has counted
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class PrivacyAccount:
    """All charges so far, added up by kind, and the limit.

    A device that takes part in several runs has an account for each. Every one of them includes the
    charges of the others, for which the same readings were used, and is held against the same limit.
    """

    charges: tuple[PrivacyCharge, ...] = ()
    limit: PrivacyLimit = PrivacyLimit()
    most: int | None = None  # largest number of numbered releases, if the operator set one
    released: int = 0  # number of numbered releases, those outside the claim included
    beside: tuple[ParticipationCharges, ...] = ()  # charges of the device's other participations
    is_counted: bool = True  # false if earlier releases may have left that nothing counts

    @classmethod
    def of(
        cls,
        ledger: Iterable[PrivacyCharge],
        limit: PrivacyLimit,
        *,
        outside: int = 0,
        most: int | None = None,
    ) -> PrivacyAccount:
        """Add up a ledger from its first line.

        Args:
            ledger: Charges in the order in which they were written.
            outside: Releases up to this number are outside the claim, as the operator configured.
            most: Largest number of releases.
        """
        account = cls(limit=limit, most=most)
        for charge in ledger:
            released = account.released + charge.releases
            if charge.releases and released <= outside:
                account = replace(account, released=released)
            else:
                account = account.plus(charge)
        return account

    def plus(self, *charges: PrivacyCharge) -> PrivacyAccount:
        """Return the account with more charges, without checking the limit."""
        kinds = {charge.kind: charge for charge in self.charges}
        for charge in charges:
            before = kinds.get(charge.kind)
            count = charge.count + (before.count if before else 0)
            releases = charge.releases + (before.releases if before else 0)
            kinds[charge.kind] = replace(charge, count=count, releases=releases)
        released = self.released + sum(charge.releases for charge in charges)
        return replace(self, charges=tuple(kinds.values()), released=released)

    def charge(self, *charges: PrivacyCharge) -> PrivacyAccount:
        """Return the account after these releases.

        Raises:
            BudgetSpent: They exceed the limit; nothing is charged.

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
        if not self.is_counted:
            raise BudgetSpent(UNCOUNTED)
        if self.most is not None and not self.is_known:
            raise BudgetSpent(UNKNOWN)
        if self.most is not None and after.released_by_device > self.most:
            raise BudgetSpent(f"{self.released_by_device} of {self.most} releases are spent")
        worth = after.epsilon()
        if worth > self.limit.epsilon:
            more = after.released - self.released
            raise BudgetSpent(
                f"{self.released_by_device} releases are charged; with {more} more a {self.limit.unit} would be "
                f"charged epsilon {worth:.4g}, and {self.limit.epsilon:g} is allowed",
                hint="local training continues; see gridfed-edge budget CONFIG",
            )
        return after

    def epsilon(self, unit: str | None = None, delta: float | None = None) -> float:
        """Return the ε of all charges about one unit; infinite where no bound holds."""
        unit, delta = unit or self.limit.unit, delta or self.limit.delta
        if not self.is_known:
            return math.inf
        ledgers = [
            [charge for charge in charges if not charge.is_free]
            for charges in (self.charges, *(other.charges for other in self.beside))
        ]
        paid = [charge for ledger in ledgers for charge in ledger]
        if any(c.unit != unit and c.unit not in COARSER[unit] for c in paid):
            return math.inf
        if sum(map(bool, ledgers)) > 1 and any(c.unit not in SUMMED_UNITS for c in paid):
            return math.inf  # a window of one bundle overlaps several of another
        # within one ledger each draw is on other readings; two ledgers draw on the same ones
        once = ([[replace(c, count=1)] for c in x if c.point == "input"] or [[]] for x in ledgers)
        rest = [c for c in paid if c.point != "input"]
        drawn = itertools.product(*once)
        return max(compose([*itertools.chain(*first), *rest], delta) for first in drawn)

    @property
    def is_known(self) -> bool:
        return self.is_counted and all(other.is_known for other in self.beside)

    @property
    def released_by_device(self) -> int:
        return self.released + sum(other.released for other in self.beside)

    @property
    def is_kept(self) -> bool:
        """Return whether the charges so far fit the limit; otherwise no claim holds."""
        return self.epsilon() <= self.limit.epsilon * (1.0 + 1e-9)

    def has_room(self, charge: PrivacyCharge) -> bool:
        """Return whether one more release of this cost fits."""
        if not self.is_counted:
            return False
        after = self.released_by_device + charge.releases
        is_counted = self.most is None or (self.is_known and after <= self.most)
        return is_counted and (math.isinf(self.limit.epsilon) or self._fits(charge, 1))

    def summary(self, charge: PrivacyCharge | None = None) -> dict[str, Any]:
        """Return the spent and allowed amounts as numbers; infinite is None, for JSON."""
        worth, allowed = self.epsilon(), self.limit.epsilon
        result: dict[str, Any] = {
            "unit": self.limit.unit,
            "epsilon": worth if math.isfinite(worth) else None,
            "allowed": allowed if math.isfinite(allowed) else None,
            "delta": self.limit.delta,
            "releases": self.released_by_device,
            **({"releases in this run": self.released} if self.beside else {}),
        }
        return result if charge is None else {**result, "left": self.left(charge)}

    def left(self, charge: PrivacyCharge) -> int | None:
        """Return the number of further releases of this cost; None means no limit."""
        if not self.is_known and (self.most is not None or math.isfinite(self.limit.epsilon)):
            return 0
        room = None if self.most is None else max(0, self.most - self.released_by_device)
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


def compose(charges: Iterable[PrivacyCharge], delta: float) -> float:
    """Return the ε of all these releases together.

    Gaussian releases compose exactly, pure ones by addition; pure ones of one ε alone also by
    advanced composition, where that is less.

    >>> hundred = PrivacyCharge(0, "device", "update", "gaussian", multiplier=4.0, count=100)
    >>> f"{compose([hundred], 1e-5):.4f}"
    '13.2067'
    >>> flips = PrivacyCharge(0, "device", "sign", "sign_flip", multiplier=10.0, count=100)
    >>> f"{compose([flips], 1e-5):.4f}", f"{compose([hundred, flips], 1e-5):.4f}"
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
        from edge_sdk.privacy.noise import epsilon_of  # noqa: PLC0415 - for Gaussian noise alone

        return epsilon_of(1.0 / math.sqrt(squares), delta) + added
    multipliers = {charge.multiplier for charge in pure}
    if len(multipliers) == 1 and (multiplier := multipliers.pop()) > 1.0:
        count = sum(charge.count for charge in pure)
        return min(added, advanced_composition(1.0 / multiplier, count, delta))
    return added


def advanced_composition(epsilon: float, times: int, delta: float) -> float:
    """Return the total ε of ``times`` ε-private releases, except with probability δ.

    Dwork and Roth (2014), theorem 3.20. For few releases plain addition is less.

    >>> round(advanced_composition(0.1, 100, 1e-5), 5)
    5.85024
    """
    spread = math.sqrt(2.0 * times * math.log(1.0 / delta)) * epsilon
    return spread + times * epsilon * math.expm1(epsilon)
