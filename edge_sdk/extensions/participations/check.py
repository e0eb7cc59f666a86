"""Check the privacy of a device that takes part in several runs."""

from __future__ import annotations

from edge_sdk.commands.device_inspection import plan_of
from edge_sdk.config import Config
from edge_sdk.extensions.participations.participations import refuse_unit


def checked(config: Config) -> dict[str, str]:
    """Refuse a claim that does not add up over several runs; there is nothing to show."""
    refuse_unit(plan_of(config, None))
    return {}
