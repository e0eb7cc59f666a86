"""Collect the rows of device lists: connection, model and refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aggregator.config import AggregatorConfig
from aggregator.extensions.console.fleet_summary import RunLine
from aggregator.extensions.console.overview import StoreOverview
from aggregator.extensions.console.overview_rows import DeviceSummary
from edge_sdk.errors import Reason

UPDATES = 100  # newest settled updates of a device that are read


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One row of a list of devices."""

    device: DeviceSummary
    connection: str  # state of its connection; empty if unknown
    seen: int  # server time of its last message, Unix milliseconds; 0 if unknown
    software: str  # version of its software; empty if unknown
    model: str  # bundle of the run that it takes part in; empty without one
    answered: int  # newest round of that run with an accepted update; 0 without one
    trouble: str  # reason for which it follows no bundle; empty if it does
    settled: int  # number of its newest settled updates, at most ``UPDATES``
    refused: int
    reason: str  # name of the newest refusal among them; empty without one


def device_rows(
    store: StoreOverview,
    devices: Sequence[DeviceSummary],
    config: AggregatorConfig,
    runs: Sequence[RunLine],
    contacts: Mapping[str, Mapping[str, Any]],
) -> list[DeviceRow]:
    """Return the rows of a page of devices.

    Args:
        store: View of the database.
        runs: Runs of the configuration that have begun.
        contacts: Contacts of the running daemon, by device.
    """
    names = [one.id for one in devices]
    saved, declined = store.contacts(names), store.declined(names)
    found = []
    for device in devices:
        at, updates = contacts.get(device.id, {}), store.settled(device.id, UPDATES)
        software, seen = saved.get(device.id, ("", 0))
        refused = [one.code for one in updates if one.code]
        run, trouble = run_of(device, config, runs, declined.get(device.id, {}))
        answered = [one.round for one in updates if not one.code and run and one.run == run.number]
        found.append(
            DeviceRow(
                device,
                str(at.get("state") or ""),
                max(int(at.get("seen", 0)), seen),
                str(at.get("sdk") or software),
                run.bundle if run else "",
                answered[0] if answered else 0,
                str(at.get("bundle refused") or trouble),
                len(updates),
                len(refused),
                Reason(refused[0]).name if refused else "",
            )
        )
    return found


def run_of(
    device: DeviceSummary,
    config: AggregatorConfig,
    runs: Sequence[RunLine],
    declined: Mapping[str, str],
) -> tuple[RunLine | None, str]:
    """Return the run that a device takes part in, and why it takes part in none.

    Args:
        runs: Runs of the configuration that have begun.
    """
    begun = {run.name: run for run in runs}
    own, reasons = dict(device.labels), []
    for section in config.runs:
        if section.name not in begun:
            continue
        if not all(own.get(name) == value for name, value in section.cohort.items()):
            continue
        if section.name not in declined:
            return begun[section.name], ""
        reasons.append(declined[section.name])
    return None, reasons[0] if reasons else ""
