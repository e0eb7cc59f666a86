"""Build a rule from its name and parameters, with the fewest rows that it accepts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, get_type_hints

import numpy as np

from aggregator.rules.parameters import Faulty, Shares, uniform
from aggregator.rules.rows import Memory, Rows, RuleVerdict, TooFewRows
from edge_sdk.app.extensions import known_names
from edge_sdk.app.schema import SchemaError, build

NOTHING: Memory = MappingProxyType({})  # memory of a rule before its first round
DRAWS = "draws"  # memory of a rule with random draws: the number of verdicts so far
Settings = Any  # a frozen dataclass made of a function's keyword-only arguments


class UnknownRuleError(ValueError):
    """A rule or parameter that does not exist, is missing, or is out of range.

    Attributes:
        key: Dotted key in the rule's table: ``name``, ``f``, ``preaggregation[0].size``.
        why: Reason of the refusal.
    """

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key
        self.why = why


class Rule(Protocol):
    """Map rows, shares and memory to a verdict. The same rows always give the same bits."""

    def __call__(self, rows: Rows, shares: Shares, memory: Memory = NOTHING, /) -> RuleVerdict:
        """Return a verdict, or raise ``TooFewRows`` and leave the memory as it is."""


class RuleSpec(NamedTuple):
    """A rule, and the bounds of its configuration."""

    function: Callable[..., RuleVerdict]
    # returns the fewest rows that its settings (with ``f``) accept
    least: Callable[[Settings], int] = lambda _settings: 1
    withstands: bool = True  # true if the rule bounds the effect of Byzantine clients
    compares_pairs: bool = False  # true if it holds a number for every pair of rows
    reads_blocks: bool = False  # true if it takes rows that are in a file; others receive an array


class PreaggregationSpec(NamedTuple):
    """A pre-aggregation, and the bounds of its configuration."""

    function: Callable[..., Rows]  # the pure function; returns rows
    # returns the fewest rows, from its settings and the rows that the next step needs
    least: Callable[[Settings, int], int] = lambda _settings, needed: needed
    withstands: bool = False  # true if a mean of its rows bounds the effect of Byzantine clients
    compares_pairs: bool = False  # true if it holds a number for every pair of rows
    rows_after: Callable[[Settings, int], int] = lambda _settings, before: before


@dataclass(frozen=True)
class BoundRule:
    """A rule with its parameters and its pre-aggregations."""

    name: str
    entry: RuleSpec
    settings: Settings  # parameters of the rule, and ``f``
    # pre-aggregations in order, each with its parameters
    preaggregation: tuple[tuple[PreaggregationSpec, Settings], ...] = ()

    @property
    def f(self) -> int:
        """Return the number of rows that may be Byzantine."""
        return int(self.settings.f)

    @property
    def withstands(self) -> bool:
        """Return True if one Byzantine client cannot move the result without bound."""
        return self.entry.withstands or any(step.withstands for step, _ in self.preaggregation)

    @property
    def least(self) -> int:
        needed = max(self.entry.least(self.settings), 2 * self.f + 1)
        for step, settings in reversed(self.preaggregation):
            needed = step.least(settings, needed)
        return needed

    def compared(self, count: int) -> int:
        """Return the largest number of rows compared in pairs, by the number of updates.

        >>> from aggregator.rules import bind
        >>> [bind(name, f=1).compared(100) for name in ("krum", "median")]
        [100, 0]
        >>> bind("krum", f=1, preaggregation=[{"name": "bucketing", "size": 10}]).compared(100)
        10
        """
        found = 0
        for step, settings in self.preaggregation:
            found = max(found, count * step.compares_pairs)
            count = step.rows_after(settings, count)
        return max(found, count * self.entry.compares_pairs)

    def tolerated(self, count: int) -> int:
        """Return the largest ``f`` that this rule accepts, by the number of updates.

        >>> from aggregator.rules import bind
        >>> bind("krum", f=1).tolerated(100_000)
        49998
        >>> bind("krum", f=1, preaggregation=[{"name": "bucketing", "size": 50}]).tolerated(100_000)
        998
        """
        low, high = -1, count
        while low < high:
            f = (low + high + 1) // 2
            fits = replace(self, settings=replace(self.settings, f=f)).least <= count
            low, high = (f, high) if fits else (low, f - 1)
        return max(low, 0)

    def __call__(self, rows: Rows, shares: Shares, memory: Memory = NOTHING, /) -> RuleVerdict:
        """Return the verdict on rows; raise TooFewRows below ``least``, or without the trusted client's row."""
        if len(rows) < self.least:
            raise TooFewRows(self.least, len(rows))
        if not self.entry.reads_blocks:
            rows = rows.in_memory()
        draw = int(memory[DRAWS]) if DRAWS in memory else 0
        mixed = self._mixed(rows, draw)
        has_shares = not self.f and len(mixed) == len(rows)  # else no claimed share counts
        counted = shares if has_shares else uniform(len(mixed))
        given = {"rows": mixed, "shares": counted, "memory": memory}
        verdict: RuleVerdict = _called(self.entry.function, given, self.settings)
        kept = verdict.memory
        if any("draw" in _parameters(step.function) for step, _ in self.preaggregation):
            kept = {**kept, DRAWS: np.array(draw + 1)}
        return replace(verdict, dropped={**rows.refused, **verdict.dropped}, memory=kept)

    def _mixed(self, rows: Rows, draw: int) -> Rows:
        root = getattr(self.settings, "root", None)
        if self.preaggregation and root in rows.ids:
            rows = rows.without(root)  # the trusted row is the reference and is not mixed
        for step, settings in self.preaggregation:
            rows = _called(step.function, {"rows": rows, "draw": draw, "f": self.f}, settings)
        return rows


def bound(
    rules: Mapping[str, RuleSpec],
    steps: Mapping[str, PreaggregationSpec],
    name: str,
    parameters: Mapping[str, Any],
) -> BoundRule:
    """Return the named rule with its parameters filled in.

    Args:
        parameters: Its parameters, ``f``, and ``preaggregation``: names, or tables with a ``name``.

    Raises:
        UnknownRuleError: A key does not fit; the error names it.
    """
    entry = _found(rules, "name", "rule", name)
    settings = _read(_settings(entry.function, is_rule=True), parameters, "")
    tables = [_table(i, one) for i, one in enumerate(settings.preaggregation)]
    found = [
        _found(steps, f"preaggregation[{i}]", "pre-aggregation", table.pop("name"))
        for i, table in enumerate(tables)
    ]
    steps_bound = tuple(
        (step, _read(_settings(step.function), table, f"preaggregation[{i}]"))
        for i, (step, table) in enumerate(zip(found, tables, strict=True))
    )
    return BoundRule(name, entry, settings, steps_bound)


def _found(table: Mapping[str, Any], key: str, kind: str, name: object) -> Any:  # noqa: ANN401
    if name not in table:
        raise UnknownRuleError(key, f"unknown {kind} {name!r}; known: {known_names(table)}")
    return table[str(name)]


def _table(number: int, entry: object) -> dict[str, Any]:
    if isinstance(entry, str):
        return {"name": entry}
    if isinstance(entry, Mapping) and "name" in entry:
        return dict(entry)
    raise UnknownRuleError(
        f"preaggregation[{number}]", f"expected a name or a table with one, got {entry!r}"
    )


def _read(cls: type[Any], values: Mapping[str, Any], where: str) -> Settings:
    try:
        return build(cls, values, where=where)
    except SchemaError as misfit:
        why = str(misfit).removeprefix(f"{misfit.path}: ")
        raise UnknownRuleError(misfit.path, why) from misfit


@cache
def _settings(function: Callable[..., Any], *, is_rule: bool = False) -> type[Any]:
    """Return a dataclass of a function's keyword-only arguments, ``f`` and (a rule) ``preaggregation``."""
    hints = get_type_hints(function, include_extras=True)
    asked = [p for p in _parameters(function).values() if p.kind is p.KEYWORD_ONLY]
    fields: list[Any] = [
        (p.name, hints[p.name])
        if p.default is p.empty
        else (p.name, hints[p.name], field(default=p.default))
        for p in asked
        if p.name != "f"
    ]
    if is_rule:
        needs_f = any(p.name == "f" and p.default is p.empty for p in asked)
        fields.insert(0, ("f", Faulty) if needs_f else ("f", Faulty, field(default=0)))
        fields.append(("preaggregation", tuple[Any, ...], field(default=())))
    return make_dataclass(function.__name__, fields, frozen=True, kw_only=True)


@cache
def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def _called(function: Callable[..., Any], given: Mapping[str, Any], settings: Settings) -> Any:  # noqa: ANN401 - a verdict, or rows
    return function(
        **{
            name: given[name] if name in given else getattr(settings, name)
            for name in _parameters(function)
        }
    )
