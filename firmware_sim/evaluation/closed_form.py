"""Solve ridge regressions for a fleet: one alone on each device, one of all, one fitted to each."""

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
from firmware_sim.evaluation.windows import DeviceWindows, Floats

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
