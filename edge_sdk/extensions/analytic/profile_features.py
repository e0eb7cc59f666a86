"""Compute the features of a profile: one row for each origin and each step of the day after it.

A *known day* of a target is a row with the same wall-clock time, one or more days before, that is not
after the origin. All features come from the newest 28 known days, the calendar, and the lead time,
in units of the device's own level: so one model fits a flat and a factory, and there is a forecast
from the first known day on. A lag that is missing takes the value of ``base``, the mean of the
newest known days of the same kind (working day, or weekend and holiday); every other column of lags
is a difference to ``base``, so a model without coefficients forecasts ``base``.

Columns, in this order: lags; ``base`` and the strongest lags times weekdays and functions of the
lead; what the newest hours and days missed times the same; the calendar alone. ``with_hinges`` adds
piecewise linear functions of the columns that saturate: what was far above its mean yesterday is
expected back at a part of it only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.forecasting.calendar_features import DAY, Floats, Ints

Flags = NDArray[np.bool_]
Columns = dict[str, Floats]

DAYS = 28
"""Known days that the features read."""

HOUR = 3_600
KIND = 5
"""Newest days of the same kind in ``base``."""

_SINGLE_WEEKDAYS = (0, 4, 5, 6)  # of Monday, Friday, Saturday and Sunday; the others are alike
_STRONG = ("S0", "sk1", "w1", "r", "base", "wm", "skmed", "sksd", "md28")
_SHAPED = ("r3", "r24", "l24", "d7")
_STATIC = ("lev", "sp", "basem")
"""Columns that hardly change on one device: products of them would tell a small fleet's devices apart."""
_DECAYS = (1.5, 5.0, 14.0)  # hours after which the residual of the newest hours has faded to 1/e

HINGED = (
    "S0-1", "r+1", "S0+1", "r-1", "sk1-1", "S0", "r", "k10n:0.9", "d7", "basem", "lev",
    "w1", "a28:0.9", "sk1+1",
)  # fmt: skip
"""Columns that have hinges; on measured sets the ones whose effect is least linear."""

KNOTS = (-2.0, -1.0, -0.4, -0.1, 0.1, 0.4, 1.0, 2.0)
"""Knots of the hinges, in the columns' fleet scales."""


@dataclass(frozen=True, slots=True)
class ProfileRecord:
    """A device's record on a uniform grid, with the calendar of the hours that follow it."""

    values: Floats  # load in the series' unit, NaN in gaps, shape ``(T,)``
    # wall-clock seconds of every row, as ``calendar_features.local_seconds`` returns them, shape
    # ``(T + H,)``
    local: Ints
    step: int  # seconds of a row; an hour is a multiple of it
    holidays: Flags | None = None  # whether a row's local day is a holiday, shape ``(T + H,)``

    @property
    def day(self) -> int:
        """Rows of a day."""
        return DAY // self.step

    def weekdays(self) -> Ints:
        """Return the local day of the week of every row, Monday is 0."""
        return np.asarray((self.local // DAY + 3) % 7)

    def rests(self) -> Flags:
        """Return whether a row lies on a weekend or a holiday."""
        weekend = self.weekdays() >= 5
        return weekend if self.holidays is None else weekend | self.holidays


@dataclass(frozen=True, slots=True, eq=False)
class ProfileRows:
    """The features of some origins, before any scale."""

    design: NDArray[np.float32]  # shape ``(n, H, P)``
    names: tuple[str, ...]  # of the columns, P of them
    base: Floats  # forecast of a model without coefficients, in levels, shape ``(n, H)``
    level: Floats  # unit of every origin, in the series' unit, shape ``(n,)``
    known: Ints  # known days of every origin, shape ``(n,)``


def known_slots(
    record: ProfileRecord, origins: Ints, horizon: int, days: int = DAYS
) -> tuple[Floats, Ints]:
    """Return the values of each target's wall-clock time on its known days, newest first.

    A day on which clocks change has 23 or 25 hours: rows are found by their local time. An hour
    that a day does not have is unknown.

    Returns:
        Values, NaN where unknown, and row numbers, both of shape ``(n, horizon, days)``.

    >>> record = ProfileRecord(np.arange(72.0), np.arange(96) * 3600, 3600)
    >>> known_slots(record, np.array([71]), 2, 4)[0].tolist()
    [[[48.0, 24.0, 0.0, nan], [49.0, 25.0, 1.0, nan]]]
    """
    ahead = 1 + np.arange(horizon)
    back = -(-ahead[:, None] // record.day) + np.arange(days)
    targets = origins[:, None] + ahead
    rows = targets[:, :, None] - record.day * back
    wanted = record.local[targets][:, :, None] - DAY * back
    rows = rows + (wanted - record.local[np.maximum(rows, 0)]) // record.step
    is_known = (rows >= 0) & (rows <= origins[:, None, None])
    rows = np.where(is_known, rows, 0)
    is_known &= record.local[rows] == wanted
    return np.where(is_known, record.values[rows], np.nan), rows


def own_level(values: Floats) -> Floats:
    """Return the mean modulus of known slots on the newest seven days: the unit of each origin.

    Args:
        values: As ``known_slots`` returns them.

    Returns:
        Shape ``(n,)``; 1 where nothing is known or all is 0.
    """
    newest = np.abs(values[:, :, :7])
    level = _mean(newest.reshape(len(values), -1), np.zeros(len(values)))
    return np.where(level > 1e-9, level, 1.0)


def profile_rows(
    record: ProfileRecord, origins: Ints, horizon: int, level: Floats | None = None
) -> ProfileRows:
    """Return the features of every step after some origins.

    Args:
        record: The device's record; no value after an origin is read.
        origins: Row numbers of the last known rows, ascending or not, shape ``(n,)``.
        horizon: Steps of the profile, H; at least a day and at most ``DAYS`` days.
        level: Unit of each origin, shape ``(n,)``; ``own_level`` if left out.

    Raises:
        ValueError: Rows that are longer than an hour or no part of one, or too short a horizon.
    """
    if HOUR % record.step or horizon < record.day:
        raise ValueError(
            f"rows of {record.step} s and a horizon of {horizon} rows; a profile needs rows that "
            f"divide an hour, and at least a day of them"
        )
    values, rows = known_slots(record, origins, horizon)
    level = own_level(values) if level is None else level
    values = values / level[:, None, None]
    targets = origins[:, None] + 1 + np.arange(horizon)
    rest, weekday = record.rests(), record.weekdays()[targets]
    lags, missed, base = _lags(values, rest[rows], rest[targets], record.day)
    turn = 2.0 * np.pi * (record.local[targets] % DAY) / DAY
    own = missed | {"basem": base[:, : record.day].mean(axis=1)}
    places = _Places(turn, rest[targets].astype(np.float64), weekday, record.step)
    made = dict(_columns(lags, own, base, places))
    design = np.stack([np.broadcast_to(c, base.shape) for c in made.values()], -1)
    known = np.isfinite(values).any(axis=1).sum(axis=1)
    return ProfileRows(design.astype(np.float32), tuple(made), base, level, known)


def with_hinges(
    design: NDArray[np.float32], names: Sequence[str], hinged: Sequence[str] = HINGED
) -> NDArray[np.float32]:
    """Return scaled columns and the positive parts of some of them minus each knot.

    Args:
        design: Columns in fleet scales, shape ``(n, P)``.
        names: Of the columns.

    Returns:
        Shape ``(n, P + len(hinged) · len(KNOTS))``.

    >>> with_hinges(np.array([[1.5]], np.float32), ["S0"], ["S0"]).astype(float).round(2).tolist()
    [[1.5, 3.5, 2.5, 1.9, 1.6, 1.4, 1.1, 0.5, 0.0]]
    """
    places = [names.index(name) for name in hinged]
    above = design[:, places][:, :, None] - np.asarray(KNOTS, np.float32)
    return np.concatenate([design, np.maximum(above, 0.0).reshape(len(design), -1)], axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """Places of the targets in the day and in the week."""

    turn: Floats  # local time of the day, as an angle, shape ``(n, H)``
    rest: Floats  # 1 on weekends and holidays, shape ``(n, H)``
    weekday: Ints  # shape ``(n, H)``
    step: int

    def harmonics(self, most: int) -> list[Floats]:
        """Return sine and cosine of the first harmonics of the slot of the day."""
        return [wave(k * self.turn) for k in range(1, most + 1) for wave in (np.sin, np.cos)]

    def leads(self) -> list[Floats]:
        """Return functions of the lead that fade with the hours, each of shape ``(1, H)``."""
        hours = np.arange(self.turn.shape[1])[None, :] * self.step / HOUR
        return [np.exp(-hours / decay) for decay in _DECAYS]

    def weekdays(self) -> list[Floats]:
        return [(self.weekday == day).astype(np.float64) for day in _SINGLE_WEEKDAYS]


def _columns(
    lags: Mapping[str, Floats], missed: Mapping[str, Floats], base: Floats, places: _Places
) -> Iterable[tuple[str, Floats]]:
    waves, leads, weekdays = places.harmonics(4), places.leads(), places.weekdays()
    strong = {name: base if name == "base" else lags[name] for name in _STRONG}
    yield from lags.items()
    yield "base", base
    for name, column in strong.items():
        yield from ((f"{name}*weekday{i}", column * f) for i, f in enumerate(weekdays))
    for name in ("S0", "sk1", "r", "w1"):
        yield from ((f"{name}*lead{i}", lags[name] * f) for i, f in enumerate(leads))
    shape = base - missed["basem"][:, None]
    always = np.ones_like(base)
    for name, one in missed.items():
        column = one[:, None] * always
        yield name, column
        if name not in _STATIC:
            yield from ((f"{name}*lead{i}", column * f) for i, f in enumerate(leads))
            yield from ((f"{name}*weekday{i}", column * f) for i, f in enumerate(weekdays))
        if name in _SHAPED:
            factors = (always, *leads)
            yield from (
                (f"{name}*lead{i}*shape", column * f * shape) for i, f in enumerate(factors)
            )
    yield "one", always
    for i, wave in enumerate(waves):
        yield f"wave{i}", wave
        yield f"wave{i}*rest", wave * places.rest
    for i, flag in enumerate(weekdays):
        yield from ((f"weekday{i}*wave{j}", flag * w) for j, w in enumerate((always, *waves[:4])))


def _lags(values: Floats, rest: Flags, wanted: Flags, day: int) -> tuple[Columns, Columns, Floats]:
    """Return columns of lags ``(n, H)``, columns of recent residuals ``(n,)``, and ``base``."""
    known = np.isfinite(values)
    alike = known & (rest == wanted[:, :, None])
    number = np.cumsum(alike, axis=2)
    everything = _bridged(_mean(values, np.full(values.shape[:2], np.nan)))
    base = _mean(np.where(alike & (number <= KIND), values, np.nan), everything)
    kind = [_first(values, alike & (number == j + 1), base) for j in range(KIND)]
    newest = [np.where(known[:, :, j], values[:, :, j], base) for j in range(DAYS)]
    weeks = values[:, :, 6::7]
    week = _mean(values[:, :, :7], everything)
    alike_values = np.where(alike, values, np.nan)
    ten = np.where(number <= 10, alike_values, np.nan)
    near = np.concatenate([ten, np.roll(ten, 1, axis=1), np.roll(ten, -1, axis=1)], axis=2)
    # yesterday's residual: its values minus the base forecast from the days before it
    before = known[:, :, 1:] & (rest[:, :, 1:] == rest[:, :, :1])
    recent = before & (np.cumsum(before, axis=2) <= KIND)
    other = _mean(values[:, :, 1:], newest[0])
    missed = newest[0] - _mean(np.where(recent, values[:, :, 1:], np.nan), other)
    stack = np.stack(kind, axis=2)
    lags = {
        **{f"sk{j + 1}": column for j, column in enumerate(kind)},
        "skmed": np.median(stack, axis=2),
        "skmin": stack.min(axis=2),
        "skmax": stack.max(axis=2),
        "S0": newest[0],
        "S1": newest[1],
        "S2": newest[2],
        **{f"w{j + 1}": newest[7 * j + 6] for j in range(4)},
        "wm": _mean(weeks, base),
        "wmd": _median(weeks, base),
        "md5": np.median(np.stack([newest[j] for j in (0, 1, 2, 6, 13)]), axis=0),
        "m28": _mean(alike_values, everything),
        "md28": _median(alike_values, base),
        "mall": everything,
        "m7": week,
        **_ordered("k10", ten, np.arange(10) / 9, base),
        **_ordered("k10n", near, (0.1, 0.25, 0.5, 0.75, 0.9), base),
        **_ordered("k28", alike_values, (0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9), base),
        **_ordered("a7", values[:, :, :7], np.arange(7) / 6, base),
        **_ordered("a28", values, (0.1, 0.25, 0.5, 0.75, 0.9), base),
    }
    lags = {name: column - base for name, column in lags.items()}
    shift = max(1, day // 24 // 2)
    for name, column, around in (
        ("base", base, (1, -1, 2, -2)),
        ("S0", newest[0], (1, -1)),
        ("sk1", kind[0], (1, -1)),
    ):
        for j in around:
            lags[f"{name}{j:+d}"] = np.roll(column, -j * shift, axis=1) - column
    lags |= {f"r{j:+d}": np.roll(missed, -j * shift, axis=1) for j in (1, -1)}
    lags |= {"r": missed, "sksd": stack.std(axis=2)}
    level = everything[:, :day].mean(axis=1)
    own = _missed(missed[:, :day], newest, base[:, :day])
    own |= {"d7": week[:, :day].mean(axis=1) - level, "lev": level}
    return lags, own, base


def _missed(missed: Floats, newest: Sequence[Floats], base: Floats) -> Columns:
    """Return the mean residuals of the newest hours and days of each origin, by name, each of shape ``(n,)``.

    Args:
        missed: Residuals of the last day, oldest row first, shape ``(n, day)``.
        newest: Lags by number of known days.
        base: Of the first day, shape ``(n, day)``.
    """
    day, level = missed.shape[1], base.mean(axis=1)
    hour = day // 24
    return {
        "r0": missed[:, -1],
        **{f"r{h}": missed[:, -h * hour :].mean(axis=1) for h in (1, 3, 6, 12, 24)},
        "last": newest[0][:, day - 1] - level,
        "l24": newest[0][:, :day].mean(axis=1) - level,
        "l48": newest[1][:, :day].mean(axis=1) - level,
        "lw": newest[6][:, :day].mean(axis=1) - level,
        "sp": np.abs(missed).mean(axis=1),
    }


def _mean(values: Floats, otherwise: Floats) -> Floats:
    """Return the mean of the known values over the last axis."""
    known = np.isfinite(values)
    count = known.sum(axis=-1)
    total = np.where(known, values, 0.0).sum(axis=-1)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), otherwise))


def _bridged(profile: Floats) -> Floats:
    """Return a profile whose unknown slots are interpolated between their neighbours, cyclically.

    Args:
        profile: Shape ``(n, H)``, NaN where unknown; a row without any number becomes 0.
    """
    found = np.array(profile)
    for i in np.flatnonzero(np.isnan(found).any(axis=1)):
        known = np.flatnonzero(np.isfinite(found[i]))
        steps = np.arange(found.shape[1])
        if len(known):
            found[i] = np.interp(steps, known, found[i, known], period=found.shape[1])
        else:
            found[i] = 0.0
    return found


def _first(values: Floats, chosen: Flags, otherwise: Floats) -> Floats:
    """Return the chosen value of each row."""
    total = np.where(chosen, values, 0.0).sum(axis=-1)
    return np.asarray(np.where(chosen.any(axis=-1), total, otherwise))


def _median(values: Floats, otherwise: Floats) -> Floats:
    return _quantiles(values, (0.5,), otherwise)[0]


def _ordered(name: str, values: Floats, levels: Iterable[float], otherwise: Floats) -> Columns:
    found = _quantiles(values, levels, otherwise)
    return {f"{name}:{level:.2g}": one for level, one in zip(levels, found, strict=True)}


def _quantiles(values: Floats, levels: Iterable[float], otherwise: Floats) -> list[Floats]:
    """Return quantiles of the known values over the last axis, linear between ranks."""
    ordered, count = np.sort(values, axis=-1), np.isfinite(values).sum(axis=-1)
    found = []
    for level in levels:
        place = level * np.maximum(count - 1, 0)
        low = np.floor(place).astype(np.int64)
        high = np.minimum(low + 1, np.maximum(count - 1, 0))
        left, right = (np.take_along_axis(ordered, i[..., None], -1)[..., 0] for i in (low, high))
        found.append(np.where(count > 0, left + (place - low) * (right - left), otherwise))
    return found
