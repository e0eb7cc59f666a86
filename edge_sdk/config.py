"""Define one device's configuration: frozen sections, read from TOML and the environment."""

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
    """Broker address. Plain ``mqtt://`` is for loopback only; other hosts need ``mqtts://``."""

    url: str  # mqtts://host:8883
    ca_file: Path | None = None  # authority that signed the broker's certificate
    cert_file: Path | None = None  # certificate of this device
    key_file: Path | None = None  # private key of that certificate
    protocol: Literal[4, 5] = 5  # MQTT 5, or 4 for 3.1.1
    keepalive: Annotated[int, Between(5, 65535)] = 60  # seconds without traffic before a ping
    reconnect_max: Duration = "10m"  # longest wait between two connection attempts
    insecure: bool = False  # allow mqtt:// to another host


@dataclass(frozen=True, slots=True)
class KeysSection:
    """Keys, each given as a file path."""

    device: Path  # this device's signing key, PEM, mode 0600
    root: Path  # root public key of the operator: 64 hex digits
    aggregator: Path | None = None  # pinned aggregator key besides those that root announces


_PATHS = ("path", "folder", "spool", "ca_file", "cert_file", "key_file", "ocmf_key")
"""Keys of a ``[[source]]`` whose value is a file path."""

_UNSAID = ("privacy", "privacy.mechanism", "privacy.mechanism.name")
_HOW = (
    'mechanism = { name = "none" } in [privacy] says that nothing protects the updates; '
    "docs/privacy.md says what else there is"
)


@dataclass(frozen=True, slots=True)
class AcceptSection:
    """Limits on the requests that this device accepts from a server."""

    methods: Annotated[tuple[str, ...], Length(1, 64)] = tuple(CONTRACTS)  # accepted methods
    max_steps: Annotated[int, Between(0, 65536)] = 64  # a task with more steps is refused
    alone_after: Duration = "7d"  # time without an aggregator before local rounds begin
    personal_init: Literal["device", "server"] = "device"  # initial values of the private layers


@dataclass(frozen=True, slots=True)
class PaceSection:
    """Waiting times of the device. The defaults suit real fleets; tests use shorter ones."""

    answer: Duration = "10s"  # first wait for a reply; doubles up to 90 times this
    fetch: Duration = "30s"  # wait for the retained model before requesting it
    alone_every: Duration = "1d"  # interval between two local rounds
    alone_steps: Annotated[int, Between(1, 65536)] | None = None  # unset: the bundle's
    alone_rate: Annotated[float, Between(1e-9, 1e3)] | None = None  # unset: the bundle's rate


@dataclass(frozen=True, slots=True)
class LearnSection:
    """Readings used for training."""

    part: Literal["all", "train"] = "all"  # train: the first 80 %, the rest is for evaluation
    keep: Annotated[int, Between(2, 1_000_000)] = 17_568  # history in slots (two years, hourly)
    keep_days: Annotated[float, Between(0.01, 36_600.0)] | None = None  # in days; unset: as keep


@dataclass(frozen=True, slots=True)
class ForecastSection:
    """Prediction intervals, for a bundle whose model forecasts quantiles."""

    calibrate: bool = True  # conformal calibration on this device's own readings
    coverage: Annotated[float, Between(0.5, 0.98)] | None = None  # unset: the bundle's levels
    warm: Annotated[int, Between(24, 20_000)] = 672  # newest windows that initialise a calibration
    gain: Annotated[float, Between(1e-4, 0.5)] = 0.01  # adjustment per miss, in interval widths

    def __post_init__(self) -> None:
        """Refuse a coverage without calibration to enforce it."""
        if self.coverage is not None and not self.calibrate:
            raise ValueError("coverage: expected none without calibrate, which holds to it")


@dataclass(frozen=True, slots=True)
class Config:
    """Configuration of one device.

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
    fleet: FleetId  # fleet of the device
    state: Path  # folder of the persistent state
    bundle: str  # name of a shipped bundle, or a path
    broker: BrokerSection
    keys: KeysSection
    privacy: PrivacySection
    accept: AcceptSection = field(default_factory=AcceptSection)
    learn: LearnSection = field(default_factory=LearnSection)
    forecast: ForecastSection = field(default_factory=ForecastSection)
    pace: PaceSection = field(default_factory=PaceSection)
    means: LimitsSection = field(default_factory=LimitsSection)
    neighbours: NeighboursSection = field(default_factory=NeighboursSection)
    site: Mapping[str, float] = field(default_factory=dict)  # constants of the location
    source: Annotated[tuple[Mapping[str, Any], ...], Length(0, 16)] = ()  # sources of readings

    @classmethod
    def load(cls, path: str | Path, environ: Mapping[str, str] = os.environ) -> Config:
        """Read a configuration file, its ``conf.d``, and ``GRIDFED_EDGE_…`` variables.

        Raises:
            SettingsError: An invalid key; the message names the file and the key.
        """
        return load_with_origins(path, environ).value


def load_with_origins(path: str | Path, environ: Mapping[str, str] = os.environ) -> Loaded[Config]:
    """Read a configuration together with the file or variable that set each key.

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
    """Resolve a source's file paths against the configuration's folder, like every other path."""
    named = {key: section[key] for key in _PATHS if isinstance(section.get(key), str)}
    where = {key: str(folder / Path(name).expanduser()) for key, name in named.items() if name}
    return {**section, **where}
