"""`gridfed-edge rotate`: a device's key is replaced over EST or by hand; a kill at any step is repeated."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aggregator.authority.record import opened
from edge_sdk.commands.main import main
from edge_sdk.wire.keys import from_seed, load_device_key, save_public, verify
from edge_sdk.wire.link.certificate_request import certificate_request, new_tls_key
from edge_sdk.wire.protocol.enrolment_statement import enrolment_statement
from tests.aggregator.authority.est import Device, made_authority, password_of, serving

REPO = Path(__file__).parents[3]
ROOT = from_seed(bytes(range(32))).public.hex()

CONFIG = """
id = "meter-1"
fleet = "north"
state = "state"
bundle = "load-mlp"
broker = {{ url = "mqtts://localhost", ca_file = "ca.pem", cert_file = "tls.pem", key_file = "tls.pem" }}
keys = {{ device = "meter-1.key", root = "root.pub" }}
privacy = {{ mechanism = {{ name = "none" }} }}
{more}
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "device").mkdir()
    return tmp_path / "device"


def written(place, more=""):
    (place / "meter.toml").write_text(CONFIG.format(more=more))
    return str(place / "meter.toml")


def enrolled(place, folder, server):
    config = written(place, f'[ca]\nurl = "{server.url}"\n')
    word = password_of(folder, "meter-1", until=datetime.now(UTC).replace(year=2999))
    assert main(["enrol", config, "--otp", word, "--ca", str(folder / "ca.pem")]) == 0
    return config, load_device_key(place / "meter-1.key").public


def identity(folder):
    with opened(folder) as record:
        return record.member("meter-1").identity


def test_over_est_the_new_key_is_a_member_and_the_former_one_renews_nothing(tmp_path, place):
    folder, members = made_authority(tmp_path / "ca", datetime.now(UTC)), []
    with serving(folder, deliver=members.extend, root=ROOT) as server:
        config, former = enrolled(place, folder, server)
        old_key, old_tls = (place / "meter-1.key").read_bytes(), (place / "tls.pem").read_bytes()
        assert main(["rotate", config]) == 0
        present = load_device_key(place / "meter-1.key").public
        assert former != present == identity(folder)
        assert (place / "tls.pem").read_bytes() != old_tls
        assert not (place / "meter-1.key.next").exists()
        assert (place / "meter-1.pub").read_text().strip() == present.hex()
        assert main(["enrol", config, "--renew"]) == 0
        (place / "meter-1.key").write_bytes(old_key)
        assert main(["enrol", config, "--renew"]) != 0
    assert [one.identity for one in members] == [former, present]  # the aggregator receives both


KILLED = """
import os, signal, sys

at, seen, is_armed = int(sys.argv[1]), 0, False


def step(event, args):
    global seen
    changes = event in ("os.rename", "os.remove") or (
        event == "open" and isinstance(args[2], int) and args[2] & os.O_CREAT
    )
    if is_armed and changes:
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)


from edge_sdk.commands.main import main
import edge_sdk.commands.rotate
sys.addaudithook(step)
is_armed = True
sys.exit(main(["rotate", sys.argv[2]]))
"""


@pytest.mark.slow
def test_a_kill_at_any_step_is_completed_by_the_same_command(tmp_path, place):
    folder = made_authority(tmp_path / "ca", datetime.now(UTC))
    with serving(folder, root=ROOT) as server:
        config, _ = enrolled(place, folder, server)
        at, killed = 1, 0
        while True:
            words = [sys.executable, "-c", KILLED, str(at), config]
            ended = subprocess.run(words, check=False, cwd=REPO, capture_output=True, timeout=120)
            if ended.returncode == 0:
                break
            assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
            killed += 1
            # either the key in place is the member's, or the next one is, and it is on the disk
            known = [place / "meter-1.key", place / "meter-1.key.next"]
            assert identity(folder) in [
                load_device_key(one).public for one in known if one.exists()
            ]
            assert main(["rotate", config]) == 0
            assert identity(folder) == load_device_key(place / "meter-1.key").public
            assert main(["enrol", config, "--renew"]) == 0
            at += 2
    assert killed > 3


def test_by_hand_the_line_is_enrolled_before_the_key_is_put_in_place(place, capsys):
    config = written(place)
    save_public(place / "root.pub", from_seed(bytes(32)).public)
    assert main(["enrol", config]) == 0
    former = (place / "meter-1.key").read_bytes()
    assert main(["rotate", config, "--finish"]) == 2
    assert "no new key waits" in capsys.readouterr().err
    assert main(["rotate", config]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    device, public, proof = line.split(",")
    signed = enrolment_statement("north", device, bytes.fromhex(public))
    assert verify(bytes.fromhex(public), bytes.fromhex(proof), signed)
    assert (place / "meter-1.key").read_bytes() == former
    assert main(["rotate", config]) == 0  # the same line again
    assert capsys.readouterr().out.splitlines()[-1] == line
    assert main(["rotate", config, "--finish"]) == 0
    assert load_device_key(place / "meter-1.key").public.hex() == public


def test_a_key_that_another_key_has_named_is_refused(tmp_path):
    """A thief without the present identity key cannot name a successor; nor can another member."""
    from aggregator.authority import enrolment  # noqa: PLC0415 - only here
    from aggregator.authority.folder import opened_authority  # noqa: PLC0415 - only here

    now = datetime.now(UTC)
    folder = made_authority(tmp_path / "ca", now)
    owner, other, thief = Device("meter-1"), Device("meter-2"), Device("meter-1")

    def ask(act, device, shown=None, former=None):
        with opened_authority(folder, b"") as (authority, record):
            asked = enrolment.EnrolmentAuthority(
                record, authority, enrolment.EnrolmentPolicy("north")
            )
            der = certificate_request(
                new_tls_key(), "north", device.name, device.identity, former=former
            )
            return getattr(asked, act)(der, shown or enrolment.Credentials(), now)

    for one in (owner, other):
        word = password_of(folder, one.name, until=now.replace(year=2999))
        ask("enrol", one, enrolment.Credentials(one.name, word))
    for former in (thief.identity, other.identity, None):
        with pytest.raises(enrolment.RefusedError, match="foreign identity"):
            ask("renew", thief, former=former)
    twin = Device("meter-1")
    twin.identity = other.identity
    with pytest.raises(enrolment.RefusedError, match="identity in use"):
        ask("renew", twin, former=owner.identity)
    successor = Device("meter-1")
    assert ask("renew", successor, former=owner.identity)
    assert identity(folder) == successor.identity.public
    with opened(folder) as record:
        acts = [one for one in record.acts() if one.act == "replace identity"]
    assert [one.subject for one in acts] == ["meter-1"]
    with pytest.raises(enrolment.RefusedError, match="foreign identity"):
        ask("renew", owner)
