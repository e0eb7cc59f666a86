"""Measure the history that a new device needs, alone and with the fleet, in closed form."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from firmware_sim.evaluation.closed_form import ALONE, PERSONAL, ClosedFormFleet
from firmware_sim.evaluation.records import DeviceRecord, FleetRecords
from firmware_sim.evaluation.windows import RecordParts, windows

COLD = (7, 14, 28, 56, 112)
"""Days of own history of the cold-start curve; more than every device has are left out."""

LEAST_WINDOWS = 50  # of a history
COLD_DEVICES = 12  # devices, evenly chosen, of the cold-start curve


def cold_start(
    records: FleetRecords,
    parts: Mapping[str, RecordParts],
    ahead: int,
    days: int,
    fleet: ClosedFormFleet,
) -> tuple[float, float] | None:
    """Return the error alone and with the fleet after so many days, relative to yesterday's reading.

    The fleet's model is solved without the device's own part. The two weeks after are judged. None
    if a device that has a week of history before its test days does not have so many days.
    """
    ratios = []
    chosen = [d for d in records.devices if d.device in fleet.sums]
    if days > COLD[0] and any(parts[d.device].test < days * records.day for d in chosen):
        return None
    for record in chosen[:: 1 + (len(chosen) - 1) // COLD_DEVICES]:
        cut = parts[record.device].test
        errors = cold_errors(record, records.day, ahead, cut, days=days, fleet=fleet)
        if errors is not None and errors["yesterday"] > 0.0:
            base = errors["yesterday"]
            ratios.append((errors[ALONE] / base, errors[PERSONAL] / base))
    if not ratios:
        return None
    alone, helped = np.mean(ratios, axis=0)
    return float(alone), float(helped)


def cold_errors(
    record: DeviceRecord, day: int, ahead: int, cut: int, *, days: int, fleet: ClosedFormFleet
) -> dict[str, float] | None:
    """Return a device's errors by way in the two weeks after so many days of history, or None.

    Args:
        ahead: Rows from origin to target.
        cut: First row after the history.
        fleet: The fleet; the device's own part is taken out of its sums.
    """
    start, end = cut - days * day, min(len(record.values), cut + 14 * day)
    if start < 0 or len(fleet.sums) < 2 or not np.isfinite(record.values[start:cut]).any():
        return None
    w = windows(record, day, ahead, (cut, end), start=start)
    if len(w.learn_rows) < LEAST_WINDOWS or not len(w.goals):
        return None
    found = w.repeated | fleet.forecasts(record.device, w)
    return {way: float(np.abs(values - w.truth).mean()) for way, values in found.items()}
