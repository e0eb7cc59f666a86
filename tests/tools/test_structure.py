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
    assert found["aggregator.config"] == len(config.RENAMED)


def test_private_words_are_counted_by_the_word():
    assert structure.private_words(["nobody foretold it"]) == 3333
    assert structure.private_words([]) == 0
