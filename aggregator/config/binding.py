"""Bind the names in a configuration to objects, and check its values against each other.

A combination of values that does not fit is refused before any connection is opened; the error
names the file and the key.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from aggregator.bundles import BundleFileError, ModelBundle, open_bundle
from aggregator.config.bundle_registry import archive_keys, registry_of
from aggregator.config.run_checks import (
    bound_rule,
    check_downlink,
    check_graphs,
    check_limits,
    check_quota,
    check_stages,
    update_encodings,
    wrong,
)
from aggregator.config.schedule import Schedule, ScheduleError, schedule_of
from aggregator.config.sections import AdmissionSection, AggregatorConfig
from aggregator.ingress.admission_policy import Limits
from aggregator.methods import METHODS, Course, Rounds, Setup
from aggregator.methods.base.types import BoundGraph
from aggregator.methods.base.wrappers import in_stages
from aggregator.store.row_file import pending_rows
from aggregator.store.state_codec import flatten
from edge_sdk.app.extensions import known_names
from edge_sdk.app.schema import SchemaError, build
from edge_sdk.app.settings import SettingsError, refuse_renamed, rooted, seconds
from edge_sdk.errors import LinkError
from edge_sdk.link.tls_files import client_id_of
from edge_sdk.protocol.codec import pack_leaves
from edge_sdk.protocol.contract.manifest import Manifest, ManifestError
from edge_sdk.protocol.contract.method import CONTRACTS, Ask, Half, Up, Update, answered, answers
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.protocol.keys import KeyFileError
from edge_sdk.protocol.root_keys import RootKeys, read_root
from edge_sdk.protocol.topics import AGGREGATOR


@dataclass(frozen=True)
class BoundRun:
    """A configuration bound to its bundle, method and rule."""

    config: AggregatorConfig
    bundle: ModelBundle
    spec: ParamSpec  # layout of the parameter vector, with this run's shared layers
    half: Half[Any]  # server half of the method
    ask: Ask  # the round's question, as the contract defines it
    rounds: Rounds  # quorum, deadline and number of rounds
    limits: Limits
    schedule: Schedule = field(default_factory=Schedule)  # when rounds begin

    def fault(self, update: Update) -> str:
        """Return the property of a well-formed update that honest readings cannot produce; empty if there is none."""
        fault = METHODS[self.config.run.method].fault
        if fault is None:
            return ""
        return fault(self.bundle.manifest, settings_of(self.config), update.vector)

    @property
    def shared(self) -> tuple[str, ...]:
        prefixes = self.config.run.shared
        return self.bundle.manifest.shared if prefixes is None else prefixes

    def first_state(self) -> Course:
        state: Course = self.half.init(self.spec.shared(self.bundle.initial))
        return state


def bind(config: AggregatorConfig, rows: Path | None = None) -> BoundRun:
    """Bind the names in a configuration to objects, and check values against each other.

    Args:
        rows: Folder for the file with a round's updates; that of the state if left out.

    Raises:
        SettingsError: Values do not fit; the message names the file and the key.
        BundleFileError: The bundle is missing, damaged, or not signed by a trusted key.
    """
    run = config.run
    if run.method not in METHODS:
        raise wrong(config, "run.method", f"unknown {run.method!r}; known: {known_names(METHODS)}")
    bundle = bundle_of(config)
    _, ask = answered(CONTRACTS[run.method])
    settings = settings_of(config)
    check_graphs(config, bundle, getattr(settings, "graphs", ask.graphs))
    check_limits(config, bundle, settings)
    check_stages(config, bundle)
    check_downlink(config)
    spec, rounds = _spec(config, bundle), _rounds(config)
    try:
        rule = bound_rule(config, rounds, spec, getattr(settings, "rule_rows", 0))
        graph, config = _graph(config, bundle)
        setup = Setup(
            rule,
            settings,
            rounds,
            spec,
            run.seed,
            run.client_fraction,
            config.file.parent,
            graph,
            bundle.manifest.analytic,
            pending_rows(rows or config.state, run.rule_memory_mb * 1_000_000 // 4),
        )
        half = in_stages(METHODS[run.method].half(setup), run.rate_stages)
        for entry in config.index.configured(config.tables):
            if (wrapped := entry.load("half")) is not None:
                half = wrapped(half)
    except SchemaError as error:  # incompatible values
        raise SettingsError(f"{config.file.name}: {error}") from error
    if setup.graph is not None:
        check_quota(config, settings.turns.uplink(settings.steps, setup.graph.shape))
    limits = Limits(
        spec=spec.digest,
        size=answer_size(bundle.manifest, spec, ask),
        contract=ask,
        further=answers(CONTRACTS[run.method])[1:],
        encs=update_encodings(config, ask),
        max_staleness=settings.max_staleness if ask.patient else None,
        max_norm=_max_norm(config.admission),
        n_cap=config.admission.max_samples,
    )
    bound = BoundRun(config, bundle, spec, half, ask, rounds, limits, config_schedule(config))
    _check_retention(bound)
    for entry in config.index.configured(config.tables):
        if (check := entry.load("check")) is not None:
            check(config, rounds)
    return bound


def answer_size(manifest: Manifest, spec: ParamSpec, ask: Ask) -> int:
    """Return the number of scalars of an answer."""
    if not ask.has_statistic or manifest.analytic is None:
        return spec.shared_size
    size: int = manifest.analytic.statistic_size(math.prod(manifest.forecast_shape))
    return size


def _check_retention(run: BoundRun) -> None:
    bound, config = run.config.retention.vector_bytes, run.config
    state = len(pack_leaves(flatten(run.first_state())))
    needed = 2 * (state + 4 * run.limits.size * config.run.quorum)
    if bound < needed:
        why = f"expected at least {needed} (two rounds and their states), got {bound}"
        raise wrong(config, "retention.vector_bytes", why)


def root_of(config: AggregatorConfig) -> RootKeys:
    """Return the root's public keys; raise SettingsError if the file is missing or contains none."""
    try:
        return read_root(config.root_public)
    except KeyFileError as error:
        raise SettingsError(
            f"{config.file.name}: keys.root: {error}",
            hint=f"create the fleet's keys: gridfed-aggregator init {config.file}",
        ) from error


def bundle_of(config: AggregatorConfig) -> ModelBundle:
    """Return the bundle of a run; raise BundleFileError with the key if it cannot be used."""
    trusted = archive_keys(config)
    try:
        if "@" in config.run.bundle:
            return registry_of(config).resolve(config.run.bundle)
        return open_bundle(config.run.bundle, folder=config.file.parent, trusted=trusted)
    except BundleFileError as error:
        raise BundleFileError(
            f"{config.file.name}: run.bundle: {error}", hint=error.hint
        ) from error


def _graph(
    config: AggregatorConfig, bundle: ModelBundle
) -> tuple[BoundGraph | None, AggregatorConfig]:
    """Bind the graph model between the devices; return it, and the configuration with its defaults."""
    run, method = config.run, METHODS[config.run.method]
    if run.graph is None:
        return None, config
    if method.graph is None:
        raise SchemaError("run.graph", f"none: method {run.method!r} has no graph", "a graph")
    refuse_renamed(
        {f"run.graph.{old}": f"run.graph.{new}" for old, new in method.graph.renamed.items()},
        {"run": {"graph": run.graph}},
        config.file.name,
    )
    folder = config.file.parent
    section = rooted(build(method.graph, run.graph, where="run.graph"), folder)
    if section.kind not in method.kinds:
        expected = f"{' or '.join(method.kinds)} for method {run.method!r}"
        raise SchemaError("run.graph.kind", expected, repr(section.kind))
    config = replace(config, run=replace(run, graph=asdict(section))).read_from(config.file)
    activation = bundle.manifest.activation
    return None if activation is None else section.bound(activation, folder), config


def _spec(config: AggregatorConfig, bundle: ModelBundle) -> ParamSpec:
    try:
        return bundle.manifest.spec(config.run.shared)
    except ManifestError as error:
        raise wrong(config, "run.shared", str(error).removeprefix("manifest: ")) from error


def _rounds(config: AggregatorConfig) -> Rounds:
    run = config.run
    if run.quorum < 1:
        raise wrong(config, "run.quorum", f"expected at least 1, got {run.quorum}")
    rounds = Rounds(quorum=run.quorum, deadline=1.0, downlink=run.downlink)
    for key, changes in (
        ("min_updates", {"least": run.min_updates}),
        ("deadline", {"deadline": seconds(run.deadline)}),
        ("rounds", {"limit": run.rounds}),
        ("weight_cap", {"weighting": run.weighting, "cap": run.weight_cap or rounds.cap}),
    ):
        try:
            rounds = replace(rounds, **changes)
        except ValueError as error:
            raise wrong(config, f"run.{key}", str(error).partition(": ")[2]) from error
    return rounds


def renamed_settings(cls: type[Any]) -> dict[str, str]:
    """Return the new key by old key of a method's settings, those of inner tables included."""
    found = dict(getattr(cls, "renamed", {}))
    for name, hint in get_type_hints(cls).items():
        if is_dataclass(hint):
            found |= {f"{name}.{k}": f"{name}.{v}" for k, v in getattr(hint, "renamed", {}).items()}
    return found


def settings_of(config: AggregatorConfig) -> Any:  # noqa: ANN401 - each method has its own settings class
    """Return the method's settings, defaults filled in; raise SettingsError with the key that is refused."""
    settings = METHODS[config.run.method].settings
    at = "run.settings."
    names = {f"{at}{old}": f"{at}{new}" for old, new in renamed_settings(settings).items()}
    refuse_renamed(names, {"run": {"settings": config.run.settings}}, config.file.name)
    try:
        return build(settings, config.run.settings, where="run.settings")
    except SchemaError as error:
        raise SettingsError(f"{config.file.name}: {error}") from error


def _max_norm(admission: AdmissionSection) -> float:
    """Return the norm limit; ``auto`` is the clipping bound, or infinity without one."""
    return np.inf if admission.max_norm == "auto" else admission.max_norm


def broker_of(config: AggregatorConfig, url: str) -> Any:  # noqa: ANN401 - ``edge_sdk.link.broker_options.Broker``
    """Return the link's settings for a broker URL."""
    from edge_sdk.link.broker_options import LARGEST_UPDATE, OVERHEAD  # noqa: PLC0415 - TLS is loaded when a link is wanted

    own = {"url": url, "max_packet": LARGEST_UPDATE + OVERHEAD, "session_expiry": 604_800}
    client = client_id_of(config.fleet, AGGREGATOR, config.broker.cert_file)
    return link_options(config.broker, client, f"{config.file.name}: broker", **own)


def link_options(section: Any, client: str, where: str, **own: Any) -> Any:  # noqa: ANN401 - a section of a broker; ``Broker``
    """Return the link's settings of a section of the configuration.

    Args:
        client: Client id.
        where: File and section, for the error.
        own: Settings that the section does not have, or that replace its own.

    Raises:
        SettingsError: The settings cannot work together.
    """
    from edge_sdk.link.broker_options import Broker  # noqa: PLC0415 - as above

    keys = ("url", "ca_file", "cert_file", "key_file", "protocol", "keepalive", "insecure")
    read = {key: getattr(section, key) for key in keys}
    read["reconnect_max"] = seconds(section.reconnect_max)
    try:
        return Broker(**{**read, "client_id": client, **own})
    except LinkError as error:
        raise SettingsError(f"{where}: {error}") from error


def config_schedule(config: AggregatorConfig) -> Schedule:
    """Return the schedule of rounds; an exchange between neighbours has an interval of its own.

    Raises:
        SettingsError: The time zone or a window is refused.
    """
    try:
        schedule = schedule_of(config.run.schedule, config.fleet)
    except ScheduleError as error:
        where = f"{config.file.name}: run.schedule.{error.key}"
        raise SettingsError(f"{where}: {error}") from error
    asks = CONTRACTS.get(config.run.method, {}).values()
    return Schedule() if any(ask.up is Up.PEERS for ask in asks) else schedule
