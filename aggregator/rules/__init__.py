"""Registry of aggregation rules. A new rule is one function and one line here.

A rule is a pure function over rows. Its arguments name the further inputs that it needs
(``shares``, its ``memory``); its keyword-only arguments are the parameters of a configuration,
checked against their annotations. Pre-aggregations are alike, and return rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from aggregator.rules.centred_clipping import centred_clipping
from aggregator.rules.coordinatewise import mean, median, trimmed_mean
from aggregator.rules.factory import (
    NOTHING,
    BoundRule,
    PreaggregationSpec,
    Rule,
    RuleSpec,
    UnknownRuleError,
    bound,
)
from aggregator.rules.krum import bulyan, krum, multi_krum
from aggregator.rules.preaggregation import arc, bucketing, nnm, norm_clipping
from aggregator.rules.rows import Memory, Rows, RuleVerdict, TooFewRows
from edge_sdk.app.extensions import ExtensionIndex, PluginRegistry, instance_of

__all__ = [
    "BEFORE",
    "NOTHING",
    "RULES",
    "BoundRule",
    "Memory",
    "Rows",
    "Rule",
    "RuleVerdict",
    "TooFewRows",
    "UnknownRuleError",
    "bind",
]

# entry-point group of other packages' rules: the configured name, and a ``RuleSpec``
GROUP = "gridfed.rules"
_blocks = partial(RuleSpec, reads_blocks=True)
_pairs = partial(_blocks, compares_pairs=True)

# every rule by its configured name, and the fewest rows it takes
RULES: PluginRegistry[RuleSpec] = PluginRegistry(
    {
        "mean": _blocks(mean, withstands=False),
        "median": _blocks(median),
        "trimmed_mean": _blocks(trimmed_mean, lambda s: 2 * max(s.f, s.b or 0) + 1),
        "krum": _pairs(krum, lambda s: 2 * s.f + 3),
        "multi_krum": _pairs(multi_krum, lambda s: max(2 * s.f + 3, s.f + (s.m or 1))),
        "bulyan": _pairs(bulyan, lambda s: 4 * s.f + 3),
        "centred_clipping": _blocks(centred_clipping),
    },
    GROUP,
    instance_of(RuleSpec),
    ExtensionIndex("aggregator").loaders("rules"),
)

# every pre-aggregation by name, and the rows it needs to leave enough
BEFORE: Mapping[str, PreaggregationSpec] = MappingProxyType(
    {
        "nnm": PreaggregationSpec(nnm, compares_pairs=True),
        "bucketing": PreaggregationSpec(
            bucketing,
            lambda s, needed: s.size * (needed - 1) + 1,
            rows_after=lambda s, before: -(-before // s.size),
        ),
        "arc": PreaggregationSpec(arc, withstands=True),
        "norm_clipping": PreaggregationSpec(norm_clipping, withstands=True),
    }
)


def bind(name: str, /, **parameters: Any) -> BoundRule:  # noqa: ANN401 - each rule has its own
    """Return the named rule with its parameters filled in.

    Args:
        name: A key of ``RULES``.
        **parameters: The rule's keyword-only arguments; ``f``, the number of Byzantine rows;
            ``preaggregation``, a list of keys of ``BEFORE`` or of tables with ``name`` and its arguments.

    Raises:
        UnknownRuleError: A name or parameter is unknown, missing or out of range.

    >>> bind("krumm")
    Traceback (most recent call last):
    aggregator.rules.factory.UnknownRuleError: name: unknown rule 'krumm'; known: ...
    >>> bind("krum", f=1, trim=2)
    Traceback (most recent call last):
    aggregator.rules.factory.UnknownRuleError: trim: unknown key; known: f, preaggregation
    >>> bind("krum", f=2, preaggregation=["nnm", {"name": "bucketing", "size": 2}]).least
    13
    """
    return bound(RULES, BEFORE, name, parameters)
