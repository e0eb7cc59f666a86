"""List every field that a device sends, its information and its protection, as docs/privacy.md does.

The table of that page and this one are equal: tests/aggregator/extensions/data_sheet/test_data_sheet.py
compares them, and tests/edge_sdk/privacy/test_sent.py compares the page with the messages themselves.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class SentFields:
    """Some fields of a message from a device."""

    kind: str
    fields: tuple[str, ...]
    reveals: str  # what they reveal
    covered_by: str  # ``mechanism``, ``public``, ``process``, ``opt-in`` or ``own noise``


SENT = tuple(
    SentFields(row["kind"], tuple(row["fields"]), row["reveals"], row["covered_by"])
    for row in tomllib.loads(files(__package__).joinpath("sent_fields.toml").read_text("utf-8"))[
        "sent"
    ]
)
"""Every field of every message from a device."""
