"""Account for the privacy cost of releases, and stop them when the budget is exhausted.

Charges are computed here and written in the transaction that saves a round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from edge_sdk.app.cli import fields
from edge_sdk.app.clock import Clock
from edge_sdk.privacy.event import PrivacyCharge
from edge_sdk.privacy.ledger import (
    UNKNOWN,
    BudgetSpent,
    ParticipationCharges,
    PrivacyAccount,
    epsilon_at,
)
from edge_sdk.privacy.mechanism import Mechanism
from edge_sdk.session.session import Session
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.bootstrap import account_of
from edge_sdk.wire.protocol.messages import RELEASES_LIMIT

logger = logging.getLogger(__name__)


class PrivacyAccountant:
    """The privacy account of one device, under the mechanism in force.

    Attributes:
        mechanism: Privacy mechanism between the readings and everything that is sent.
        account: All charges of the store's ledger, and those of the device's other participations,
            summed against the budget.
    """

    mechanism: Mechanism

    def __init__(self, store: DeviceStore, session: Session, clock: Clock) -> None:
        """Begin without an account; ``begin`` sets the mechanism."""
        self._store, self._session, self._clock = store, session, clock
        self.account = PrivacyAccount()
        self._others: Callable[[], tuple[ParticipationCharges, ...]] = tuple
        self._watched: object = None
        self._lines = 0

    def begin(self, mechanism: Mechanism) -> None:
        """Sum the ledger, and continue under this mechanism."""
        self.mechanism = mechanism
        self._sum()
        self._watched = None

    def share(self, others: Callable[[], tuple[ParticipationCharges, ...]]) -> None:
        """Hold the charges of the device's other participations against the same budget.

        Args:
            others: Returns the present charges of each.
        """
        self._others, self._watched = others, None

    def spending(self) -> ParticipationCharges:
        """Return the charges of this participation alone, for the accounts of the others."""
        self._recount()
        account = self.account.plus(*self._unseen(self._clock.wall()))
        allowed = self._session.participation.releases_allowed
        is_known = not self._session.outbox.numbers.lost
        return ParticipationCharges(account.charges, account.released, allowed, is_known)

    def charge_start(self, releases: int) -> None:
        """Charge releases that a restored disk image may lack."""
        if not releases:
            return
        before = self._session.outbox.numbers
        numbers = replace(before, spent=min(before.spent + releases, RELEASES_LIMIT))
        charges = self.mechanism.plan.unseen(self._clock.wall(), releases)
        self._store.charge(numbers, charges)
        self._session.adopt_numbers(numbers)
        self.account = self.account.plus(*charges)

    def watch(self) -> None:
        """Stop releases when the budget is exhausted, and resume them when it is not."""
        participation, spent = self._session.participation, self._session.outbox.numbers.spent
        others = self._others()
        watched = spent, participation.releases_allowed, others
        if watched == self._watched:
            return
        self._watched = watched
        self._include(others)
        plan, wall = self.mechanism.plan, self._clock.wall()
        draw = (plan.charge(wall),) if self.mechanism.origin == "input" else ()  # for a new reading
        if self.account.plus(*self._unseen(wall), *draw).has_room(plan.release()):
            participation.permit()
        else:
            is_known = self.account.is_known
            self.stop("no further release fits into the budget" if is_known else UNKNOWN)

    def stop(self, why: object) -> None:
        """Forbid every release, and log it once."""
        if self._session.participation.exhaust_budget():
            logger.warning("privacy budget exhausted %s", fields(why=why))

    @property
    def may_release(self) -> bool:
        """Return whether a release may be sent now: not stopped, and the numbers are confirmed."""
        return self._session.participation.may_release

    def cost(self, releases: int) -> tuple[tuple[PrivacyCharge, ...], PrivacyAccount]:
        """Return the charges of a round with so many releases, and the account including them.

        Releases unknown because a store was lost are charged with the next round.

        Raises:
            BudgetSpent: A release does not fit into the budget.
        """
        counted = self._session.outbox.numbers.spent + releases
        if counted > RELEASES_LIMIT:
            raise BudgetSpent(f"{counted} releases are above {RELEASES_LIMIT}, the most counted")
        wall = self._clock.wall()
        self._recount()
        self._include(self._others())
        charges = (*self._unseen(wall), *self.mechanism.cost(wall, releases))
        account = self.account
        return charges, account.charge(*charges) if releases else account.plus(*charges)

    def epsilon_at(self, point: str) -> float:
        """Return the sum of the ε of this participation's pure releases at one point."""
        return epsilon_at(self.account, point)

    def charge_beside(
        self, charge: PrivacyCharge, budget: float, name: str, content: bytes
    ) -> None:
        """Save a release that is no update, with its charge; it counts in the account, too.

        Args:
            charge: The charge of a pure mechanism.
            budget: Largest sum of the ε of all charges at its point.
            name: Name of the stored record.
            content: The release.

        Raises:
            BudgetSpent: The charge exceeds this budget or that of the account; nothing is saved.
            StoreFull: No space; nothing is saved.
        """
        self._recount()
        self._include(self._others())
        spent = self.epsilon_at(charge.point)
        if spent + 1.0 / charge.multiplier > budget * (1.0 + 1e-9):
            raise BudgetSpent(
                f"epsilon {spent:.4g} is charged at the {charge.point}; {budget:g} is allowed, and "
                f"one more costs {1.0 / charge.multiplier:g}",
                hint="see gridfed-edge budget CONFIG",
            )
        after = self.account.charge(charge)
        self._store.save_answer(name, content, charge)
        self.adopt_account(after)
        self._watched = None

    def adopt_account(self, account: PrivacyAccount) -> None:
        """Adopt the account of a saved round."""
        self.account = account
        self._recount()

    def _recount(self) -> None:
        """Read the ledger again where a mechanism itself charges the noise of new readings."""
        if self.mechanism.origin == "input" and self._store.count_charges() != self._lines:
            self._sum()

    def _sum(self) -> None:
        """Read the ledger from its first line."""
        others, self._lines = self.account.beside, self._store.count_charges()
        self.account = account_of(self._store, self.mechanism.plan)
        if others:
            self._include(others)

    def _include(self, others: tuple[ParticipationCharges, ...]) -> None:
        """Set the charges of the other participations; the least of the operator's limits holds."""
        limits = (
            self._session.participation.releases_allowed,
            *(other.allowed for other in others),
        )
        allowed = min((limit for limit in limits if limit is not None), default=None)
        most = self.mechanism.plan.most(allowed)
        self.account = replace(self.account, beside=others, most=most)

    def _unseen(self, wall: int) -> tuple[PrivacyCharge, ...]:
        count = self._session.outbox.numbers.spent - self.account.released
        return self.mechanism.plan.unseen(wall, count)
