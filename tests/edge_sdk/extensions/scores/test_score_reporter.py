"""Answers about scores on the device: drawn once a day, charged before they are sent, also across kills."""

from __future__ import annotations

import json
import os
import random
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from edge_sdk.extensions.choice.model_monitor import DailyScores, ModelMonitor
from edge_sdk.extensions.choice.saved_selection import SELECTION, SavedSelection, save
from edge_sdk.extensions.scores.local_histogram import LocalHistogram
from edge_sdk.extensions.scores.score_reporter import POINT, SENDS, ScoreReporter
from edge_sdk.extensions.scores.section import ScoresSection
from edge_sdk.privacy.ledger import PrivacyLimit

DAY = 86_400_000
NOON = 20_415 * DAY + DAY // 2


class Session:
    """The part of a session that a reporter uses; what it sends is in a file."""

    outbox = SimpleNamespace(welcome=SimpleNamespace(caps=("scores",)))
    participation = SimpleNamespace(is_held=False)

    def __init__(self, log, now=NOON):
        self.log, self.at = log, now
        self.connection = SimpleNamespace(linked_at=1.0)
        self.may_request, self.counted, self.die = True, [], ""
        self.time = SimpleNamespace(now=lambda: self.at)

    @property
    def now(self):
        return self.at / 1000

    def count(self, name):
        self.counted.append(name)

    def send(self, answer):
        if self.die == "before the send":
            os.kill(os.getpid(), signal.SIGKILL)
        with self.log.open("a") as file:
            print(json.dumps([answer.day, answer.blob.hex()]), file=file)
        if self.die == "after the send":
            os.kill(os.getpid(), signal.SIGKILL)
        return True


def begun(client, session, *, seed=None, monitor=None, **section):
    sections = {"scores": ScoresSection(report=True, **section)}
    if monitor is not None:
        save(client._store, client.learner, SELECTION, SavedSelection(monitor=monitor).leaves())
    device = SimpleNamespace(
        config=replace(client.config, extensions=sections),
        store=client._store,
        session=session,
        active=client._active,
    )
    return ScoreReporter(device, None if seed is None else random.Random(seed))


def sent(path):
    return (
        [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
    )


def lines(client):
    return [charge for charge in client._store.ledger() if charge.point == POINT]


def test_one_answer_a_day_is_drawn_saved_and_sent_once_for_each_link(make, tmp_path):
    client, session = make().device.start(), Session(tmp_path / "log")
    one = begun(client, session, seed=1)
    for _ in range(3):
        one.on_tick()
    assert len(sent(session.log)) == len(lines(client)) == 1
    for link in range(2, 9):
        session.connection.linked_at = float(link)
        one.on_tick()
    assert len(sent(session.log)) == SENDS
    session.at += DAY
    one.on_tick()
    assert len(lines(client)) == 2
    assert {day for day, _ in sent(session.log)} == {20_415, 20_416}
    session.at -= 2 * DAY  # a clock that went back draws nothing
    one.on_tick()
    assert len(lines(client)) == 2


def test_no_answer_is_drawn_without_a_clock_or_an_aggregator_that_collects(make, tmp_path):
    client, session = make().device.start(), Session(tmp_path / "log")
    session.may_request = False
    begun(client, session).on_tick()
    session.may_request = True
    session.outbox = SimpleNamespace(welcome=SimpleNamespace(caps=()))
    begun(client, session).on_tick()
    session.outbox = Session.outbox
    session.time = SimpleNamespace(now=lambda: None)
    begun(client, session).on_tick()
    assert not lines(client)
    assert not sent(session.log)


def test_the_budget_of_the_answers_ends_them(make, tmp_path, caplog):
    client, session = make().device.start(), Session(tmp_path / "log")
    one = begun(client, session, epsilon=0.5, budget=1.2)
    for _ in range(4):
        one.on_tick()
        session.at += DAY
    assert len(lines(client)) == len(sent(session.log)) == 2
    assert {charge.mechanism for charge in lines(client)} == {"unary"}
    assert one.status()["scores"] == {"answered": 20_416, "epsilon": 1.0, "allowed": 1.2}
    assert "score not reported" in caplog.text
    again = begun(client, session, epsilon=0.5, budget=1.2)  # after a restart, too
    again.on_tick()
    assert len(lines(client)) == 2


def test_answers_count_in_the_account_of_the_device_and_stop_at_its_limit(make, tmp_path):
    client, session = make().device.start(), Session(tmp_path / "log")
    accountant = client._active.accountant
    accountant.adopt_account(
        replace(accountant.account, limit=PrivacyLimit("device", epsilon=2.5, delta=1e-5))
    )
    one = begun(client, session)
    for _ in range(4):
        one.on_tick()
        session.at += DAY
    assert len(lines(client)) == 2
    assert accountant.account.epsilon() == pytest.approx(2.0)


def test_the_answer_is_about_the_newest_complete_days(make, tmp_path):
    days = np.arange(20_407, 20_416)
    sums = np.stack([np.full(9, 0.95), np.ones(9), np.ones(9)], 1)
    sums[-1, 0] = 9.0  # today, which is not complete
    sums[0, 0] = 9.0  # more than 7 days ago
    scores = DailyScores(days, sums, np.ones((9, 3), np.int64))
    client, session = make().device.start(), Session(tmp_path / "log")
    one = begun(client, session, epsilon=10.0, seed=7, monitor=ModelMonitor(scores))
    one.on_tick()
    ((_, blob),) = sent(session.log)
    assert LocalHistogram.best(8, 10.0).supported(bytes.fromhex(blob)) == (4,)  # 0.9 to 1


@pytest.mark.slow
def test_a_kill_at_any_point_leads_to_no_second_draw_of_an_answer_that_left(
    make, tmp_path, monkeypatch
):
    """Every life is a process that is killed; what left is in a log, and every day has one answer."""
    fleet, log = make(), tmp_path / "log"
    points = ("in the transaction", "before the send", "after the send", "after the send", "")
    for day in range(6):
        for life, point in enumerate(points):
            child = os.fork()
            if not child:
                status = 1
                try:
                    client, session = fleet.device.start(), Session(log, NOON + day * DAY)
                    session.die = point
                    if point == "in the transaction":
                        monkeypatch.setattr(
                            "edge_sdk.store.store.write_charges",
                            lambda *_: os.kill(os.getpid(), signal.SIGKILL),
                        )
                    begun(client, session).on_tick()
                    status = 0
                finally:
                    os._exit(status)
            _, status = os.waitpid(child, 0)
            is_drawn_before = life > 0 and point == "in the transaction"
            expected = signal.SIGKILL if point and not is_drawn_before else 0
            assert os.waitstatus_to_exitcode(status) == -expected
    found = sent(log)
    assert len(found) == 3 * 6, (
        "two kills after the send, and the last life, send each day's answer"
    )
    assert len(set(found)) == 6, "the same bytes each time"
    charges = lines(fleet.device.start())
    drawn = [charge for charge in charges if charge.mechanism != "unrecorded"]
    assert len(drawn) == 6, "and one charge for each"
    assert len(charges) <= 12, "and at most one more for a kill between the count and the ledger"
