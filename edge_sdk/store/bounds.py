"""Define the bounds of stored values, and the replacement for a value out of bounds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from edge_sdk.privacy.event import PrivacyCharge
from edge_sdk.wire.protocol.messages import LARGEST, LIFE_LEAP, RELEASES_LIMIT, TIME_LIMIT

_DAYS = TIME_LIMIT // 86_400_000
_DRAWS = RELEASES_LIMIT * 65_536  # noise draws in so many releases
FACTS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        "floor": (0, TIME_LIMIT, 0),
        "floor before": (0, TIME_LIMIT, 0),
        "serial": (0, LARGEST, 0),
        "conn": (0, 2**32 - 1, 0),
        "command": (0, LARGEST, LARGEST),  # the next welcome lowers it
        "releases allowed": (0, RELEASES_LIMIT, 0),  # too large a value is cut to the largest
        "noised since": (0, TIME_LIMIT // 1000, TIME_LIMIT // 1000),  # as above: the clock's time
        "day": (0, _DAYS, 0),
        "flash day": (0, _DAYS, 0),
        "wake day": (0, _DAYS, 0),
    }
)
"""Lowest and highest value of a fact, and the replacement for a value out of bounds."""

ANY_FACT = (0, LARGEST, 0)


def usable_fact(name: str, value: object) -> int | None:
    """Return a fact's value, or None if it is out of bounds.

    >>> usable_fact("floor", 1_700_000_000_000), usable_fact("floor", 2**63 - 1)
    (1700000000000, None)
    """
    low, high, _ = FACTS.get(name, ANY_FACT)
    return value if isinstance(value, int) and low <= value <= high else None


def instead_of(name: str, value: object, now: int) -> int:
    """Return the replacement for a fact that is out of bounds.

    Args:
        name: Name of the fact.
        value: Value on disk.
        now: Unix seconds of this machine's clock.

    Example:
        An operator's limit that is too large becomes the largest possible count, and so grants no
        more than was set; a negative one grants nothing.

        >>> instead_of("releases allowed", 2**62, 0), instead_of("releases allowed", -7, 0)
        (2147483647, 0)
    """
    low, high, instead = FACTS.get(name, ANY_FACT)
    if name == "releases allowed" and isinstance(value, (int, float)) and value > high:
        return high
    return max(low, min(high, now)) if name == "noised since" else instead


def usable_numbers(
    life: object, seq: object, spent: object, *, released: int
) -> tuple[tuple[int, int, int], dict[str, object]]:
    """Return life, seq and spent as usable values, and those that were not usable.

    A life out of bounds restarts at 0: the aggregator then names the number above which to propose.
    A release count out of bounds is taken from the ledger, which records every release of this
    device; the aggregator's welcome adds the releases that it knows beyond those.

    Example:
        >>> usable_numbers(3, 2, 20, released=20)
        ((3, 2, 20), {})
        >>> usable_numbers(2**63 - 1, 2, 2**63 - 1, released=20)[0]
        (0, 0, 20)
    """
    wrong: dict[str, object] = {}
    if not (_is_within(life, LARGEST - LIFE_LEAP) and _is_within(seq, LARGEST - LIFE_LEAP)):
        wrong |= {"life": life, "seq": seq}
        life = seq = 0
    if not _is_within(spent, RELEASES_LIMIT):
        wrong["spent"] = spent
        spent = min(released, RELEASES_LIMIT)
    return (life, seq, spent), wrong  # type: ignore[return-value]


def _is_within(value: object, highest: int) -> bool:
    return isinstance(value, int) and 0 <= value <= highest


def usable_charge(row: tuple[Any, ...]) -> PrivacyCharge | None:
    """Return a line of the ledger, or None if a number in it is impossible for a release.

    >>> usable_charge((0, "device", "none", "none", 0.0, 1.0, 2**63 - 1, 1)) is None
    True
    """
    charge = PrivacyCharge(*row)
    is_sound = (
        _is_within(charge.count, _DRAWS)
        and _is_within(charge.releases, RELEASES_LIMIT)
        and isinstance(charge.multiplier, float)
        and charge.multiplier >= 0.0
    )
    return charge if is_sound else None
