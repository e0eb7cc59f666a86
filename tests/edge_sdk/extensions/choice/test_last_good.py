"""After an alarm a device returns to the fleet's model of the last day on which it was good."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.extensions.choice.combination import LAST_GOOD
from edge_sdk.extensions.choice.last_good import after_day
from edge_sdk.extensions.choice.model_monitor import DailyScores
from edge_sdk.extensions.choice.saved_selection import GOOD_MODEL
from edge_sdk.forecasting.forecast import FLEET
from tests.edge_sdk.days import BEGUN, DAY, live, observe

STEPS = np.cumsum(
    np.random.default_rng(5).normal(size=2000) * np.where(np.arange(2000) < 240, 1, 0.3)
)
"""A random walk; its range is that of the first ten days, by which the model is scaled."""
GOOD = np.array([0, 0, 0, 1], np.float32)
"""The newest value repeated, which is the best forecast of a random walk."""
BAD = np.array([0, 0, 0, -0.4], np.float32)
"""The range upside down: some ten times the naive error, and not so bad that it is refused at once."""
ALONE = {
    "forecast": {"own_model": False, "trees": False},
    "fine_tuning": {"enabled": False},
}
"""A device whose only other candidates are the seasonal naive forecasts."""


def walk(hour):
    return float(50.0 + STEPS[hour])


def after_good_days(make, name="fleet"):
    fleet = make(name, **ALONE)
    client = fleet.device.start()
    observe(client, 10, value=walk)
    fleet.run()
    client._active.adopt(replace(client.state, p=np.append(GOOD, np.float32(0.0))))
    live(fleet, 10, 10, w=GOOD, value=walk)
    return fleet, client


def vectors(client):
    return client.extension("choice").candidates.good


@pytest.mark.extension
def test_a_device_returns_to_the_last_good_model_two_days_after_a_bad_one(make, caplog):
    caplog.set_level(logging.INFO)
    fleet, client = after_good_days(make)
    assert client.extension("choice").candidates.selection.choice.name == FLEET
    live(fleet, 20, 3, w=BAD, value=walk)  # it arrives at the end of the first of these days
    np.testing.assert_allclose(vectors(client).p[:4], GOOD, atol=1e-6)
    assert client.extension("choice").candidates.selection.choice.name == FLEET
    observe(client, 1, first=23, value=walk)
    client.extension("choice")._compare(
        client.learner.vector(client.state)
    )  # as before any training
    saved = client.extension("choice").candidates.selection
    assert saved.monitor.alarms == 1
    assert saved.choice.name == LAST_GOOD
    told = client.forecast()
    assert told.source == "last good model"
    newest = walk(24 * DAY - 1)
    assert abs(told.values[0] - newest) < 1e-3
    assert told.times[0] == BEGUN + 24 * DAY * 3600
    assert client.status()["forecast"]["served"] == LAST_GOOD
    (line,) = [r.getMessage() for r in caplog.records if "forecast chosen" in r.getMessage()]
    assert 'served="last good"' in line
    assert "before=fleet" in line


@pytest.mark.extension
def test_the_bad_model_never_becomes_the_good_one_and_a_good_one_is_served_again(make):
    fleet, client = after_good_days(make)
    live(fleet, 20, 6, w=BAD, value=walk)
    assert client.extension("choice").candidates.selection.choice.name == LAST_GOOD
    np.testing.assert_allclose(vectors(client).p[:4], GOOD, atol=1e-6)
    assert vectors(client).next is None
    better = GOOD * np.float32(1.0001)
    live(fleet, 26, 12, w=better, value=walk)
    np.testing.assert_allclose(vectors(client).p[:4], better, atol=1e-6)
    assert client.extension("choice").candidates.selection.choice.name in {FLEET, LAST_GOOD}


@pytest.mark.extension
def test_without_an_alarm_the_last_good_model_is_no_candidate(make):
    _, client = after_good_days(make)
    assert vectors(client).p is not None
    assert LAST_GOOD not in client.extension("choice").candidates.selection.choice.errors


@pytest.mark.extension
def test_a_device_whose_model_was_never_good_keeps_none(make):
    fleet = make("fleet", **ALONE)
    client = fleet.device.start()
    observe(client, 14)
    live(fleet, 14, 5)
    assert vectors(client) is None
    assert client._store.paper(GOOD_MODEL) is None


KILLED = """
import os, signal, sys
from pathlib import Path
from edge_sdk import client as client_module
from tests.edge_sdk.conftest import NumpyBundle, make_fleet
from tests.edge_sdk.days import live, observe
from tests.edge_sdk.extensions.choice.test_last_good import ALONE, BAD, GOOD, after_good_days, walk
client_module.open_bundle = lambda _config, _announced: NumpyBundle()
folder, before = Path(sys.argv[1]), int(sys.argv[2])
fleet, client = after_good_days(lambda name, **settings: make_fleet(folder, **settings))
client.flush()
count = [0]
file_paper = client._store.file_paper
def killing(name, data):
    count[0] += 1
    if count[0] == before:
        os.kill(os.getpid(), signal.SIGKILL)
    file_paper(name, data)
client._store.file_paper = killing
live(fleet, 20, 6, w=BAD, value=walk)
print("not killed", count[0], flush=True)
"""


@pytest.mark.slow
def test_killed_at_any_write_it_returns_all_the_same(tmp_path, make):
    """Alarm and choice are one record: no kill leaves the one without the other."""
    root, ends = Path(__file__).parents[4], set()
    for number in range(1, 60, 3):
        folder = tmp_path / f"killed-{number}"
        ended = subprocess.run(
            [sys.executable, "-c", KILLED, str(folder), str(number)],
            capture_output=True,
            text=True,
            check=False,
            cwd=root,
            timeout=300,
        )
        if ended.returncode == 0:
            break
        assert ended.returncode == -9, ended.stderr
        fleet = make(folder.name, **ALONE)
        client = fleet.device.start()
        saved = client.extension("choice").candidates.selection
        assert (saved.choice.name == LAST_GOOD) == (saved.monitor.alarms > 0)
        day = int(client.learner.series.newest - BEGUN // 3600) // DAY + 1
        if (kept := vectors(client)) is not None and kept.p is not None:
            np.testing.assert_allclose(kept.p[:4], GOOD, atol=1e-6)
        is_bad = client.learner.vector(client.state)[3] < 0.0
        for later in range(day, 30):  # days without a round
            observe(client, 1, first=later, value=walk)
            fleet.clock.at += 100.0
            fleet.run(3)
        served = client.extension("choice").candidates.selection.choice.name
        assert served == (LAST_GOOD if is_bad else FLEET)
        ends |= {saved.choice.name, served}
        client.close()
    assert ends == {FLEET, LAST_GOOD}


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 2)), max_size=20))
def test_a_model_is_good_only_after_a_good_day_of_its_own(found):
    """The vector of an end of day is kept if that day and the next known one, its successor, were good."""
    last, day, days, wanted = None, 100, [], None
    for is_good, gap in found:
        day += gap
        days.append((day, is_good))
        number = len(days)
        sums = np.array([[1.0, 0.5 if good else 2.0, 1.0] for _, good in days])
        numbers = np.array([one for one, _ in days])
        scores = DailyScores(numbers, sums, np.ones((number, 3), np.int64))
        last = after_day(last, scores, day + 1, np.full(1, day, np.float32))
        if number > 1 and is_good and days[-2][1] and gap == 1:
            wanted = day - 1
        assert (None if last is None or last.p is None else int(last.p[0])) == wanted
        again = after_day(last, scores, day + 1, np.full(1, -1.0, np.float32))
        assert again is last  # killed before the scores were saved: the day is looked at once
