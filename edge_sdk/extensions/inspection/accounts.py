"""Sum the privacy ledger of a device, and those beside it, without running the device."""

from __future__ import annotations

from dataclasses import replace

from edge_sdk.config import Config
from edge_sdk.privacy.ledger import ParticipationCharges, PrivacyAccount
from edge_sdk.privacy.noise_calibration import NoisePlan
from edge_sdk.protocol import messages as m
from edge_sdk.session.announcements import saved_message
from edge_sdk.session.identity import find_releases
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore
from edge_sdk.training import bootstrap
from edge_sdk.training.privacy_accountant import former_charges


def announced_of(store: DeviceStore) -> m.BundleMessage | None:
    return saved_message(store, m.BundleMessage, "bundle")


def account_of(
    config: Config,
    store: DeviceStore | None,
    plan: NoisePlan,
    beside: tuple[ParticipationCharges, ...] = (),
) -> PrivacyAccount:
    """Sum the charges of the ledger, and the releases that only another count has recorded.

    Args:
        store: Its store; None if there is none.
        plan: Its privacy mechanism.
        beside: Charges of the device's other participations.
    """
    found = find_releases(config, store)
    spent = found.releases
    if store is None:
        account = PrivacyAccount(limit=plan.limit, most=plan.most(None))
    else:
        account, spent = bootstrap.account_of(store, plan), max(spent, store.numbers().spent)
    limits = (account.most, *(other.allowed for other in beside))
    most = min((limit for limit in limits if limit is not None), default=None)
    account = account.plus(*plan.unseen(0, spent - account.released))
    return replace(account, beside=beside, most=most, is_counted=not found.is_lost)


def charges_beside(config: Config, name: str) -> tuple[ParticipationCharges, ...]:
    """Return the charges of the device's other participations, former ones included.

    Args:
        name: Id of the participation whose own charges are left out.

    Raises:
        EdgeError: A state folder or a bundle cannot be read.
    """
    others = [one for one in config.participants() if one.id != name]
    found = tuple(_charges_of(one) for one in others if (one.state / FILE).exists())
    return (*found, *former_charges(config))


def _charges_of(one: Config) -> ParticipationCharges:
    with DeviceStore.open(one.state, read_only=True) as store:
        account = account_of(one, store, bootstrap.plan_of(one, announced_of(store)))
        allowed = store.fact("releases allowed", -1)
    most = allowed if allowed >= 0 else None
    return ParticipationCharges(account.charges, account.released, most, account.is_counted)
