"""The aggregator's configuration: frozen sections, and ``bind``, which makes parts of names.

What one key can see is refused while the file is read; what only several can see together is
refused by ``bind``. Both happen before anything connects, and name the file and the key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from aggregator.bundles import BundleFileError, ModelBundle, open_bundle
from aggregator.graph.factory import GraphSection
from aggregator.graph.factory import bind as bind_graph
from aggregator.ingress.uploads import IN_FLIGHT
from aggregator.methods import METHODS, Course, Rounds, Setup
from aggregator.methods.base.types import BoundGraph
from aggregator.rules import BoundRule, UnknownRuleError
from aggregator.rules import bind as bind_rule
from aggregator.store.state_codec import flatten
from aggregator.store.types import Retention
from edge_sdk.app.settings import Duration, Loaded, SettingsError, load, seconds
from edge_sdk.wire.contract.manifest import ManifestError
from edge_sdk.wire.contract.method import CONTRACTS, Ask, Half, answered, answers
from edge_sdk.wire.contract.parameter_layout import ParamSpec
from edge_sdk.wire.errors import LinkError
from edge_sdk.wire.keys import KeyFileError, read_public
from edge_sdk.wire.protocol.admission_policy import Limits
from edge_sdk.wire.protocol.codec import pack_leaves
from edge_sdk.wire.protocol.messages import CHUNK_LIMIT
from edge_sdk.wire.schema import Between, Length, Matches, SchemaError, build

PREFIX = "GRIDFED_AGGREGATOR_"

FleetId = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")]
WindowBytes = Annotated[int, Between(CHUNK_LIMIT, IN_FLIGHT)]
Positive = Annotated[int, Between(1, 2**31 - 1)]
DailyBytes = Annotated[int, Between(1, 2**50)]
StoredBytes = Annotated[int, Between(1_000_000, 2**50)]
Rate = Annotated[float, Between(1e-3, 1e12)]
Norm = Annotated[float, Between(1e-12, 1e30)]


@dataclass(frozen=True, slots=True)
class ServerBrokerSection:
    """Where the broker is. ``auto`` looks on this machine; everything else wants ``mqtts://``."""

    url: str = "auto"  # mqtts://host:8883, or auto
    ca_file: Path | None = None  # authority that signed the broker's certificate
    cert_file: Path | None = None  # this aggregator's certificate, with the common name _agg
    key_file: Path | None = None  # and its private key
    crl: Path | None = None  # the broker's list of the revoked; only when it expires is read here
    protocol: Literal[4, 5] = 5  # MQTT 5, or 4 for 3.1.1
    keepalive: Annotated[int, Between(5, 65535)] = 60  # seconds of silence before a ping
    reconnect_max: Duration = "15s"  # longest wait before another attempt: a fleet waits for us
    insecure: bool = False  # allow mqtt:// to another host


@dataclass(frozen=True, slots=True)
class ServerKeysSection:
    """Keys, by file only. What is left out lies in the state folder under its usual name."""

    signing: Path | None = None  # the online key: aggregator.key
    root: Path | None = None  # the root's public half: root.pub


@dataclass(frozen=True, slots=True)
class PageSection:
    """The health page."""

    listen: str = "127.0.0.1:9464"  # host:port, or "off"


@dataclass(frozen=True, slots=True)
class LogSection:
    """What is written to the log. ``run --log`` wins."""

    level: Literal["debug", "info", "warning", "error"] = "info"  # and what is graver


@dataclass(frozen=True, slots=True)
class AlertsSection:
    """What a person is told before it happens."""

    expiry: Duration = "30d"  # so long before a certificate or a list of the revoked expires


@dataclass(frozen=True, slots=True)
class AdmissionSection:
    """What any device may send, and how much of it."""

    max_norm: Literal["auto"] | Norm = "auto"  # of an update; auto: any
    n_cap: Positive = 1_000_000_000  # largest sample count a device may claim
    inline: Annotated[int, Between(0, CHUNK_LIMIT)] = CHUNK_LIMIT  # largest body sent unasked
    window_bytes: WindowBytes = IN_FLIGHT  # granted chunks on their way, of all devices together
    hold: Annotated[int, Between(1, 8)] = 2  # updates a device may have without a receipt
    releases: Positive | None = None  # updates of one device in all; left out: no limit
    quota: DailyBytes = 64_000_000  # bytes a day a device may use, both directions
    control: Positive = 60  # messages a minute a device may send besides chunks


@dataclass(frozen=True, slots=True)
class StoreSection:
    """How much of the past the database keeps; the oldest goes first."""

    keep_vectors: StoredBytes = 2_147_483_648  # bytes of updates' vectors and of states: the audit
    keep_journal: StoredBytes = 268_435_456  # bytes of who, when and which number, without vectors
    keep_rounds: Annotated[int, Between(1, 1_000_000)] = 1000  # closed rounds with their vectors

    @property
    def retention(self) -> Retention:
        """The same as the store takes it."""
        return Retention(self.keep_vectors, self.keep_journal, self.keep_rounds)


@dataclass(frozen=True, slots=True)
class FleetPaceSection:
    """How a fleet is spread out so that it does not come all at once."""

    spread: Literal["auto"] | Duration = "auto"  # window of the random wait before taking part
    down_rate: Rate = 5_000_000.0  # bytes a second out of the broker
    up_rate: Rate = 200.0  # updates a second this daemon takes


@dataclass(frozen=True, slots=True)
class RunSection:
    """What is learned, how, and when a round ends."""

    bundle: Annotated[str, Length(1, 255)]  # a shipped name, or a path
    method: str  # fedavg, fedbuff, bafdp, …: see the methods page
    quorum: int  # so many different devices close a round at once
    shared: tuple[str, ...] | None = None  # prefixes of the shared layers; left out: the bundle's
    settings: Mapping[str, Any] = field(default_factory=dict)  # the method's own numbers
    rule: Mapping[str, Any] = field(default_factory=lambda: {"name": "mean"})  # name, parameters
    least: int | None = None  # so many are enough at the deadline; left out: the quorum
    deadline: Duration = "15m"  # from opening a round to closing or abandoning it
    rounds: int | None = None  # stop after so many moved rounds; left out: never
    weighting: Literal["uniform", "samples"] = "uniform"  # what a device counts
    weight_cap: float | None = None  # claimed samples count at most so many times the median
    share: Annotated[float, Between(1e-6, 1.0)] = 1.0  # probability that a device takes part
    seed: Annotated[int, Between(0, 2**63 - 1)] = 0  # of the draws that the server makes
    graph: GraphSection | None = None  # the model between the devices, where the method has one


@dataclass(frozen=True)
class AggregatorConfig:
    """Everything the aggregator is told."""

    fleet: FleetId  # which fleet it serves
    state: Path  # folder for everything that must not be forgotten
    run: RunSection
    broker: ServerBrokerSection = field(default_factory=ServerBrokerSection)
    keys: ServerKeysSection = field(default_factory=ServerKeysSection)
    page: PageSection = field(default_factory=PageSection)
    log: LogSection = field(default_factory=LogSection)
    alerts: AlertsSection = field(default_factory=AlertsSection)
    admission: AdmissionSection = field(default_factory=AdmissionSection)
    pace: FleetPaceSection = field(default_factory=FleetPaceSection)
    store: StoreSection = field(default_factory=StoreSection)
    file: Path = field(default=Path("aggregator.toml"), init=False)  # where it was read

    @cached_property
    def database(self) -> Path:
        """The store's one file."""
        return self.state / "aggregator.db"

    @cached_property
    def inbox(self) -> Path:
        """Where commands leave orders for a running daemon."""
        return self.state / "inbox"

    @cached_property
    def signing_key(self) -> Path:
        """The online key, PEM, mode 0600."""
        return self.keys.signing or self.state / "aggregator.key"

    @cached_property
    def root_public(self) -> Path:
        """The root's public key: 64 hex digits."""
        return self.keys.root or self.state / "root.pub"

    @classmethod
    def load(cls, path: str | Path, environ: Mapping[str, str] = os.environ) -> AggregatorConfig:
        """Read a configuration file, its ``conf.d``, and ``GRIDFED_AGGREGATOR_…`` variables.

        Raises:
            SettingsError: Naming the file and the key that does not fit.
        """
        return load_with_origins(path, environ).value


def load_with_origins(
    path: str | Path, environ: Mapping[str, str] = os.environ
) -> Loaded[AggregatorConfig]:
    """Read a configuration and remember which file or variable said what.

    Raises:
        SettingsError: As ``AggregatorConfig.load``.
    """
    loaded = load(AggregatorConfig, Path(path), prefix=PREFIX, environ=environ)
    object.__setattr__(loaded.value, "file", Path(path).absolute())  # known only after reading
    return loaded


@dataclass(frozen=True)
class BoundRun:
    """A configuration bound to its parts: everything a daemon computes with.

    Attributes:
        config: What it was bound from.
        bundle: The verified bundle.
        spec: Layout of the vector, with this run's shared layers.
        half: The method's server half.
        ask: What a round asks, as the contract says.
        rounds: When a round ends.
        limits: What an update must keep to.
    """

    config: AggregatorConfig
    bundle: ModelBundle
    spec: ParamSpec
    half: Half[Any]
    ask: Ask
    rounds: Rounds
    limits: Limits

    @property
    def shared(self) -> tuple[str, ...]:
        """Prefixes of the shared layers that are announced."""
        said = self.config.run.shared
        return self.bundle.manifest.shared if said is None else said

    def first_state(self) -> Course:
        """Return the half's state before its first round, from the bundle's first vector."""
        state: Course = self.half.init(self.spec.shared(self.bundle.initial))
        return state


def bind(config: AggregatorConfig) -> BoundRun:
    """Turn names into parts, and refuse what no single key can see.

    Raises:
        SettingsError: Naming the file and the key.
        BundleFileError: The bundle is missing, damaged, or signed by nobody we trust.
    """
    run = config.run
    if run.method not in METHODS:
        raise _wrong(config, "run.method", f"unknown {run.method!r}; known: {_list(METHODS)}")
    bundle = _open(config)
    _, ask = answered(CONTRACTS[run.method])
    settings = settings_of(config)
    _check_graphs(config, bundle, getattr(settings, "graphs", ask.graphs))
    _check_limits(config, bundle, settings)
    spec, rounds = _spec(config, bundle), _rounds(config)
    rule = _rule(config, rounds)
    try:
        lent = _graph(config, bundle)
        setup = Setup(rule, settings, rounds, spec, run.seed, run.share, config.file.parent, lent)
        half = METHODS[run.method].half(setup)
    except SchemaError as misfit:  # numbers that cannot go together
        raise SettingsError(f"{config.file.name}: {misfit}") from misfit
    if setup.graph is not None:
        _check_quota(config, settings.turns.uplink(settings.steps, setup.graph.shape))
    limits = Limits(
        spec=spec.digest,
        size=spec.shared_size,
        contract=ask,
        further=answers(CONTRACTS[run.method])[1:],
        encs=(ask.enc,),
        max_staleness=settings.max_staleness if ask.patient else None,
        max_norm=_max_norm(config.admission),
        n_cap=config.admission.n_cap,
    )
    bound = BoundRun(config, bundle, spec, half, ask, rounds, limits)
    _check_kept(bound)
    return bound


def _check_kept(run: BoundRun) -> None:
    """The vectors kept must hold what a restart needs: the state, and the open round's updates."""
    kept, config = run.config.store.keep_vectors, run.config
    state = len(pack_leaves(flatten(run.first_state())))
    needed = 2 * (state + 4 * run.spec.shared_size * config.run.quorum)
    if kept < needed:
        why = f"{kept} bytes do not hold two rounds and their states; say at least {needed}"
        raise _wrong(config, "store.keep_vectors", why)


def root_of(config: AggregatorConfig) -> bytes:
    """Return the root's raw public key.

    Raises:
        SettingsError: There is no such file, or no key in it.
    """
    try:
        return read_public(config.root_public)
    except KeyFileError as error:
        raise SettingsError(
            f"{config.file.name}: keys.root: {error}",
            hint=f"make this fleet's keys: gridfed-aggregator init {config.file}",
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
    """Bind the model between the devices.

    Raises:
        SchemaError: It cannot be; or the method has none.
    """
    said, activation = config.run.graph, bundle.manifest.activation
    has_turns = any(ask.perishable for ask in CONTRACTS[config.run.method].values())
    if said is None or activation is None:
        return None
    if not has_turns:
        raise SchemaError(
            "run.graph", f"none, for method {config.run.method!r} has no turns", "one"
        )
    seated = bind_graph(said, activation, config.file.parent)
    return BoundGraph(seated.model, activation, seated.places)


def _check_quota(config: AggregatorConfig, uplink: int) -> None:
    """A round of activations must fit into what a device may send in an hour."""
    wanted = int(8 * 1.05 * uplink)
    if config.admission.quota < wanted:
        why = f"a device sends {uplink} bytes in one round; say at least {wanted} a day"
        raise _wrong(config, "admission.quota", why)


def _check_graphs(config: AggregatorConfig, bundle: ModelBundle, graphs: tuple[str, ...]) -> None:
    for graph in graphs:
        if graph not in bundle.manifest.graphs:
            raise _wrong(
                config,
                "run.bundle",
                f"{bundle.manifest.name!r} has no graph {graph!r}, which method "
                f"{config.run.method!r} asks for; it has: {_list(bundle.manifest.graphs)}",
                hint=f"gridfed-aggregator export … --for {config.run.method}",
            )


_LIMITED = {
    "rate": "rate",
    "steps": "steps",
    "first_steps": "steps",
    "prox": "prox",
    "prox_of": "prox",
}
"""Settings that become numbers of a task, each with the name of its limit in a bundle."""


def _check_limits(config: AggregatorConfig, bundle: ModelBundle, settings: object) -> None:
    """Refuse numbers that every device would refuse: beyond what the bundle was signed for."""
    limits = bundle.manifest.training.limits
    for key, name in _LIMITED.items():
        said = getattr(settings, key, None)
        values = said.values() if isinstance(said, Mapping) else [0.0 if said is None else said]
        if (value := max(values, default=0.0)) > limits[name]:
            raise _wrong(
                config,
                f"run.settings.{key}",
                f"{value:g} is above {limits[name]:g}, the most that bundle "
                f"{bundle.manifest.name!r} was signed for (training.max_{name})",
                hint="lower it, or sign a bundle whose training allows more",
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
        ("least", {"least": run.least}),
        ("deadline", {"deadline": seconds(run.deadline)}),
        ("rounds", {"limit": run.rounds}),
        ("weight_cap", {"weighting": run.weighting, "cap": run.weight_cap or rounds.cap}),
    ):
        try:
            rounds = replace(rounds, **changes)
        except ValueError as error:
            raise _wrong(config, f"run.{key}", str(error).partition(": ")[2]) from error
    return rounds


def settings_of(config: AggregatorConfig) -> Any:  # noqa: ANN401 - each method has its own settings class
    """Return the method's settings, defaults filled in.

    Raises:
        SettingsError: Naming the key that does not fit.
    """
    try:
        return build(METHODS[config.run.method].settings, config.run.settings, where="run.settings")
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
    """A rule cannot outvote half of its rows, nor may liars choose what they count."""
    f, rows = rule.f, rounds.enough
    where = "(run.quorum, run.least)"
    if f and not rule.withstands:
        why = f"{rule.name!r} withstands no liar; choose another rule, or clip norms before it"
        raise _wrong(config, "run.rule.f", why)
    if f and rows <= 2 * f:
        why = f"{f} liars among {rows} updates cannot be outvoted; a round must have more than"
        raise _wrong(config, "run.rule.f", f"{why} {2 * f} {where}")
    alone = replace(rule, before=())
    for key, least in (("f" if f else "name", alone.least), ("before", rule.least)):
        if rows < least:
            why = f"{rule.name!r} needs at least {least} updates, a round may have {rows} {where}"
            raise _wrong(config, f"run.rule.{key}", why)
    if f and rounds.weighting == "samples":
        why = "'samples' lets a liar choose what it counts; where f rows may lie, use 'uniform'"
        raise _wrong(config, "run.weighting", why)


def _max_norm(admission: AdmissionSection) -> float:
    """``auto`` follows from a clipping bound where devices have one; without one, none is known."""
    return np.inf if admission.max_norm == "auto" else admission.max_norm


def broker_of(config: AggregatorConfig, url: str) -> Any:  # noqa: ANN401 - ``edge_sdk.wire.link.broker_options.Broker``
    """Return the link's settings for a broker that was found.

    Raises:
        SettingsError: They cannot work together.
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
