"""Cut a device's record into training and judged windows for one horizon."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.analytic.features import LoadRecord, columns, standard_names
from firmware_sim.evaluation.records import DeviceRecord

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TEST_SHARE, TEST_DAYS = 0.25, 56  # the newest quarter of a record, at most eight weeks
HELD_SHARE, HELD_DAYS = 0.2, (8, 56)  # of the days before; at least and at most

MOST_LEARNED = 15_000  # training windows of a device: of more, as many are taken at even distances


@dataclass(frozen=True, slots=True)
class RecordParts:
    """Rows of a record where its parts begin and end."""

    held: int  # first row of the held-back days, by which a forecast is chosen
    test: int  # first row of the test days
    end: int  # row after the last one

    @classmethod
    def of(cls, record: DeviceRecord, day: int, test_days: int | None = None) -> RecordParts:
        """Return the parts of a record; a quarter of it, at most 56 days, is judged unless ``test_days`` says."""
        length = len(record.values)
        share = int(min(TEST_SHARE * length, TEST_DAYS * day))
        test = length - min(share if test_days is None else test_days * day, length // 2)
        days = min(max(HELD_SHARE * test / day, HELD_DAYS[0]), HELD_DAYS[1])
        return cls(max(test - int(days * day), test // 4), test, length)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWindows:
    """A device's windows for one horizon; features before standardisation."""

    record: DeviceRecord
    scale: float  # standard deviation of its training part
    days: float  # length of the training part in days
    learned: Ints  # rows of the training origins, shape ``(n,)``
    learn_rows: Floats  # features of the training windows, shape ``(n, features)``
    learn_targets: Floats  # scaled changes, shape ``(n, 1)``
    origins: Ints  # rows of the judged origins, shape ``(m,)``
    goals: Ints  # rows of their targets, shape ``(m,)``
    judged_rows: Floats  # features of the judged windows, shape ``(m, features)``
    repeated: dict[str, Floats]  # forecasts of the ways that do not learn, shape ``(m,)`` each

    @property
    def truth(self) -> Floats:
        """Return the readings at the targets, shape ``(m,)``."""
        return np.asarray(self.record.values[self.goals])


def windows(
    record: DeviceRecord,
    day: int,
    ahead: int,
    judged: tuple[int, int],
    *,
    start: int = 0,
    most: int = MOST_LEARNED,
) -> DeviceWindows:
    """Cut a device's windows for one horizon; rows before ``start`` are not known to it.

    Args:
        ahead: Rows from origin to target.
        judged: First row that is judged, and the row after the last one; what is before is learned.
        most: Training windows, at most; of more, as many are taken at even distances.
    """
    values, cut = record.values[start : judged[1]], judged[0] - start
    known, filled = np.isfinite(values), fill_gaps(values)
    early = values[:cut][known[:cut]]
    middle, scale = float(early.mean()), float(early.std()) or 1.0
    load = LoadRecord(
        (filled - middle) / scale, *_clock(record, start, len(values) + ahead, day), day
    )
    names = standard_names(day, lookback=max(12, min(day // 2, 24)))
    deep = (7 if cut > 28 * day else 1) * day + ahead
    origins = np.arange(deep, len(values) - ahead)
    origins = origins[known[origins] & known[origins + ahead]]
    learn, judge = thinned(origins[origins + ahead < cut], most), origins[origins >= cut]
    goal = judge + ahead
    back = {"yesterday": day * -(-ahead // day), "last week": 7 * day * -(-ahead // (7 * day))}
    repeated = {way: filled[np.maximum(goal - rows, 0)] for way, rows in back.items()}
    return DeviceWindows(
        record,
        scale,
        cut / day,
        learn + start,
        columns(load, names, learn, ahead),
        ((values[learn + ahead] - values[learn]) / scale)[:, None],
        judge + start,
        goal + start,
        columns(load, names, judge, ahead),
        {"last value": values[judge]} | repeated,
    )


def thinned(rows: Ints, most: int) -> Ints:
    """Return at most so many of some rows, at even distances over all of them.

    The distances are not all equal, so no slot of the day is left out.

    >>> thinned(np.arange(10), 4).tolist(), thinned(np.arange(3), 4).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    if len(rows) <= most:
        return rows
    return np.asarray(rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)])


def _clock(record: DeviceRecord, start: int, length: int, day: int) -> tuple[Ints, Ints]:
    """Return slots and weekdays from row ``start`` on, also after the record's last row."""
    rows = np.arange(start, start + length)
    inside = np.minimum(rows, len(record.slots) - 1)
    later = record.slots[inside] + (rows - inside)
    return later % day, (record.weekdays[inside] + later // day) % 7


def fill_gaps(values: Floats) -> Floats:
    """Return readings with each gap filled by the newest one before it; the start by the first.

    >>> fill_gaps(np.array([np.nan, 2.0, np.nan, 4.0])).tolist()
    [2.0, 2.0, 2.0, 4.0]
    """
    known = np.isfinite(values)
    at = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    return np.asarray(values[np.where(at < 0, int(np.argmax(known)), at)])
