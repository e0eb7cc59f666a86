"""A defect of the device's own: one message or round is passed over, the device goes on."""

import logging
from collections import Counter

import numpy as np
import pytest

from edge_sdk.protocol import messages as m
from edge_sdk.session import signed_link
from edge_sdk.session.agenda import COUNT, MOST, SetAside
from edge_sdk.session.task_inbox import TaskInbox
from edge_sdk.store.store import DeviceStore

W0 = np.array([0.1, 0.2, 0.3, 0.4], np.float32)


@pytest.fixture
def planted(monkeypatch):
    """Counts how often a planted defect was met."""

    class Planted:
        calls = 0

        def into(self, owner, name, is_poison):
            real = getattr(owner, name)

            def stumbling(*args, **kwargs):
                if is_poison(*args, **kwargs):
                    self.calls += 1
                    raise ZeroDivisionError("a planted defect")
                return real(*args, **kwargs)

            monkeypatch.setattr(owner, name, stumbling)

    return Planted()


def counts(fleet):
    return fleet.device.client.status()["counts"]


def test_a_round_that_meets_a_defect_is_not_learned_again_and_the_next_one_is(
    fleet, planted, caplog
):
    fleet.device.start()
    fleet.device.observe()
    learner = type(fleet.device.client.learner)
    planted.into(learner, "learn", lambda _self, _state, task: task.round == 0)
    fleet.server.open_round(0, 0, W0)  # retained: it comes again at every connect
    fleet.run()
    assert planted.calls == 1
    assert counts(fleet)[COUNT] == 1
    assert 'internal error what=task run=1 error="a planted defect"' in caplog.text
    assert fleet.server.updates == []
    fleet.device.kill()
    fleet.device.start()
    fleet.run()
    assert planted.calls == 1
    fleet.server.open_round(1, 0, W0)
    fleet.run()
    assert [update.round for update in fleet.server.updates] == [1]


def test_a_message_that_meets_a_defect_is_passed_over_also_after_a_restart(fleet, planted, caplog):
    fleet.device.start()
    fleet.device.observe()
    planted.into(TaskInbox, "receive_model", lambda _self, said, **_: said.round == 0)
    fleet.server.open_round(0, 0, W0)
    fleet.run()
    assert 'internal error what=model run=1 error="a planted defect"' in caplog.text
    fleet.device.kill()
    fleet.device.start()
    fleet.run()
    assert planted.calls == 1
    assert counts(fleet)["passed over"] >= 1
    fleet.server.open_round(1, 0, W0)
    fleet.run()
    assert [update.round for update in fleet.server.updates] == [1]


def test_a_message_that_cannot_even_be_read_is_acknowledged_and_counted(
    fleet, planted, caplog, monkeypatch
):
    fleet.device.start()
    fleet.device.observe()
    planted.into(signed_link, "decode", lambda cls, _body, **_: cls in ("model", m.ModelMessage))
    fleet.server.open_round(0, 0, W0)
    with caplog.at_level(logging.ERROR):
        fleet.run()
        fleet.device.kill()
        fleet.device.start()
        fleet.run()
    assert planted.calls >= 2  # it is retained
    assert counts(fleet)["arrived INTERNAL"] >= 1
    monkeypatch.undo()
    fleet.server.open_round(1, 0, W0)
    fleet.run()
    assert [update.round for update in fleet.server.updates] == [1]


def test_only_the_newest_are_remembered_and_each_is_written_once(tmp_path):
    with DeviceStore.open(tmp_path) as store:
        kept = SetAside(store, counts := Counter())
        for number in range(MOST + 6):
            for _ in range(2):
                kept.add("task", bytes([number]) * 32, ValueError("no"), run=1)
        again = SetAside(store, counts)
        assert [again.holds(bytes([n]) * 32) for n in (5, 6, MOST + 5)] == [False, True, True]
        assert counts[COUNT] == 2 * (MOST + 6)
        assert len(store.paper("set aside")) == 32 * MOST
