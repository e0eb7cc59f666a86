"""A daemon forecasts its feeders when sums were opened, in a process of its own, and shows them."""

from __future__ import annotations

import time

import pytest

from aggregator.config import AggregatorConfig
from aggregator.extensions.feeder.feeder import FeederBook
from tests.fleet.test_sums import Feeders

pytestmark = [pytest.mark.extension, pytest.mark.timeout(600)]


@pytest.mark.slow
def test_a_daemon_forecasts_its_feeders_when_their_sums_were_opened(world, tmp_path, capsys):
    feeders = Feeders(world, tmp_path, capsys)
    text = feeders.world.config.read_text()
    feeders.world.config.write_text(f"{text}\n[feeder]\nforecast = true\n")
    feeders.start()
    feeders.hours(26)
    assert feeders.open("--least", "3") == 0
    book = FeederBook.of(AggregatorConfig.load(feeders.world.config))
    end = time.monotonic() + 300
    while len(list(book.all())) < 2 and time.monotonic() < end:
        feeders.clock.now += 5
        feeders.turns(2)
        time.sleep(0.1)
    assert [one.feeder for one in book.all()] == ["F0", "F1"]
    assert {one.yesterday.members for one in book.all()} == {6}
