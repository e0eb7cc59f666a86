"""Forecast errors of the devices of one process, on readings that none was trained on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from edge_sdk import Client, Reading
from firmware_sim.fleet.in_process import Fleet, readings
from firmware_sim.fleet.run_files import Device
from firmware_sim.reports.interval_scores import (
    ForecastExample,
    IntervalCoverage,
    score_intervals,
)
from firmware_sim.samples import SampleSet
from firmware_sim.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Error:
    """Errors of one device, in the unit of its series.

    Attributes:
        mae: Mean absolute error.
        rmse: Root of the mean squared error.
        windows: Evaluated forecasts; 0 where the device could not forecast.
    """

    mae: float
    rmse: float
    windows: int

    @classmethod
    def of(cls, predicted: NDArray[np.float64], truth: NDArray[np.float64]) -> Error:
        """Score forecasts, shape ``(n, horizon)``, where the truth was observed.

        A non-finite forecast has an infinite error.

        >>> Error.of(np.array([[1.0], [5.0]]), np.array([[1.0], [2.0]]))
        Error(mae=1.5, rmse=2.1213203435596424, windows=2)
        >>> Error.of(np.array([[np.nan]]), np.array([[2.0]])).rmse
        inf
        """
        known = np.isfinite(truth)
        if not known.any():
            return cls(np.inf, np.inf, 0)
        off = np.abs(np.nan_to_num(predicted[known] - truth[known], nan=np.inf))
        with np.errstate(over="ignore"):
            rmse = float(np.sqrt(np.mean(off**2)))
        return cls(float(off.mean()), rmse, len(predicted))


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of several devices.

    Attributes:
        each: Errors by device id.
        coverage_by_device: Coverage of intervals, by device id; empty where models have none.
        examples: One forecast of each, beside the readings.
    """

    each: Mapping[str, Error]
    coverage_by_device: Mapping[str, IntervalCoverage] = field(default_factory=dict)
    examples: tuple[ForecastExample, ...] = ()

    @property
    def mae(self) -> float:
        """Return the mean of the devices' mean absolute errors."""
        return float(np.mean([one.mae for one in self.each.values()]))

    @property
    def rmse(self) -> float:
        """Return the mean of the devices' root mean squared errors."""
        return float(np.mean([one.rmse for one in self.each.values()]))

    @property
    def windows(self) -> int:
        """Return the evaluated forecasts, of all devices together."""
        return sum(one.windows for one in self.each.values())


def errors(
    fleet: Fleet,
    devices: Sequence[Device],
    evaluated: Collection[str],
    samples: SampleSet,
    chosen: Scenario,
) -> Errors:
    """Give devices their later readings, and score their forecasts of them.

    Args:
        fleet: Fleet after its run: the later readings must not be trained on.
        devices: Devices with their readings.
        evaluated: Ids of the evaluated devices.
        samples: Set of readings.
        chosen: Scenario with the evaluated span.
    """
    later = replace(
        chosen, start=chosen.until, until=chosen.evaluation[1], evaluation=chosen.evaluation
    )
    clients = {client.config.id: client for client in reversed(fleet.clients)}
    found, scored = {}, {}
    for device in devices:
        if device.id in evaluated:
            client = clients[device.id]
            history = readings(device.sample, samples, later)
            found[device.id] = evaluate(client, history, chosen.span)
            if (one := score_intervals(client, chosen.span)) is not None:
                scored[device.id] = one
    coverage = {name: one for name, (one, _) in scored.items()}
    return Errors(found, coverage, tuple(example for _, example in scored.values()))


def evaluate(client: Client, later: Iterable[Reading], span: tuple[float, float]) -> Error:
    """Score one device's rolling forecasts of a span of time."""
    for reading in later:
        client.observe(reading)
    _, predicted, truth = client.learner.rolling(client.state, *span)
    return Error.of(np.asarray(predicted), np.asarray(truth))
