"""Sign-in attempts over HTTP: limited at each address, nobody shut out elsewhere. Figures of many: docs."""

import pytest

from tools.console_load import sign_ins

pytestmark = pytest.mark.slow


def test_attempts_are_limited_shut_out_nobody_and_take_no_memory():
    found = sign_ins(400)
    wanted = {"403": 160, "429": 240}
    assert found["statuses"] == wanted, "five for alice, five for unknown names, at 16 addresses"
    assert found["another user signs in"]
    assert found["the attacked user signs in from another address"]
    grown = found["resident bytes at the end"] - found["resident bytes after a tenth"]
    assert grown < 8_000_000
