"""A witness opens a set over a real broker."""

from __future__ import annotations

import threading
import time

import pytest

from aggregator.extensions.model_log.program import main as witness
from aggregator.extensions.sums.sum_set import AnswerFile, SetFile, read_answer
from aggregator.extensions.sums.witness_record import WitnessRecord
from edge_sdk.link.broker_options import Broker
from edge_sdk.link.mqtt import MqttLink
from edge_sdk.link.transport import LinkUp, Message
from edge_sdk.protocol import topics
from edge_sdk.protocol.codec import decode, encode
from edge_sdk.protocol.envelope import AGGREGATOR, seal, unseal
from edge_sdk.protocol.keys import generate, save_public, save_signing_key
from tests.aggregator.extensions.sums.test_witness_record import (
    KEYS,
    SIGNERS,
    a_set,
    messages_of,
)

pytestmark = [pytest.mark.broker, pytest.mark.extension]


def test_a_set_is_answered_over_a_real_broker(mosquitto, tmp_path):
    own = generate()
    save_public(tmp_path / "aggregator.pub", own.public)
    save_signing_key(tmp_path / "witness.key", KEYS.sign)
    (tmp_path / "open.key").write_text(KEYS.open.raw.hex())
    with WitnessRecord(tmp_path / "sums.db") as record:
        record.enrol("north", [(name, one.public) for name, one in SIGNERS.items()])
    options = {
        "--broker": mosquitto.url,
        "--fleet": "north",
        "--id": "w-1",
        "--public": str(tmp_path / "aggregator.pub"),
        "--key": str(tmp_path / "witness.key"),
        "--open-key": str(tmp_path / "open.key"),
        "--record": str(tmp_path / "sums.db"),
        "--seconds": "8",
    }
    words = ["serve", *(word for pair in options.items() for word in pair)]
    codes: list[int] = []
    served = threading.Thread(target=lambda: codes.append(witness(words)))
    served.start()
    data = a_set(messages_of(sorted(SIGNERS)[:9])).write()
    payload = seal(
        encode(decode(SetFile, data)), kind=SetFile.kind, sender=AGGREGATOR, recipient="w-1",
        fleet="north", signer=own,
    )  # fmt: skip
    link = MqttLink(Broker(url=mosquitto.url, client_id="_agg"))
    link.open()
    answers: list[bytes] = []
    again = 0.0
    while served.is_alive() and not answers:
        for event in link.poll(0.1):
            if isinstance(event, LinkUp):
                link.subscribe(topics.up("north", "w-1", AnswerFile.kind))
            elif isinstance(event, Message):
                link.acknowledge(event)
                answers.append(event.payload)
        if link.is_up and time.monotonic() > again:
            again = time.monotonic() + 0.5
            link.publish(topics.down("north", "w-1", SetFile.kind), payload)
    link.close()
    served.join()
    assert codes == [0]
    found = unseal(
        answers[0], kind=AnswerFile.kind, sender="w-1", recipient=AGGREGATOR, fleet="north",
        key_of=lambda _sender, _kid: KEYS.sign.public,
    )  # fmt: skip
    answer = read_answer(found.content)
    answer.require_from(KEYS.sign.public)
    assert answer.members == 9
