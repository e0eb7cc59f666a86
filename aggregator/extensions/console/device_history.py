"""Merge a device's acts, the operators' acts about it and what extensions know into one timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aggregator.extensions.console.overview_rows import TimelineEntry
from aggregator.extensions.console.rendering import exclusion
from aggregator.store.audit_record import AuditRecord
from edge_sdk.errors import Reason

OPEN = 2**62  # orders an update of an open round before all others


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One event of a device's timeline."""

    time: int  # Unix milliseconds; 0 if it is not known, as while a round is open
    kind: str  # ``sent``, ``order``, or the name of an extension
    text: str  # what happened
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
