"""Train the shipped networks on a fleet in one process, by the device's own half of the method.

The aggregator's half is one line here: the common layers move by the mean of the updates. A test
compares it with ``aggregator.methods``. Nothing is sent, so bytes are counted from the layers' sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.forecasting.forecast import POINT, rolling
from edge_sdk.forecasting.series import Series, SeriesRow
from edge_sdk.forecasting.windows import ChannelFrame, Drawable, Scale
from edge_sdk.methods import METHODS
from edge_sdk.methods.local_sgd import TRAIN, LocalSgd
from edge_sdk.methods.training_context import TrainingContext, keyed
from edge_sdk.protocol.contract.method import ALL, Task, Update
from edge_sdk.protocol.contract.parameter_layout import Vector
from firmware_sim.evaluation.records import DeviceRecord
from firmware_sim.evaluation.windows import Floats, Ints, RecordParts

LOCAL_NET, FEDAVG, PLFL = "local net", "FedAvg", "PL-FL"
# prefixes of the shared layers by way
NETWORKS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {LOCAL_NET: (), FEDAVG: ("",), PLFL: ("body.",)}
)

# by step in seconds: the largest horizon in rows of each shipped bundle that needs no other reading
BUNDLES: Mapping[int, tuple[tuple[int, str], ...]] = MappingProxyType(
    {
        900: ((1, "load-quarter-hour-1"),),
        1800: ((1, "chargers-week-1"), (6, "chargers-week-6")),
        3600: ((1, "load-week-1"), (24, "cells-week-24")),
    }
)

STEPS = 20  # of a round
STAGES = ((100, 2e-3), (50, 5e-4), (30, 1e-4))  # rounds and learning rate of each stage
MOST_STEPS = 60_000  # of all devices in one run: more devices train for fewer rounds
LOOKS = 8  # times that every device compares its model on its held-back days

# called after a round with the way, the round and the number of rounds
OnRound = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class NetworkForecasts:
    """Forecasts of one network on one device."""

    # from the held-back origins, shape ``(k,)``; not a number without a complete window
    held: Floats
    test: Floats  # from the test origins, shape ``(m,)``


def bundle_for(step: int, ahead: int) -> str | None:
    """Return the shipped bundle for a step and a horizon, or None.

    >>> bundle_for(3600, 1), bundle_for(3600, 24), bundle_for(900, 96)
    ('load-week-1', 'cells-week-24', None)
    """
    return next((name for most, name in BUNDLES.get(step, ()) if ahead <= most), None)


def stages(devices: int) -> list[float]:
    """Return the learning rate of each round of a fleet of so many devices.

    >>> len(stages(8)), len(stages(100)), len(stages(10_000))
    (180, 30, 3)
    """
    share = min(1.0, MOST_STEPS / (devices * STEPS * sum(rounds for rounds, _ in STAGES)))
    return [rate for rounds, rate in STAGES for _ in range(max(1, round(share * rounds)))]


class NetworkFleet:
    """Devices with one bundle, their windows, and the rows that they forecast."""

    def __init__(
        self,
        bundle: Bundle,
        records: Mapping[str, DeviceRecord],
        parts: Mapping[str, RecordParts],
        *,
        zone: str,
        seed: int = 0,
    ) -> None:
        """Cut every device's windows: those that end before its held-back days are trained on."""
        self.bundle, self._seed = bundle, seed
        self._frames = {
            name: _frame(bundle, record, parts[name], zone) for name, record in records.items()
        }
        horizon = bundle.manifest.window.horizon
        self._windows = {}
        for name, (frame, first) in self._frames.items():
            origins = frame.origins()
            early = origins[origins + horizon < parts[name].held - first]
            self._windows[name] = Drawable(frame, early)

    def train(self, shared: Sequence[str], rates: Sequence[float]) -> Iterator[dict[str, Vector]]:
        """Train a round at each rate, alone without shared layers; yield every device's whole vector after it."""
        manifest = self.bundle.manifest
        spec = manifest.spec(tuple(shared))
        settings = LocalSgd.of(manifest.training)
        halves, states = {}, {}
        for name, windows in self._windows.items():
            context = TrainingContext(
                name,
                spec,
                self.bundle.graphs,
                partial(_given, windows),
                manifest.training.batch,
                partial(keyed, self._seed, name),
            )
            halves[name] = METHODS["fedavg"](context, settings)
            states[name] = halves[name].init(self.bundle.initial)
        common = spec.shared(self.bundle.initial).astype(np.float64)
        for number, rate in enumerate(rates, 1):
            sent = common.astype(np.float32)
            values = {"steps": float(STEPS), "rate": rate}
            task = Task(ALL, number, TRAIN, values=values, arrays={"w": sent})
            updates = []
            for name, half in halves.items():
                states[name], effects = half.apply(states[name], task)
                updates += [one.vector for one in effects if isinstance(one, Update)]
            if updates:
                common = common - np.mean(updates, axis=0, dtype=np.float64)
            newest = common.astype(np.float32)
            yield {name: spec.place(states[name].p, newest) for name in halves}

    def forecast(self, name: str, p: Vector, origins: Ints, ahead: int) -> Floats:
        """Forecast one device from rows of its record, so many rows ahead, shape ``(m,)``."""
        frame, first = self._frames[name]
        levels = self.bundle.manifest.loss.levels or POINT
        complete = frame.origins(observed=False)
        known = np.isin(origins - first, complete)
        found = np.full(len(origins), np.nan)
        if known.any():
            graph = self.bundle.graphs["forecast"]
            rows = (origins - first)[known]
            found[known] = rolling(graph, p, frame, rows, levels)[:, ahead - 1]
        return found

    def inputs(self, name: str, origins: Ints) -> NDArray[np.float32]:
        """Return a device's windows at rows of its record, shape ``(m, lookback, channels)``."""
        frame, first = self._frames[name]
        return frame.inputs(origins - first)

    def traffic(self, shared: Sequence[str], rounds: int) -> tuple[int, int]:
        """Return the bytes that a device sends and receives: the shared layers in each round."""
        size = 4 * self.bundle.manifest.spec(tuple(shared)).shared_size
        return rounds * size, (rounds + 1 if size else 0) * size


def open_bundle(name: str) -> Bundle:
    return Bundle.open(name, trust=TrustedKeys())


def network_forecasts(
    fleet: NetworkFleet,
    way: str,
    ahead: int,
    *,
    held: Mapping[str, tuple[Ints, Floats]],
    test: Mapping[str, Ints],
    on_round: OnRound = lambda _way, _round, _rounds: None,
) -> dict[str, NetworkForecasts]:
    """Train by one way and forecast; every device keeps the round that was best on held-back days.

    Args:
        way: A key of ``NETWORKS``.
        ahead: Rows from origin to target.
        held: Held-back origins and readings of every device.
        on_round: Called after every round.
    """
    rates = stages(len(test))
    looks = {round(len(rates) * (i + 1) / LOOKS) for i in range(LOOKS)} | {len(rates)}
    best: dict[str, tuple[float, Vector, Floats]] = {}
    for number, vectors in enumerate(fleet.train(NETWORKS[way], rates), 1):
        on_round(way, number, len(rates))
        if number not in looks:
            continue
        for name, p in vectors.items():
            origins, truth = held[name]
            forecasts = fleet.forecast(name, p, origins, ahead)
            error = _mean_error(forecasts, truth)
            if name not in best or error < best[name][0] or not np.isfinite(error):
                best[name] = error, p, forecasts
    return {
        name: NetworkForecasts(forecasts, fleet.forecast(name, p, test[name], ahead))
        for name, (_, p, forecasts) in best.items()
    }


def _mean_error(forecasts: Floats, truth: Floats) -> float:
    known = np.isfinite(forecasts) & np.isfinite(truth)
    return float(np.abs(forecasts - truth)[known].mean()) if known.any() else float("nan")


def _given(windows: Drawable) -> Drawable:
    return windows


def _frame(
    bundle: Bundle, record: DeviceRecord, parts: RecordParts, zone: str
) -> tuple[ChannelFrame, int]:
    """Return a record's channels, and the record's row of the frame's first row."""
    manifest = bundle.manifest
    step, stream = manifest.window.step_seconds, manifest.target.stream
    known = np.flatnonzero(np.isfinite(record.values))
    series = Series(step, [stream], capacity=max(1, len(record.values)))
    slots = record.start // step + known
    series.load(
        SeriesRow(stream, int(slot), float(record.values[row]))
        for slot, row in zip(slots, known, strict=True)
    )
    scale = Scale.of(record.values[: parts.held])
    frame = ChannelFrame.of(series, manifest, zone=ZoneInfo(zone), scale=scale)
    if (record.values[known] < 0.0).any():  # a net reading, which zero does not bound
        frame = replace(frame, target=replace(frame.target, stream="reading"))
    return frame, int(known[0])
