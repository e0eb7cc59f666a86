"""Progress reads well on a terminal and in a log."""

from __future__ import annotations

import io
import logging
import re

import pytest

from edge_sdk.app.cli import fields
from firmware_sim.fleet.federation import Progress, free_port, read
from firmware_sim.reports.progress_display import LiveDisplay, PlainDisplay, cells

NOW = Progress(4, 3, 40, 0.0123, 8, 7, 12_000, 9_000, {"LATE": 2, "QUOTA": 1}, 2.5)


def test_refusals_are_shown_with_their_reasons():
    assert cells("run", "learning", NOW)[6] == "3 (LATE 2, QUOTA 1)"


def test_plain_lines_are_printed_on_change_only():
    out = io.StringIO()
    shown = PlainDisplay(out, every=3600)
    with shown:
        for state in ("learning", "learning", "learning", "done", "done"):
            shown.update("PL-FL", state, NOW)
    lines = out.getvalue().splitlines()
    assert [line.split(";")[0] for line in lines] == ["PL-FL: learning", "PL-FL: done"]
    assert "devices 7 of 8" in lines[0]


def test_a_warning_of_eighty_devices_is_printed_once_with_its_count():
    out, logger = io.StringIO(), logging.getLogger("edge_sdk.training.active_run")
    with PlainDisplay(out):
        for device in range(80):
            logger.warning("parameters restored %s", fields(why=f"device {device} = worse"))
        logger.warning("link down")
    logger.warning("after the display")
    assert out.getvalue().splitlines() == [
        'parameters restored why="device 0 = worse"',
        "link down",
        "parameters restored: 80 times in all",
    ]


def test_the_live_table_has_a_row_per_run():
    console = pytest.importorskip("rich.console").Console(
        file=io.StringIO(), force_terminal=True, width=140
    )
    with LiveDisplay(console) as shown:
        shown.update("PL-FL", "learning", NOW)
        shown.update("local", "done", NOW)
        shown.note("a note")
    text = console.file.getvalue()
    assert "PL-FL" in text
    assert "local" in text
    assert "a note" in text


def test_progress_of_an_aggregator_without_devices_is_zero():
    now = read({"run": {}, "devices": {"enrolled": 8}}, "", rounds=5)
    assert (now.seen, now.present, now.loss, now.is_done) == (0, 0, None, False)


def test_free_ports_are_consecutive():
    port = free_port(2)
    assert 1024 <= port < 65_535


def test_a_computation_shows_how_long_it_still_takes():
    out = io.StringIO()
    with PlainDisplay(out, every=0.0) as shown:
        for done in (1, 2, 3):
            shown.advance("1 h ahead, PL-FL", done, 3)
    first, second, third = out.getvalue().splitlines()
    assert (first, third) == ("1 h ahead, PL-FL: 1 of 3", "1 h ahead, PL-FL: 3 of 3")
    assert re.fullmatch(r"1 h ahead, PL-FL: 2 of 3, .*\d s left", second)
