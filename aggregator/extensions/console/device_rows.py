"""Collect the rows of device lists, and the timeline of one device: its acts and the operators'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aggregator.config import AggregatorConfig
from aggregator.extensions.console.fleet_summary import RunLine
from aggregator.extensions.console.overview import StoreOverview
from aggregator.extensions.console.overview_rows import DeviceSummary, TimelineEntry
from aggregator.extensions.console.rendering import exclusion
from aggregator.store.audit_record import AuditRecord
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
    """Return which of the begun runs a device takes part in, and why it takes part in none."""
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


OPEN = 2**62  # orders an update of an open round before all others


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One event of a device's timeline."""

    time: int  # Unix milliseconds; 0 if it is not known, as while a round is open
    kind: str  # ``sent``, ``order``, or the name of an extension
    text: str  # description of the event
    detail: str  # outcome, or who gave the order and why
    is_bad: bool = False  # true if it was refused, left out or lost
    run: int = 0  # run of an update; else 0
    round: int = 0  # round of an update; else 0
    reason: str = ""  # name of the reason of a refusal; else empty


def device_history(
    updates: Sequence[TimelineEntry],
    acts: Sequence[AuditRecord],
    others: Sequence[HistoryEntry],
    most: int,
) -> list[HistoryEntry]:
    """Return the newest events of a device, newest first.

    Args:
        acts: Records of the audit log about it.
        others: Events that extensions know.

    >>> updates = [TimelineEntry(1, 4, 1, 9, 0), TimelineEntry(1, 3, 1, 8, 0, 2000, "far")]
    >>> act = AuditRecord(1, 3000, "console", "ann", "label", "m", "moved", "labels site=a")
    >>> for one in device_history(updates, [act], [], 9): print(one.time, one.text, "-", one.detail)
    0 update 1.9 for round 4 - accepted
    3000 label: labels site=a - by ann (console): moved
    2000 update 1.8 for round 3 - left out: far from the other updates
    """
    found = [*map(_of_update, updates), *map(_of_act, acts), *others]
    return sorted(found, key=lambda one: -(one.time or OPEN))[:most]


def _of_update(one: TimelineEntry) -> HistoryEntry:
    detail = "accepted"
    if one.code:
        detail = "refused"
    elif one.dropped:
        detail = f"left out: {exclusion(one.dropped)}"
    return HistoryEntry(
        one.time,
        "sent",
        f"update {one.life}.{one.seq} for round {one.round}",
        detail,
        is_bad=bool(one.code or one.dropped),
        run=one.run,
        round=one.round,
        reason=Reason(one.code).name if one.code else "",
    )


def _of_act(one: AuditRecord) -> HistoryEntry:
    text = f"{one.act}: {one.detail}" if one.detail else one.act
    why = f": {one.reason}" if one.reason else ""
    return HistoryEntry(one.time, "order", text, f"by {one.actor} ({one.via}){why}")
