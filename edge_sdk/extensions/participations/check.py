"""Check the further participations of a device."""

from __future__ import annotations

from dataclasses import replace

from edge_sdk.commands.check import check_device
from edge_sdk.commands.device_inspection import plan_of
from edge_sdk.config import Config
from edge_sdk.extensions.participations.participations import refuse_unit


def checked(config: Config) -> dict[str, str]:
    """Return bundle and link of each further participation, or raise the first error found."""
    refuse_unit(plan_of(config, None))
    found = {}
    for one in config.participants()[1:]:
        its = check_device(replace(one, output=()))
        found[f"participation {one.id}"] = f"{its['bundle']}; {its['link']}"
    return found
