"""Commands that destroy: the root's statement, what the owner allows, and the table of the threat model."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from edge_sdk.app.settings import SettingsError
from edge_sdk.errors import Reason
from edge_sdk.protocol import keys
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.root_keys import RootKeys
from edge_sdk.protocol.statements import COMMANDS, command_statement
from tests.edge_sdk.conftest import (
    AGG_KEY,
    DEVICE,
    DEVICE_KEY,
    FLEET,
    ROOT_KEY,
    device_config,
    sign_statement,
    signed_command,
)

UNTIL = 2_000_000_000_000  # the clock of the tests says 1.8e12
OTHER = keys.from_seed(b"o" * 32)
THREE = tuple(keys.from_seed(bytes([n]) * 32) for n in (1, 2, 3))
DESTROY = [op for op, needs_root in COMMANDS.items() if needs_root]


STATEMENTS = [
    ({}, None, UNTIL, "ROOT_REQUIRED"),  # the everyday key alone
    ({}, (AGG_KEY,), UNTIL, "ROOT_REQUIRED"),
    ({}, (OTHER,), UNTIL, "ROOT_REQUIRED"),
    ({"device": "meter-2"}, (ROOT_KEY,), UNTIL, "ROOT_REQUIRED"),
    ({"fleet": "south"}, (ROOT_KEY,), UNTIL, "ROOT_REQUIRED"),
    ({"public": OTHER.public}, (ROOT_KEY,), UNTIL, "ROOT_REQUIRED"),  # it has another key now
    ({"op": "stop"}, (ROOT_KEY,), UNTIL, "ROOT_REQUIRED"),
    ({"until": UNTIL + 1}, (ROOT_KEY,), UNTIL, "ROOT_REQUIRED"),
    ({"until": 0}, (ROOT_KEY,), None, "ROOT_REQUIRED"),  # without an end
    ({}, (ROOT_KEY,), 1_700_000_000_000, "LATE"),
    ({}, (ROOT_KEY,), UNTIL, "ACCEPTED"),
]
"""What the statement names instead of this device, who signs it, until when, and the verdict."""


def why(client, command):
    """Return what the session of a client makes of a command, without a link."""
    return (client._session.arrivals.follower("command")._why_not(command) or Reason.ACCEPTED).name


def is_hurt(client):
    return client.is_wipe_ordered or client.identity.replacement.step > 0


@pytest.mark.parametrize(
    "op",
    [pytest.param(op, marks=pytest.mark.extension) if op == "reenrol" else op for op in DESTROY],
)
def test_nothing_destroys_without_the_roots_statement_to_this_device(fleet, op):
    client = fleet.device.start()
    fleet.run(10)  # the time of the welcome
    given = {"fleet": FLEET, "device": DEVICE, "public": DEVICE_KEY.public, "op": op}
    for named, signers, until, code in STATEMENTS:
        statement = command_statement(**given | {"until": until or 0} | named)
        root = b"" if signers is None else sign_statement(statement, signers)
        assert why(client, m.CommandMessage(1, op, {}, until, root)) == code, (named, until)
    fleet.server.answer(m.CommandMessage(1, op))
    fleet.run(10)
    assert not is_hurt(client)
    fleet.server.answer(signed_command(2, op))
    fleet.run(10)
    assert is_hurt(client)
    assert [receipt.code for receipt in fleet.server.receipts] == [Reason.ROOT_REQUIRED, 0]


@pytest.mark.parametrize(
    ("signers", "code"), [(THREE[:1], "ROOT_REQUIRED"), (THREE[1:], "ACCEPTED")]
)
def test_a_root_of_several_keys_signs_with_as_many_as_its_threshold(make, signers, code):
    fleet = make("three")
    root = RootKeys(tuple(key.public for key in THREE), 2)
    fleet.device.config.keys.root.write_text(root.text)
    client = fleet.device.start()
    assert why(client, signed_command(1, "wipe", signers=signers)) == code


def test_a_statement_is_used_up_by_the_key_that_it_replaces(fleet):
    """A thief who repeats a signed wipe under a new number reaches nobody: it names the former key."""
    client = fleet.device.start()
    fleet.run(10)
    captured = signed_command(1, "wipe")
    assert why(client, captured) == "ACCEPTED"
    client.identity.use(OTHER)  # as after wipe and enrol, or a replacement
    assert why(client, replace(captured, num=2)) == "ROOT_REQUIRED"


def test_the_owner_switches_commands_off(make):
    for off in ((), DESTROY, COMMANDS):
        allowed = [name for name in COMMANDS if name not in off]
        client = make(f"off-{len(off)}", operator={"commands": allowed}).device.start()
        verdicts = {op: why(client, signed_command(1, op)) for op in COMMANDS}
        assert [op for op in COMMANDS if verdicts[op] == "DECLINED_BY_OWNER"] == list(off)


def test_an_unknown_command_in_the_configuration_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"operator.*unknown 'reboot'; known: stop, resume"):
        device_config(tmp_path, operator={"commands": ["reboot"]})


def test_the_threat_model_lists_every_command_with_who_signs_it():
    text = Path("docs/threat-model.md").read_text("utf-8").partition("## Commands to a device")[2]
    rows = re.findall(
        r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", text.partition("\n## ")[0], re.MULTILINE
    )
    assert {op: "root" in signer for op, signer, _ in rows} == dict(COMMANDS)
    assert all(len(worst) > 20 for _, _, worst in rows)
