"""Find the source of every channel of a bundle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.protocol.contract.manifest import Feature, Manifest

NEVER = "no model forecast and no training until it has a source"
MASKED = "optional: the model forecasts without it, less accurately"


@dataclass(frozen=True, slots=True)
class ChannelSource:
    """The origin of one channel of a bundle."""

    channel: str
    reads: str  # stream, calendar feature or site constant that it reads
    source: str  # where that comes from; empty for none
    consequence: str = ""  # cost of a missing source costs; empty where there is a source

    @property
    def is_missing(self) -> bool:
        return not self.source

    @property
    def text(self) -> str:
        return self.source or f"no source: {self.consequence}"


def channel_sources(
    manifest: Manifest, given: Mapping[str, str], site: Mapping[str, float]
) -> list[ChannelSource]:
    """Return the source of every channel of a bundle, in the bundle's order, without its masks."""
    return [
        _source_of(feature, manifest, given, site)
        for feature in manifest.features
        if feature.kind != "mask"
    ]


def _source_of(
    feature: Feature, manifest: Manifest, given: Mapping[str, str], site: Mapping[str, float]
) -> ChannelSource:
    lost = MASKED if feature.name in manifest.optional else NEVER
    if feature.kind == "calendar":
        return ChannelSource(feature.name, str(feature.what), "the clock")
    if feature.kind == "static":
        value = site.get(feature.name)
        source = "" if value is None else f"[site] {feature.name} = {value:g}"
        return ChannelSource(feature.name, "the site", source, "" if source else lost)
    stream = feature.stream or manifest.target.stream
    source = given.get(stream, "")
    if source and feature.lag_steps is not None:
        source = f"{source}, earlier readings"
    if source and feature.lead_steps is not None:
        source = f"{source}, values announced ahead; without them, the newest reading"
    return ChannelSource(feature.name, stream, source, "" if source else lost)


def unsupplied(channels: Iterable[ChannelSource]) -> list[ChannelSource]:
    return [channel for channel in channels if channel.is_missing]
