"""Real programs over a real broker take new models as steps, through kills on both sides."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from hashlib import sha256

import pytest

from edge_sdk.protocol.codec import decode, unpack_tensor
from edge_sdk.protocol.envelope import unproved
from edge_sdk.protocol.messages import ContentBody, ModelMessage, PartMessage
from edge_sdk.protocol.model_step import applied
from firmware_sim.fleet.processes import command, run
from tests.broker.test_encryption import listen, moved
from tests.broker.test_federation import ENDLESS, begin

__all__ = ["begin", "listen"]
pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]
STEPS = replace(ENDLESS, run=replace(ENDLESS.run, encoding="q4", downlink="q8"))


def heard(ear):
    """Return the manifests by version, and the complete bodies by digest."""
    manifests, pieces = {}, {}
    for found in tuple(ear.seen):
        if found.topic.endswith("/_all/model"):
            message = decode(ModelMessage, unproved(bytes(found.payload)))
            manifests[message.version] = message
        elif "/_all/part/" in found.topic and found.payload:
            part = decode(PartMessage, unproved(bytes(found.payload)))
            pieces.setdefault(part.id, {})[part.i] = part.blob
    bodies = (b"".join(found[i] for i in sorted(found)) for found in pieces.values())
    return manifests, {sha256(body).digest(): body for body in bodies}


def killed(trial, program):
    program.signal(signal.SIGKILL)
    program.wait(30.0)
    trial.family.members.remove(program)


def test_a_fleet_takes_steps_through_kills_and_each_gives_the_announced_model(begin, listen):
    trial = begin(STEPS, "mosquitto", is_started=False)  # docs/brokers.md: not the embedded one
    ear = listen(trial.url)
    trial.run.start_aggregator()
    trial.run.start_devices()
    trial.until(lambda: trial.status()["run"]["version"] >= 3)
    killed(trial, trial.run.aggregator)
    trial.run.start_aggregator()
    moved(trial)
    victim = trial.run.devices.pop(0)
    killed(trial, victim)
    trial.run.devices.insert(0, trial.run.start_device(trial.run.prepared.devices[0]))
    moved(trial)
    trial.run.stop()
    status = json.loads(trial.run.devices[1].tail(1))
    assert status["counts"]["steps received"] >= 3
    said = run(command("gridfed-aggregator", "audit", str(trial.config)))
    assert "every round was recomputed to the same bits" in said
    manifests, bodies = heard(ear)
    steps = 0
    for version, manifest in manifests.items():
        before = manifests.get(version - 1)
        if before is None or {before.digest, manifest.step} - bodies.keys():
            continue
        whole = decode(ContentBody, bodies[before.digest])
        base = unpack_tensor(whole.blob, "f4", len(whole.blob) // 4).astype("f4")
        step = decode(ContentBody, bodies[manifest.step])
        assert applied(manifest, step, base).shape == base.shape
        steps += 1
    assert steps >= 4
