"""Account for the privacy cost of releases, and stop them when the budget is exhausted.

Charges are computed here and written in the transaction that saves a round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from edge_sdk.app.cli import fields
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.config import PARTICIPATIONS, Config
from edge_sdk.limits.resource_governor import ResourceGovernor
from edge_sdk.privacy import ledger
from edge_sdk.privacy.mechanism import Mechanism
from edge_sdk.protocol.messages import RELEASES_LIMIT
from edge_sdk.session.participation import LinkQuota
from edge_sdk.session.session import Session
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.bootstrap import account_of

logger = logging.getLogger(__name__)


class PrivacyAccountant:
    """The privacy account of one device, under the mechanism in force.

    Attributes:
        account: All charges of the store's ledger, and those of the device's other participations,
            summed against the budget.
    """

    mechanism: Mechanism  # privacy mechanism between the readings and everything that is sent

    def __init__(self, store: DeviceStore, session: Session, clock: Callable[[], int]) -> None:
        """Begin without an account; ``begin`` sets the mechanism."""
        self._store, self._session, self._clock = store, session, clock
        self.account = ledger.PrivacyAccount()
        self._others: Callable[[], tuple[ledger.ParticipationCharges, ...]] = tuple
        self._watched: object = None
        self._lines = 0

    def begin(self, mechanism: Mechanism) -> None:
        """Sum the ledger, and continue under this mechanism."""
        self.mechanism = mechanism
        self._sum()
        self._watched = None

    def share(self, others: Callable[[], tuple[ledger.ParticipationCharges, ...]]) -> None:
        """Count the charges of the device's other participations against the same budget."""
        self._others, self._watched = others, None

    @property
    def known(self) -> ledger.PrivacyAccount:
        """Return the account, with the releases that the ledger lacks and another count has."""
        return self.account.plus(*self._unseen(self._clock()))

    def spending(self) -> ledger.ParticipationCharges:
        """Return the charges of this participation alone, for the accounts of the others."""
        self._recount()
        account = self.known
        allowed = self._session.participation.releases_allowed
        is_known = account.is_counted and not self._session.outbox.numbers.lost
        return ledger.ParticipationCharges(account.charges, account.released, allowed, is_known)

    def watch(self) -> None:
        """Stop releases when the budget is exhausted, and resume them when it is not."""
        participation, spent = self._session.participation, self._session.outbox.numbers.spent
        others = self._others()
        watched = spent, participation.releases_allowed, others
        if watched == self._watched:
            return
        self._watched = watched
        self._include(others)
        plan, wall = self.mechanism.plan, self._clock()
        draw = (
            (plan.charge(wall),) if plan.point.is_on_readings and plan.cost else ()
        )  # for a new reading
        if self.account.plus(*self._unseen(wall), *draw).has_room(plan.release()):
            participation.permit()
        else:
            self.stop(_why_stopped(self.account))

    def stop(self, why: object) -> None:
        """Forbid every release, and log it once."""
        if self._session.participation.exhaust_budget():
            logger.warning("privacy budget exhausted %s", fields(why=why))

    def cost(self, releases: int) -> tuple[tuple[ledger.PrivacyCharge, ...], ledger.PrivacyAccount]:
        """Return the charges of a round by its number of releases, and the account including them.

        Releases unknown because a store was lost are charged with the next round.
        """
        counted = self._session.outbox.numbers.spent + releases
        if counted > RELEASES_LIMIT:
            raise ledger.BudgetSpent(
                f"{counted} releases are above {RELEASES_LIMIT}, the most counted"
            )
        wall, account = self._clock(), self.current()
        charges = (*self._unseen(wall), *self.mechanism.cost(wall, releases))
        return charges, account.charge(*charges) if releases else account.plus(*charges)

    def current(self) -> ledger.PrivacyAccount:
        """Return the account, with the later charges of other participations and of noise on readings."""
        self._recount()
        self._include(self._others())
        return self.account

    def adopt_account(self, account: ledger.PrivacyAccount) -> None:
        self.account, self._watched = account, None
        self._recount()

    def _recount(self) -> None:
        if self.mechanism.origin == "input" and self._store.count_charges() != self._lines:
            self._sum()

    def _sum(self) -> None:
        others, self._lines = self.account.beside, self._store.count_charges()
        self.account = account_of(self._store, self.mechanism.plan)
        if others:
            self._include(others)

    def _include(self, others: tuple[ledger.ParticipationCharges, ...]) -> None:
        limits = (
            self._session.participation.releases_allowed,
            *(other.allowed for other in others),
        )
        allowed = min((limit for limit in limits if limit is not None), default=None)
        most = self.mechanism.plan.most(allowed)
        self.account = replace(self.account, beside=others, most=most)

    def _unseen(self, wall: int) -> tuple[ledger.PrivacyCharge, ...]:
        count = self._session.outbox.numbers.spent - self.account.released
        return self.mechanism.plan.unseen(wall, count)


def _why_stopped(account: ledger.PrivacyAccount) -> str:
    if account.is_known:
        return "no further release fits into the budget"
    return ledger.UNKNOWN if account.is_counted else ledger.UNCOUNTED


@dataclass(frozen=True, slots=True)
class ParticipationBudgets:
    """The privacy account and the use of the limits of one participation."""

    accountant: PrivacyAccountant
    quota: LinkQuota
    governor: ResourceGovernor


def former_charges(config: Config) -> tuple[ledger.ParticipationCharges, ...]:
    """Return the charges of participations that are not configured any more.

    The readings that they used are the device's, so their losses count for as long as its state is
    kept. Releases that only the aggregator recorded are unbounded: their noise is unknown.
    """
    present = {one.id for one in config.participation}
    folders = sorted((config.state / PARTICIPATIONS).glob(f"*/{FILE}"))
    return tuple(charges_of(x.parent) for x in folders if x.parent.name not in present)


def charges_of(folder: Path) -> ledger.ParticipationCharges:
    """Return the charges in the ledger of a state folder, read beside a running agent."""
    with DeviceStore.open(folder, read_only=True) as store:
        account = ledger.PrivacyAccount.of(store.ledger(), ledger.PrivacyLimit())
        allowed = store.fact("releases allowed", -1)
        if (unseen := store.numbers().spent - account.released) > 0:
            account = account.plus(replace(ledger.UNBOUNDED, releases=unseen))
    limit = allowed if allowed >= 0 else None
    return ledger.ParticipationCharges(account.charges, account.released, limit)
