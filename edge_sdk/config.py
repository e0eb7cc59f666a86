"""One device's configuration: frozen sections, read from TOML and the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from edge_sdk.app.settings import Duration, Loaded, SettingsError, load
from edge_sdk.limits.resource_limits import LimitsSection
from edge_sdk.methods.topology import NeighboursSection
from edge_sdk.privacy.settings import PrivacySection
from edge_sdk.wire.contract.method import CONTRACTS
from edge_sdk.wire.schema import Between, Length, Matches, SchemaError

PREFIX = "GRIDFED_EDGE_"

DeviceId = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")]
FleetId = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")]


@dataclass(frozen=True, slots=True)
class BrokerSection:
    """Where the broker is. Plain ``mqtt://`` is for loopback; everything else wants ``mqtts://``."""

    url: str  # mqtts://host:8883
    ca_file: Path | None = None  # authority that signed the broker's certificate
    cert_file: Path | None = None  # this device's certificate
    key_file: Path | None = None  # and its private key
    protocol: Literal[4, 5] = 5  # MQTT 5, or 4 for 3.1.1
    keepalive: Annotated[int, Between(5, 65535)] = 60  # seconds of silence before a ping
    reconnect_max: Duration = "10m"  # longest wait before another attempt to connect
    insecure: bool = False  # allow mqtt:// to another host


@dataclass(frozen=True, slots=True)
class KeysSection:
    """Keys, by file only."""

    device: Path  # this device's signing key, PEM, mode 0600
    root: Path  # the operator's public key: 64 hex digits
    aggregator: Path | None = None  # pin one aggregator key besides what root announces


_PATHS = ("path", "folder", "spool", "ca_file", "cert_file", "key_file", "ocmf_key")
"""Keys of a ``[[source]]`` that name a file."""

_UNSAID = ("privacy", "privacy.mechanism", "privacy.mechanism.name")
_HOW = (
    'mechanism = { name = "none" } in [privacy] says that nothing protects the updates; '
    "docs/privacy.md says what else there is"
)


@dataclass(frozen=True, slots=True)
class AcceptSection:
    """What this device lets a server ask of it."""

    methods: Annotated[tuple[str, ...], Length(1, 64)] = tuple(CONTRACTS)  # to answer
    max_steps: Annotated[int, Between(0, 65536)] = 64  # a task that asks for more is not done
    alone_after: Duration = "7d"  # without an aggregator this long, learn for oneself
    personal_init: Literal["device", "server"] = "device"  # start of the layers that never leave


@dataclass(frozen=True, slots=True)
class PaceSection:
    """How patient the device is. The defaults suit real fleets; tests and demos go faster."""

    answer: Duration = "10s"  # first wait for an answer; doubles to 90 times this
    fetch: Duration = "30s"  # wait for the retained model before asking for it
    alone_every: Duration = "1d"  # between two rounds that a device sets itself
    alone_steps: Annotated[int, Between(1, 65536)] | None = None  # of them; left out: the bundle's
    alone_rate: Annotated[float, Between(1e-9, 1e3)] | None = None  # their rate; as above


@dataclass(frozen=True, slots=True)
class LearnSection:
    """What is learned from."""

    part: Literal["all", "train"] = "all"  # train: the first 80 %, so that the rest can judge
    keep: Annotated[int, Between(2, 1_000_000)] = 17_568  # slots of history (two years, hourly)
    keep_days: Annotated[float, Between(0.01, 36_600.0)] | None = None  # of them; out: as keep says


@dataclass(frozen=True, slots=True)
class ForecastSection:
    """Intervals, where the bundle's model tells quantiles."""

    calibrate: bool = True  # hold each end to its share of misses, by this device's own readings
    coverage: Annotated[float, Between(0.5, 0.98)] | None = None  # left out: the bundle's levels
    warm: Annotated[int, Between(24, 20_000)] = 672  # newest windows that a calibration begins with
    gain: Annotated[float, Between(1e-4, 0.5)] = 0.01  # widths by which a miss moves an end

    def __post_init__(self) -> None:
        """Refuse a coverage that nothing would hold to."""
        if self.coverage is not None and not self.calibrate:
            raise ValueError("coverage: expected none without calibrate, which holds to it")


@dataclass(frozen=True, slots=True)
class Config:
    """Everything one device is told.

    Example:
        >>> from edge_sdk.app.settings import from_table
        >>> config = from_table(Config, {
        ...     "id": "meter-0042", "fleet": "north", "state": "state", "bundle": "load-lstm",
        ...     "broker": {"url": "mqtt://127.0.0.1"},
        ...     "keys": {"device": "meter.key", "root": "root.pub"},
        ...     "privacy": {"mechanism": {"name": "none"}}}, "meter.toml")
        >>> config.accept.max_steps, config.privacy.mechanism.name
        (64, 'none')
    """

    id: DeviceId  # also user name, client id and certificate's common name
    fleet: FleetId  # which fleet it belongs to
    state: Path  # folder for everything that must not be forgotten
    bundle: str  # a shipped name, or a path
    broker: BrokerSection
    keys: KeysSection
    privacy: PrivacySection
    accept: AcceptSection = field(default_factory=AcceptSection)
    learn: LearnSection = field(default_factory=LearnSection)
    forecast: ForecastSection = field(default_factory=ForecastSection)
    pace: PaceSection = field(default_factory=PaceSection)
    means: LimitsSection = field(default_factory=LimitsSection)
    neighbours: NeighboursSection = field(default_factory=NeighboursSection)
    site: Mapping[str, float] = field(default_factory=dict)  # constants of the place
    source: Annotated[tuple[Mapping[str, Any], ...], Length(0, 16)] = ()  # where readings come from

    @classmethod
    def load(cls, path: str | Path, environ: Mapping[str, str] = os.environ) -> Config:
        """Read a configuration file, its ``conf.d``, and ``GRIDFED_EDGE_…`` variables.

        Raises:
            SettingsError: Naming the file and the key that does not fit.
        """
        return load_with_origins(path, environ).value


def load_with_origins(path: str | Path, environ: Mapping[str, str] = os.environ) -> Loaded[Config]:
    """Read a configuration and remember which file or variable said what.

    Raises:
        SettingsError: As ``Config.load``.
    """
    try:
        loaded = load(Config, Path(path), prefix=PREFIX, environ=environ)
    except SettingsError as error:
        if isinstance(error.__cause__, SchemaError) and error.__cause__.path in _UNSAID:
            raise SettingsError(str(error), hint=_HOW) from error.__cause__
        raise
    folder = Path(path).parent.absolute()
    sources = tuple(_rooted_source(section, folder) for section in loaded.value.source)
    beside = folder / Path(loaded.value.bundle).expanduser()
    bundle = str(beside) if beside.is_dir() else loaded.value.bundle
    return replace(loaded, value=replace(loaded.value, source=sources, bundle=bundle))


def _rooted_source(section: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Take a source's files from the folder of the configuration, as every other path."""
    named = {key: section[key] for key in _PATHS if isinstance(section.get(key), str)}
    where = {key: str(folder / Path(name).expanduser()) for key, name in named.items() if name}
    return {**section, **where}
