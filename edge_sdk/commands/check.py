"""Check configuration, keys, bundle and sources; print every setting and its origin.

Nothing is written, and nothing is sent. --broker also connects to the broker, for ten seconds at
most, and exits with 75 if that fails.

  gridfed-edge check meter.toml
  gridfed-edge check meter.toml --broker
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edge_sdk.agent import open_outputs, open_sources, streams_given
from edge_sdk.app.cli import OK, TEMPORARY, CommandResult
from edge_sdk.app.clock import DAY
from edge_sdk.app.settings import shown
from edge_sdk.commands.arguments import add_config
from edge_sdk.commands.budget import update_bytes
from edge_sdk.config import Config, load_with_origins
from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.readiness import ChannelSource, channel_sources, unsupplied
from edge_sdk.limits.resource_limits import limits_of
from edge_sdk.methods import METHODS
from edge_sdk.privacy.datasheet import guarantee
from edge_sdk.session import certificate_monitor
from edge_sdk.session.identity import load_signer, place_of, require_signer
from edge_sdk.sources import Source
from edge_sdk.sources.csvfile import CsvFile
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore
from edge_sdk.training import bootstrap, installed_bundle
from edge_sdk.training.retention import history_of
from edge_sdk.training.shared_budgets import refuse_unit
from edge_sdk.wire.contract.manifest import Manifest
from edge_sdk.wire.contract.parameter_layout import ParamSpec
from edge_sdk.wire.keys import kid_of
from edge_sdk.wire.link.transport import LinkDown, LinkUp
from edge_sdk.wire.plugin_registry import known_names
from edge_sdk.wire.protocol import topics

_PATIENCE = 10.0  # seconds to reach a broker

IDLE_DAY = 30_000
"""Bytes of a connected day without a round, as the aggregator's projection counts them."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_config(parser)
    parser.add_argument(
        "--broker", action="store_true", help="also connect to the broker, for ten seconds at most"
    )


def run(args: Namespace) -> CommandResult:
    """Return the settings in force and what was found."""
    loaded = load_with_origins(args.config)
    found = check_device(loaded.value)
    code = OK
    if args.broker:
        found["broker"], is_there = reach_broker(loaded.value)
        code = OK if is_there else TEMPORARY
    rows = shown(loaded.value, loaded.origins)
    lines = [f"{key} = {value}    ({origin})" for key, value, origin in rows]
    lines += ["", *(f"{what}: {how}" for what, how in found.items())]
    settings = {key: {"value": value, "origin": origin} for key, value, origin in rows}
    channels = channels_of(loaded.value)
    lines += ["", *channel_table(channels)]
    data = {
        "settings": settings,
        "found": found,
        "channels": {x.channel: {"reads": x.reads, "source": x.text} for x in channels},
    }
    return CommandResult(data, "\n".join(lines), code)


def channels_of(config: Config) -> list[ChannelSource]:
    """Return the source of every channel of the configured bundle.

    Raises:
        EdgeError: The bundle or a source cannot be used.
    """
    manifest = installed_bundle.open_bundle(config, None).manifest
    return channel_sources(manifest, streams_given(config, manifest), config.site)


def channel_table(channels: Sequence[ChannelSource]) -> list[str]:
    """Return the channels as lines: name, what it reads, and its source or the lack of one."""
    rows = [("channel", "reads", "from"), *((x.channel, x.reads, x.text) for x in channels)]
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows]
    if lost := unsupplied(channels):
        lines += ["", f"warning: no source for {', '.join(x.channel for x in lost)}"]
    return lines


def check_device(config: Config) -> dict[str, str]:
    """Check everything that needs no network; return the findings by topic.

    Raises:
        EdgeError: The first error found.
    """
    key = load_signer(config)
    require_signer(key)
    bootstrap.load_ring(config)
    bundle = installed_bundle.open_bundle(config, None)
    manifest = bundle.manifest
    if unknown := [name for name in config.accept.methods if name not in METHODS]:
        raise ConfigError(f"accept.methods: unknown {unknown[0]!r}; known: {known_names(METHODS)}")
    bootstrap.check_site(config, manifest)
    neighbours = bootstrap.check_neighbours(config)
    shared, history = manifest.spec().shared_size, history_of(config, manifest)
    plan = bootstrap.plan(config, manifest, config.accept.methods[0], shared)
    if config.participation:
        refuse_unit(plan)
    sources = open_sources(config)
    participants = config.participants()
    outputs = [x for one in participants for x in open_outputs(config, one.id)]
    _check_output_folders(config)
    _check_streams(sources, manifest)
    _check_columns(sources)
    bootstrap.broker_of(config)
    kept = _kept(config)
    return {
        "device key": f"{kid_of(key.public).hex()}, {place_of(config)}",
        "bundle": f"{manifest.name} version {manifest.version}, {manifest.size} scalars",
        "reads": ", ".join(_reads(manifest)),
        "sources": str(len(sources)),
        "outputs": ", ".join(x.name for x in outputs) or "none",
        "keeps": f"{history.days:.4g} days of readings, at most {history.bytes} bytes of flash "
        f"({history.limit})",
        **({"neighbours": str(neighbours)} if neighbours else {}),
        **certificate_monitor.checked(config, time.time()),
        "privacy": guarantee(plan),
        "link": link_projection(config, manifest.spec()),
        **kept,
        **_further(config),
    }


def _further(config: Config) -> dict[str, str]:
    """Check the further participations, and return the bundle and the rounds of each.

    Raises:
        EdgeError: The first error found.
    """
    found = {}
    for one in config.participants()[1:]:
        its = check_device(replace(one, output=()))
        found[f"participation {one.id}"] = f"{its['bundle']}; {its['link']}"
    return found


def link_projection(config: Config, spec: ParamSpec) -> str:
    """Return the bytes of a round and of a day without one, and the rounds that the limit allows.

    The rounds a day are the operator's; ``gridfed-aggregator check`` projects them.
    """
    up, down = update_bytes(config, spec), 4 * spec.shared_size
    limit = limits_of(config.limits).daily_link_bytes
    text = f"a round is {up} bytes up and about {down} down; a day without one is {IDLE_DAY}"
    if limit is None:
        return f"{text}; no limit of its own"
    rounds = max(0, limit - IDLE_DAY) // max(1, up + down)
    return f"{text}; limits.daily_link_bytes {limit} allows {rounds} rounds a day"


def _kept(config: Config) -> dict[str, str]:
    """Return what the store holds of the server time, and the values that are unusable."""
    if not (config.state / FILE).exists():
        return {}
    with DeviceStore.open(config.state, read_only=True) as store:
        result = {"clock": compare_clocks(store.fact("floor"), time.time_ns() // 1_000_000)}
        found = {**store.set_aside(), **store.unusable()}
    if found:
        listed = "; ".join(f"{what} ({value})" for what, value in found.items())
        result["set aside"] = (
            f"{listed}: out of bounds and not used; if the device is not welcomed, or its budget "
            "is spent by it, make a new key and enrol it again"
        )
    return result


def compare_clocks(floor: int, wall: int) -> str:
    """Compare the stored server time with this machine's clock; state the remedy if they differ.

    Args:
        floor: Latest signed server time, Unix milliseconds; 0 if there is none.
        wall: This machine's clock, Unix milliseconds.

    Example:
        >>> result = compare_clocks(1_803_456_000_000, 1_800_000_000_000)
        >>> print(result.split(": ")[0].split("; ")[1])
        stored server time 2027-02-24 08:00 UTC, 40 days ahead
    """
    machine = f"machine's clock {_minute(wall)}"
    if not floor:
        return f"{machine}; no server time is stored yet"
    days, where = (abs(floor - wall) // DAY, "ahead" if floor > wall else "behind")
    result = f"{machine}; stored server time {_minute(floor)}, {days} days {where}"
    if floor <= wall + DAY:
        return result
    return (
        f"{result}: one of them is wrong. The broker's certificate is checked at both times. "
        "Set this machine's clock if it is behind. If the aggregator's clock was ahead, its next "
        "welcome corrects the stored time"
    )


def _minute(moment: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment / 1000))


def _reads(manifest: Manifest) -> list[str]:
    read = {feature.stream for feature in manifest.features if feature.stream}
    return sorted(read | {manifest.target.stream})


def _check_streams(sources: Sequence[Source], manifest: Manifest) -> None:
    """Refuse sources that lack a needed stream of the bundle: the device would wait for ever.

    Without any configured source, the calling program records the readings.
    """
    given = frozenset[str]().union(*(source.streams for source in sources))
    if sources and (missing := [x for x in manifest.required_streams if x not in given]):
        raise ConfigError(
            f"source: none gives {', '.join(missing)}, which bundle {manifest.name} reads",
            hint='map a column of a file to each stream: columns = { column = "stream" }',
        )


def _check_columns(sources: Sequence[Source]) -> None:
    """Refuse a file without a configured column: no line of it would be read."""
    for source in (one for one in sources if isinstance(one, CsvFile)):
        missing, header = source.lacks()
        if missing:
            raise ConfigError(
                f"source: {source.path}: no column {', '.join(sorted(missing))}; "
                f"its first line has {', '.join(header)[:200]}",
                hint='columns = { COLUMN = "stream" }; time_column = "COLUMN"',
            )


def _check_output_folders(config: Config) -> None:
    """Refuse a file in a folder that does not exist. A running agent waits for it instead."""
    for number, section in enumerate(config.output):
        folder = Path(str(section.get("path", "."))).parent
        if section.get("type") == "file" and not folder.is_dir():
            raise ConfigError(
                f"output[{number}].path: no such folder: {str(folder)!r}", hint=f"mkdir -p {folder}"
            )


def reach_broker(config: Config) -> tuple[str, bool]:
    """Try to reach the configured broker; return the result as text, and whether it accepted."""
    nothing = topics.status(config.fleet, config.id), b"", False
    link = bootstrap.connect(config, lambda: nothing, is_trial=True)
    link.open()
    why, end = "no answer", time.monotonic() + _PATIENCE
    try:
        while time.monotonic() < end:
            for event in link.poll(0.2):
                if isinstance(event, LinkUp):
                    return "reached", True
                if isinstance(event, LinkDown):
                    why = event.why
        return f"not reached: {why}", False
    finally:
        link.close()
