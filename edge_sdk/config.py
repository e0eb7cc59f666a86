"""Define one device's configuration: frozen sections, read from TOML and the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from edge_sdk.app.extensions import ExtensionIndex, is_set
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Between, Length, Matches, SchemaError
from edge_sdk.app.settings import Duration, Loaded, SettingsError, load, seconds
from edge_sdk.forecasting.calendar_features import time_zone
from edge_sdk.limits import LimitsSection
from edge_sdk.link.fleet_settings import (
    BrokerSection,
    IdentitySection,
    KeysSection,
    ReceptionSection,
    refuse_half_a_fleet,
)
from edge_sdk.privacy import MechanismSection, PrivacySection
from edge_sdk.protocol.contract.method import CONTRACTS

PREFIX = "GRIDFED_EDGE_"

DeviceId = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")]
FleetId = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")]
Slots = Annotated[int, Between(2, 1_000_000)]
Days = Annotated[float, Between(0.01, 36_600.0)]
Windows = Annotated[int, Between(24, 20_000)]
Forgetting = Annotated[float, Between(0.9, 1.0)]
Holdout = Annotated[float, Between(0.0, 0.5)]
StepSize = Annotated[float, Between(1e-4, 0.5)]


_REQUIRED = ("privacy", "privacy.mechanism", "privacy.mechanism.name")
_HINT = (
    'set mechanism = { name = "none" } in [privacy] for updates without noise; '
    "docs/privacy.md lists the other mechanisms"
)


SENDS_NOTHING = PrivacySection(MechanismSection("none"))
"""Privacy of a device alone that configures none; a device of a fleet must configure it."""


@dataclass(frozen=True, slots=True)
class AcceptSection:
    """Limits on the tasks that this device accepts from an aggregator."""

    methods: Annotated[tuple[str, ...], Length(1, 64)] = tuple(CONTRACTS)  # accepted methods
    max_steps: Annotated[int, Between(0, 65536)] = 64  # a task with more steps is refused
    personal_init: Literal["device", "server"] = "device"  # initial values of the private layers
    weekly_profile: bool = False  # disclose a coarse mean week of the demand to FedDA's clustering


@dataclass(frozen=True, slots=True)
class TimeoutsSection:
    """Waiting times on the link. The defaults suit real fleets; tests use shorter ones."""

    reply: Duration = "10s"  # first wait for a reply; doubles up to 90 times this
    retained_model: Duration = "30s"  # wait for the retained model before it is requested


@dataclass(frozen=True, slots=True)
class LocalRoundsSection:
    """Training without an aggregator. The device forecasts with a copy until the fleet is back."""

    after: Duration = "7d"  # time without an aggregator before local rounds begin
    interval: Duration = "1d"  # interval between two local rounds
    steps: Annotated[int, Between(1, 65536)] | None = None  # of one round; unset: the bundle's
    rate: Annotated[float, Between(1e-9, 1e3)] | None = None  # learning rate; unset: the bundle's


@dataclass(frozen=True, slots=True)
class TrainingSection:
    """Readings used for training."""

    holdout_fraction: Holdout = 0.0  # newest share, not trained on, that selects the best model
    history_slots: Slots = 17_568  # history in time slots (two years, hourly)
    history_days: Days | None = None  # history in days; unset: as history_slots


@dataclass(frozen=True, slots=True)
class ForecastSection:
    """The served forecast, its intervals, and updates of the model between two rounds."""

    choose_best: bool = True  # serve the candidate with the least held-back error
    choice_interval: Duration = "7d"  # interval between two choices
    own_model: bool = True  # a linear model of this device alone is a candidate
    calibrate: bool = True  # conformal calibration on this device's own readings
    coverage: Annotated[float, Between(0.5, 0.98)] | None = None  # unset: that of the bundle
    calibration_windows: Windows = 672  # newest windows that initialise a calibration
    step_size: StepSize = 0.01  # adjustment per miss, in interval widths
    time_zone: str = "UTC"  # of the model's days and hours: an IANA name, Europe/Berlin
    online: bool = True  # closed form: add every new window to the model between two rounds
    forgetting: Forgetting = 1.0  # closed form: factor on a window's weight for each later step

    def __post_init__(self) -> None:
        if self.coverage is not None and not self.calibrate:
            raise ValueError(
                "coverage: expected none with calibrate = false; it is enforced by calibration"
            )
        time_zone(self.time_zone)
        if seconds(self.choice_interval) < 3600.0:
            raise ValueError(
                f"choice_interval: {self.choice_interval} is below 1h; candidates are compared over days"
            )


@dataclass(frozen=True, slots=True)
class ParticipationSection:
    """A further run that the device takes part in at the same time, under an id of its own."""

    id: DeviceId  # enrolled with the device's key; also the common name of cert_file
    bundle: str  # name of a shipped bundle, or a path
    methods: Annotated[tuple[str, ...], Length(0, 64)] = ()  # accepted; none: those of [accept]
    cert_file: Path | None = None  # certificate of this id, where [broker] has one
    key_file: Path | None = None  # private key of that certificate


PARTICIPATIONS = "participations"
"""Folder inside the device's state folder that holds a folder for each further participation."""


@dataclass(frozen=True, slots=True)
class Config:
    """Configuration of one device.

    >>> from edge_sdk.app.settings import from_table
    >>> config = from_table(Config, {
    ...     "id": "meter-0042", "fleet": "north", "state": "state", "bundle": "load-lstm",
    ...     "broker": {"url": "mqtt://127.0.0.1"},
    ...     "keys": {"device": "meter.key", "root": "root.pub"},
    ...     "privacy": {"mechanism": {"name": "none"}}}, "meter.toml")
    >>> config.accept.max_steps, config.privacy.mechanism.name
    (64, 'none')
    """

    id: DeviceId  # also the last part of its client id and of its certificate's common name
    state: Path  # folder of the persistent state
    bundle: str  # name of a shipped bundle, or a path
    keys: KeysSection
    fleet: FleetId = ""  # fleet of the device; required beside broker.url
    privacy: PrivacySection = SENDS_NOTHING
    broker: BrokerSection = field(default_factory=BrokerSection)
    identity: IdentitySection = field(default_factory=IdentitySection)
    encryption: ReceptionSection = field(default_factory=ReceptionSection)
    accept: AcceptSection = field(default_factory=AcceptSection)
    training: TrainingSection = field(default_factory=TrainingSection)
    forecast: ForecastSection = field(default_factory=ForecastSection)
    local_rounds: LocalRoundsSection = field(default_factory=LocalRoundsSection)
    timeouts: TimeoutsSection = field(default_factory=TimeoutsSection)
    limits: LimitsSection = field(default_factory=LimitsSection)
    site: Mapping[str, float] = field(default_factory=dict)  # constants of the location
    source: Annotated[tuple[Mapping[str, Any], ...], Length(0, 16)] = ()  # sources of readings
    output: Annotated[tuple[Mapping[str, Any], ...], Length(0, 16)] = ()  # outputs of forecasts
    heartbeat: Path | None = None  # file by which `health` sees the agent; unset: in memory
    participation: Annotated[tuple[ParticipationSection, ...], Length(0, 3)] = ()  # further runs
    extensions: Mapping[str, Any] = field(default_factory=dict)  # settings of extensions, by table
    index: ClassVar[ExtensionIndex] = ExtensionIndex("edge_sdk")
    renamed: ClassVar[Mapping[str, str]] = index.texts("renamed")

    def __post_init__(self) -> None:
        """Refuse participations that share an id or a certificate, and settings that an extension refuses."""
        for entry in self.index.configured(self.tables):
            if check := entry.load("check"):
                check(self)
        second = self.privacy.second_count
        if second is not None and second.absolute().is_relative_to(self.state.absolute()):
            raise ValueError(
                f"privacy.second_count: {second} is inside state, and would be lost with it; name a file "
                "outside"
            )
        of_fleet = {
            "[[participation]]": bool(self.participation),
            **{x: is_set(self.tables, key) for x, key in self.index.keys_of_fleet.items()},
        }
        refuse_half_a_fleet(self.broker, self.keys, of_fleet)
        missing = {"fleet": not self.fleet, "privacy": self.privacy is SENDS_NOTHING}
        if self.broker.url and any(missing.values()):
            first = next(name for name, is_missing in missing.items() if is_missing)
            raise SchemaError(first, "missing beside broker.url; remove [broker] to run alone")
        ids = [self.id, *(one.id for one in self.participation)]
        for number, one in enumerate(self.participation):
            where = f"participation[{number}]"
            if ids.index(one.id) <= number:
                raise ValueError(
                    f"{where}.id: {one.id!r} is in use; each participation has its own"
                )
            if (one.cert_file is None) != (self.broker.cert_file is None):
                raise ValueError(
                    f"{where}.cert_file: expected one where broker.cert_file is set, and only there: "
                    "a broker knows each participation by its certificate"
                )

    @property
    def tables(self) -> Mapping[str, Any]:
        core = {one.name: getattr(self, one.name) for one in fields(self)}
        loose = {key: default for key, (default, _) in self.index.keys_of_core.items()}
        return core | loose | dict(self.extensions)

    def offered(self, key: str) -> Any:  # noqa: ANN401 - a class or a function of the extension
        """Return the object that the row of the first configured extension with a key names, or None."""
        entries = (one for one in self.index.configured(self.tables) if key in one.row)
        return next((entry.load(key) for entry in entries), None)

    @property
    def counts_releases(self) -> bool:
        sections = (self.privacy, *self.extensions.values())
        return any(getattr(section, "is_bounded", False) for section in sections)

    @property
    def counted_in(self) -> Path:
        """File that counts releases outside the state folder, of all participations."""
        return self.privacy.second_count or self.keys.device.with_suffix(".count")

    @property
    def further_id(self) -> str:
        """Id of a further participation; empty for the device's own."""
        return self.id if self.state.parent.name == PARTICIPATIONS else ""

    def guarded(self, guarantee: str) -> str:
        """Return the privacy guarantee of the readings; a device alone sends nothing."""
        if not self.is_alone:
            return guarantee
        is_given = self.privacy != SENDS_NOTHING
        return "nothing is sent" + (f"; in a fleet: {guarantee}" if is_given else "")

    @property
    def is_alone(self) -> bool:
        """Return whether the device has no fleet: neither a broker nor an operator's root."""
        return not self.broker.url

    def participants(self) -> tuple[Config, ...]:
        """Return the configuration of every participation: the device's own first.

        A further one has an id, a bundle, a state folder and a certificate of its own, and no
        extension whose row in the index says ``once``. Everything else, the budgets and
        limits above all, is the device's. No release of it is outside the claim: which of several
        runs released first is not recorded.
        """
        return (replace(self, participation=()), *map(self._participant, self.participation))

    def _participant(self, one: ParticipationSection) -> Config:
        budget = replace(self.privacy.budget, unclaimed_releases=0)
        methods = one.methods or self.accept.methods
        return replace(
            self,
            id=one.id,
            state=self.state / PARTICIPATIONS / one.id,
            bundle=one.bundle,
            broker=replace(self.broker, cert_file=one.cert_file, key_file=one.key_file),
            privacy=replace(self.privacy, budget=budget),
            accept=replace(self.accept, methods=methods),
            extensions=self.extensions_without("once"),
            participation=(),
        )

    def extensions_without(self, mark: str) -> dict[str, Any]:
        """Return the settings of the extensions whose row in the index does not have a key."""
        marked = {entry.table for entry in self.index.values() if mark in entry.row}
        return {name: one for name, one in self.extensions.items() if name not in marked}

    @classmethod
    def load(cls, path: str | Path, environ: Mapping[str, str] = os.environ) -> Config:
        """Read a configuration file, its ``conf.d``, and ``GRIDFED_EDGE_…`` variables.

        Raises:
            SettingsError: An invalid key; the message names the file and the key.
        """
        return load_with_origins(path, environ).value


def load_with_origins(path: str | Path, environ: Mapping[str, str] = os.environ) -> Loaded[Config]:
    """Read a configuration together with the file or variable that set each key."""
    try:
        loaded = load(Config, Path(path), prefix=PREFIX, environ=environ)
    except SettingsError as error:
        if isinstance(error.__cause__, SchemaError) and error.__cause__.path in _REQUIRED:
            raise SettingsError(str(error), hint=_HINT) from error.__cause__
        raise
    folder = Path(path).parent.absolute()
    sources, outputs = (
        tuple(_with_rooted_paths(section, folder) for section in sections)
        for sections in (loaded.value.source, loaded.value.output)
    )
    bundle = _beside(loaded.value.bundle, folder)
    further = tuple(
        replace(one, bundle=_beside(one.bundle, folder)) for one in loaded.value.participation
    )
    value = replace(
        loaded.value, source=sources, output=outputs, bundle=bundle, participation=further
    )
    return replace(loaded, value=value)


def _beside(bundle: str, folder: Path) -> str:
    beside = folder / Path(bundle).expanduser()
    return str(beside) if beside.is_dir() else bundle


def _with_rooted_paths(section: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Resolve a section's file paths, whose keys extensions list, against the configuration's folder."""
    paths = [key for entry in Config.index.values() for key in entry.row.get("paths", ())]
    named = {key: section[key] for key in paths if isinstance(section.get(key), str)}
    where = {key: str(folder / Path(name).expanduser()) for key, name in named.items() if name}
    return {**section, **where}
