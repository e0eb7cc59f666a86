"""Say in plain sentences which way of forecasting would help a fleet, and at what cost."""

from __future__ import annotations

from collections.abc import Sequence

from firmware_sim.evaluation.comparison import LEARNT, WAYS, HorizonComparison
from firmware_sim.evaluation.records import FleetRecords, span
from firmware_sim.results import short

MATTERS = 0.01
"""Relative change of the error below which a device counts as unchanged."""


def verdict(found: HorizonComparison, records: FleetRecords) -> list[str]:
    """Return the sentences for one horizon, the answer first."""
    devices = len(found.scores)
    ahead = span(found.ahead * records.step)
    ratios = [score.worth for score in found.scores]
    better = sum(ratio < 1.0 - MATTERS for ratio in ratios)
    worse = sum(ratio > 1.0 + MATTERS for ratio in ratios)
    mean = sum(ratios) / devices - 1.0
    naive = min((way for way in WAYS if way not in LEARNT), key=found.relative)
    gain = 1.0 - found.relative("personal") / found.relative(naive)
    lines = [
        f"{ahead} ahead: {found.best} forecasts best on {devices} devices.",
        f"The fleet's model fitted to each device has an error {_change(mean)} than learning alone.",
        f"{better} of {devices} devices gain more than 1 %, {worse} lose more than 1 %.",
        f"Against the best forecast without learning ({naive}) its error is {_change(-gain)}.",
    ]
    if found.cold:
        days, (alone, helped) = next(iter(found.cold.items()))
        lines.append(
            f"A device with {days} days of history has an error {_change(helped / alone - 1.0)}"
            " with the fleet than alone."
        )
    lines.append(
        f"Each device sends {short(found.bytes_up)} and receives {short(found.bytes_down)}, once."
    )
    return lines


def table(found: HorizonComparison, records: FleetRecords) -> str:
    """Return the errors as text: a row for each device, at most 20, and their mean."""
    width = max(12, *(len(score.device) for score in found.scores))
    head = f"{'MAE, ' + span(found.ahead * records.step) + ' ahead':{width}}"
    lines = [head + "".join(f"{way:>12}" for way in WAYS)]
    lines += [
        f"{score.device:{width}}" + "".join(f"{score.mae[way]:12.4g}" for way in WAYS)
        for score in found.scores[:SHOWN]
    ]
    if len(found.scores) > SHOWN:
        lines.append(f"… and {len(found.scores) - SHOWN} more devices: see the page")
    relative = "".join(f"{found.relative(way):12.3f}" for way in WAYS)
    lines.append(f"{'to last week':{width}}{relative}")
    return "\n".join(lines)


def cold_start(found: HorizonComparison) -> str:
    """Return the cold-start curve as text; empty without one."""
    if not found.cold:
        return ""
    days = "".join(f"{day:>10} d" for day in found.cold)
    alone = "".join(f"{pair[0]:12.3f}" for pair in found.cold.values())
    helped = "".join(f"{pair[1]:12.3f}" for pair in found.cold.values())
    title = "days of history"
    return f"{title:16}{days}\n{'alone':16}{alone}\n{'with the fleet':16}{helped}"


SHOWN = 20  # devices in the printed table


def as_json(found: Sequence[HorizonComparison], records: FleetRecords) -> dict[str, object]:
    """Return everything as plain data."""
    return {
        "detected": records.notes,
        "zone": records.zone,
        "step_seconds": records.step,
        "horizons": [
            {
                "ahead_seconds": one.ahead * records.step,
                "best": one.best,
                "verdict": verdict(one, records),
                "relative_to_last_week": {way: one.relative(way) for way in WAYS},
                "devices": [
                    {"device": s.device, "windows": s.windows, "mae": dict(s.mae)}
                    for s in one.scores
                ],
                "cold_start": {
                    str(days): {"alone": alone, "with_fleet": helped}
                    for days, (alone, helped) in one.cold.items()
                },
                "bytes_up": one.bytes_up,
                "bytes_down": one.bytes_down,
                "processor_seconds": one.seconds,
            }
            for one in found
        ],
    }


def _change(relative: float) -> str:
    """Return a relative change as text.

    >>> _change(-0.034), _change(0.012)
    ('3.4 % smaller', '1.2 % larger')
    """
    return f"{abs(100 * relative):.1f} % {'smaller' if relative <= 0 else 'larger'}"
