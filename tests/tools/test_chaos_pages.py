"""Storms side by side: the table says what the reports say."""

from __future__ import annotations

import json

import pytest

from aggregator.extensions.audit.recompute import Audit
from edge_sdk.errors import Reason
from tools.chaos.delivery_audit import DeliveryVerdict
from tools.chaos.report import Event, Outcome
from tools.chaos.several import main


@pytest.fixture
def storm(tmp_path):
    def left(seed, **changes):
        events = [
            Event("kill -9 of the broker", 1.0, 1, "broker", 3, 4.0),
            Event("kill -9 of the broker", 9.0, 1, "broker", 3, 8.0),
            Event("backup under load", 20.0, 1, "backup", 9, None),
        ]
        told = DeliveryVerdict(sent=12, receipted=9, applied=9, refused={int(Reason.TOO_STALE): 3})
        out = Outcome(5, seed, 60.0, events=events, verdict=told, audit=Audit(rounds=7), **changes)
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "report.json").write_text(json.dumps(out.data(), default=str))
        return str(folder)

    return left


def test_every_storm_has_its_column(storm, capsys):
    assert main([storm(1), storm(2)]) == 0
    told = capsys.readouterr().out
    assert "|  | seed 1 | seed 2 |" in told
    assert "| updates sent | 12 | 12 |" in told
    assert "| refused for good, with a receipt | `TOO_STALE` 3 | `TOO_STALE` 3 |" in told
    assert "| kill -9 of the broker | 2: 6.0, 8.0 | 2: 6.0, 8.0 |" in told
    assert "| backup under load | 1 | 1 |" in told


def test_one_that_found_something_is_not_hidden(storm, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- storms -->\nold\n<!-- /storms -->\nafter\n")
    assert main([storm(1), storm(2, broken=["the backup: malformed"]), "--docs", str(page)]) == 1
    told = page.read_text()
    assert told.startswith("before\n")
    assert told.endswith("after\n")
    assert "old" not in told
    assert "| history check | passes | **fails** |" in told
    assert "\n## Results of several runs" in told
