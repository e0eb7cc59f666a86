"""The check of a device compares what it has stored with its machine."""

from __future__ import annotations

from edge_sdk.app.clock import DAY
from edge_sdk.extensions.setup.check import compare_clocks


def test_check_reports_unusable_stored_values_with_a_remedy():
    now = 1_800_000_000_000
    assert "0 days behind" in compare_clocks(now, now)
    told = compare_clocks(now + 40 * DAY, now)
    assert "40 days ahead: one of them is wrong" in told
    assert "its next welcome corrects the stored time" in told
