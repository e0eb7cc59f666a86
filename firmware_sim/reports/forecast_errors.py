"""Errors of the forecasts of simulated devices, on readings that none was trained on, and interval coverage."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk import Client, Reading
from edge_sdk.training.model_runtime import ModelRuntime
from firmware_sim.fleet.in_process import Fleet, readings
from firmware_sim.fleet.run_files import Device
from firmware_sim.samples import SampleSet
from firmware_sim.scenario import Scenario

Floats = NDArray[np.float64]

UNCHANGED = 0.01  # share of the first error by which forecasts of a trained model must have changed


@dataclass(frozen=True, slots=True)
class IntervalCoverage:
    """Coverage of the served intervals of one device."""

    below: float  # fraction of readings below their interval; ``above`` above it
    above: float
    length: float  # mean length of the intervals, in the unit of the series
    aim: float  # target fraction of readings outside on one side

    @classmethod
    def of(cls, ends: Floats, truth: Floats, coverage: float) -> IntervalCoverage:
        """Score intervals ``(n, horizon, 2)`` where the truth ``(n, horizon)`` was observed.

        >>> ends = np.array([[[0.0, 2.0]], [[1.0, 4.0]], [[0.0, 1.0]]])
        >>> IntervalCoverage.of(ends, np.array([[3.0], [0.5], [np.nan]]), 0.8)
        IntervalCoverage(below=0.5, above=0.5, length=2.5, aim=0.1)
        """
        known = np.isfinite(truth) & np.isfinite(ends).all(axis=2)
        low, high, seen = ends[known, 0], ends[known, 1], truth[known]
        below, above = float((seen < low).mean()), float((seen > high).mean())
        return cls(below, above, float((high - low).mean()), round((1.0 - coverage) / 2, 6))


@dataclass(frozen=True, slots=True, eq=False)
class ForecastExample:
    """One forecast of one device, beside the readings."""

    device: str
    times: NDArray[np.int64]  # start of each step, Unix seconds, ``(horizon,)``
    # median forecast; ``ends`` the interval, ``(horizon, 2)``; ``truth`` the readings
    median: Floats
    ends: Floats
    truth: Floats

    def text(self, unit: str) -> str:
        """Return the forecast as text, a line a step.

        >>> one = ForecastExample("mall", np.array([0]), *map(np.array, ([1.0], [[0.0, 2.5]], [3.0])))
        >>> print(one.text("kWh"))
        mall, 1970-01-01 00:00 UTC, kWh: median, interval, observed
          00:00      1.00      0.00 to 2.50          3.00  outside
        """
        first = f"{_moment(int(self.times[0])):%Y-%m-%d %H:%M} UTC"
        lines = [f"{self.device}, {first}, {unit}: median, interval, observed"]
        for time, middle, (low, high), seen in zip(
            self.times.tolist(), self.median, self.ends, self.truth, strict=True
        ):
            where = "" if low <= seen <= high or np.isnan(seen) else "  outside"
            numbers = f"{middle:10.2f}{low:10.2f} to {high:<8.2f}{seen:10.2f}{where}"
            lines.append(f"  {_moment(time):%H:%M}{numbers}")
        return "\n".join(lines)


def _moment(time: int) -> datetime:
    return datetime.fromtimestamp(time, UTC)


def score_intervals(
    client: Client, span: tuple[float, float]
) -> tuple[IntervalCoverage, ForecastExample] | None:
    """Score a device's intervals in a span; None where its model has none.

    The example is the forecast of the span with the largest total in its hours.
    """
    learner = client.learner
    ends = learner.intervals(client.state, *span)
    if ends is None or not len(ends):
        return None
    times, predicted, truth = learner.rolling(client.state, *span)
    coverage = learner.config.forecast.coverage or learner.levels[-1] - learner.levels[0]
    at = int(np.argmax(np.nan_to_num(truth).sum(axis=1)))
    horizon = np.arange(truth.shape[1], dtype=np.int64) * learner.series.step
    one = ForecastExample(client.config.id, times[at] + horizon, predicted[at], ends[at], truth[at])
    return IntervalCoverage.of(ends, truth, coverage), one


def table(found: Mapping[str, IntervalCoverage], unit: str) -> str:
    """Return the coverage of every device's intervals as a table.

    >>> print(table({"mall": IntervalCoverage(0.01, 0.098, 4.5, 0.1)}, "kWh"))
    device  below  above  mean length, kWh
    mall    0.010  0.098  4.50
    target: at most 0.10 on either side
    """
    wide = max(map(len, (*found, "device")))
    lines = [f"{'device':{wide}}  below  above  mean length, {unit}"]
    for name, one in found.items():
        lines.append(f"{name:{wide}}  {one.below:.3f}  {one.above:.3f}  {one.length:.2f}")
    aims = {one.aim for one in found.values()}
    return "\n".join([*lines, *(f"target: at most {aim:.2f} on either side" for aim in aims)])


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
    # true if every device forecasts as with the parameters that it began with
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
    """Give the devices of a fleet, after its run, their later readings, and score their forecasts of them."""
    later = replace(
        chosen, start=chosen.until, until=chosen.evaluation[1], evaluation=chosen.evaluation
    )
    clients = {client.config.id: client for client in reversed(fleet.clients)}
    found, scored, untrained = {}, {}, []
    for device in devices:
        if device.id in evaluated:
            client = clients[device.id]
            history = readings(device.sample, samples, later)
            found[device.id], is_first = evaluate(client, history, chosen.span)
            untrained.append(is_first)
            if (one := score_intervals(client, chosen.span)) is not None:
                scored[device.id] = one
    coverage = {name: one for name, (one, _) in scored.items()}
    examples = tuple(example for _, example in scored.values())
    return Errors(found, coverage, examples, bool(untrained) and all(untrained))


def is_untrained(
    learner: ModelRuntime,
    state: Any,  # noqa: ANN401 - the half's own
    predicted: Floats,
    span: tuple[float, float],
) -> bool:
    """Return whether the parameters are the first ones, or forecast as those do.

    Args:
        predicted: Forecasts of the state in the span, ``(n, horizon)``.
        span: Evaluated part in Unix seconds.
    """
    first = learner.first_state()
    if np.array_equal(learner.vector(state), learner.vector(first)):
        return True
    _, begun, truth = learner.rolling(first, *span)
    return is_unchanged(predicted, begun, truth)


def is_unchanged(predicted: Floats, begun: Floats, truth: Floats) -> bool:
    """Return whether forecasts differ from earlier ones by less than a hundredth of the earlier error.

    >>> truth, begun = np.array([[3.0], [5.0]]), np.array([[1.0], [1.0]])
    >>> is_unchanged(begun + 0.01, begun, truth), is_unchanged(begun + 0.1, begun, truth)
    (True, False)
    """
    known = np.isfinite(truth)
    if not known.any():
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        moved = np.sqrt(np.mean((predicted[known] - begun[known]) ** 2))
        error = np.sqrt(np.mean((begun[known] - truth[known]) ** 2))
    return bool(moved < UNCHANGED * error)


def evaluate(
    client: Client, later: Iterable[Reading], span: tuple[float, float]
) -> tuple[Error, bool]:
    """Score one device's rolling forecasts of a span of time; also return whether it is untrained."""
    for reading in later:
        client.observe(reading)
    learner, state = client.learner, client.state
    _, predicted, truth = learner.rolling(state, *span)
    predicted = np.asarray(predicted)
    return Error.of(predicted, truth), is_untrained(learner, state, predicted, span)
