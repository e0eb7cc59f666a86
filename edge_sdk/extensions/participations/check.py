"""Check the privacy of a device that takes part in several runs."""

from __future__ import annotations

from edge_sdk.config import Config
from edge_sdk.extensions.participations.participations import refuse_unit
from edge_sdk.training import bootstrap


def checked(config: Config) -> dict[str, str]:
    """Refuse a claim that does not add up over several runs; there is nothing to show."""
    refuse_unit(bootstrap.plan_of(config, None))
    return {}
