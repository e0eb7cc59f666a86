"""The counts of the product's structure are within their bounds, and count what they name."""

from __future__ import annotations

from aggregator import config
from tools import structure


def test_the_bounds_hold():
    found = structure.counts(structure.read())
    assert set(structure.BOUNDS) <= set(found)
    assert {
        name: found[name] for name, most in structure.BOUNDS.items() if found[name] > most
    } == {}


def test_every_renamed_key_is_counted():
    found = structure.renamed_keys(structure.read())
    assert set(found) == set(structure.CONFIGURATIONS)
    assert found["aggregator.config.sections"] == len(config.RENAMED)


def test_private_words_are_counted_by_the_word():
    assert structure.private_words(["nobody foretold it"]) == 3333
    assert structure.private_words([]) == 0


def test_a_block_that_a_tool_writes_is_not_a_page_written_by_hand(tmp_path):
    (tmp_path / "docs").mkdir()
    page = "Plain.\n<!-- e13 -->\nnobody lies\n<!-- /e13 -->\nWritten."
    (tmp_path / "docs" / "rules.md").write_text(page)
    (tmp_path / "docs" / "configuration.md").write_text("a key")
    written, generated = structure.read_pages(tmp_path)
    assert written == ("Plain.\n\nWritten.",)
    assert generated == ("<!-- e13 -->\nnobody lies\n<!-- /e13 -->", "a key")
