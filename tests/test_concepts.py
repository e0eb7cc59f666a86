"""docs/concepts.md and docs/architecture.md name files and definitions that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONCEPTS = (ROOT / "docs" / "concepts.md").read_text("utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
ROWS = re.findall(r"^\| ([^|]+) \| `([^`]+)` \| `([^`]+)` \|$", CONCEPTS, re.MULTILINE)

FACTS = [
    ("late", "edge_sdk/wire/protocol/admission_policy.py"),
    ("noise of input", "edge_sdk/privacy/input_noise.py"),
    ("deadline", "aggregator/methods/base/round_machine.py"),
    ("clone", "aggregator/ingress/clone_detector.py"),
    ("chunks", "edge_sdk/wire/protocol/outbox.py"),
    ("rate limit", "aggregator/ingress/rate_limits.py"),
    ("privacy budget", "edge_sdk/privacy/ledger.py"),
    ("conformal", "edge_sdk/forecasting/conformal.py"),
    ("staleness", "aggregator/methods/asynchronous/staleness.py"),
    ("Krum", "aggregator/rules/krum.py"),
]
"""What a newcomer looks for, and where it is: one search of the index finds the file."""


def test_the_index_has_a_row_for_many_terms():
    assert len(ROWS) >= 45


@pytest.mark.parametrize(("term", "file", "name"), ROWS)
def test_a_concept_is_where_the_index_says(term, file, name):
    text = (ROOT / file).read_text("utf-8")
    assert re.search(rf"^(?:class |def |    def |){re.escape(name)}\b", text, re.MULTILINE), term


@pytest.mark.parametrize(("words", "file"), FACTS)
def test_one_search_of_the_index_finds_the_file(words, file):
    found = [row[1] for row in ROWS if words.lower() in row[0].lower()]
    assert found == [file]


def test_every_file_of_the_architecture_page_exists():
    named = re.findall(r"`((?:edge_sdk|aggregator|firmware_sim)/[\w/]+\.py)`", ARCHITECTURE)
    assert len(named) >= 30
    assert [name for name in named if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize(
    ("program", "page_row"), [("edge_sdk", "edge_sdk"), ("aggregator", "aggregator")]
)
def test_every_package_of_a_program_is_on_the_architecture_page(program, page_row):
    folders = {path.parent.name for path in (ROOT / program).glob("*/__init__.py")}
    assert [name for name in sorted(folders) if f"`{name}/`" not in ARCHITECTURE] == []
