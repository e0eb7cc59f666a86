"""Collect what the lists of devices show of each one: model, refusals, and when its budget ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from aggregator.analysis.bar_chart import bar_chart
from aggregator.config import AggregatorConfig
from aggregator.console.fleet_summary import RunLine
from aggregator.store.overview import DeviceSummary, SettledUpdate, StoreOverview
from edge_sdk.wire.errors import Reason

UPDATES = 100  # newest settled updates of a device that are read
DATED = 50  # newest closed rounds of a run whose times are read
TENTHS = 10

RoundTimes = Mapping[tuple[int, int], int]
"""Server time (Unix ms) of closed rounds, by run and round."""


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One row of a list of devices.

    Attributes:
        device: The device.
        connection: State of its connection; empty if unknown.
        seen: Server time of its last message, Unix milliseconds; 0 if unknown.
        software: Version of its software; empty if unknown.
        model: Bundle of the run that it takes part in; empty without one.
        answered: Newest round of that run with an accepted update; 0 without one.
        trouble: Reason for which it follows no bundle; empty if it does.
        settled: Number of its newest settled updates, at most ``UPDATES``.
        refused: Number of those that were refused.
        reason: Name of the newest refusal among them; empty without one.
    """

    device: DeviceSummary
    connection: str
    seen: int
    software: str
    model: str
    answered: int
    trouble: str
    settled: int
    refused: int
    reason: str


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
        devices: Devices of the page.
        config: Configuration of the aggregator.
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
        device: The device.
        config: Configuration of the aggregator.
        runs: Runs of the configuration that have begun.
        declined: Runs that the device has declined, with the reasons.
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


def round_times(store: StoreOverview, runs: Sequence[RunLine]) -> RoundTimes:
    """Return the times of the newest closed rounds of some runs."""
    return {
        (run.number, number): time
        for run in runs
        for number, (_, time) in store.closed_at(run.number, DATED).items()
        if time
    }


def budget_end(
    updates: Sequence[SettledUpdate], times: RoundTimes, left: int, now: int
) -> int | None:
    """Return when a device has spent its releases at the pace of its newest rounds (Unix ms).

    Args:
        updates: Its newest settled updates, newest first.
        times: Times of closed rounds.
        left: Releases that are left.
        now: Present time, Unix milliseconds.

    Returns:
        The time; None where fewer than two rounds show a pace.

    Example:
        >>> day = 86_400_000
        >>> times = {(1, number): number * day for number in range(1, 6)}
        >>> updates = [SettledUpdate(1, number, 0) for number in (5, 4, 3, 1)]
        >>> budget_end(updates, times, 6, 5 * day) == 13 * day
        True
        >>> budget_end(updates[:1], times, 6, 5 * day) is None
        True
    """
    dated = [
        times[one.run, one.round]
        for one in updates
        if not one.code and (one.run, one.round) in times
    ]
    if len(dated) < 2 or dated[0] <= dated[-1]:
        return None
    each = (dated[0] - dated[-1]) / (len(dated) - 1)
    return round(now + left * each)


@dataclass(frozen=True, slots=True)
class SpentShare:
    """Number of enrolled devices that have spent a share of their releases."""

    share: str
    devices: int


def spent_shares(spent: Sequence[int], limit: int) -> list[SpentShare]:
    """Return how many devices have spent which tenth of the bound.

    Args:
        spent: Releases of each device.
        limit: ``admission.max_updates``.

    Example:
        >>> [one.devices for one in spent_shares([0, 3, 4, 39, 40, 41], 40)]
        [2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2]
    """
    counts = [0] * (TENTHS + 1)
    for one in spent:
        counts[min(TENTHS * one // limit, TENTHS)] += 1
    names = [f"{10 * one} to {10 * one + 10} %" for one in range(TENTHS)]
    return [SpentShare(*one) for one in zip([*names, "all"], counts, strict=True)]


def spent_chart(shares: Sequence[SpentShare]) -> Markup:
    """Return a picture of the shares."""
    bars = [(one.share.removesuffix(" %"), float(one.devices), 0.0) for one in shares]
    title = "Enrolled devices by the share of their releases that is spent, in percent"
    return Markup(bar_chart(title, "devices", bars))  # noqa: S704 - bar_chart escapes
