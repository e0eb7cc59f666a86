"""Merge what a device did and what was done about it into one timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from aggregator.console.rendering import exclusion
from aggregator.store.audit_record import AuditRecord
from aggregator.store.overview_rows import DeviceTrialDay, TimelineEntry
from edge_sdk.wire.errors import Reason

DAY = 86_400_000  # ms
OPEN = 2**62  # orders an update of an open round before all others


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One event of a device's timeline.

    Attributes:
        time: Unix milliseconds; 0 if it is not known, as while a round is open.
        kind: ``sent``, ``order`` or ``rollout``.
        text: What happened.
        detail: Outcome, or who gave the order and why.
        is_bad: True if it was refused, left out or lost.
        run: Run of an update; else 0.
        round: Round of an update; else 0.
        reason: Name of the reason of a refusal; else empty.
    """

    time: int
    kind: str
    text: str
    detail: str
    is_bad: bool = False
    run: int = 0
    round: int = 0
    reason: str = ""


def device_history(
    updates: Sequence[TimelineEntry],
    acts: Sequence[AuditRecord],
    days: Sequence[DeviceTrialDay],
    most: int,
) -> list[HistoryEntry]:
    """Return the newest events of a device, newest first.

    Args:
        updates: Its settled updates, newest first.
        acts: Records of the audit log about it.
        days: Days that it has reported in the newest rollout.
        most: Largest number of events.

    Example:
        >>> updates = [TimelineEntry(1, 4, 1, 9, 0), TimelineEntry(1, 3, 1, 8, 0, 2000, "far")]
        >>> act = AuditRecord(1, 3000, "console", "ann", "label", "m", "moved", "labels site=a")
        >>> for one in device_history(updates, [act], [], 9): print(one.time, one.text, "-", one.detail)
        0 update 1.9 for round 4 - accepted
        3000 label: labels site=a - by ann (console): moved
        2000 update 1.8 for round 3 - left out: far from the other updates
    """
    found = [*map(_of_update, updates), *map(_of_act, acts), *map(_of_day, days)]
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


def _of_day(one: DeviceTrialDay) -> HistoryEntry:
    date = datetime.fromtimestamp(one.day * DAY / 1000, UTC).date().isoformat()
    place = "served" if one.is_serving else "compared"
    detail = "lost with it" if one.is_lost else "not lost"
    text = f"{place} the rollout's version on {date}"
    return HistoryEntry((one.day + 1) * DAY, "rollout", text, detail, is_bad=one.is_lost)
