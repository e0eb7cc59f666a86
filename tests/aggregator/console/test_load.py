"""Sign-in attempts over HTTP: limited, the attacked name locked, others not, memory flat. Figures of many: docs."""

import pytest

from tools.console_load import sign_ins

pytestmark = pytest.mark.slow


def test_attempts_are_limited_lock_the_name_and_take_no_memory():
    found = sign_ins(600)
    assert found["statuses"] == {"403": 10, "429": 590}, "five for alice, five for unknown names"
    assert found["another user signs in"]
    assert found["the attacked user is locked"]
    grown = found["resident bytes at the end"] - found["resident bytes after a tenth"]
    assert grown < 8_000_000
