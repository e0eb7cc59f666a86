"""Check configuration, keys, bundle and sources; print every setting and its origin.

Nothing is written, and nothing is sent. --broker also connects to the broker, for ten seconds at
most, and exits with 75 if that fails.

  gridfed-edge check meter.toml
  gridfed-edge check meter.toml --broker
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from edge_sdk.agent import open_sources, streams_given
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.clock import DAY
from edge_sdk.app.extensions import known_names
from edge_sdk.app.settings import Loaded, shown
from edge_sdk.commands import add_config
from edge_sdk.config import Config, load_with_origins
from edge_sdk.errors import OK, TEMPORARY, ConfigError, SignerUnavailable, TokenRefused
from edge_sdk.extensions.setup.agent_log import ChannelSource, channel_sources, unsupplied
from edge_sdk.extensions.setup.memory_trial import memory_finding
from edge_sdk.limits import limits_of
from edge_sdk.link.fleet_settings import ALONE
from edge_sdk.link.transport import LinkDown, LinkUp
from edge_sdk.methods import METHODS
from edge_sdk.protocol import topics
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.keys import RemovableSigner, Signer, kid_of
from edge_sdk.session.identity import (
    TokenUnreachable,
    find_releases,
    has_identity,
    load_signer,
    place_of,
)
from edge_sdk.sources import Source
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore
from edge_sdk.training import bootstrap
from edge_sdk.training.run_role import history_of
from edge_sdk.training.training_transaction import update_bytes

NO_KEY = "none yet: made at the first start, to enrol the device later"
"""The sentence about a device alone that has not started yet."""

IDLE_DAY = 30_000
"""Bytes of a connected day without a round, as the aggregator's projection counts them."""


_PATIENCE = 10.0  # seconds to reach a broker


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_config(parser)
    parser.add_argument(
        "--broker", action="store_true", help="also connect to the broker, for ten seconds at most"
    )


def run(args: Namespace) -> CommandResult:
    """Return the settings in force and the findings."""
    loaded = load_with_origins(args.config)
    found = check_device(loaded.value)
    found["memory"] = memory_finding(loaded.value, args.config)
    code = OK
    if args.broker:
        found["broker"], is_there = reach_broker(loaded.value)
        code = OK if is_there else TEMPORARY
    return result_of(loaded, found, code)


def result_of(loaded: Loaded[Config], found: Mapping[str, str], code: int) -> CommandResult:
    """Return settings, findings and channels as the command's result."""
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
    manifest = bootstrap.open_bundle(config, None).manifest
    return channel_sources(manifest, streams_given(config, manifest), config.site)


def channel_table(channels: Sequence[ChannelSource]) -> list[str]:
    """Return the channels as lines: name, quantity, and source or its absence."""
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
    has_key = has_identity(config) or not config.is_alone
    key = load_signer(config) if has_key else None
    if key is not None:
        require_signer(key)
    bootstrap.load_ring(config)
    bundle = bootstrap.open_bundle(config, None)
    manifest = bundle.manifest
    if unknown := [name for name in config.accept.methods if name not in METHODS]:
        raise ConfigError(f"accept.methods: unknown {unknown[0]!r}; known: {known_names(METHODS)}")
    bootstrap.check_site(config, manifest)
    checks = (entry.load("checked") for entry in config.index.configured(config.tables))
    found = {name: text for one in checks if one for name, text in one(config).items()}
    for one in config.participants()[1:]:
        its = check_device(replace(one, output=()))
        found[f"participation {one.id}"] = f"{its['bundle']}; {its['link']}"
    role, history = bootstrap.role_of(config, manifest, None), history_of(config, manifest)
    plan = bootstrap.plan(config, manifest, role.method, manifest.spec(role.shared).shared_size)
    sources = open_sources(config)
    _check_streams(sources, manifest)
    if not config.is_alone:
        bootstrap.broker_of(config)
    kept = _kept(config)
    return {
        **({"alone": ALONE} if config.is_alone else {}),
        "device key": f"{kid_of(key.public).hex()}, {place_of(config)}" if key else NO_KEY,
        "bundle": f"{manifest.name} version {manifest.version}, {manifest.size} scalars",
        "reads": ", ".join(_reads(manifest)),
        "sources": str(len(sources)),
        "outputs": found.pop("outputs", "none"),
        "keeps": f"{history.days:.4g} days of readings, at most {history.bytes} bytes of flash "
        f"({history.limit})",
        **found,
        "privacy": config.guarded(plan.guarantee),
        **({} if config.is_alone else {"link": link_projection(config, manifest)}),
        **kept,
    }


def reach_broker(config: Config) -> tuple[str, bool]:
    """Try to reach the configured broker; return the result as text, and whether it accepted."""
    if config.is_alone:
        raise ConfigError(
            "--broker: the device runs alone",
            hint="to join a fleet, add [broker] and keys.root to the configuration",
        )
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


@runtime_checkable
class RequiredSigner(RemovableSigner, Protocol):
    """A removable key of which a command can demand that it is here."""

    def require(self) -> None:
        """Reach the key now.

        Raises:
            TokenRefused: It cannot be used.
            SignerUnavailable: It is away.
        """


def require_signer(signer: Signer) -> None:
    """Refuse to continue while the token that holds a key is away; a key in a file is always there."""
    if not isinstance(signer, RequiredSigner):
        return
    try:
        signer.require()
    except TokenRefused as error:
        raise ConfigError(str(error)) from error
    except SignerUnavailable as error:
        raise TokenUnreachable(str(error)) from error


def link_projection(config: Config, manifest: Manifest) -> str:
    """Return the bytes of a round and of a day without one, and the rounds that the limit allows.

    The rounds a day are the operator's; ``gridfed-aggregator check`` projects them.
    """
    spec = manifest.spec()
    up, down = update_bytes(config, manifest, spec, "analytic"), 4 * spec.shared_size
    limit = limits_of(config.limits).daily_link_bytes
    text = f"a round is {up} bytes up and about {down} down; a day without one is {IDLE_DAY}"
    if limit is None:
        return f"{text}; no limit of its own"
    rounds = max(0, limit - IDLE_DAY) // max(1, up + down)
    return f"{text}; limits.daily_link_bytes {limit} allows {rounds} rounds a day"


def _kept(config: Config) -> dict[str, str]:
    if not (config.state / FILE).exists():
        return _uncounted(config, None)
    with DeviceStore.open(config.state, read_only=True) as store:
        result = {"clock": compare_clocks(store.fact("floor"), time.time_ns() // 1_000_000)}
        result |= _uncounted(config, store)
        found = {**store.set_aside(), **store.unusable()}
    if found:
        listed = "; ".join(f"{what} ({value})" for what, value in found.items())
        result["set aside"] = (
            f"{listed}: out of bounds and not used; if the device is not welcomed, or its budget "
            "is spent by it, make a new key and enrol it again"
        )
    return result


def _uncounted(config: Config, store: DeviceStore | None) -> dict[str, str]:
    found = find_releases(config, store)
    return {"releases": f"NO UPDATE LEAVES: {found.why}; {found.remedy}"} if found.is_lost else {}


def compare_clocks(floor: int, wall: int) -> str:
    """Compare the stored server time with this machine's clock; state the remedy if they differ.

    Args:
        floor: Latest signed server time, Unix milliseconds; 0 if there is none.
        wall: This machine's clock, Unix milliseconds.

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
