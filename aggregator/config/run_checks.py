"""Bind a run's rule and encodings, and check its values against its rounds, its memory and its bundle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from aggregator.bundles import BundleFileError, ModelBundle, open_bundle, shipped
from aggregator.config.sections import AggregatorConfig
from aggregator.methods import METHODS, Rounds
from aggregator.methods.base.wrappers import takes_stages
from aggregator.rules import BoundRule, UnknownRuleError
from aggregator.rules import bind as bind_rule
from edge_sdk.app.extensions import ExtensionIndex, known_names
from edge_sdk.app.settings import SettingsError
from edge_sdk.protocol.contract.manifest import STATISTIC
from edge_sdk.protocol.contract.method import CONTRACTS, Ask
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

PAIR_BYTES = 64  # bytes that a rule takes for a pair of rows: at most eight matrices in float64


def bound_rule(
    config: AggregatorConfig, rounds: Rounds, spec: ParamSpec, rule_rows: int = 0
) -> BoundRule:
    """Return the rule of a run, checked against its rounds and its memory.

    Args:
        spec: Layout of a row.
        rule_rows: Fewest rows that the method gives to the rule; 0 if they are a round's updates.

    Raises:
        SettingsError: A value is refused; the message names the file and the key.
    """
    table = dict(config.run.rule)
    name, scope = table.pop("name", None), table.pop("scope", "model")
    if not isinstance(name, str):
        raise wrong(config, "run.rule.name", "missing")
    try:
        rule = bind_rule(name, **table)
    except UnknownRuleError as error:
        raise wrong(config, f"run.rule.{error.key}", error.why) from error
    _check_faulty(config, rule, rounds, rule_rows)
    _check_pairs(config, rule, rounds)
    if scope == "model":
        return rule
    if scope not in (scopes := ExtensionIndex("aggregator").loaders("scopes")):
        why = f"unknown {scope!r}; known: model, {known_names(scopes)}"
        raise wrong(config, "run.rule.scope", why)
    scoped: BoundRule = scopes[scope]()(config, rule, spec)
    return scoped


def _check_faulty(config: AggregatorConfig, rule: BoundRule, rounds: Rounds, own: int) -> None:
    """Check that the rule tolerates ``f`` Byzantine updates, and that they set no weights."""
    f, rows = rule.f, own or rounds.enough
    where = "(run.settings.min_rows)" if own else "(run.quorum, run.min_updates)"
    if f and not rule.withstands:
        why = f"{rule.name!r} tolerates no Byzantine update; use another rule, or norm_clipping before it"
        raise wrong(config, "run.rule.f", why)
    if f and rows <= 2 * f:
        why = f"{f} Byzantine updates need a round of more than {2 * f}, it may have {rows} {where}"
        raise wrong(config, "run.rule.f", why)
    alone = replace(rule, preaggregation=())
    for key, least in (("f" if f else "name", alone.least), ("preaggregation", rule.least)):
        if rows < least:
            why = f"{rule.name!r} needs at least {least} updates, a round may have {rows} {where}"
            raise wrong(config, f"run.rule.{key}", why)
    if f and rounds.weighting == "samples":
        why = "with f > 0 expected 'uniform': a Byzantine device chooses its own sample count"
        raise wrong(config, "run.weighting", why)


def _check_pairs(config: AggregatorConfig, rule: BoundRule, rounds: Rounds) -> None:
    memory = config.run.rule_memory_mb
    rows = rule.compared(rounds.quorum)
    most = math.isqrt(memory * 1_000_000 // PAIR_BYTES)
    if rows <= most:
        return
    size = -(-rounds.quorum // most)
    steps = config.run.rule.get("preaggregation", ())
    names = [one if isinstance(one, str) else one.get("name") for one in steps]
    whose = rule.name if rule.entry.compares_pairs else "nnm"
    why = (
        f"{whose!r} compares all pairs of {rows} updates (run.quorum), which takes "
        f"{PAIR_BYTES * rows**2 // 1_000_000} MB of run.rule_memory_mb = {memory}"
    )
    hint = "raise run.rule_memory_mb, or choose a rule without pairs, such as trimmed_mean"
    if "bucketing" not in names:
        hint += (
            f'; or put {{ name = "bucketing", size = {size} }} first into preaggregation: the '
            "rule then compares the means of groups, and each Byzantine update spoils one"
        )
    raise wrong(config, "run.rule.name", why, hint=hint)


def wrong(config: AggregatorConfig, key: str, why: str, *, hint: str = "") -> SettingsError:
    """Return the error for an invalid value, with file and key."""
    return SettingsError(f"{config.file.name}: {key}: {why}", hint=hint)


def check_quota(config: AggregatorConfig, uplink: int) -> None:
    """Refuse a daily quota below the bytes that a device sends in one round."""
    wanted = int(8 * 1.05 * uplink)
    if config.admission.daily_bytes < wanted:
        why = f"expected at least {wanted}: a device sends {uplink} bytes in one round"
        raise wrong(config, "admission.daily_bytes", why)


def check_graphs(config: AggregatorConfig, bundle: ModelBundle, graphs: tuple[str, ...]) -> None:
    """Refuse a bundle without a graph that the method needs."""
    for graph in graphs:
        if graph not in bundle.manifest.functions:
            raise wrong(
                config,
                "run.bundle",
                f"{bundle.manifest.name!r} has no graph {graph!r}, which method "
                f"{config.run.method!r} needs; it has: {', '.join(sorted(bundle.manifest.functions))}",
                hint="use a bundle in closed form, such as load-analytic"
                if graph == STATISTIC
                else f"shipped with it: {', '.join(shipped_with(graph))}; or make one: "
                f"gridfed-aggregator export … --for {config.run.method}",
            )


def shipped_with(graph: str) -> list[str]:
    """Return the shipped bundles that have a graph; those of an absent extension have none.

    >>> "load-mlp" in shipped_with("hvp")
    True
    """
    found = []
    for name in shipped():
        with suppress(BundleFileError):
            if graph in open_bundle(name, folder=Path()).manifest.functions:
                found.append(name)
    return found


# settings that become scalars of a task, each with the name of its limit in a bundle
_LIMITED = {
    "rate": "rate",
    "steps": "steps",
    "first_steps": "steps",
    "prox": "prox",
    "prox_by_device": "prox",
}


def check_limits(config: AggregatorConfig, bundle: ModelBundle, settings: object) -> None:
    """Refuse values beyond the bundle's signed limits."""
    limits = bundle.manifest.training.limits
    for key, name in _LIMITED.items():
        set_to = getattr(settings, key, None)
        values = set_to.values() if isinstance(set_to, Mapping) else [set_to or 0.0]
        if (value := max(values, default=0.0)) > limits[name]:
            raise wrong(
                config,
                f"run.settings.{key}",
                f"{value:g} is above {limits[name]:g}, the limit of bundle "
                f"{bundle.manifest.name!r} (training.max_{name})",
                hint="lower it, or export a bundle with a higher limit",
            )


def check_stages(config: AggregatorConfig, bundle: ModelBundle) -> None:
    """Refuse stages that the method ignores, and rates set twice or beyond the limit."""
    stages, most = config.run.rate_stages, bundle.manifest.training.limits["rate"]
    if not stages:
        return
    if not takes_stages(CONTRACTS[config.run.method]):
        why = f"expected none, for method {config.run.method!r} has no rate of local steps alone"
        raise wrong(config, "run.rate_stages", why)
    if "rate" in config.run.settings:
        raise wrong(
            config,
            "run.settings.rate",
            "expected none beside run.rate_stages, which sets the rate of every round",
            hint="remove one of them",
        )
    for number, (_, rate) in enumerate(stages):
        if rate > most:
            raise wrong(
                config,
                f"run.rate_stages[{number}]",
                f"{rate:g} is above {most:g}, the limit of bundle "
                f"{bundle.manifest.name!r} (training.max_rate)",
                hint="lower it, or export a bundle with a higher limit",
            )


def update_encodings(config: AggregatorConfig, ask: Ask) -> tuple[str, ...]:
    """Return the allowed encodings of updates, the preferred last; raise SettingsError if none can be quantised."""
    wanted = config.run.encoding
    if wanted == "f4":
        return (ask.enc,)
    if not ask.is_quantisable:
        why = (
            f"{wanted!r} does not fit method {config.run.method!r}: only updates that are differences"
            " of weights are quantised; leave it out"
        )
        raise wrong(config, "run.encoding", why)
    return ask.enc, wanted


def check_downlink(config: AggregatorConfig) -> None:
    """Refuse steps of new models where there is no one model that all devices receive."""
    wanted, method = config.run.downlink, config.run.method
    if wanted == "f4" or METHODS[method].is_stepped:
        return
    known = ", ".join(name for name, one in METHODS.items() if one.is_stepped)
    why = (
        f"{wanted!r} does not fit method {method!r}, whose rounds do not move one common model by"
        f" averaging; methods: {known}; leave it out"
    )
    raise wrong(config, "run.downlink", why)
