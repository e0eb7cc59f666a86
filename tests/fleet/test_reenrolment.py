"""An ordered change of the identity key: both keys until the new one is welcomed, under a kill at any step."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aggregator.commands import main as cli
from edge_sdk import Config
from edge_sdk.commands.main import main as edge
from edge_sdk.errors import OK
from edge_sdk.extensions.key_rotation import identity_rotation
from edge_sdk.extensions.key_rotation.identity_rotation import ORDERED, REQUESTED, UNORDERED
from edge_sdk.protocol.keys import (
    generate,
    load_device_key,
    read_device_public,
    save_signing_key,
)
from edge_sdk.session.identity import STEP
from edge_sdk.store.store import DeviceStore


class KilledError(BaseException):
    """The process ends here: nothing of the program catches it."""


class FaultySteps:
    """Ends the process before or after the n-th change of file or step of a replacement."""

    def __init__(self, monkeypatch):
        self.at, self.count, self.is_after = 0, 0, False
        keys = identity_rotation
        monkeypatch.setattr(keys, "save_signing_key", self.faulty(keys.save_signing_key))
        monkeypatch.setattr(keys, "save_public", self.faulty(keys.save_public))
        replace = self.faulty(Path.replace, lambda path, *_: path.name.endswith(".key.next"))
        monkeypatch.setattr(Path, "replace", replace)
        for name in ("set_facts", "file_paper"):
            real = getattr(DeviceStore, name)
            monkeypatch.setattr(
                DeviceStore, name, self.faulty(real, lambda *_, **facts: STEP in facts)
            )

    def faulty(self, real, is_meant=lambda *_, **__: True):
        def call(*args, **more):
            if not is_meant(*args, **more):
                return real(*args, **more)
            self.count += 1
            if self.count == self.at and not self.is_after:
                raise KilledError
            done = real(*args, **more)
            if self.count == self.at:
                raise KilledError
            return done

        return call

    def arm(self, at, *, is_after=False):
        self.at, self.count, self.is_after = at, 0, is_after


def order(one, *words):
    assert cli.main([*words, "--config", str(one.config)]) == OK


def keys_at_aggregator(one, name="home-0"):
    return one.daemon._registry.client(name).sign


def line_of(one, capsys):
    """Return the line of the new key, as the device's own command prints it."""
    capsys.readouterr()
    assert edge(["enrol", str(one.folder / "home-0.toml")]) == OK
    return capsys.readouterr().out.split("\n")[2]


def approve(one, capsys):
    file = one.folder / "approved.csv"
    file.write_text(line_of(one, capsys) + "\n")
    order(one, "enrol", "--from-file", str(file))


def test_the_former_key_works_until_the_operator_approves_the_new_one_and_the_ledger_continues(
    world, capsys, caplog
):
    one = world(devices=2)
    one.start_all()
    one.until(lambda: one.version >= 2)
    client, key_file = one.clients[0], Config.load(one.folder / "home-0.toml").keys.device
    former = client.identity.public
    order(one, "command", "home-0", "reenrol")
    with caplog.at_level("WARNING"):
        one.until(lambda: client.identity.replacement.step == REQUESTED)
    line = line_of(one, capsys)
    assert f"line={line}" in caplog.text
    version = one.version
    one.until(lambda: one.version >= version + 2)  # with both devices: the quorum is 2
    assert client.identity.public == former == load_device_key(key_file).public
    assert keys_at_aggregator(one) == (former,)
    assert edge(["status", str(one.folder / "home-0.toml")]) == OK
    assert f"a new key awaits its first welcome; for gridfed-aggregator enrol: {line}" in (
        capsys.readouterr().out
    )

    before = one.daemon._store.ledgers.get("home-0")
    approve(one, capsys)
    one.until(lambda: keys_at_aggregator(one) not in ((former,), (former, client.identity.public)))
    one.until(lambda: client.identity.replacement.step == UNORDERED)
    version = one.version
    one.until(lambda: one.version >= version + 2)
    new = load_device_key(key_file).public
    assert new.hex() == line.split(",")[1] != former.hex()
    assert client.identity.public == new == read_device_public(key_file.with_suffix(".pub"))
    one.until(lambda: keys_at_aggregator(one) == (new,))
    assert not key_file.with_name("home-0.key.next").exists()
    after = one.daemon._store.ledgers.get("home-0")
    assert after.spent > before.spent > 0
    assert after.top > before.top
    assert one.daemon._registry.client("home-0").generation == 1
    refused = one.daemon._ingress.counts
    assert refused["BAD_SIGNATURE"] == refused["UNKNOWN_CLIENT"] == 0
    one.die(0)
    client = one.start(0)
    version = one.version
    one.until(lambda: one.version >= version + 2)
    assert client.identity.public == new
    assert client.status()["spent"] >= after.spent


@pytest.mark.slow
def test_a_kill_at_any_step_ends_with_the_new_key_and_no_release_is_forgotten(
    world, monkeypatch, capsys
):
    faults, kills, steps = FaultySteps(monkeypatch), 0, set()
    one = world(devices=2, run={"quorum": 1})
    one.start_all()
    one.until(lambda: one.version >= 1)
    assert cli.main(["pause", str(one.config)]) == OK  # what is tested needs no training
    one.until(lambda: one.daemon._engine.is_paused and not one.clients[0]._session.outbox.entries)
    counted = one.daemon._store.ledgers.get("home-0").spent
    for at in range(1, 10):
        for is_after in (False, True):
            one.clock.now += 3600  # the aggregator admits so many messages in an hour
            former = one.clients[0].identity.public
            faults.arm(at, is_after=is_after)
            order(one, "command", "home-0", "reenrol")
            is_approved = False
            for _ in range(1500):
                try:
                    one.turn(0.5)
                except KilledError:
                    kills += 1
                    faults.arm(0)
                    steps.add(one.clients[0]._store.fact(STEP))
                    one.die(0)
                    one.start(0)
                client = one.clients[0]
                if client.identity.replacement.step == REQUESTED and not is_approved:
                    approve(one, capsys)
                    is_approved = True
                if is_approved and keys_at_aggregator(one) == (client.identity.public,) != (
                    former,
                ):
                    break
            else:
                pytest.fail(f"not replaced after a kill at change {at}")
            faults.arm(0)
            assert one.daemon._store.ledgers.get("home-0").spent == counted > 0
            assert one.daemon._registry.client("home-0").generation == 1
    assert cli.main(["resume", str(one.config)]) == OK
    one.until(lambda: one.daemon._store.ledgers.get("home-0").spent > counted)
    assert kills >= 14
    assert steps >= {UNORDERED, ORDERED, REQUESTED}


def test_a_key_that_the_former_one_has_not_signed_begins_a_new_ledger(world, capsys):
    one = world(devices=2)
    one.start_all()
    one.until(lambda: one.version >= 1)
    order(one, "command", "home-0", "reenrol")
    one.until(lambda: one.clients[0].identity.replacement.step == REQUESTED)
    name, public, proof, _, succession = line_of(one, capsys).split(",")
    forged = proof  # a signature by the new key itself
    words = ("enrol", name, "--public", public, "--proof", proof)
    for wrong, text in ((forged, "signed by no key"), ("00", "128 hex digits")):
        assert cli.main([*words, "--succession", wrong, "--config", str(one.config)]) != OK
        assert text in capsys.readouterr().err
    order(one, *words, "--succession", succession)
    one.until(lambda: keys_at_aggregator(one) == (bytes.fromhex(public),))
    assert one.daemon._registry.client(name).generation == 1


def test_a_key_of_further_participations_is_not_replaced(world, caplog):
    one = world(devices=2)
    one.start_all()
    one.until(lambda: one.version >= 1)
    one.clients[0].identity.is_shared = True
    order(one, "command", "home-0", "reenrol")
    for _ in range(100):
        one.turn()
    assert one.daemon._store.commands.open("home-0") == []  # receipted: BAD_COMMAND
    assert one.clients[0].identity.replacement.step == UNORDERED


def test_a_replaced_device_begins_with_the_count_of_its_predecessor(world):
    one = world(devices=2)
    one.start_all()
    one.until(lambda: one.version >= 2)
    counted = one.daemon._store.ledgers.get("home-0").spent
    assert counted > 0
    one.die(0)
    config = Config.load(one.folder / "home-0.toml")
    shutil.rmtree(config.state)  # other hardware: neither key nor state
    key = generate()
    save_signing_key(config.keys.device, key)
    order(one, "enrol", "home-0", "--public", key.public.hex())
    one.until(lambda: keys_at_aggregator(one) == (key.public,))
    client = one.start(0)
    one.until(lambda: client._session.outbox.welcome is not None)
    assert client.status()["spent"] >= counted
    assert one.daemon._store.ledgers.get("home-0").spent >= counted
    assert one.daemon._registry.client("home-0").generation == 2


def test_an_update_that_the_broker_has_queued_is_not_counted_once_its_device_is_revoked(world):
    one = world(devices=2, run={"quorum": 1})
    one.start_all()
    one.until(lambda: one.version >= 2)
    one.until(lambda: one.clients[0]._session.outbox.entries)
    one.kill_daemon()
    for _ in range(50):
        one.turn()
    (queued,) = one.clients[0]._session.outbox.entries
    assert queued.attempts > 0  # the broker has it
    order(one, "revoke", "home-0", "--why", "stolen")
    one.start_daemon()
    version = one.version
    one.until(lambda: one.version >= version + 2)
    assert one.daemon._ingress.counts["REVOKED"] > 0
    cohorts = [found.report["cohort"] for found in one.daemon._store.runs.versions(1)]
    assert all("home-0" not in cohort for cohort in cohorts[version:])
    assert any("home-0" in cohort for cohort in cohorts[:version])
