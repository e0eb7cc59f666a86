"""Measure whether a network's last hidden layer helps a fleet in closed form.

    python -m tools.experiments.hidden_layer --data FOLDER [--devices 10] [--zone Europe/Berlin]

A shipped network is trained by FedAvg on the fleet, its last hidden layer is cut out as ``export
--hidden`` does, and the regressions of ``gridfed-sim evaluate`` are solved with and without it, one
step ahead. Test days are touched by nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.authoring.hidden_layer import TrainedNet, hidden_graph
from edge_sdk.bundle import shipped_folder
from edge_sdk.runtime import load_graph
from firmware_sim.evaluation.closed_form import ALONE, FLEET, PERSONAL, ClosedFormFleet
from firmware_sim.evaluation.networks import (
    FEDAVG,
    NETWORKS,
    NetworkFleet,
    bundle_for,
    open_bundle,
    stages,
)
from firmware_sim.evaluation.records import on_grid
from firmware_sim.evaluation.tables import read_tables
from firmware_sim.evaluation.windows import DeviceWindows, RecordParts, windows

Rows = NDArray[np.int64]
Layer = Callable[[str, Rows], NDArray[np.float64]]
CHUNK = 512


def main(argv: list[str] | None = None) -> int:
    """Train, solve twice, and print one table."""
    parser = argparse.ArgumentParser(prog="python -m tools.experiments.hidden_layer")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--zone")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    began = time.process_time()
    found = on_grid(
        read_tables(args.data, zone=args.zone, time_column=None, value_column=None), None
    )
    records = replace(found, devices=found.devices[: args.devices])
    parts = {d.device: RecordParts.of(d, records.day) for d in records.devices}
    plain = {
        d.device: windows(d, records.day, 1, (parts[d.device].test, parts[d.device].end))
        for d in records.devices
    }
    name = bundle_for(records.step, 1)
    if name is None:
        raise SystemExit(f"no shipped network has a step of {records.step} s")
    bundle = open_bundle(name)
    fleet = NetworkFleet(
        bundle,
        {d.device: d for d in records.devices},
        parts,
        zone=records.zone,
        seed=args.seed,
    )
    *_, vectors = fleet.train(NETWORKS[FEDAVG], stages(len(plain)))
    net = TrainedNet(
        bundle.manifest,
        (shipped_folder() / name / bundle.manifest.graphs["forecast"].file).read_bytes(),
        next(iter(vectors.values())),
    )
    places = range(len(bundle.manifest.features))
    golden = np.asarray(bundle.manifest.golden.x)
    cut = hidden_graph(net, bundle.manifest.window.lookback, places, golden)
    graph = load_graph(cut.data)

    def layer(device: str, origins: Rows) -> NDArray[np.float64]:
        parts = [
            fleet.inputs(device, origins[i : i + CHUNK]) for i in range(0, len(origins), CHUNK)
        ]
        return np.concatenate([np.asarray(graph(x=x)[0], np.float64) for x in parts])

    scored = {
        "without": _errors(plain, args.seed),
        f"with {cut.width} hidden units": _errors(
            {n: _extended(n, w, layer) for n, w in plain.items()}, args.seed
        ),
    }
    forecasts = {n: fleet.forecast(n, net.vector, w.origins, 1) for n, w in plain.items()}
    net_error = np.mean(
        [np.nanmean(np.abs(forecasts[n] - w.truth)) / _last_week(w) for n, w in plain.items()]
    )
    print(f"{len(plain)} devices, {records.step} s, {name}: error to last week's reading")
    print(f"{'':24}{ALONE:>10}{FLEET:>10}{PERSONAL:>10}")
    for label, errors in scored.items():
        print(f"{label:24}" + "".join(f"{errors[way]:10.4f}" for way in (ALONE, FLEET, PERSONAL)))
    print(f"network itself: {net_error:.4f}; {time.process_time() - began:.0f} processor seconds")
    return 0


def _extended(device: str, w: DeviceWindows, layer: Layer) -> DeviceWindows:
    """Return the windows with the hidden layer among their features; 0 where an input is missing."""
    learn, judged = (np.nan_to_num(layer(device, rows)) for rows in (w.learned, w.origins))
    return replace(
        w,
        learn_rows=np.concatenate([w.learn_rows, learn], axis=1),
        judged_rows=np.concatenate([w.judged_rows, judged], axis=1),
    )


def _errors(devices: Mapping[str, DeviceWindows], seed: int) -> dict[str, float]:
    fleet = ClosedFormFleet.of(devices, seed)
    ratios: dict[str, list[float]] = {way: [] for way in (ALONE, FLEET, PERSONAL)}
    for name, w in devices.items():
        for way, forecasts in fleet.forecasts(name).items():
            ratios[way].append(float(np.abs(forecasts - w.truth).mean()) / _last_week(w))
    return {way: float(np.mean(values)) for way, values in ratios.items()}


def _last_week(w: DeviceWindows) -> float:
    return float(np.abs(w.repeated["last week"] - w.truth).mean())


if __name__ == "__main__":
    sys.exit(main())
