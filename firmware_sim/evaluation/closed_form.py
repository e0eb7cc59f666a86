"""Solve ridge regressions for a fleet: one alone on each device, one of all, one fitted to each.

With them: the history that a new device needs, alone and with the fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from edge_sdk.extensions.analytic.personal import fit_personal
from edge_sdk.extensions.analytic.random_units import RandomUnits
from edge_sdk.extensions.analytic.reweighting import QuantileLoss
from edge_sdk.extensions.analytic.solve import fleet_solution, leave_one_out, predicted
from edge_sdk.extensions.analytic.standardise import FeatureSums, Standardiser
from edge_sdk.extensions.analytic.statistics import Statistic, gather, payload_bytes, total
from firmware_sim.evaluation.records import DeviceRecord, FleetRecords
from firmware_sim.evaluation.windows import DeviceWindows, Floats, RecordParts, windows

ALONE, FLEET, PERSONAL = "alone", "fleet", "personal"
UNITS, FAN_IN, PASSES = 100, 4, 2
LOSS = QuantileLoss()


@dataclass(frozen=True, slots=True, eq=False)
class ClosedFormFleet:
    """The sums of a fleet, and the models solved from them."""

    devices: Mapping[str, DeviceWindows]  # windows by device
    width: int
    design: Callable[[Floats], Floats]  # maps features to design rows
    sums: Mapping[str, Statistic]  # each device's sums of the last pass
    model: Floats  # the fleet's model, shape ``(1, P)``
    others: Mapping[str, Floats]  # for each device the model of all others

    @classmethod
    def of(
        cls,
        devices: Mapping[str, DeviceWindows],
        seed: int,
        on_pass: Callable[[int, int], None] = lambda _pass, _passes: None,
    ) -> ClosedFormFleet:
        """Solve the fleet's model in ``1 + PASSES`` passes over the devices' training windows."""
        standard = Standardiser.of_fleet(
            {n: FeatureSums.of(w.learn_rows) for n, w in devices.items()}
        )
        width = next(iter(devices.values())).learn_rows.shape[1]
        units = RandomUnits.draw("evaluate", seed, width, UNITS, FAN_IN)

        def design(rows: Floats) -> Floats:
            return np.asarray(units.design(standard.apply(rows)), np.float64)

        model: Floats | None = None
        sums: dict[str, Statistic] = {}
        for number in range(1 + PASSES):
            for name, w in devices.items():
                rows, weights = design(w.learn_rows), None
                if model is not None:
                    weights = LOSS.weights(w.learn_targets - predicted(rows, model))
                sums[name] = gather(rows, w.learn_targets, weights)
            model = fleet_solution(total(sums))
            on_pass(number + 1, 1 + PASSES)
        assert model is not None
        return cls(devices, width, design, sums, model, leave_one_out(sums))

    def forecasts(self, name: str, judged: DeviceWindows | None = None) -> dict[str, Floats]:
        """Return a device's forecasts by each way, shape ``(m,)``.

        Args:
            judged: Its windows; those of the fleet if left out.
        """
        w = self.devices[name] if judged is None else judged
        rows, goals, days = self.design(w.learn_rows), w.learn_targets, w.days
        towards = self.others[name]
        personal = fit_personal(rows, goals, towards, LOSS, days=days).coefficients
        zero = np.zeros_like(towards)
        alone = fit_personal(rows, goals, zero, LOSS, strengths=(), days=days).coefficients
        models = {ALONE: alone, FLEET: self.model, PERSONAL: personal}
        judged_rows, last = self.design(w.judged_rows), w.repeated["last value"]
        return {way: last + w.scale * predicted(judged_rows, m)[:, 0] for way, m in models.items()}

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes that a device sends and receives, all passes."""
        size = self.width + UNITS + 1
        up = (1 + PASSES) * payload_bytes(size, 1) + 8 * self.width
        return up, (1 + PASSES) * 4 * size + 8 * self.width


# days of own history of the cold-start curve; more than every device has are left out
COLD = (7, 14, 28, 56, 112)
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
