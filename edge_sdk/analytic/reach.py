"""Return how far back a list of features reads, which is the input length that a bundle needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from edge_sdk.analytic.features import UnknownFeatureError


def reach(names: Sequence[str], day: int) -> int:
    """Return the number of rows up to the origin that the features read for a target a step ahead.

    Args:
        names: Feature names.
        day: Rows in a day.

    Raises:
        UnknownFeatureError: A feature whose arguments are no numbers.

    Example:
        >>> reach(["last", "change:11"], 24), reach(["mean:168"], 24), reach(["day:7:-2"], 24)
        (12, 168, 170)
    """
    return max(_rows(name, day) for name in names)


def _rows(name: str, day: int) -> int:
    kind, *arguments = name.split(":")
    try:
        numbers = [int(one) for one in arguments if one.lstrip("-").isdigit()]
        return _BACK[kind](day, *numbers) if kind in _BACK else 1
    except TypeError as error:
        raise UnknownFeatureError(f"feature {name!r}: its arguments do not fit: {error}") from error


_BACK: Mapping[str, Callable[..., int]] = MappingProxyType(
    {
        "change": lambda _day, rows: rows + 1,
        "spread": lambda _day, rows: rows + 1,
        "mean": lambda _day, rows: rows,
        "day": lambda day, days, shift: days * day - shift,
        "moved": lambda day, days: days * day + 1,
        "slot": lambda day, days: days * day,
        "exog_change": lambda _day, rows: rows + 1,
    }
)
"""Rows that a kind of feature reads, by its numbers; any other reads the origin alone."""
