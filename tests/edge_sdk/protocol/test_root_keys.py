"""The root in a file: one key, or several of which a number has to sign."""

from __future__ import annotations

import pytest

from edge_sdk.protocol import keys
from edge_sdk.protocol.root_keys import RootKeys, parse_root, read_root

KEYS = [keys.from_seed(bytes([n]) * 32).public for n in range(9)]


def test_one_key_in_a_file_or_in_the_configuration_is_a_root_of_one(tmp_path):
    keys.save_public(tmp_path / "root.pub", KEYS[0])
    assert read_root(tmp_path / "root.pub") == read_root(KEYS[0].hex()) == RootKeys((KEYS[0],))
    assert RootKeys((KEYS[0],)).text == (tmp_path / "root.pub").read_text()


def test_several_keys_are_written_and_read_with_their_threshold():
    root = RootKeys(tuple(KEYS[:3]), 2)
    assert root.text.startswith("2 of 3\n")
    assert parse_root(root.text.strip(), "root.pub") == root


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "64 hex digits"),
        ("2 of 3\n" + KEYS[0].hex(), "expected 3 keys, got 1"),
        (KEYS[0].hex() + "\n" + KEYS[1].hex(), 'expected "N of 2"'),
        (f"2 of 2\n{KEYS[0].hex()}\n{KEYS[0].hex()}", "listed twice"),
        (f"3 of 2\n{KEYS[0].hex()}\n{KEYS[1].hex()}", "threshold from 1 to 2"),
        ("1 of 1\n" + bytes(32).hex(), "small order"),
        ("0 of 1\n" + KEYS[0].hex(), "64 hex digits"),
    ],
)
def test_a_root_that_nobody_or_anybody_could_sign_for_is_refused(text, says):
    with pytest.raises(keys.KeyFileError, match=says):
        parse_root(text, "root.pub")


def test_more_than_eight_keys_are_refused():
    with pytest.raises(ValueError, match="1 to 8 keys"):
        RootKeys(tuple(KEYS), 2)
