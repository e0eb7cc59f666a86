"""The rules by name. A new rule is one function and one line here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.rules.robust import mean
from aggregator.rules.rows import Rows, TooFewRows, Verdict

__all__ = ["RULES", "Rows", "Rule", "TooFewRows", "UnknownRuleError", "Verdict", "bind"]

Rule = Callable[[Rows, NDArray[np.float64]], Verdict]
"""Rows and shares to a verdict, or ``TooFewRows``. The same rows always give the same bits."""

RULES: Mapping[str, Callable[..., Verdict]] = MappingProxyType({"mean": mean})
"""Every rule by the name a configuration uses; its parameters are its keyword-only arguments."""


class UnknownRuleError(ValueError):
    """A rule, or a parameter of one, that does not exist or is missing."""


def bind(name: str, /, **parameters: Any) -> Rule:  # noqa: ANN401 - each rule has its own
    """Return the named rule with its parameters filled in.

    Raises:
        UnknownRuleError: An unknown name, an unknown parameter, or one that is missing; the
            message names the known ones.

    Example:
        >>> bind("meen")
        Traceback (most recent call last):
        aggregator.rules.UnknownRuleError: unknown rule 'meen'; known: mean
        >>> bind("mean", f=1)
        Traceback (most recent call last):
        aggregator.rules.UnknownRuleError: rule 'mean': unknown parameter 'f'; known: none
    """
    if name not in RULES:
        raise UnknownRuleError(f"unknown rule {name!r}; known: {', '.join(sorted(RULES))}")
    known = {
        p.name: p.default is inspect.Parameter.empty
        for p in inspect.signature(RULES[name]).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    }
    listed = ", ".join(known) or "none"
    for given in parameters:
        if given not in known:
            raise UnknownRuleError(f"rule {name!r}: unknown parameter {given!r}; known: {listed}")
    missing = [given for given, required in known.items() if required and given not in parameters]
    if missing:
        raise UnknownRuleError(f"rule {name!r}: missing parameter {missing[0]!r}")
    return partial(RULES[name], **parameters)
