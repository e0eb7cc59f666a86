"""Devices encrypt to the aggregator: what a broker sees, a change of keys, kills, and refusals."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace

import paho.mqtt.client as mqtt
import pytest

from edge_sdk.extensions.encryption.encrypted_body import BodyContext, decrypted_body
from edge_sdk.extensions.encryption.hpke import DecryptionKey
from edge_sdk.protocol import envelope
from edge_sdk.protocol.codec import decode
from edge_sdk.protocol.messages import ChunkMessage
from firmware_sim.fleet.processes import ProgramRefused, command, run
from tests.broker.test_federation import ENDLESS, begin, rewrite

__all__ = ["begin"]
pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

KINDS = ["forecast", "metrics", "signal", "update"]


class Listener:
    """A client of the broker that reads every topic, as an untrusted broker does."""

    def __init__(self, url):
        self.seen = []
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
        self.client.on_connect = lambda client, *_: client.subscribe("#", 1)
        self.client.on_message = lambda _client, _data, found: self.seen.append(found)
        self.client.connect("127.0.0.1", int(url.rsplit(":", 1)[1]))
        self.client.loop_start()

    def updates(self):
        """Return the bodies of updates, by sender and id; they are sent in chunks."""
        pieces = {}
        for found in tuple(self.seen):
            if not found.topic.endswith("/up/chunk"):
                continue
            chunk = decode(ChunkMessage, envelope.unproved(bytes(found.payload)))
            pieces.setdefault((found.topic.split("/")[3], chunk.id), {})[chunk.i] = chunk.blob
        whole = {key: b"".join(found[i] for i in sorted(found)) for key, found in pieces.items()}
        return {key: body for key, body in whole.items() if envelope.digest(body)[:16] == key[1]}

    def stop(self):
        self.client.loop_stop()
        self.client.disconnect()


@pytest.fixture
def listen():
    made = []

    def start(url):
        made.append(Listener(url))
        return made[-1]

    yield start
    for one in made:
        one.stop()


def demand(trial, kinds):
    """Demand that devices encrypt these kinds, and send updates in chunks, which the listener reads."""
    rewrite(trial.config, "admission", max_single_bytes=0)
    with trial.config.open("a", encoding="utf-8") as file:
        file.write(f"\n[encryption]\nkinds = {json.dumps(kinds)}\n")


def restart(trial, *words):
    """Stop the aggregator, announce, and start it again."""
    trial.family.stop([trial.run.aggregator])
    trial.family.members.remove(trial.run.aggregator)
    said = run(command("gridfed-aggregator", "announce", str(trial.config), *words))
    trial.run.start_aggregator()
    return said


def moved(trial, rounds=2):
    """Wait until some rounds have closed."""
    before = trial.status()["run"]
    trial.until(lambda: trial.status()["run"]["version"] >= before["version"] + rounds)


def test_a_broker_reads_no_update_and_a_change_of_keys_loses_none(begin, listen):
    trial = begin(ENDLESS, "mosquitto")
    trial.until(lambda: trial.status()["run"]["version"] >= 1)

    demand(trial, KINDS)
    trial.family.stop([trial.run.aggregator])
    trial.family.members.remove(trial.run.aggregator)
    with pytest.raises(ProgramRefused, match=r"seal: .* was announced"):
        run(command("gridfed-aggregator", "run", str(trial.config)))
    said = run(command("gridfed-aggregator", "announce", str(trial.config)))
    assert "run 2 begins" in said
    assert "devices encrypt forecast, metrics, signal, update to the key" in said
    trial.run.start_aggregator()
    trial.until(lambda: trial.status()["run"]["run"] == 2 and trial.status()["run"]["version"] >= 1)
    ear = listen(trial.url)
    moved(trial)
    trial.until(ear.updates)
    assert {body[0] for body in ear.updates().values()} == {0x94}

    # the saved key reads them, and only as the message of their own sender
    folder = next(trial.config.parent.rglob("encryption-keys"))
    assert [path.name for path in folder.iterdir()] == ["1.key"]
    key = DecryptionKey(bytes.fromhex((folder / "1.key").read_text()))
    (sender, _), body = next(iter(ear.updates().items()))
    context = BodyContext("trial", "update", sender, "_agg")
    assert decrypted_body(body, lambda _kid: key, context)[:1] == b"\x92"

    # another key: what was encrypted to the one before is still read
    said = restart(trial, "--new-encryption-key")
    assert "run 2 continues" in said
    assert {path.name for path in folder.iterdir()} == {"1.key", "2.key"}
    moved(trial)
    second = DecryptionKey(bytes.fromhex((folder / "2.key").read_text()))
    trial.until(lambda: any(second.kid in body for body in ear.updates().values()))
    assert {body[0] for body in ear.updates().values()} == {0x94}
    assert not {"CANNOT_OPEN", "PLAIN_REFUSED"} & set(trial.status()["refused"])


def test_each_encrypted_update_of_a_killed_device_counts_once(begin, listen):
    trial = begin(ENDLESS, "mosquitto")
    demand(trial, ["update"])
    restart(trial)
    ear = listen(trial.url)
    moved(trial)
    for number in range(6):
        victim = trial.run.devices[number % 2]
        victim.process.send_signal(signal.SIGKILL)
        victim.process.wait(30)
        trial.family.members.remove(victim)
        trial.run.devices.remove(victim)
        where = trial.run.prepared.devices[number % 2]
        trial.run.devices.insert(number % 2, trial.run.start_device(where))
        moved(trial, 1)
    trial.family.stop([trial.run.aggregator])
    trial.family.members.remove(trial.run.aggregator)
    audit = run(command("gridfed-aggregator", "audit", str(trial.config)))
    assert "moved the model" in audit, audit
    assert {body[0] for body in ear.updates().values()} == {0x94}


def test_a_daemon_without_its_encryption_key_says_what_to_do(begin):
    brief = replace(ENDLESS, run=replace(ENDLESS.run, deadline="10s"))
    trial = begin(brief, "mosquitto")
    demand(trial, ["update"])
    restart(trial)
    moved(trial, 1)
    trial.family.stop([trial.run.aggregator])
    trial.family.members.remove(trial.run.aggregator)
    folder = next(trial.config.parent.rglob("encryption-keys"))
    shutil.move(folder, folder.with_name("elsewhere"))
    with pytest.raises(ProgramRefused, match="lacks the key to which devices encrypt"):
        run(command("gridfed-aggregator", "run", str(trial.config)))
    # another key: updates that were encrypted to the lost one are dropped, the next round counts
    run(command("gridfed-aggregator", "announce", str(trial.config)))
    trial.run.start_aggregator()
    moved(trial)
