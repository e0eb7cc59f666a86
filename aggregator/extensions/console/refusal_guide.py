"""Meaning and remedy of every refusal, for an operator.

The console shows them; docs/operating.md has the same rows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import NamedTuple

from edge_sdk.errors import Reason


class RefusalAdvice(NamedTuple):
    """Meaning of a reason, and its remedy."""

    meaning: str
    remedy: str


# advice by reason; every reason but ``ACCEPTED`` has one
ADVICE: Mapping[Reason, RefusalAdvice] = MappingProxyType(
    {
        Reason[name]: RefusalAdvice(row["meaning"], row["remedy"])
        for row in tomllib.loads(files(__package__).joinpath("refusals.toml").read_text("utf-8"))[
            "refusal"
        ]
        for name in row["reasons"]
    }
)
