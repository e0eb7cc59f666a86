"""What a device has told of its readings, and what it may still tell: the account of its ledger.

Charges are reckoned here and written by whoever saves a round, in the transaction that saves it.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from edge_sdk.app.cli import fields
from edge_sdk.app.clock import Clock
from edge_sdk.privacy.event import PrivacyCharge
from edge_sdk.privacy.ledger import BudgetSpent, PrivacyAccount
from edge_sdk.privacy.mechanism import Mechanism
from edge_sdk.session.session import SPENT, Session
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.bootstrap import account_of
from edge_sdk.wire.protocol.messages import RELEASES_LIMIT

logger = logging.getLogger(__name__)


class PrivacyAccountant:
    """The account of one device, under the mechanism that is in force.

    Attributes:
        mechanism: What stands between the readings and all that leaves.
        account: Every charge in the store's ledger, added up against the budget.
    """

    mechanism: Mechanism

    def __init__(self, store: DeviceStore, session: Session, clock: Clock) -> None:
        """Count nothing yet; ``begin`` says under which mechanism."""
        self._store, self._session, self._clock = store, session, clock
        self.account = PrivacyAccount()
        self._watched: tuple[int, int | None] | None = None

    def begin(self, mechanism: Mechanism) -> None:
        """Add the ledger up, to count on under this mechanism."""
        self.mechanism = mechanism
        self.account = account_of(self._store, mechanism.plan)
        self._watched = None

    def charge_start(self, releases: int) -> None:
        """Charge what a restored image may have forgotten."""
        if not releases:
            return
        up = self._session.up
        numbers = replace(up.numbers, spent=min(up.numbers.spent + releases, RELEASES_LIMIT))
        charges = self.mechanism.plan.unseen(self._clock.wall(), releases)
        self._store.charge(numbers, charges)
        self._session.up = replace(up, numbers=numbers)
        self.account = self.account.plus(*charges)

    def watch(self) -> None:
        """Stop answering when nothing more may be told, and go on when it may."""
        spent = self._session.up.numbers.spent
        if (spent, self._session.most) == self._watched:
            return
        self._watched = (spent, self._session.most)
        plan = self.mechanism.plan
        self.account = replace(self.account, most=plan.most(self._session.most))
        wall = self._clock.wall()
        draw = (plan.charge(wall),) if self.mechanism.origin == "input" else ()  # of a new reading
        if self.account.plus(*self._unseen(wall), *draw).has_room(plan.release()):
            self._session.forbidden = ""
        else:
            self.stop("nothing more may be told")

    def stop(self, why: object) -> None:
        """Let nothing leave any more, and say so once."""
        if not self._session.forbidden:
            logger.warning("budget spent, learning alone %s", fields(why=why))
        self._session.forbidden = SPENT

    @property
    def may_release(self) -> bool:
        """Whether an answer may leave now: not paused, not spent, and its number is confirmed."""
        return self._session.up.may_release and not self._session.why_stopped

    def cost(self, releases: int) -> tuple[tuple[PrivacyCharge, ...], PrivacyAccount]:
        """Return what a round costs with so many releases, and the account with that.

        What left unseen before a store was lost is charged with the next round.

        Raises:
            BudgetSpent: Something would be released that does not fit.
        """
        counted = self._session.up.numbers.spent + releases
        if counted > RELEASES_LIMIT:
            raise BudgetSpent(f"{counted} releases are more than can be counted")
        wall = self._clock.wall()
        self._recount()
        charges = (*self._unseen(wall), *self.mechanism.cost(wall, releases))
        account = self.account
        return charges, account.charge(*charges) if releases else account.plus(*charges)

    def paid(self, account: PrivacyAccount) -> None:
        """Take over the account of a round that is saved."""
        self.account = account
        self._recount()

    def _recount(self) -> None:
        """Read the ledger again where a mechanism books the noise of new readings by itself."""
        if self.mechanism.origin == "input":
            self.account = account_of(self._store, self.mechanism.plan)

    def _unseen(self, wall: int) -> tuple[PrivacyCharge, ...]:
        count = self._session.up.numbers.spent - self.account.told
        return self.mechanism.plan.unseen(wall, count)
