"""Show the spent releases of devices, and when the rest will be spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from aggregator.config import AggregatorConfig
from aggregator.extensions.console.overview import StoreOverview
from aggregator.extensions.console.overview_rows import DeviceFilter, DeviceSummary, SettledUpdate
from aggregator.operations.charts import bar_chart
from edge_sdk.app.clock import SystemClock

UPDATES = 100  # newest settled updates of a device that show its pace
DATED = 50  # newest closed rounds of a run whose times are read
TENTHS = 10

# server time (Unix ms) of closed rounds, by run and round
RoundTimes = Mapping[tuple[int, int], int]


def budget_values(
    store: StoreOverview, config: AggregatorConfig, runs: Sequence[int], page: int, per_page: int
) -> dict[str, Any]:
    """Return one page, from 1, of devices with their spent releases, and the distribution over all."""
    limit, now = config.admission.max_updates, SystemClock().wall()
    count, times = store.count(DeviceFilter()), round_times(store, runs)
    found = store.devices(DeviceFilter(), per_page, (page - 1) * per_page, by_spent=True)
    shares = spent_shares(store.spent(), limit) if limit else []
    return {
        "rows": [(one, _budget(store, one, times, limit, now)) for one in found],
        "limit": limit,
        "page": page,
        "last": max(1, -(-count // per_page)),
        "shares": shares,
        "chart": spent_chart(shares) if shares else "",
    }


def _budget(
    store: StoreOverview, device: DeviceSummary, times: RoundTimes, limit: int | None, now: int
) -> dict[str, Any]:
    if not limit:
        return {"share": None, "left": None, "end": None}
    left = max(limit - device.spent, 0)
    is_counted = left and device.state == "enrolled"
    updates = store.settled(device.id, UPDATES) if is_counted else []
    return {
        "share": device.spent / limit,
        "left": left,
        "end": budget_end(updates, times, left, now),
    }


def round_times(store: StoreOverview, runs: Sequence[int]) -> RoundTimes:
    """Return the times of the newest closed rounds of runs, which are given by number."""
    return {
        (run, number): time
        for run in runs
        for number, (_, time) in store.closed_at(run, DATED).items()
        if time
    }


def budget_end(
    updates: Sequence[SettledUpdate], times: RoundTimes, left: int, now: int
) -> int | None:
    """Return when a device has spent its releases at the pace of its newest rounds (Unix ms).

    Args:
        now: Present time, Unix milliseconds.

    Returns:
        The time; None where fewer than two rounds show a pace.

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
    """Return the number of devices in each tenth of the privacy bound.

    Args:
        limit: ``admission.max_updates``.

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
