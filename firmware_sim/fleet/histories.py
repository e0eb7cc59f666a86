"""Check that the devices' histories have windows of the bundle, before a fleet is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_sdk.bundle import shipped_folder, shipped_names
from edge_sdk.errors import USAGE, Failure
from edge_sdk.extensions.setup.agent_log import channel_sources
from edge_sdk.forecasting.series import Series
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.protocol.contract.archive import MANIFEST
from edge_sdk.protocol.contract.manifest import Manifest
from firmware_sim.fleet.in_process import readings
from firmware_sim.fleet.run_files import assigned
from firmware_sim.samples import DeviceReadings, SampleSet
from firmware_sim.scenario import Scenario


class HistoryError(Failure):
    """Histories without a window of the bundle, in which no device could train."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class WindowCount:
    """The windows of a bundle in the history of one device."""

    device: str
    windows: int
    reason: str = ""  # reason why there are none; empty if there are some


def check_histories(chosen: Scenario, samples: SampleSet) -> list[WindowCount]:
    """Return the devices without a window; refuse a fleet that could not close a round.

    Raises:
        HistoryError: Fewer devices have a window than a round needs; the message gives the number
            of windows and the reason.
    """
    manifest = manifest_of(chosen.bundle)
    known: dict[Path, WindowCount] = {}
    lacking = []
    for device, sample in assigned(samples.samples, chosen.devices):
        if sample.path not in known:
            known[sample.path] = history_of(sample, samples, chosen, manifest)
        if not known[sample.path].windows:
            lacking.append(WindowCount(device, 0, known[sample.path].reason))
    needed = chosen.run.awaits(chosen.devices)
    if chosen.devices - len(lacking) < max(needed, 1):
        first = lacking[0]
        names = ", ".join(one.device for one in lacking[:3]) + (", …" if len(lacking) > 3 else "")
        raise HistoryError(
            f"bundle {manifest.name}: windows: 0 on {len(lacking)} of {chosen.devices} devices "
            f"({names}), and a round needs {needed}; {first.device}: {first.reason}",
            hint=_hint(chosen, samples),
        )
    return lacking


def history_of(
    sample: DeviceReadings, samples: SampleSet, chosen: Scenario, manifest: Manifest
) -> WindowCount:
    """Count the windows of one device's history; state the reason if there are none."""
    columns = {stream: name for name, stream in samples.present(sample).items()}
    given = {stream: f"column {name}" for stream, name in columns.items()}
    missing = [
        row.channel
        for row in channel_sources(manifest, given, {})
        if row.is_missing and row.channel not in manifest.optional
    ]
    if missing:
        have = ", ".join(columns.values()) or "none"
        reason = f"no source for {', '.join(missing)}; columns of {sample.path.name}: {have}"
        return WindowCount(sample.device, 0, reason)
    step, own = manifest.window.step_seconds, sample.step(samples.target)
    if own and step % own:
        reason = f"a reading every {own} s in {sample.path.name}, and the bundle's step is {step} s"
        return WindowCount(sample.device, 0, reason)
    streams = [manifest.target.stream, *(f.stream for f in manifest.features if f.stream)]
    series = Series(step, list(dict.fromkeys(streams)), capacity=_MOST_SLOTS)
    for reading in readings(sample, samples, chosen):
        series.add(reading)
    windows = len(ChannelFrame.of(series, manifest).origins()) if len(series) else 0
    return WindowCount(sample.device, windows, "" if windows else _too_short(series, manifest))


_MOST_SLOTS = 200_000


def _too_short(series: Series, manifest: Manifest) -> str:
    """Return the number of rows that a window needs, and the longest stretch without a gap."""
    window = manifest.window
    lags = max(((f.lag_steps or 1) - 1 for f in manifest.features), default=0)
    needed = window.lookback + lags + window.horizon
    seen = np.isfinite(series.values(manifest.target.stream)) if len(series) else np.zeros(0, bool)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], seen, [False]]).astype(np.int8)))
    longest = int((edges[1::2] - edges[::2]).max(initial=0))
    days = needed * window.step_seconds / 86_400
    return (
        f"a window needs about {needed} rows of {window.step_seconds} s ({days:.1f} days) without "
        f"a gap; {longest} of {len(series)} rows are the longest stretch"
    )


def manifest_of(bundle: str) -> Manifest:
    """Read the manifest of a shipped bundle, or of one in a folder; its signature is not checked."""
    folder = shipped_folder() / bundle if bundle in shipped_names() else Path(bundle)
    return Manifest.parse((folder / MANIFEST).read_bytes())


def _hint(chosen: Scenario, samples: SampleSet) -> str:
    fitting = [name for name in shipped_names() if _fits(name, chosen, samples)]
    if fitting:
        return f"bundles that fit these readings: {', '.join(fitting)}"
    return "add the missing columns, take a longer history with --days, or another bundle"


def _fits(name: str, chosen: Scenario, samples: SampleSet) -> bool:
    manifest = manifest_of(name)
    if manifest.target.stream != samples.columns.get(samples.target):
        return False
    devices: Sequence[DeviceReadings] = samples.samples[: chosen.devices]
    return all(history_of(one, samples, chosen, manifest).windows for one in devices)
