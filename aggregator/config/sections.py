"""Sections and keys of the aggregator's configuration file.

A value that is wrong by itself is refused while the file is read; the error names the file and
the key.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import parse_qs, urlsplit

from aggregator.config.schedule import ScheduleSection
from aggregator.ingress.uploads import IN_FLIGHT
from aggregator.methods.base.wrappers import RateStage
from aggregator.store.dialect import ENGINES, DatabaseUrl, Location
from aggregator.store.types import Retention
from edge_sdk.app.extensions import ExtensionEntry, ExtensionIndex, known_names, values_at
from edge_sdk.app.schema import Between, Length, Matches
from edge_sdk.app.settings import Duration, Loaded, load
from edge_sdk.protocol.codec import DownlinkEncoding, UpdateEncoding
from edge_sdk.protocol.messages import CHUNK_LIMIT, SINGLE_LIMIT
from edge_sdk.protocol.topics import common, is_run_name

PREFIX = "GRIDFED_AGGREGATOR_"

# New key, or new [section], by old key. An old one is refused with the new one in the message.
RENAMED: Mapping[str, str] = {
    "run.least": "run.min_updates",
    "run.share": "run.client_fraction",
    "run.rule.before": "run.rule.preaggregation",
    "broker.crl": "broker.crl_file",
    "page": "[http]",
    "alerts.expiry": "alerts.certificate_expiry",
    "admission.n_cap": "admission.max_samples",
    "admission.inline": "admission.max_inline_bytes",
    "admission.window_bytes": "admission.max_in_flight_bytes",
    "admission.hold": "admission.max_pending_updates",
    "admission.releases": "admission.max_updates",
    "admission.quota": "admission.daily_bytes",
    "admission.control": "admission.messages_per_minute",
    "pace.spread": "pacing.jitter",
    "pace.down_rate": "pacing.broadcast_bytes_per_second",
    "pace.up_rate": "pacing.updates_per_second",
    "pace": "[pacing]",
    "store.keep_vectors": "retention.vector_bytes",
    "store.keep_journal": "retention.journal_bytes",
    "store.keep_rounds": "retention.rounds",
}

FleetId = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")]
RunName = Annotated[str, Matches(r"([a-z][a-z0-9-]{0,15})?")]
Fraction = Annotated[float, Between(1e-6, 1.0)]
InlineBytes = Annotated[int, Between(0, CHUNK_LIMIT)]
SingleBytes = Annotated[int, Between(0, SINGLE_LIMIT)]
WindowBytes = Annotated[int, Between(CHUNK_LIMIT, IN_FLIGHT)]
Positive = Annotated[int, Between(1, 2**31 - 1)]
DailyBytes = Annotated[int, Between(1, 2**50)]
StoredBytes = Annotated[int, Between(1_000_000, 2**50)]
Rate = Annotated[float, Between(1e-3, 1e12)]
Norm = Annotated[float, Between(1e-12, 1e30)]


@dataclass(frozen=True, slots=True)
class ServerBrokerSection:
    """Broker connection. ``auto`` searches this machine; another host requires ``mqtts://``."""

    url: str = "auto"  # mqtts://host:8883, or auto
    ca_file: Path | None = None  # authority that signed the broker's certificate
    cert_file: Path | None = (
        None  # this aggregator's certificate, with the common name _agg or FLEET._agg
    )
    key_file: Path | None = None  # private key of that certificate
    crl_file: Path | None = None  # the broker's revocation list; only its expiry date is read here
    protocol: Literal[4, 5] = 5  # MQTT 5, or 4 for 3.1.1
    keepalive: Annotated[int, Between(5, 65535)] = 60  # seconds without traffic before a ping
    reconnect_max: Duration = "15s"  # longest wait before a reconnection attempt
    insecure: bool = False  # allow mqtt:// to another host


@dataclass(frozen=True, slots=True)
class ServerKeysSection:
    """Key files. A key that is left out is read from the state folder under its usual name."""

    signing: Path | None = None  # the online key: aggregator.key
    root: Path | None = None  # the root's public key, or "2 of 3" and a key a line: root.pub
    model: str = ""  # private key that alone signs models and their log, a file or a pkcs11 URI
    bundle: tuple[Path, ...] = ()  # public keys that may sign bundles and rollouts in place of root


@dataclass(frozen=True, slots=True)
class HttpSection:
    """HTTP status page."""

    listen: str = "127.0.0.1:9464"  # host:port, or "off"


@dataclass(frozen=True, slots=True)
class LogSection:
    """Log level. ``run --log`` overrides it."""

    level: Literal["debug", "info", "warning", "error"] = "info"  # least severe printed


@dataclass(frozen=True, slots=True)
class AlertsSection:
    """Warnings before certificates expire."""

    certificate_expiry: Duration = "30d"  # time before a certificate or a revocation list expires


@dataclass(frozen=True, slots=True)
class AdmissionSection:
    """Limits on the messages and updates of every device."""

    max_norm: Literal["auto"] | Norm = "auto"  # largest norm of an update
    max_samples: Positive = 1_000_000_000  # largest sample count a device may claim
    max_inline_bytes: InlineBytes = CHUNK_LIMIT  # largest body of an update without an offer
    max_single_bytes: SingleBytes = SINGLE_LIMIT  # largest update in one message; 0: in chunks
    max_in_flight_bytes: WindowBytes = IN_FLIGHT  # granted chunks, of all devices together
    max_pending_updates: Annotated[int, Between(1, 8)] = 2  # unreceipted updates per device
    max_updates: Positive | None = None  # updates of one device in total; left out: no limit
    daily_bytes: DailyBytes = 64_000_000  # bytes per device and day, both directions
    messages_per_minute: Positive = 60  # messages per device and minute, without chunks
    workers: bool = False  # updates come from gridfed-aggregator worker; needs store.url
    max_queued_updates: Positive = 100_000  # updates from workers that wait in the database


@dataclass(frozen=True, slots=True)
class StoreSection:
    """The database: a file in the state folder, or PostgreSQL."""

    url: str | None = None  # postgresql://user@host/database; left out: aggregator.db in `state`

    def __post_init__(self) -> None:
        if self.url is None:
            return
        found = urlsplit(self.url)
        if found.scheme not in ENGINES:
            raise ValueError(
                f"store.url: {found.scheme!r} is no scheme of a database (known: {known_names(ENGINES)})"
            )
        if found.password or "password" in parse_qs(found.query):
            raise ValueError("store.url: passwords belong into ~/.pgpass")


@dataclass(frozen=True, slots=True)
class RetentionSection:
    """Retention of the database; the oldest entries are deleted first."""

    vector_bytes: StoredBytes = 2_147_483_648  # bytes of update vectors and states
    journal_bytes: StoredBytes = 268_435_456  # bytes of the journal without vectors
    rounds: Annotated[int, Between(1, 1_000_000)] = 1000  # closed rounds with their vectors

    @property
    def bounds(self) -> Retention:
        return Retention(self.vector_bytes, self.journal_bytes, self.rounds)


@dataclass(frozen=True, slots=True)
class PacingSection:
    """Pacing of the fleet, so that devices do not all connect at once."""

    jitter: Literal["auto"] | Duration = "auto"  # window of the random delay before participating
    broadcast_bytes_per_second: Rate = 5_000_000.0  # outgoing bytes per second of the broker
    updates_per_second: Rate = 200.0  # updates per second that this daemon processes


@dataclass(frozen=True, slots=True)
class RunSection:
    """The model, the method, and the conditions that close a round."""

    bundle: Annotated[str, Length(1, 255)]  # a shipped name, a path, or NAME@ALIAS
    method: str  # fedavg, fedbuff, bafdp, …: see the methods page
    quorum: int  # distinct devices whose updates close a round at once
    shared: tuple[str, ...] | None = None  # prefixes of the shared layers; left out: the bundle's
    settings: Mapping[str, Any] = field(default_factory=dict)  # parameters of the method
    rule: Mapping[str, Any] = field(default_factory=lambda: {"name": "mean"})  # name, parameters
    rule_memory_mb: Annotated[int, Between(1, 10**6)] = 256  # rule's memory, MB
    min_updates: int | None = None  # updates that suffice at the deadline; left out: the quorum
    deadline: Duration = "15m"  # longest time from opening to closing or abandoning a round
    rounds: int | None = None  # stop after this number of completed rounds; left out: never
    rate_stages: tuple[RateStage, ...] = ()  # rounds and rate of each, for settings.rate
    weighting: Literal["uniform", "samples"] = "uniform"  # weight of a device
    weight_cap: float | None = None  # largest sample count, as a multiple of the median
    client_fraction: Fraction = 1.0  # probability that a device takes part in a round
    encoding: UpdateEncoding = "f4"  # encoding of updates: float32, 8 or 4 bits
    downlink: DownlinkEncoding = "f4"  # new models: whole, or as a step in 8 bits
    seed: Annotated[int, Between(0, 2**63 - 1)] = 0  # seed of the server's random draws
    schedule: ScheduleSection = field(default_factory=ScheduleSection)  # when rounds begin
    graph: Mapping[str, Any] | None = None  # model between the devices, of methods that have one
    name: RunName = ""  # name of the run; left out: it is announced to all devices
    cohort: Mapping[str, str] = field(default_factory=dict)  # labels that its devices must have


@dataclass(frozen=True)
class AggregatorConfig:
    """The complete configuration of the aggregator."""

    fleet: FleetId  # id of the fleet
    state: Path  # folder of all persistent state
    run: RunSection
    broker: ServerBrokerSection = field(default_factory=ServerBrokerSection)
    keys: ServerKeysSection = field(default_factory=ServerKeysSection)
    http: HttpSection = field(default_factory=HttpSection)
    log: LogSection = field(default_factory=LogSection)
    alerts: AlertsSection = field(default_factory=AlertsSection)
    admission: AdmissionSection = field(default_factory=AdmissionSection)
    pacing: PacingSection = field(default_factory=PacingSection)
    store: StoreSection = field(default_factory=StoreSection)
    retention: RetentionSection = field(default_factory=RetentionSection)
    extensions: Mapping[str, Any] = field(default_factory=dict)  # settings of extensions, by table
    further_runs: tuple[RunSection, ...] = ()  # the second and later tables of [[run]]
    file: Path = field(default=Path("aggregator.toml"), init=False)  # path that was read
    index: ClassVar[ExtensionIndex] = ExtensionIndex("aggregator")
    renamed: ClassVar[Mapping[str, str]] = {**RENAMED, **index.texts("renamed")}

    def __post_init__(self) -> None:
        """Refuse runs that cannot be told apart, and a cohort whose run is announced to all."""
        names = [run.name for run in self.runs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"run.name: {name!r} is the name of {names.count(name)} runs")
            if name and not is_run_name(name):
                raise ValueError(f"run.name: {name!r} is reserved")
        for name, entry in self.index.sections().items():
            why = entry.row.get("one_run") if name in self.extensions else None
            if why and self.further_runs:
                raise ValueError(f"{name}: expected one run; {why}")
        for run in self.runs:
            if run.cohort and not run.name:
                raise ValueError("run.cohort: a run with a cohort needs a run.name")
        if self.admission.workers and self.store.url is None:
            raise ValueError("admission.workers: workers need PostgreSQL; set store.url")
        if self.admission.workers and self.broker.protocol != 5:
            raise ValueError("admission.workers: shared subscriptions need broker.protocol = 5")

    @property
    def tables(self) -> Mapping[str, Any]:
        """Settings by the name of their table, those of extensions as well."""
        return {one.name: getattr(self, one.name) for one in fields(self)} | dict(self.extensions)

    def section(self, name: str) -> Any:  # noqa: ANN401 - the extension's own settings
        """Return the settings of an extension; without its table the defaults, or None without defaults."""
        if name in self.extensions:
            return self.extensions[name]
        section = self.index.sections()[name].load("section")
        is_whole = all(
            one.default is not MISSING or one.default_factory is not MISSING
            for one in fields(section)
        )
        return section() if is_whole else None

    def needs(self, entry: ExtensionEntry, announced: Callable[[str], bytes]) -> bool:
        """Return whether an extension is configured, or a retained announcement of it is in force."""
        kinds = entry.row.get("announces", ())
        return entry.is_configured(self.tables) or any(
            announced(common(self.fleet, kind)) for kind in kinds
        )

    @property
    def encrypted_kinds(self) -> list[str]:
        """Return the kinds of messages that devices must encrypt."""
        keys = (entry.row["kinds_to_encrypt"] for entry in self.index.having("kinds_to_encrypt"))
        return [kind for key in keys for kind in values_at(self.tables, key) if kind]

    @property
    def runs(self) -> tuple[RunSection, ...]:
        """Return the sections of all runs, in the order of the file."""
        return (self.run, *self.further_runs)

    def views(self) -> tuple[AggregatorConfig, ...]:
        """Return one configuration for each run, with only that run."""
        return tuple(
            replace(self, run=run, further_runs=()).read_from(self.file) for run in self.runs
        )

    def read_from(self, file: Path) -> AggregatorConfig:
        """Set the file that this configuration was read from, and return it; for a copy that is not shared yet."""
        object.__setattr__(self, "file", file)
        return self

    @classmethod
    def adapted(cls, tree: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the tables of a file with the first of several ``[[run]]`` as ``run``."""
        runs = tree.get("run")
        if not isinstance(runs, list) or not runs:
            return tree
        return {**tree, "run": runs[0], "further_runs": runs[1:]}

    @cached_property
    def database(self) -> Location:
        return DatabaseUrl(self.store.url) if self.store.url else self.file_database

    @cached_property
    def file_database(self) -> Path:
        return self.state / "aggregator.db"

    @cached_property
    def inbox(self) -> Path:
        return self.state / "inbox"

    @cached_property
    def signing_key(self) -> Path:
        """Return the path of the online private key (PEM, mode 0600)."""
        return self.keys.signing or self.state / "aggregator.key"

    @cached_property
    def root_public(self) -> Path:
        return self.keys.root or self.state / "root.pub"

    @classmethod
    def load(cls, path: str | Path, environ: Mapping[str, str] = os.environ) -> AggregatorConfig:
        """Read a configuration file, its ``conf.d``, and ``GRIDFED_AGGREGATOR_…`` variables.

        Raises:
            SettingsError: A value is refused; the message names the file and the key.
        """
        return load_with_origins(path, environ).value


def load_with_origins(
    path: str | Path, environ: Mapping[str, str] = os.environ
) -> Loaded[AggregatorConfig]:
    """Read a configuration together with the file or variable that each value came from."""
    loaded = load(AggregatorConfig, Path(path), prefix=PREFIX, environ=environ)
    object.__setattr__(loaded.value, "file", Path(path).absolute())  # known only after reading
    return loaded
