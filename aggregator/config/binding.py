"""Bind the names in a configuration to objects, and check its values against each other.

A combination of values that does not fit is refused before any connection is opened; the error
names the file and the key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from aggregator.bundles import BundleFileError, ModelBundle, open_bundle
from aggregator.config.bundle_registry import archive_keys, registry_of
from aggregator.config.encodings import check_downlink, update_encodings
from aggregator.config.parent_binding import check_parent
from aggregator.config.rule_binding import bound_rule
from aggregator.config.schedule import Schedule
from aggregator.config.schedule_binding import config_schedule
from aggregator.config.sections import AdmissionSection, AggregatorConfig
from aggregator.graph.factory import bind as bind_graph
from aggregator.methods import METHODS, Course, Rounds, Setup
from aggregator.methods.analytic.settings import Analytic
from aggregator.methods.analytic.settings import fault_of as statistic_problem
from aggregator.methods.base.rate_stages import in_stages, takes_stages
from aggregator.methods.base.types import BoundGraph
from aggregator.methods.split.pfgl import KINDS
from aggregator.store.row_file import pending_rows
from aggregator.store.state_codec import flatten
from edge_sdk.app.settings import SettingsError, refuse_renamed, seconds
from edge_sdk.wire.contract.analytic import STATISTIC, statistic_layout
from edge_sdk.wire.contract.manifest import Manifest, ManifestError
from edge_sdk.wire.contract.method import CONTRACTS, Ask, Half, Update, answered, answers
from edge_sdk.wire.contract.parameter_layout import ParamSpec
from edge_sdk.wire.keys import KeyFileError
from edge_sdk.wire.plugin_registry import known_names
from edge_sdk.wire.protocol.admission_policy import Limits
from edge_sdk.wire.protocol.codec import pack_leaves
from edge_sdk.wire.root_keys import RootKeys, read_root
from edge_sdk.wire.schema import SchemaError, build


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
        schedule: When rounds begin.
    """

    config: AggregatorConfig
    bundle: ModelBundle
    spec: ParamSpec
    half: Half[Any]
    ask: Ask
    rounds: Rounds
    limits: Limits
    schedule: Schedule = field(default_factory=Schedule)

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
        prefixes = self.config.run.shared
        return self.bundle.manifest.shared if prefixes is None else prefixes

    def first_state(self) -> Course:
        """Return the initial state of the server half, from the bundle's initial vector."""
        state: Course = self.half.init(self.spec.shared(self.bundle.initial))
        return state


def bind(config: AggregatorConfig, rows: Path | None = None) -> BoundRun:
    """Bind the names in a configuration to objects, and check values against each other.

    Args:
        config: The configuration.
        rows: Folder for the file with a round's updates; that of the state if left out.

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
    check_downlink(config)
    spec, rounds = _spec(config, bundle), _rounds(config)
    rule = bound_rule(config, rounds)
    try:
        graph = _graph(config, bundle)
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
    except SchemaError as error:  # incompatible values
        raise SettingsError(f"{config.file.name}: {error}") from error
    if setup.graph is not None:
        _check_quota(config, settings.turns.uplink(settings.steps, setup.graph.shape))
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
    check_parent(config, rounds.enough)
    return bound


def answer_size(manifest: Manifest, spec: ParamSpec, ask: Ask) -> int:
    """Return the number of scalars of an answer."""
    if not ask.has_statistic or manifest.analytic is None:
        return spec.shared_size
    outputs = math.prod(manifest.forecast_shape)
    return statistic_layout(outputs, manifest.analytic.width).size


def _check_retention(run: BoundRun) -> None:
    """Check that retained vectors cover a restart: a state and an open round's updates."""
    bound, config = run.config.retention.vector_bytes, run.config
    state = len(pack_leaves(flatten(run.first_state())))
    needed = 2 * (state + 4 * run.limits.size * config.run.quorum)
    if bound < needed:
        why = f"expected at least {needed} (two rounds and their states), got {bound}"
        raise _wrong(config, "retention.vector_bytes", why)


def root_of(config: AggregatorConfig) -> RootKeys:
    """Return the root's public keys.

    Raises:
        SettingsError: The file is missing or contains no key.
    """
    try:
        return read_root(config.root_public)
    except KeyFileError as error:
        raise SettingsError(
            f"{config.file.name}: keys.root: {error}",
            hint=f"create the fleet's keys: gridfed-aggregator init {config.file}",
        ) from error


def _open(config: AggregatorConfig) -> ModelBundle:
    trusted = archive_keys(config)
    try:
        if "@" in config.run.bundle:
            return registry_of(config).resolve(config.run.bundle)
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
    section, activation = config.run.graph, bundle.manifest.activation
    has_turns = any(ask.perishable for ask in CONTRACTS[config.run.method].values())
    if section is None or activation is None:
        return None
    if not has_turns:
        raise SchemaError(
            "run.graph", f"none: method {config.run.method!r} has no graph", "a graph"
        )
    kinds = KINDS.get(config.run.method, (section.kind,))
    if section.kind not in kinds:
        expected = f"{' or '.join(kinds)} for method {config.run.method!r}"
        raise SchemaError("run.graph.kind", expected, repr(section.kind))
    bound = bind_graph(section, activation, config.file.parent)
    return BoundGraph(bound.model, activation, bound.places)


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
    """Refuse values beyond the bundle's signed limits."""
    limits = bundle.manifest.training.limits
    for key, name in _LIMITED.items():
        set_to = getattr(settings, key, None)
        values = set_to.values() if isinstance(set_to, Mapping) else [set_to or 0.0]
        if (value := max(values, default=0.0)) > limits[name]:
            raise _wrong(
                config,
                f"run.settings.{key}",
                f"{value:g} is above {limits[name]:g}, the limit of bundle "
                f"{bundle.manifest.name!r} (training.max_{name})",
                hint="lower it, or export a bundle with a higher limit",
            )


def _check_stages(config: AggregatorConfig, bundle: ModelBundle) -> None:
    """Refuse stages that the method ignores, and rates set twice or beyond the limit."""
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
    except SchemaError as error:
        raise SettingsError(f"{config.file.name}: {error}") from error


def _max_norm(admission: AdmissionSection) -> float:
    """Return the norm limit; ``auto`` is the clipping bound, or infinity without one."""
    return np.inf if admission.max_norm == "auto" else admission.max_norm


def _wrong(config: AggregatorConfig, key: str, why: str, *, hint: str = "") -> SettingsError:
    return SettingsError(f"{config.file.name}: {key}: {why}", hint=hint)


def _list(names: Any) -> str:  # noqa: ANN401 - any iterable of names
    return ", ".join(sorted(names))
