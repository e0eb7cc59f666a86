"""Series and channels of recorded readings, shared by all devices with the same readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from pathlib import Path
from types import MappingProxyType

from edge_sdk.forecasting.series import Series
from edge_sdk.forecasting.windows import WHOLE, ChannelFrame, Scale, Span
from edge_sdk.protocol.contract.manifest import Manifest
from firmware_sim.fleet.in_process import on_grid, readings
from firmware_sim.samples import DeviceReadings, SampleSet
from firmware_sim.scenario import Scenario


@dataclass
class SharedHistories:
    """Series by file and span, and channels by series: each is computed once and never changed."""

    samples: SampleSet
    manifest: Manifest
    capacity: int  # slots of a device's history
    _series: dict[tuple[Path, str, str], Series] = field(default_factory=dict)
    _frames: dict[tuple[object, ...], ChannelFrame] = field(default_factory=dict)

    def series(self, sample: DeviceReadings, chosen: Scenario) -> Series:
        """Return the readings of a device in the scenario's span, on the bundle's grid."""
        key = (sample.path, chosen.start, chosen.until)
        if key not in self._series:
            history = readings(sample, self.samples, chosen)
            made = on_grid(self.manifest, self.capacity, history)
            made.saved(made.pending())
            self._series[key] = made
        return self._series[key]

    def frame(
        self,
        series: Series,
        manifest: Manifest,
        *,
        site: Mapping[str, float] = MappingProxyType({}),
        zone: tzinfo = UTC,
        scale: Scale | None = None,
        span: Span = WHOLE,
    ) -> ChannelFrame:
        """Return the channels of a series, as ``ChannelFrame.of``; equal arguments share them."""
        key = (id(series), tuple(sorted(site.items())), zone, scale, span)
        if key not in self._frames:
            made = ChannelFrame.of(series, manifest, site=site, zone=zone, scale=scale, span=span)
            self._frames[key] = made
        return self._frames[key]
