"""Keep the fleet's model of the last day on which it was good."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.choice.model_monitor import GROSS, USUAL, DailyScores
from edge_sdk.protocol.contract.method import Array
from edge_sdk.protocol.contract.parameter_layout import Vector


@dataclass(frozen=True, slots=True, eq=False)
class LastGood:
    """The last good model, and the one that waits for a day of its own."""

    day: int  # newest day that was looked at, a number of days since 1970
    # whole vector of the last good model, float32 ``(size,)``; None before the first
    p: Vector | None = None
    # whole vector of the model at the end of ``day``; None if that day was not good
    next: Vector | None = None

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        pairs = {"p": self.p, "next": self.next}
        found = {name: vector for name, vector in pairs.items() if vector is not None}
        return {"day": np.array(self.day), **found}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> LastGood:
        """Rebuild from the result of ``arrays``.

        Raises:
            KeyError: The day is missing.
        """
        day, vectors = arrays["day"], [arrays.get("p"), arrays.get("next")]
        if day.shape != () or day.dtype.kind != "i" or not 0 <= day < 2**31:
            raise ValueError("last good model: the day is not a number of days")
        for one in vectors:
            if one is None:
                continue
            if one.ndim != 1 or one.dtype != np.float32 or not np.isfinite(one).all():
                raise ValueError("last good model: expected vectors of finite float32 numbers")
        return cls(int(day), *vectors)


def after_day(
    last: LastGood | None,
    scores: DailyScores,
    today: int,
    p: Vector,
    *,
    is_returned: bool = False,
) -> LastGood | None:
    """Return the state after the newest complete day; the same object if nothing has changed.

    A day is good if the error of the fleet's model is at most that of the naive forecast, at most
    twice the median of its earlier days, and, while the last good model is served, at most its error.

    Args:
        last: State before; None before the first good day.
        p: Whole vector of the fleet's model now, float32 ``(size,)``.

    >>> days, naive = np.arange(100, 104), np.ones(4)
    >>> fleet = np.array([0.5, 0.5, 3.0, 3.0])
    >>> scores = DailyScores(days, np.stack([fleet, fleet, naive], 1), np.ones((4, 3), np.int64))
    >>> good, bad = np.zeros(1, np.float32), np.ones(1, np.float32)
    >>> first = after_day(None, scores, 101, good)
    >>> second = after_day(first, scores, 102, bad)  # it arrived during day 101
    >>> last = after_day(after_day(second, scores, 103, bad), scores, 104, bad)
    >>> first.p, second.p is good, last.p is good, last.next
    (None, True, True, None)
    """
    complete = np.flatnonzero(scores.days < today)
    if not len(complete):
        return last
    at = int(complete[-1])
    day = int(scores.days[at])
    if last is not None and day <= last.day:
        return last
    is_good = _is_good(scores, at, is_returned=is_returned) and bool(np.isfinite(p).all())
    if last is None:
        return LastGood(day, None, p) if is_good else None
    if not is_good:
        return LastGood(day, last.p, None)
    is_known = last.next is not None and day == last.day + 1
    return LastGood(day, last.next if is_known else last.p, p)


def _is_good(scores: DailyScores, at: int, *, is_returned: bool) -> bool:
    served, fleet, naive = scores.sums[at].tolist()
    errors = scores.sums[: at + 1, 1] / np.maximum(scores.counts[: at + 1, 0], 1)
    before = errors[max(0, at - USUAL[1]) : at]
    is_usual = len(before) < USUAL[0] or errors[at] <= GROSS * np.median(before)
    is_no_worse = not is_returned or fleet <= served
    return bool(naive > 0.0 and fleet <= naive and is_usual and is_no_worse)
