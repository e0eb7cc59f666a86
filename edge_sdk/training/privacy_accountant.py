"""Account for the privacy cost of releases, and stop them when the budget is exhausted.

Charges are computed here and written in the transaction that saves a round.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from edge_sdk.app.cli import fields
from edge_sdk.app.clock import Clock
from edge_sdk.privacy.event import PrivacyCharge
from edge_sdk.privacy.ledger import BudgetSpent, PrivacyAccount
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
        account: All charges of the store's ledger, summed against the budget.
    """

    mechanism: Mechanism

    def __init__(self, store: DeviceStore, session: Session, clock: Clock) -> None:
        """Begin without an account; ``begin`` sets the mechanism."""
        self._store, self._session, self._clock = store, session, clock
        self.account = PrivacyAccount()
        self._watched: tuple[int, int | None] | None = None

    def begin(self, mechanism: Mechanism) -> None:
        """Sum the ledger, and continue under this mechanism."""
        self.mechanism = mechanism
        self.account = account_of(self._store, mechanism.plan)
        self._watched = None

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
        if (spent, participation.releases_allowed) == self._watched:
            return
        self._watched = (spent, participation.releases_allowed)
        plan = self.mechanism.plan
        self.account = replace(self.account, most=plan.most(participation.releases_allowed))
        wall = self._clock.wall()
        draw = (plan.charge(wall),) if self.mechanism.origin == "input" else ()  # for a new reading
        if self.account.plus(*self._unseen(wall), *draw).has_room(plan.release()):
            participation.permit()
        else:
            self.stop("no further release fits into the budget")

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
        charges = (*self._unseen(wall), *self.mechanism.cost(wall, releases))
        account = self.account
        return charges, account.charge(*charges) if releases else account.plus(*charges)

    def adopt_account(self, account: PrivacyAccount) -> None:
        """Adopt the account of a saved round."""
        self.account = account
        self._recount()

    def _recount(self) -> None:
        """Read the ledger again where a mechanism itself charges the noise of new readings."""
        if self.mechanism.origin == "input":
            self.account = account_of(self._store, self.mechanism.plan)

    def _unseen(self, wall: int) -> tuple[PrivacyCharge, ...]:
        count = self._session.outbox.numbers.spent - self.account.released
        return self.mechanism.plan.unseen(wall, count)
