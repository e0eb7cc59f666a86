"""Forecast errors of the devices of one process, on readings that none was trained on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk import Client, Reading
from edge_sdk.training.model_runtime import ModelRuntime
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
    """Errors of one device, in the unit of its series."""

    mae: float  # mean absolute error
    rmse: float  # root of the mean squared error
    windows: int  # evaluated forecasts; 0 where the device could not forecast

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
    """Errors of several devices."""

    each: Mapping[str, Error]  # errors by device id
    # coverage of intervals, by device id; empty where models have none
    coverage_by_device: Mapping[str, IntervalCoverage] = field(default_factory=dict)
    examples: tuple[ForecastExample, ...] = ()  # one forecast of each, beside the readings
    # true if every device forecasts with the parameters that it began with
    is_untrained: bool = False

    @property
    def mae(self) -> float:
        return float(np.mean([one.mae for one in self.each.values()]))

    @property
    def rmse(self) -> float:
        return float(np.mean([one.rmse for one in self.each.values()]))

    @property
    def windows(self) -> int:
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
        chosen: Scenario with the evaluated span.
    """
    later = replace(
        chosen, start=chosen.until, until=chosen.evaluation[1], evaluation=chosen.evaluation
    )
    clients = {client.config.id: client for client in reversed(fleet.clients)}
    found, scored, untrained = {}, {}, []
    for device in devices:
        if device.id in evaluated:
            client = clients[device.id]
            untrained.append(is_untrained(client.learner, client.state))
            history = readings(device.sample, samples, later)
            found[device.id] = evaluate(client, history, chosen.span)
            if (one := score_intervals(client, chosen.span)) is not None:
                scored[device.id] = one
    coverage = {name: one for name, (one, _) in scored.items()}
    examples = tuple(example for _, example in scored.values())
    return Errors(found, coverage, examples, bool(untrained) and all(untrained))


def is_untrained(learner: ModelRuntime, state: Any) -> bool:  # noqa: ANN401 - the half's own
    return np.array_equal(learner.vector(state), learner.vector(learner.first_state()))


def evaluate(client: Client, later: Iterable[Reading], span: tuple[float, float]) -> Error:
    """Score one device's rolling forecasts of a span of time."""
    for reading in later:
        client.observe(reading)
    _, predicted, truth = client.learner.rolling(client.state, *span)
    return Error.of(np.asarray(predicted), np.asarray(truth))
