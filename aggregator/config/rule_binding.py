"""Bind a run's rule, and check that its rounds and its memory are large enough."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from aggregator.config.sections import AggregatorConfig
from aggregator.methods import Rounds
from aggregator.rules import BoundRule, UnknownRuleError
from aggregator.rules import bind as bind_rule
from edge_sdk.app.settings import SettingsError

PAIR_BYTES = 64
"""Bytes that a rule takes for a pair of rows: at most eight matrices in float64."""


def bound_rule(config: AggregatorConfig, rounds: Rounds) -> BoundRule:
    """Return the rule of a run, checked against its rounds and its memory.

    Raises:
        SettingsError: A value is refused; the message names the file and the key.
    """
    table = dict(config.run.rule)
    name = table.pop("name", None)
    if not isinstance(name, str):
        raise _wrong(config, "run.rule.name", "missing")
    try:
        rule = bind_rule(name, **table)
    except UnknownRuleError as error:
        raise _wrong(config, f"run.rule.{error.key}", error.why) from error
    _check_faulty(config, rule, rounds)
    _check_pairs(config, rule, rounds)
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


def _check_pairs(config: AggregatorConfig, rule: BoundRule, rounds: Rounds) -> None:
    """Check that a rule with a number for every pair of updates fits into the run's memory."""
    memory = config.run.rule_memory_mb
    rows = rule.compared(rounds.quorum)
    most = math.isqrt(memory * 1_000_000 // PAIR_BYTES)
    if rows <= most:
        return
    size = -(-rounds.quorum // most)
    names = [one if isinstance(one, str) else one.get("name") for one in _steps(config)]
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
    raise _wrong(config, "run.rule.name", why, hint=hint)


def _steps(config: AggregatorConfig) -> list[Any]:
    return list(config.run.rule.get("preaggregation", ()))


def _wrong(config: AggregatorConfig, key: str, why: str, *, hint: str = "") -> SettingsError:
    return SettingsError(f"{config.file.name}: {key}: {why}", hint=hint)
