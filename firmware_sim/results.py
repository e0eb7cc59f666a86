"""Results of a comparison: errors in the unit of the meter, one table, and a verdict by rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]

PERSISTENCE, LOCAL, FEDERATED, PLFL = "persistence", "local", "federated", "pl-fl"
ARMS = (PERSISTENCE, LOCAL, FEDERATED, PLFL)
NAMES = {
    PERSISTENCE: "persistence (the last reading)",
    LOCAL: "local only (no network)",
    FEDERATED: "federated (all layers shared)",
    PLFL: "PL-FL (body shared, output layers personal)",
}
WITH_FLEET = (FEDERATED, PLFL)
# relative difference of mean errors below which they are equal: about that of another seed
TIE = 0.02


@dataclass(frozen=True, slots=True)
class ForecastScore:
    """Errors of one forecaster on one device's test part."""

    mae: float  # in the unit of the series
    mase: float  # MAE over the mean step of the test series from one reading to the next


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one device sent and received in one run, on its link."""

    up: int = 0
    down: int = 0


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """One row of the table."""

    device: str
    windows: int  # forecasts scored
    scores: Mapping[str, ForecastScore]
    traffic: Mapping[str, Traffic] = field(default_factory=dict)


def score(truth: Series, forecast: Series) -> ForecastScore:
    """Score one-step forecasts of a test series. Shapes ``(n,)``; unforecast steps are NaN.

    MASE is relative to the lag-1 error over the whole test series, so persistence itself has 1.

    Raises:
        ValueError: Nothing to score, or a constant series (MASE is undefined).

    >>> score(np.array([1., 2, 4, 3]), np.array([1.5, 2, 3, 3]))
    ForecastScore(mae=0.375, mase=0.28125)
    """
    known = np.isfinite(truth) & np.isfinite(forecast)
    steps = np.abs(np.diff(truth))
    yardstick = float(np.mean(steps[np.isfinite(steps)])) if np.isfinite(steps).any() else 0.0
    if not known.any() or yardstick == 0.0:
        raise ValueError(
            "no score: no forecast has a reading to compare with, or the series is constant"
        )
    mae = float(np.mean(np.abs(truth - forecast)[known]))
    return ForecastScore(mae, mae / yardstick)


def mean_mase(rows: Sequence[DeviceResult], arm: str) -> float:
    return float(np.mean([row.scores[arm].mase for row in rows]))


def wins(rows: Sequence[DeviceResult], arm: str, against: str) -> int:
    return sum(row.scores[arm].mae < row.scores[against].mae for row in rows)


def chosen_arm(rows: Sequence[DeviceResult]) -> str:
    """Return the arm with a fleet that has the least mean MASE on validation weeks."""
    return min(WITH_FLEET, key=lambda arm: mean_mase(rows, arm))


def verdict(rows: Sequence[DeviceResult], arm: str = PLFL, *, tie: float = TIE) -> str:
    """Return one paragraph that says by a fixed rule if an arm with a fleet won.

    It won if its mean MASE is below those of local training and of persistence by more than ``tie``
    (a fraction); it tied if the difference is smaller; else it lost.

    Args:
        arm: The arm, chosen on other weeks than those of the rows.

    >>> def row(*mases):
    ...     return DeviceResult("a", 9, {n: ForecastScore(m, m) for n, m in zip(ARMS, mases)})
    >>> print(verdict([row(1.0, 0.80, 0.82, 0.70)]))
    PL-FL won: mean MASE 0.700, which is 12.5 % below local only (better on 1 of 1 devices),
    30.0 % below persistence (1 of 1).
    >>> verdict([row(1.0, 0.80, 0.795, 0.8)], "federated").split(":")[0]
    'Federated training did not win; it tied with local only'
    >>> verdict([row(1.0, 0.70, 0.90, 0.80)]).split(":")[0]
    'PL-FL did not win; local only was better'
    """
    own = mean_mase(rows, arm)
    gain = {other: 1 - own / mean_mase(rows, other) for other in (LOCAL, PERSISTENCE)}
    better = [brief(other) for other in gain if gain[other] < -tie]
    equal = [brief(other) for other in gain if abs(gain[other]) <= tie]
    name = {FEDERATED: "Federated training"}.get(arm, brief(arm))
    head = f"{name} won"
    if better:
        verb = "was" if len(better) == 1 else "were"
        head = f"{name} did not win; {' and '.join(better)} {verb} better"
    elif equal:
        head = f"{name} did not win; it tied with {' and '.join(equal)}"
    parts: list[str] = []
    for other, share in gain.items():
        side = "below" if share >= 0 else "above"
        ahead = f"{wins(rows, arm, other)} of {len(rows)}"
        ahead = ahead if parts else f"better on {ahead} devices"
        parts.append(f"{abs(share):.1%} {side} {brief(other)} ({ahead})")
    text = ", ".join(parts).replace("%", " %")
    saved = _saved(rows) if arm == PLFL else ""
    return f"{head}: mean MASE {own:.3f}, which is {text}.{saved}"


def brief(arm: str) -> str:
    """Return the name of an arm without its explanation.

    >>> brief("local")
    'local only'
    """
    return NAMES[arm].split(" (")[0]


def _saved(rows: Sequence[DeviceResult]) -> str:
    """Return the fraction of the bytes that PL-FL sent, where both were counted."""
    moved = {
        arm: sum(row.traffic[arm].up + row.traffic[arm].down for row in rows if arm in row.traffic)
        for arm in (PLFL, FEDERATED)
    }
    if not all(moved.values()):
        return ""
    share = f"{moved[PLFL] / moved[FEDERATED]:.0%}".replace("%", " %")
    return f" It moved {share} of the bytes that sharing all layers does."


def table(rows: Sequence[DeviceResult], unit: str) -> str:
    """Return the results as text: MAE and MASE of every arm, then bytes both ways, by device."""
    lines = [f"{'':20}" + "".join(f"{arm:>18}" for arm in ARMS)]
    lines.append(f"{'device':20}" + f"{'MAE':>10}{'MASE':>8}" * len(ARMS))
    for row in rows:
        cells = "".join(f"{row.scores[a].mae:10.3f}{row.scores[a].mase:8.3f}" for a in ARMS)
        lines.append(f"{row.device[:19]:20}{cells}")
    means = "".join(f"{_mean_mae(rows, a):10.3f}{mean_mase(rows, a):8.3f}" for a in ARMS)
    note = f"MAE in {unit} of one interval; MASE 1 is as good as repeating the last reading"
    lines += [f"{'mean':20}{means}", note, ""]
    lines.append(f"{'payload bytes':20}" + "".join(f"{arm + ' up / down':>26}" for arm in ARMS[1:]))
    for row in rows:
        moved = "".join(f"{_bytes(row, arm):>26}" for arm in ARMS[1:])
        lines.append(f"{row.device[:19]:20}{moved}")
    return "\n".join(lines)


def _mean_mae(rows: Sequence[DeviceResult], arm: str) -> float:
    return float(np.mean([row.scores[arm].mae for row in rows]))


def _bytes(row: DeviceResult, arm: str) -> str:
    moved = row.traffic.get(arm, Traffic())
    return f"{short(moved.up)} / {short(moved.down)}"


def short(count: float) -> str:
    """Return a byte count as text with a unit.

    >>> short(999), short(23_456), short(4_560_000)
    ('999 B', '23.5 kB', '4.56 MB')
    """
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def as_json(rows: Sequence[DeviceResult]) -> list[dict[str, Any]]:
    """Return the rows as plain lists and mappings."""
    return [
        {
            "device": row.device,
            "windows": row.windows,
            "scores": {arm: {"mae": s.mae, "mase": s.mase} for arm, s in row.scores.items()},
            "bytes": {arm: {"up": t.up, "down": t.down} for arm, t in row.traffic.items()},
        }
        for row in rows
    ]
