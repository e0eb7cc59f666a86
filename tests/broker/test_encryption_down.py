"""Messages to one device are encrypted: what a broker sees, kills, and devices without a key."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from edge_sdk.protocol import envelope, topics
from tests.broker.test_encryption import Listener, demand, moved
from tests.broker.test_federation import ENDLESS, begin
from tests.broker.test_methods import chosen

__all__ = ["begin"]
pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

CLEAR = {"floor", "refusal"}
PERSONAL = chosen("pfl")
PERSONAL = replace(PERSONAL, run=replace(PERSONAL.run, rounds=100_000))
"""Each device has a model of its own, which arrives as a task."""


class DownListener(Listener):
    """A client of the broker that reads every topic; it keeps what is addressed to one device."""

    def bodies(self):
        """Return kind and body of all messages to single devices."""
        found = [(topics.parse(one.topic), bytes(one.payload)) for one in tuple(self.seen)]
        return [
            (where.kind, envelope.unproved(payload))
            for where, payload in found
            if where is not None and where.direction == "down"
        ]

    def contains(self, content):
        """Return whether some payload of any topic has these bytes."""
        return any(content in bytes(one.payload) for one in tuple(self.seen))


@pytest.fixture
def listen():
    made = []

    def start(trial):
        made.append(DownListener(trial.url))
        return made[-1]

    yield start
    for one in made:
        one.stop()


def require_key(path):
    with path.open("a", encoding="utf-8") as file:
        file.write("\n[encryption]\nrequired = true\n")


def require_keys(trial):
    with trial.config.open("a", encoding="utf-8") as file:
        file.write("\n[encryption]\nrequire_device_keys = true\n")


def stop_aggregator(trial, number=signal.SIGTERM):
    trial.run.aggregator.process.send_signal(number)
    trial.run.aggregator.process.wait(60)
    trial.family.members.remove(trial.run.aggregator)


def kill_device(trial, number):
    """Kill a device and start it again."""
    victim = trial.run.devices[number]
    victim.process.send_signal(signal.SIGKILL)
    victim.process.wait(30)
    trial.family.members.remove(victim)
    trial.run.devices.remove(victim)
    where = trial.run.prepared.devices[number]
    trial.run.devices.insert(number, trial.run.start_device(where))


def personal_content(trial):
    """Return the middle of each vector that the aggregator holds for one device."""
    (file,) = trial.config.parent.rglob("aggregator.db")
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT body FROM contents WHERE kind = 'task'").fetchall()
    return [bytes(body)[-512:-448] for (body,) in rows]


def answered(trial):
    return trial.status()["counts"].get("ACCEPTED", 0)


def test_a_broker_finds_no_content_for_one_device_through_kills_of_both_ends(begin, listen):
    trial = begin(PERSONAL, "mosquitto", is_started=False)
    ear = listen(trial)
    trial.run.start_aggregator()
    trial.run.start_devices()
    moved(trial)
    found = personal_content(trial)
    assert found
    trial.until(lambda: any(map(ear.contains, found + personal_content(trial))))  # in the clear
    assert {body[0] for _, body in ear.bodies()} == {0x92}

    for device in trial.run.prepared.devices:
        require_key(device.config)
    require_keys(trial)
    for one in list(trial.run.devices):
        trial.family.stop([one])
        trial.family.members.remove(one)
        trial.run.devices.remove(one)
    stop_aggregator(trial)
    trial.run.start_aggregator()
    ear = listen(trial)
    trial.run.start_devices()
    wanted = set()

    def is_past(rounds, version):
        wanted.update(personal_content(trial))
        return trial.status()["run"]["version"] >= version + rounds

    version = trial.status()["run"]["version"]
    trial.until(lambda: is_past(2, version))
    for number in range(4):
        kill_device(trial, number % 2)
        version = trial.status()["run"]["version"]
        trial.until(lambda version=version: is_past(1, version))
    stop_aggregator(trial, signal.SIGKILL)
    trial.run.start_aggregator()
    version = trial.status()["run"]["version"]
    trial.until(lambda: is_past(2, version))

    bodies = ear.bodies()
    kinds = {kind for kind, body in bodies if body[0] == 0x94}
    assert {"welcome", "task", "receipt"} <= kinds, kinds
    assert {kind for kind, body in bodies if body[0] != 0x94} <= CLEAR
    assert len(wanted) >= 4
    assert not any(map(ear.contains, wanted))
    assert not {"CANNOT_OPEN", "PLAIN_REFUSED"} & set(trial.status()["refused"])


def test_a_fleet_that_requires_keys_refuses_a_device_without_one(begin, listen):
    trial = begin(ENDLESS, "mosquitto", is_started=False)
    demand(trial, ["update"])
    text = trial.config.read_text("utf-8") + "require_device_keys = true\n"
    trial.config.write_text(text, "utf-8")
    from firmware_sim.fleet.processes import command, run  # noqa: PLC0415

    run(command("gridfed-aggregator", "announce", str(trial.config)))
    require_key(trial.run.prepared.devices[0].config)
    ear = listen(trial)
    trial.run.start_aggregator()
    trial.run.start_devices()
    trial.until(lambda: trial.status()["refused"].get("PLAIN_REFUSED"))
    late = trial.run.devices[1]
    trial.until(lambda: "hello refused reason=PLAIN_REFUSED" in late.log.read_text("utf-8"))
    assert trial.status()["run"]["version"] == 0, "two updates are needed"
    require_key(trial.run.prepared.devices[1].config)
    kill_device(trial, 1)
    moved(trial)
    assert {kind for kind, body in ear.bodies() if body[0] != 0x94} <= CLEAR
