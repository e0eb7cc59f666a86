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
    ("late", "aggregator/ingress/admission_policy.py", "Reason.LATE"),
    ("noise of input", "edge_sdk/extensions/noise_points/input_noise.py", "add_noised"),
    ("deadline", "aggregator/methods/base/round_machine.py", "deadline"),
    ("clone", "aggregator/ingress/update_admission.py", "CloneDetector"),
    ("chunks", "edge_sdk/protocol/outbox.py", "SendChunk"),
    ("rate limit", "aggregator/ingress/rate_limits.py", "TokenBuckets"),
    ("privacy budget", "edge_sdk/privacy/ledger.py", "BudgetSpent"),
    ("conformal", "edge_sdk/extensions/intervals/conformal.py", "CoverageTarget"),
    ("staleness", "aggregator/methods/asynchronous.py", "polynomial"),
    ("Krum", "aggregator/rules/krum.py", "def krum"),
]
"""What a newcomer looks for, the file that one search of the index finds, and what it holds."""


def test_the_index_has_a_row_for_many_terms():
    assert len(ROWS) >= 45


def defines(file: str, name: str) -> bool:
    """Return whether a file of the repository defines a class, function or constant."""
    path = ROOT / file
    if not path.is_file():
        return False
    definition = rf"^(?:class |def |    def |){re.escape(name)}\b"
    return re.search(definition, path.read_text("utf-8"), re.MULTILINE) is not None


@pytest.mark.parametrize(("term", "file", "name"), ROWS)
def test_a_concept_is_where_the_index_says(term, file, name):
    assert defines(file, name), term


def test_a_wrong_entry_would_be_found():
    file, name = "edge_sdk/privacy/ledger.py", "PrivacyAccount"
    assert defines(file, name)
    assert not defines("edge_sdk/privacy/no_such_file.py", name)
    assert not defines("edge_sdk/privacy/__init__.py", name)
    assert not defines(file, "PrivacyAccoun")


def test_every_line_of_the_index_is_a_row_that_is_checked():
    table = [line for line in CONCEPTS.splitlines() if line.startswith("|")]
    assert len(table) == len(ROWS) + 2, "a title and a rule, and nothing that the pattern skips"


def test_no_term_is_listed_twice():
    terms = [term for term, _, _ in ROWS]
    assert len(set(terms)) == len(terms)


@pytest.mark.parametrize(("words", "file", "content"), FACTS)
def test_one_search_of_the_index_finds_the_file(words, file, content):
    found = [row[1] for row in ROWS if words.lower() in row[0].lower()]
    assert found == [file]
    assert content in (ROOT / file).read_text("utf-8")


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


PAGES = sorted((ROOT / "docs").glob("**/*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem[:60])
def test_every_test_that_a_page_names_exists(page):
    named = re.findall(r"tests/[\w/]+\.py", page.read_text("utf-8"))
    assert [one for one in named if not (ROOT / one).is_file()] == []


def test_the_threat_model_names_a_defence_and_a_remaining_risk_for_each_attack():
    page = (ROOT / "docs" / "threat-model.md").read_text("utf-8")
    table = page.split("## Attacks and defences")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) >= 25
    assert all(len(row) == 3 and all(cell.strip() for cell in row) for row in rows)
