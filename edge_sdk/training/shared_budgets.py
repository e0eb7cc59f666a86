"""Hold the participations of one device against its one privacy budget and its one set of limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge_sdk.errors import ConfigError
from edge_sdk.limits.resource_governor import ResourceGovernor
from edge_sdk.privacy.ledger import SUMMED_UNITS, ParticipationCharges
from edge_sdk.privacy.noise_calibration import NoisePlan
from edge_sdk.session.link_quota import LinkQuota
from edge_sdk.training.privacy_accountant import PrivacyAccountant


@dataclass(frozen=True, slots=True)
class ParticipationBudgets:
    """The privacy account and the use of the limits of one participation.

    Attributes:
        id: Id of the participation.
        accountant: Its privacy account.
        quota: Its daily quota of the link.
        governor: Its resource limits.
    """

    id: str
    accountant: PrivacyAccountant
    quota: LinkQuota
    governor: ResourceGovernor

    def share(
        self,
        others: Sequence[ParticipationBudgets],
        former: tuple[ParticipationCharges, ...] = (),
    ) -> None:
        """Count the others' privacy loss, bytes and wake time against the same limits.

        The sum holds after a power cut too: each participation writes its charge before an upload
        leaves, and reads its own ledger at its start.

        Args:
            others: The device's other participations.
            former: Charges of participations that are not configured any more.
        """
        self.accountant.share(lambda: (*(one.accountant.spending() for one in others), *former))
        self.quota.share(one.quota for one in others)
        self.governor.share(one.governor for one in others)


def refuse_unit(plan: NoisePlan) -> None:
    """Refuse a claim about a unit that differs between bundles, where several runs share a budget.

    Raises:
        ConfigError: The claim is about a reading or a window.
    """
    if plan.mechanism.name != "none" and plan.limit.unit not in SUMMED_UNITS:
        raise ConfigError(
            f"participation: a claim about a {plan.limit.unit} does not add up over runs whose bundles "
            "have other grids or windows",
            hint=f"privacy.budget.unit: expected {' or '.join(sorted(SUMMED_UNITS))}",
        )
