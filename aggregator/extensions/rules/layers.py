"""A rule for every layer on its own: ``scope = "layer"``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np

from aggregator.config.sections import AggregatorConfig
from aggregator.methods import METHODS
from aggregator.rules.blocked_ops import Picks, StoredMatrix, Values
from aggregator.rules.factory import NOTHING, BoundRule
from aggregator.rules.parameters import Shares
from aggregator.rules.rows import Memory, Rows, RuleVerdict
from edge_sdk.app.schema import SchemaError
from edge_sdk.protocol.contract.method import CONTRACTS, answered
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

Columns = tuple[int, int]  # the first column of a layer, and the first after it


@dataclass(frozen=True)
class LayerRule(BoundRule):
    """A rule with its pre-aggregations, applied to the columns of each layer.

    The value is each layer's, one after another. A client's weight is the mean of those in the layers,
    weighted by their numbers of columns, and is left out where a layer has no weights; a client is
    dropped whom every layer drops. Names in the memory begin with the layer's number.
    """

    layers: tuple[Columns, ...] = ()

    def __call__(self, rows: Rows, shares: Shares, memory: Memory = NOTHING, /) -> RuleVerdict:
        """Return the layers' verdict; raise TooFewRows below ``least``."""
        verdicts = [
            super(LayerRule, self).__call__(_cut(rows, span), shares, _part(memory, number))
            for number, span in enumerate(self.layers)
        ]
        widths = np.array([stop - start for start, stop in self.layers], np.float64)
        weighed = [one.weights for one in verdicts if one.weights]
        weights = {
            name: float(widths @ [one[name] for one in weighed] / widths.sum())
            for name in (weighed[0] if len(weighed) == len(verdicts) else ())
        }
        kept = set().union(*(set(rows.ids) - set(one.dropped) for one in verdicts))
        return RuleVerdict(
            np.concatenate([one.value for one in verdicts]),
            weights,
            {name: why for name, why in verdicts[0].dropped.items() if name not in kept},
            memory={
                f"{i}:{x}": of for i, one in enumerate(verdicts) for x, of in one.memory.items()
            },
        )


def by_layer(config: AggregatorConfig, rule: BoundRule, spec: ParamSpec) -> BoundRule:
    """Return a rule over every shared layer; raise SchemaError for a method whose rows have no layers."""
    name = config.run.method
    if METHODS[name].own or answered(CONTRACTS[name])[1].has_statistic:
        why = f"model: method {name!r} gives no differences of layers to the rule"
        raise SchemaError("run.rule.scope", why, "'layer'")
    ends = np.cumsum([0, *(x.size for x in spec.layers if x.name in spec.shared_names)]).tolist()
    spans = tuple(pairwise(ends))
    given = {one.name: getattr(rule, one.name) for one in fields(BoundRule)}
    return LayerRule(**given, layers=spans)


@dataclass(frozen=True, eq=False)
class _LayerMatrix:
    """The columns of one layer of a matrix in a file."""

    whole: StoredMatrix
    span: Columns
    shape: tuple[int, int]
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: tuple[Picks, Picks], /) -> Values:
        rows, columns = key
        if isinstance(columns, slice):
            start, stop, _ = columns.indices(self.shape[1])
            return self.whole[rows, self.span[0] + start : self.span[0] + stop]
        return self.whole[rows, self.span[0] + columns]

    def mapped(self, function: Callable[[Values], Values], count: int) -> Values | StoredMatrix:
        """Return the layer's columns of the mapped matrix."""
        whole = self.whole.mapped(function, count)
        return _columns(whole, self.span)


def _columns(values: Values | StoredMatrix, span: Columns) -> Values | StoredMatrix:
    if isinstance(values, np.ndarray):
        return values[:, slice(*span)]
    return _LayerMatrix(values, span, (len(values), span[1] - span[0]), values.dtype)


def _cut(rows: Rows, span: Columns) -> Rows:
    return replace(rows, values=_columns(rows.values, span))


def _part(memory: Memory, number: int) -> Memory:
    mark = f"{number}:"
    return {key.removeprefix(mark): x for key, x in memory.items() if key.startswith(mark)}
