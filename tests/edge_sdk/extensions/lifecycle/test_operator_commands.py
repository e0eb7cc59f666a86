"""Commands of the operator: each is executed once, receipted, and kept across a restart."""

from __future__ import annotations

import pytest

from edge_sdk.errors import ConfigError, Refused
from edge_sdk.extensions.lifecycle.operator_commands import CommandLog
from edge_sdk.protocol import messages as m
from edge_sdk.store.store import DeviceStore
from tests.edge_sdk.conftest import signed_command
from tests.edge_sdk.test_client import W0


def test_a_command_is_new_repeated_or_superseded(fleet):
    fleet.device.start()
    fleet.run()
    codes = []
    for number, op in ((5, "report"), (5, "report"), (5, "hello"), (4, "stop")):
        fleet.server.answer(m.CommandMessage(num=number, op=op))
        fleet.run()
        codes.append([receipt.code for receipt in fleet.server.receipts])
    assert codes == [[0], [0, 0], [0, 0], [0, 0]]
    assert fleet.server.counts["refusal"] == 2
    assert not fleet.device.client.why_stopped


def test_a_number_far_ahead_is_refused(tmp_path):
    with DeviceStore.open(tmp_path) as store:
        log = CommandLog(store)
        log.add(5, b"a" * 16, 0)
        log.refuse_leap(m.COMMAND_LEAP + 5, issued=5)
        with pytest.raises(Refused, match="FROM_FUTURE"):
            log.refuse_leap(m.COMMAND_LEAP + 6, issued=5)


def test_a_stop_command_is_executed_receipted_and_survives_a_restart(fleet):
    fleet.device.start()
    fleet.device.observe()
    fleet.run()
    fleet.server.answer(m.CommandMessage(num=1, op="stop"))
    fleet.server.open_round(0, 0, W0)
    fleet.run()
    assert [(r.life, r.seq, r.code) for r in fleet.server.receipts] == [(0, 1, 0)]
    fleet.device.kill()
    fleet.device.start()
    fleet.run(30, seconds=0.5)
    assert fleet.server.updates == []
    fleet.server.answer(m.CommandMessage(num=2, op="resume"))
    fleet.run(30, seconds=0.5)
    assert len(fleet.server.updates) == 1


def test_an_unknown_command_is_refused_with_a_reason(fleet):
    fleet.device.start()
    fleet.run()
    fleet.server.answer(m.CommandMessage(num=1, op="reboot"))
    fleet.run()
    assert fleet.server.receipts[0].code == 81


def test_a_key_that_is_shared_by_participations_is_not_replaced(fleet):
    fleet.device.start()
    fleet.device.client.identity.is_shared = True
    fleet.run()
    fleet.server.answer(signed_command(1, "reenrol"))
    fleet.run()
    assert fleet.server.receipts[0].code == 81


def test_a_device_that_is_to_be_wiped_sends_its_receipt_and_no_update_ever_after(fleet):
    fleet.device.start()
    fleet.device.observe()
    fleet.run()
    fleet.server.answer(signed_command(1, "wipe"))
    fleet.run()
    assert [(r.seq, r.code) for r in fleet.server.receipts] == [(1, 0)]
    assert fleet.device.client.is_wipe_ordered
    fleet.server.answer(m.CommandMessage(num=2, op="resume"))
    fleet.server.open_round(0, 0, W0)
    fleet.run(30, seconds=0.5)
    assert fleet.server.receipts[-1].code == 81  # nothing resumes it
    assert fleet.server.updates == []
    fleet.device.kill()
    with pytest.raises(ConfigError, match="wiped"):
        fleet.device.start()
