"""Check settings that exclude sums, and report a device's contracts and their privacy cost."""

from __future__ import annotations

import logging
import math
from typing import Any, Final

from edge_sdk.app.cli import fields
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError, Refused
from edge_sdk.extensions.sums.masked_sum import FollowedContract, contracts_of
from edge_sdk.extensions.sums.messages import SumsMessage, unknown_source
from edge_sdk.privacy.ledger import PrivacyAccount, compose
from edge_sdk.protocol.codec import decode
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore

logger = logging.getLogger(__name__)

POINT: Final = "sum"
"""Point of the charges in the ledger."""
CONTRACTS: Final = "sum contracts"
"""Name of the announcement in the store."""


def refuse_privacy(config: Config) -> None:
    """Refuse sums beside a privacy mechanism.

    Raises:
        ValueError: The message names the key.
    """
    if config.privacy.mechanism.name != "none":
        raise ValueError(
            "accept.sums: masked numbers are computed from readings without noise, so sending them voids "
            "the claim of [privacy]; remove it, or set privacy.mechanism.name = 'none'"
        )


def checked(config: Config) -> dict[str, str]:
    """Return the contracts that the device follows, each with its source; refuse an unknown one.

    Raises:
        ConfigError: This version has no such source. The agent declines the contract, and follows the others.
    """
    if not (config.state / FILE).exists():
        return {}
    with DeviceStore.open(config.state, read_only=True) as store:
        found = [one.terms for one in saved_contracts(store)]
    for one in found:
        if why := unknown_source(one.source, config.index):
            raise ConfigError(
                f"sum contract {one.name}: source: {why}",
                hint="a newer version may have it; the agent declines this contract",
            )
    names = ", ".join(f"{one.name} ({one.source})" for one in found)
    return {"sum contracts": names} if found else {}


def budget_use(_: Config, account: PrivacyAccount) -> tuple[dict[str, Any], str]:
    """Return the epsilon of the noisy sums so far, and a sentence about it."""
    found = [one for one in account.charges if one.point == POINT]
    loss = compose(found, account.limit.delta) if found else 0.0
    data = {"epsilon": loss if math.isfinite(loss) else None, "delta": account.limit.delta}
    count = sum(one.count for one in found)
    text = f"sums with noise: epsilon {loss:.4g} for the device's whole record, {count} sums"
    return {"sums": data}, f"{text}; sums without noise have no bound"


def saved_contracts(store: DeviceStore) -> tuple[FollowedContract, ...]:
    body = store.paper(CONTRACTS)
    try:
        return () if body is None else contracts_of(decode(SumsMessage, body))
    except Refused as refused:
        logger.warning("stored value rejected %s", fields(what=CONTRACTS, why=refused))
        return ()
