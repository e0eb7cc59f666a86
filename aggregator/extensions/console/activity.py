"""Show a run's last days: rounds, loss, answering devices and traffic."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean, variance
from typing import Any

from markupsafe import Markup

from aggregator.extensions.console.charts import Bar, activity_chart
from aggregator.extensions.console.overview import StoreOverview
from aggregator.extensions.console.overview_rows import RoundCounts
from aggregator.operations.link_projection import MONTH, size
from aggregator.store.types import Version

MINUTE = 60_000
DAY = 86_400_000
# lengths of a slot, ms: the smallest is used that needs at most ``DRAWN`` of them
SLOTS = (MINUTE, 5 * MINUTE, 15 * MINUTE, 60 * MINUTE, 360 * MINUTE, DAY)
DRAWN = 24
SPAN = 14 * DAY
ASKED = 3  # newest drawn rounds of which one answer suffices


@dataclass(frozen=True, slots=True)
class Activity:
    """Rounds, loss, answers and bytes of one run, as the Fleet page shows them."""

    run: int
    name: str  # name of the run; empty without one
    chart: Markup
    bars: Sequence[Bar]
    trend: str  # sentence on the loss; empty if there are too few values
    cost: str  # sentence on the bytes; empty if they are unknown
    # Eligible devices that answered none of the ``ASKED`` newest rounds drawn
    silent: Sequence[str]


def run_activity(
    store: StoreOverview, run: int, name: str, eligible: Collection[str], now: int
) -> Activity | None:
    """Return the activity of a run until now, or until its newest round if that is long ago.

    Args:
        now: Present time, Unix milliseconds.

    Returns:
        The activity; None without a closed round.
    """
    newest = store.rounds(run, 1)
    if not newest or not newest[0].time:
        return None
    end = min(max(now, newest[0].time), newest[0].time + SPAN // 2)
    minutes = store.round_counts(run, end - MONTH * DAY, MINUTE)
    drawn = [one for one in minutes if MINUTE * one.slot >= end - SPAN]
    length = slot_length(MINUTE * drawn[0].slot, end)
    counts = merged(drawn, length)
    versions = {one.slot: store.version(run, one.last) for one in counts}
    bars = bars_of(counts, versions, length, end)
    reports = [one.report for one in versions.values() if one is not None]
    heard = {name for one in reports[-ASKED:] for name in answered(one)}
    title = f"Rounds, loss and answers{f' of run {name}' if name else ''}"
    return Activity(
        run,
        name,
        Markup(activity_chart(title, bars, len(eligible))),  # noqa: S704 - activity_chart escapes
        bars,
        trend([one.loss for one in bars if one.loss is not None]),
        cost(minutes, reports, end),
        sorted(set(eligible) - heard),
    )


def slot_length(first: int, end: int) -> int:
    """Return the length of a slot, ms, for a time from ``first`` to ``end``, Unix ms.

    >>> [slot_length(0, hours * 60 * MINUTE) // MINUTE for hours in (0.2, 1, 20, 200)]
    [1, 5, 60, 1440]
    """
    return next((one for one in SLOTS if end // one - first // one < DRAWN), SLOTS[-1])


def merged(minutes: Sequence[RoundCounts], length: int) -> list[RoundCounts]:
    """Return the counts of slots of ``length`` ms from those of minutes, oldest first.

    >>> merged([RoundCounts(59, 2, 1, 8), RoundCounts(60, 1, 1, 9), RoundCounts(61, 1, 0, 10)], 60 * MINUTE)
    [RoundCounts(slot=0, closed=2, moved=1, last=8), RoundCounts(slot=1, closed=2, moved=1, last=9)]
    """
    found: dict[int, RoundCounts] = {}
    for one in minutes:
        slot = one.slot * MINUTE // length
        before = found.get(slot, RoundCounts(slot, 0, 0, one.last))
        last = one.last if one.moved or not before.moved else before.last
        found[slot] = RoundCounts(slot, before.closed + one.closed, before.moved + one.moved, last)
    return list(found.values())


def answered(report: Mapping[str, Any]) -> list[str]:
    """Return the devices whose update arrived in time for a round: used, or left out by the rule."""
    return [*report.get("cohort", ()), *report.get("dropped", {})]


def bars_of(
    counts: Sequence[RoundCounts], versions: Mapping[int, Version | None], length: int, end: int
) -> list[Bar]:
    """Return one bar for each slot from the first closed round to the end, empty slots included."""
    found = {one.slot: one for one in counts}
    bars = []
    for slot in range(min(found, default=0), end // length + 1) if found else ():
        count, version = found.get(slot), versions.get(slot)
        report: Mapping[str, Any] = version.report if version is not None else {}
        everyone, dropped = set(answered(report)), len(report.get("dropped", {}))
        bars.append(
            Bar(
                moment(slot * length, length),
                count.moved if count else 0,
                count.closed - count.moved if count else 0,
                report.get("loss"),
                len(everyone) - dropped,
                dropped,
            )
        )
    return bars


def moment(milliseconds: int, length: int) -> str:
    """Return the start of a slot in UTC.

    >>> moment(DAY, DAY), moment(DAY + 90 * MINUTE, 15 * MINUTE)
    ('1970-01-02', '01-02 01:30')
    """
    at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return f"{at:%Y-%m-%d}" if length == DAY else f"{at:%m-%d %H:%M}"


def trend(losses: Sequence[float]) -> str:
    """Compare the mean loss of the later half with that of the earlier one, against their spread.

    The spread is two standard errors of the difference of the means.

    >>> trend([1.0, 0.9, 0.5, 0.4])
    'The mean loss fell by 53 % from the earlier half of this time to the later one.'
    >>> trend([0.5, 0.7, 0.7, 0.5]), trend([0.5, 0.7])
    ('The mean loss has no trend beyond its spread.', '')
    """
    values = [one for one in losses if math.isfinite(one)]
    if len(values) < 4:
        return ""
    early, late = values[: len(values) // 2], values[-(len(values) // 2) :]
    before, after = fmean(early), fmean(late)
    spread = 2 * math.sqrt(variance(early) / len(early) + variance(late) / len(late))
    if before <= 0 or abs(after - before) <= spread:
        return "The mean loss has no trend beyond its spread."
    way, share = ("fell" if after < before else "rose"), abs(after / before - 1)
    return (
        f"The mean loss {way} by {100 * share:.0f} % from the earlier half of this time to the "
        "later one."
    )


def cost(minutes: Sequence[RoundCounts], reports: Sequence[Mapping[str, Any]], end: int) -> str:
    """Return the bytes of the last ``MONTH`` days: the rounds, times the mean of the rounds given.

    Args:
        minutes: Closed rounds by minute of that time, oldest first.
        end: End of that time, Unix milliseconds.

    >>> minutes, report = [RoundCounts(n * 1440, 10, 10, 9) for n in range(3)], {"received": 2000, "sent": 500}
    >>> cost(minutes, [report], 3 * DAY)
    'About 60 kB received and 15 kB sent by the aggregator in 3 days (30 rounds); at this pace 750 kB in 30 days.'
    >>> cost(minutes[:1], [report], 20 * MINUTE)
    'About 20 kB received and 5 kB sent by the aggregator in 20 minutes (10 rounds).'
    """
    known = [one for one in reports if "received" in one and "sent" in one]
    if not known or not minutes:
        return ""
    rounds = sum(one.closed for one in minutes)
    up = rounds * fmean(one["received"] for one in known)
    down = rounds * fmean(one["sent"] for one in known)
    begin = MINUTE * minutes[0].slot
    lasted = max(end - begin, MINUTE)
    if lasted >= 2 * DAY:  # whole days: one round a day is one a day also on the first
        lasted = DAY * (-(-end // DAY) - begin // DAY)
    unit, name = next(
        (length, name)
        for length, name in ((DAY, "days"), (60 * MINUTE, "hours"), (MINUTE, "minutes"))
        if lasted >= 2 * length or length == MINUTE
    )
    text = f"About {size(int(up))} received and {size(int(down))} sent by the aggregator in "
    text += f"{lasted / unit:.0f} {name} ({rounds} rounds)"
    if not 60 * MINUTE <= lasted < MONTH * DAY:
        return f"{text}."
    return f"{text}; at this pace {size(int((up + down) * MONTH * DAY / lasted))} in {MONTH} days."
