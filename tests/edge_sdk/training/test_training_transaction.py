"""What a round leaves behind: its record, and one answer whose bytes never change."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk import Client
from edge_sdk.client import ClientParts
from edge_sdk.protocol import codec, keys
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.contract.method import Task, Update
from edge_sdk.protocol.envelope import AGGREGATOR, unseal, wrap
from edge_sdk.protocol.outbox_state import UplinkCounters
from edge_sdk.session.manifest_checks import NewestAnnouncements
from edge_sdk.training.training_transaction import (
    OWN,
    UpdateSealer,
    UplinkEncoding,
    record,
    update_message,
)
from tests.edge_sdk.conftest import DEVICE, DEVICE_KEY

W0 = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
SEEN = NewestAnnouncements(serial=9, run=3, version=5, round=7, attempt=1, step=2)
KEY = keys.from_seed(b"d" * 32)


@pytest.fixture
def client(fleet):
    return fleet.device.start()


def test_a_round_of_the_runs_is_recorded_with_its_turn(client):
    task = Task("meter-1", 8, "train", step=1, base=6, attempt=2)
    kept = record(client.state, task, client.learner, SEEN)
    assert (kept.run, kept.round, kept.version, kept.leaves["turn"]) == (3, 8, 6, [2, 1])
    assert kept.spec == client.learner.spec.whole_digest
    assert kept.leaves["scale"] == []
    assert kept.leaves["noise"] == "none"


def test_a_round_of_its_own_does_not_count_as_the_runs(client):
    kept = record(client.state, Task("meter-1", OWN + 4, "train"), client.learner, SEEN)
    assert (kept.run, kept.round, kept.version, kept.leaves["turn"]) == (3, 7, 5, [1, 2])


def test_an_answer_is_numbered_and_signed_and_the_same_twice(client):
    task = Task("meter-1", 8, "train", base=6)
    vector = np.arange(4, dtype=np.float32)
    update = Update("meter-1", 8, 6, vector, {"loss": 0.5, "n": 32.0})
    sealer = UpdateSealer(client.config, KEY)
    numbers = UplinkCounters(life=2, seq=10, spent=11, lost=False)
    message = update_message(
        update, task, numbers, run=3, learner=client.learner, encoding=UplinkEncoding("f4")
    )
    entry, again = (sealer.seal(message) for _ in range(2))
    assert (entry.body, entry.proof) == (again.body, again.proof)
    proved = unseal(
        wrap(entry.body, kind="update", sender="meter-1", proof=entry.proof),
        kind="update",
        sender="meter-1",
        recipient=AGGREGATOR,
        fleet="north",
        key_of=lambda _sender, _kid: KEY.public,
    )
    said = codec.decode(m.UpdateMessage, proved.body)
    assert (said.life, said.seq, said.spent, said.n, said.vals) == (2, 11, 11, 32, {"loss": 0.5})
    assert (entry.run, entry.round, entry.base) == (3, 8, 6)
    np.testing.assert_array_equal(codec.unpack_tensor(said.blob, said.enc, 4), vector)


class LaterSealer(UpdateSealer):
    """Seals as the device does, and notes what it sealed."""

    def __init__(self, config):
        super().__init__(config, DEVICE_KEY)
        self.rounds = []

    def seal(self, message, encrypt=bytes):
        self.rounds.append((message.run, message.round, message.spent))
        return super().seal(message, encrypt)


def test_a_client_answers_when_its_policy_allows_it_and_seals_with_its_sealer(fleet):
    device, allowed = fleet.device, []
    sealer = LaterSealer(device.config)
    device.client = Client(
        device.config,
        transport=lambda will: fleet.broker.link(DEVICE, will),
        clock=fleet.clock,
        parts=ClientParts(sealer=sealer, may_answer=lambda task: task.round in allowed),
    )
    device.observe()
    fleet.server.open_round(1, 0, W0)
    fleet.run()
    assert fleet.server.updates == []
    assert sealer.rounds == []
    allowed.append(1)
    fleet.run()
    assert [update.round for update in fleet.server.updates] == [1]
    assert sealer.rounds == [(1, 1, 1)]
