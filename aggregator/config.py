"""Read the aggregator's configuration, and bind its names to objects.

A value that is wrong by itself is refused while the file is read; a combination of values that
does not fit is refused by ``bind``. Both happen before any connection is opened, and both errors
name the file and the key.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

import numpy as np

from aggregator.bundles import BundleFileError, ModelBundle, open_bundle
from aggregator.graph.factory import GraphSection
from aggregator.graph.factory import bind as bind_graph
from aggregator.ingress.uploads import IN_FLIGHT
from aggregator.methods import METHODS, Course, Rounds, Setup
from aggregator.methods.analytic.settings import Analytic
from aggregator.methods.analytic.settings import fault_of as statistic_problem
from aggregator.methods.base.rate_stages import RateStage, in_stages, takes_stages
from aggregator.methods.base.types import BoundGraph
from aggregator.rules import BoundRule, UnknownRuleError
from aggregator.rules import bind as bind_rule
from aggregator.store.state_codec import flatten
from aggregator.store.types import Retention
from edge_sdk.app.settings import Duration, Loaded, SettingsError, load, refuse_renamed, seconds
from edge_sdk.wire.contract.analytic import STATISTIC, statistic_layout
from edge_sdk.wire.contract.manifest import Manifest, ManifestError
from edge_sdk.wire.contract.method import CONTRACTS, Ask, Half, Update, answered, answers
from edge_sdk.wire.contract.parameter_layout import ParamSpec
from edge_sdk.wire.errors import LinkError
from edge_sdk.wire.keys import KeyFileError, read_public
from edge_sdk.wire.plugin_registry import known_names
from edge_sdk.wire.protocol.admission_policy import Limits
from edge_sdk.wire.protocol.codec import pack_leaves
from edge_sdk.wire.protocol.messages import CHUNK_LIMIT
from edge_sdk.wire.schema import Between, Length, Matches, SchemaError, build

PREFIX = "GRIDFED_AGGREGATOR_"

RENAMED: Mapping[str, str] = {
    "run.least": "run.min_updates",
    "run.share": "run.client_fraction",
    "run.graph.memory": "run.graph.memory_mb",
    "run.graph.swapped": "run.graph.astgcn_order",
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
    "store": "[retention]",
}
"""New key, or new [section], by old key. An old one is refused with the new one in the message."""

FleetId = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")]
Fraction = Annotated[float, Between(1e-6, 1.0)]
InlineBytes = Annotated[int, Between(0, CHUNK_LIMIT)]
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
    cert_file: Path | None = None  # this aggregator's certificate, with the common name _agg
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
    root: Path | None = None  # the root's public key: root.pub


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
    max_in_flight_bytes: WindowBytes = IN_FLIGHT  # granted chunks, of all devices together
    max_pending_updates: Annotated[int, Between(1, 8)] = 2  # unreceipted updates per device
    max_updates: Positive | None = None  # updates of one device in total; left out: no limit
    daily_bytes: DailyBytes = 64_000_000  # bytes per device and day, both directions
    messages_per_minute: Positive = 60  # messages per device and minute, without chunks


@dataclass(frozen=True, slots=True)
class RetentionSection:
    """Retention of the database; the oldest entries are deleted first."""

    vector_bytes: StoredBytes = 2_147_483_648  # bytes of update vectors and states
    journal_bytes: StoredBytes = 268_435_456  # bytes of the journal without vectors
    rounds: Annotated[int, Between(1, 1_000_000)] = 1000  # closed rounds with their vectors

    @property
    def bounds(self) -> Retention:
        """Return the limits as the store's type."""
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

    bundle: Annotated[str, Length(1, 255)]  # a shipped name, or a path
    method: str  # fedavg, fedbuff, bafdp, …: see the methods page
    quorum: int  # distinct devices whose updates close a round at once
    shared: tuple[str, ...] | None = None  # prefixes of the shared layers; left out: the bundle's
    settings: Mapping[str, Any] = field(default_factory=dict)  # parameters of the method
    rule: Mapping[str, Any] = field(default_factory=lambda: {"name": "mean"})  # name, parameters
    min_updates: int | None = None  # updates that suffice at the deadline; left out: the quorum
    deadline: Duration = "15m"  # longest time from opening to closing or abandoning a round
    rounds: int | None = None  # stop after this number of completed rounds; left out: never
    rate_stages: tuple[
        RateStage, ...
    ] = ()  # rounds and rate of each stage, instead of settings.rate
    weighting: Literal["uniform", "samples"] = "uniform"  # weight of a device
    weight_cap: float | None = None  # largest sample count, as a multiple of the median
    client_fraction: Fraction = 1.0  # probability that a device takes part in a round
    seed: Annotated[int, Between(0, 2**63 - 1)] = 0  # seed of the server's random draws
    graph: GraphSection | None = None  # graph model between the devices, where the method has one


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
    retention: RetentionSection = field(default_factory=RetentionSection)
    file: Path = field(default=Path("aggregator.toml"), init=False)  # path that was read
    renamed: ClassVar[Mapping[str, str]] = RENAMED

    @cached_property
    def database(self) -> Path:
        """Return the path of the database file."""
        return self.state / "aggregator.db"

    @cached_property
    def inbox(self) -> Path:
        """Return the folder of the control queue to a running daemon."""
        return self.state / "inbox"

    @cached_property
    def signing_key(self) -> Path:
        """Return the path of the online private key (PEM, mode 0600)."""
        return self.keys.signing or self.state / "aggregator.key"

    @cached_property
    def root_public(self) -> Path:
        """Return the path of the root's public key (64 hex digits)."""
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
    """Read a configuration together with the file or variable that each value came from.

    Raises:
        SettingsError: As ``AggregatorConfig.load``.
    """
    loaded = load(AggregatorConfig, Path(path), prefix=PREFIX, environ=environ)
    object.__setattr__(loaded.value, "file", Path(path).absolute())  # known only after reading
    return loaded


@dataclass(frozen=True)
class BoundRun:
    """A configuration bound to its bundle, method and rule: everything a daemon computes with.

    Attributes:
        config: The source configuration.
        bundle: The verified bundle.
        spec: Layout of the parameter vector, with this run's shared layers.
        half: Server half of the method.
        ask: The round's question, as the contract defines it.
        rounds: Quorum, deadline and number of rounds.
        limits: Bounds on an update.
    """

    config: AggregatorConfig
    bundle: ModelBundle
    spec: ParamSpec
    half: Half[Any]
    ask: Ask
    rounds: Rounds
    limits: Limits

    def fault(self, update: Update) -> str:
        """Return why a well-formed update cannot be of honest readings; empty if it can."""
        section = self.bundle.manifest.analytic
        if section is None or not self.ask.has_statistic:
            return ""
        outputs = math.prod(self.bundle.manifest.forecast_shape)
        settings = settings_of(self.config)
        noisy = settings if isinstance(settings, Analytic) else None
        return statistic_problem(section, outputs, update.vector, noisy)

    @property
    def shared(self) -> tuple[str, ...]:
        """Return the prefixes of the shared layers that are announced."""
        said = self.config.run.shared
        return self.bundle.manifest.shared if said is None else said

    def first_state(self) -> Course:
        """Return the initial state of the server half, from the bundle's initial vector."""
        state: Course = self.half.init(self.spec.shared(self.bundle.initial))
        return state


def bind(config: AggregatorConfig) -> BoundRun:
    """Bind the names in a configuration to objects, and check values against each other.

    Raises:
        SettingsError: Values do not fit; the message names the file and the key.
        BundleFileError: The bundle is missing, damaged, or not signed by a trusted key.
    """
    run = config.run
    if run.method not in METHODS:
        raise _wrong(config, "run.method", f"unknown {run.method!r}; known: {known_names(METHODS)}")
    bundle = _open(config)
    _, ask = answered(CONTRACTS[run.method])
    settings = settings_of(config)
    _check_graphs(config, bundle, getattr(settings, "graphs", ask.graphs))
    _check_limits(config, bundle, settings)
    _check_stages(config, bundle)
    spec, rounds = _spec(config, bundle), _rounds(config)
    rule = _rule(config, rounds)
    try:
        lent = _graph(config, bundle)
        setup = Setup(
            rule,
            settings,
            rounds,
            spec,
            run.seed,
            run.client_fraction,
            config.file.parent,
            lent,
            bundle.manifest.analytic,
        )
        half = in_stages(METHODS[run.method].half(setup), run.rate_stages)
    except SchemaError as misfit:  # incompatible values
        raise SettingsError(f"{config.file.name}: {misfit}") from misfit
    if setup.graph is not None:
        _check_quota(config, settings.turns.uplink(settings.steps, setup.graph.shape))
    limits = Limits(
        spec=spec.digest,
        size=answer_size(bundle.manifest, spec, ask),
        contract=ask,
        further=answers(CONTRACTS[run.method])[1:],
        encs=(ask.enc,),
        max_staleness=settings.max_staleness if ask.patient else None,
        max_norm=_max_norm(config.admission),
        n_cap=config.admission.max_samples,
    )
    bound = BoundRun(config, bundle, spec, half, ask, rounds, limits)
    _check_kept(bound)
    return bound


def answer_size(manifest: Manifest, spec: ParamSpec, ask: Ask) -> int:
    """Return the number of scalars of an update that answers an ask."""
    if not ask.has_statistic or manifest.analytic is None:
        return spec.shared_size
    outputs = math.prod(manifest.forecast_shape)
    return statistic_layout(outputs, manifest.analytic.width).size


def _check_kept(run: BoundRun) -> None:
    """Check that the retained vectors cover a restart: the state and the open round's updates."""
    kept, config = run.config.retention.vector_bytes, run.config
    state = len(pack_leaves(flatten(run.first_state())))
    needed = 2 * (state + 4 * run.limits.size * config.run.quorum)
    if kept < needed:
        why = f"expected at least {needed} (two rounds and their states), got {kept}"
        raise _wrong(config, "retention.vector_bytes", why)


def root_of(config: AggregatorConfig) -> bytes:
    """Return the root's raw public key.

    Raises:
        SettingsError: The file is missing or contains no key.
    """
    try:
        return read_public(config.root_public)
    except KeyFileError as error:
        raise SettingsError(
            f"{config.file.name}: keys.root: {error}",
            hint=f"create the fleet's keys: gridfed-aggregator init {config.file}",
        ) from error


def _open(config: AggregatorConfig) -> ModelBundle:
    public = config.root_public
    trusted = (read_public(public),) if public.is_file() else ()
    try:
        return open_bundle(config.run.bundle, folder=config.file.parent, trusted=trusted)
    except BundleFileError as error:
        raise BundleFileError(
            f"{config.file.name}: run.bundle: {error}", hint=error.hint
        ) from error


def _graph(config: AggregatorConfig, bundle: ModelBundle) -> BoundGraph | None:
    """Bind the graph model between the devices.

    Raises:
        SchemaError: The graph does not fit, or the method has no graph.
    """
    said, activation = config.run.graph, bundle.manifest.activation
    has_turns = any(ask.perishable for ask in CONTRACTS[config.run.method].values())
    if said is None or activation is None:
        return None
    if not has_turns:
        raise SchemaError(
            "run.graph", f"none: method {config.run.method!r} has no graph", "a graph"
        )
    seated = bind_graph(said, activation, config.file.parent)
    return BoundGraph(seated.model, activation, seated.places)


def _check_quota(config: AggregatorConfig, uplink: int) -> None:
    """Check that a round of activations fits into a device's hourly quota."""
    wanted = int(8 * 1.05 * uplink)
    if config.admission.daily_bytes < wanted:
        why = f"expected at least {wanted}: a device sends {uplink} bytes in one round"
        raise _wrong(config, "admission.daily_bytes", why)


def _check_graphs(config: AggregatorConfig, bundle: ModelBundle, graphs: tuple[str, ...]) -> None:
    for graph in graphs:
        if graph not in bundle.manifest.functions:
            raise _wrong(
                config,
                "run.bundle",
                f"{bundle.manifest.name!r} has no graph {graph!r}, which method "
                f"{config.run.method!r} needs; it has: {_list(bundle.manifest.functions)}",
                hint="use a bundle in closed form, such as load-analytic"
                if graph == STATISTIC
                else f"gridfed-aggregator export … --for {config.run.method}",
            )


_LIMITED = {
    "rate": "rate",
    "steps": "steps",
    "first_steps": "steps",
    "prox": "prox",
    "prox_by_device": "prox",
}
"""Settings that become scalars of a task, each with the name of its limit in a bundle."""


def _check_limits(config: AggregatorConfig, bundle: ModelBundle, settings: object) -> None:
    """Refuse values beyond the bundle's signed limits, which every device would refuse."""
    limits = bundle.manifest.training.limits
    for key, name in _LIMITED.items():
        said = getattr(settings, key, None)
        values = said.values() if isinstance(said, Mapping) else [0.0 if said is None else said]
        if (value := max(values, default=0.0)) > limits[name]:
            raise _wrong(
                config,
                f"run.settings.{key}",
                f"{value:g} is above {limits[name]:g}, the limit of bundle "
                f"{bundle.manifest.name!r} (training.max_{name})",
                hint="lower it, or export a bundle with a higher limit",
            )


def _check_stages(config: AggregatorConfig, bundle: ModelBundle) -> None:
    """Refuse stages that the method ignores, and rates that are set twice or beyond the limit."""
    stages, most = config.run.rate_stages, bundle.manifest.training.limits["rate"]
    if not stages:
        return
    if not takes_stages(CONTRACTS[config.run.method]):
        why = f"expected none, for method {config.run.method!r} has no rate of local steps alone"
        raise _wrong(config, "run.rate_stages", why)
    if "rate" in config.run.settings:
        raise _wrong(
            config,
            "run.settings.rate",
            "expected none beside run.rate_stages, which sets the rate of every round",
            hint="remove one of them",
        )
    for number, (_, rate) in enumerate(stages):
        if rate > most:
            raise _wrong(
                config,
                f"run.rate_stages[{number}]",
                f"{rate:g} is above {most:g}, the limit of bundle "
                f"{bundle.manifest.name!r} (training.max_rate)",
                hint="lower it, or export a bundle with a higher limit",
            )


def _spec(config: AggregatorConfig, bundle: ModelBundle) -> ParamSpec:
    try:
        return bundle.manifest.spec(config.run.shared)
    except ManifestError as error:
        raise _wrong(config, "run.shared", str(error).removeprefix("manifest: ")) from error


def _rounds(config: AggregatorConfig) -> Rounds:
    run = config.run
    if run.quorum < 1:
        raise _wrong(config, "run.quorum", f"expected at least 1, got {run.quorum}")
    rounds = Rounds(quorum=run.quorum, deadline=1.0)
    for key, changes in (
        ("min_updates", {"least": run.min_updates}),
        ("deadline", {"deadline": seconds(run.deadline)}),
        ("rounds", {"limit": run.rounds}),
        ("weight_cap", {"weighting": run.weighting, "cap": run.weight_cap or rounds.cap}),
    ):
        try:
            rounds = replace(rounds, **changes)
        except ValueError as error:
            raise _wrong(config, f"run.{key}", str(error).partition(": ")[2]) from error
    return rounds


def renamed_settings(cls: type[Any]) -> dict[str, str]:
    """Return the new key by old key of a method's settings, those of inner tables included."""
    found = dict(getattr(cls, "renamed", {}))
    for name, hint in get_type_hints(cls).items():
        if is_dataclass(hint):
            found |= {f"{name}.{k}": f"{name}.{v}" for k, v in getattr(hint, "renamed", {}).items()}
    return found


def settings_of(config: AggregatorConfig) -> Any:  # noqa: ANN401 - each method has its own settings class
    """Return the method's settings, defaults filled in.

    Raises:
        SettingsError: A setting is refused; the message names the key.
    """
    settings = METHODS[config.run.method].settings
    at = "run.settings."
    names = {f"{at}{old}": f"{at}{new}" for old, new in renamed_settings(settings).items()}
    refuse_renamed(names, {"run": {"settings": config.run.settings}}, config.file.name)
    try:
        return build(settings, config.run.settings, where="run.settings")
    except SchemaError as misfit:
        raise SettingsError(f"{config.file.name}: {misfit}") from misfit


def _rule(config: AggregatorConfig, rounds: Rounds) -> BoundRule:
    table = dict(config.run.rule)
    name = table.pop("name", None)
    if not isinstance(name, str):
        raise _wrong(config, "run.rule.name", "missing")
    try:
        rule = bind_rule(name, **table)
    except UnknownRuleError as error:
        raise _wrong(config, f"run.rule.{error.key}", error.why) from error
    _check_faulty(config, rule, rounds)
    return rule


def _check_faulty(config: AggregatorConfig, rule: BoundRule, rounds: Rounds) -> None:
    """Check that the rule tolerates ``f`` Byzantine updates, and that they set no weights."""
    f, rows = rule.f, rounds.enough
    where = "(run.quorum, run.min_updates)"
    if f and not rule.withstands:
        why = f"{rule.name!r} tolerates no Byzantine update; use another rule, or norm_clipping before it"
        raise _wrong(config, "run.rule.f", why)
    if f and rows <= 2 * f:
        why = f"{f} Byzantine updates need a round of more than {2 * f}, it may have {rows} {where}"
        raise _wrong(config, "run.rule.f", why)
    alone = replace(rule, preaggregation=())
    for key, least in (("f" if f else "name", alone.least), ("preaggregation", rule.least)):
        if rows < least:
            why = f"{rule.name!r} needs at least {least} updates, a round may have {rows} {where}"
            raise _wrong(config, f"run.rule.{key}", why)
    if f and rounds.weighting == "samples":
        why = "with f > 0 expected 'uniform': a Byzantine device chooses its own sample count"
        raise _wrong(config, "run.weighting", why)


def _max_norm(admission: AdmissionSection) -> float:
    """Return the norm limit; ``auto`` is the clipping bound, or infinity without one."""
    return np.inf if admission.max_norm == "auto" else admission.max_norm


def broker_of(config: AggregatorConfig, url: str) -> Any:  # noqa: ANN401 - ``edge_sdk.wire.link.broker_options.Broker``
    """Return the link's settings for a broker URL.

    Raises:
        SettingsError: The settings contradict each other.
    """
    from edge_sdk.wire.link.broker_options import Broker  # noqa: PLC0415 - TLS is loaded when a link is wanted

    said = config.broker
    try:
        return Broker(
            url=url,
            client_id="_agg",
            ca_file=said.ca_file,
            cert_file=said.cert_file,
            key_file=said.key_file,
            protocol=said.protocol,
            keepalive=said.keepalive,
            session_expiry=604_800,
            reconnect_max=seconds(said.reconnect_max),
            insecure=said.insecure,
        )
    except LinkError as error:
        raise _wrong(config, "broker", str(error)) from error


def _wrong(config: AggregatorConfig, key: str, why: str, *, hint: str = "") -> SettingsError:
    return SettingsError(f"{config.file.name}: {key}: {why}", hint=hint)


def _list(names: Any) -> str:  # noqa: ANN401 - any iterable of names
    return ", ".join(sorted(names))
