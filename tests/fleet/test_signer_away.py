"""A key in a token that comes and goes at any turn: no update is lost, counted twice or trained otherwise."""

from __future__ import annotations

import random

from edge_sdk import client
from edge_sdk.errors import SignerUnavailable
from edge_sdk.session.connection import SIGNER_AWAY

ROUNDS = 6


class Token:
    """Signs with the key in the file while it is inserted."""

    def __init__(self, key):
        self._key, self.public = key, key.public
        self.is_inserted = True
        self.refusals = 0

    def sign(self, data):
        if not self.is_inserted:
            self.refusals += 1
            raise SignerUnavailable("no such token is there")
        return self._key.sign(data)

    def reach(self):
        return self.is_inserted


def inserted(monkeypatch):
    """Let every client load its key as a token; return the tokens by device."""
    tokens, load = {}, client.signer_of

    def load_token(config):
        tokens[config.id] = Token(load(config))
        return tokens[config.id]

    monkeypatch.setattr(client, "signer_of", load_token)
    return tokens


def test_tokens_that_come_and_go_leave_the_same_bits(world, monkeypatch):
    undisturbed = world(run={"rounds": ROUNDS})
    undisturbed.start_all()
    undisturbed.until(lambda: undisturbed.version >= ROUNDS)
    wanted = undisturbed.consensus()

    tokens = inserted(monkeypatch)
    one, rng = world(run={"rounds": ROUNDS, "deadline": "600s"}), random.Random(7)
    one.start_all()
    while one.version < ROUNDS:
        token = rng.choice(list(tokens.values()))
        token.is_inserted = False
        for _ in range(rng.randint(1, 30)):
            one.turn()
        token.is_inserted = True
        for _ in range(rng.randint(1, 20)):
            one.turn()
    assert sum(token.refusals for token in tokens.values()) > 0
    assert one.consensus().tobytes() == wanted.tobytes()
    for version in one.daemon._store.runs.versions(1):
        assert sorted(set(version.report["cohort"])) == sorted(version.report["cohort"])


def test_without_its_token_a_device_trains_nothing_and_connects_without_a_will(world, monkeypatch):
    tokens = inserted(monkeypatch)
    one = world(run={"rounds": ROUNDS, "deadline": "600s"})
    one.start_all()
    one.until(lambda: one.version >= 1)
    device = one.clients[1]
    token = tokens[device.config.id]
    token.is_inserted = False
    one.until(lambda: device._store.fact(SIGNER_AWAY) > 0)
    one.until(lambda: device._agenda.waiting is not None)
    trained, version = device.status()["counts"].get("rounds", 0), one.version
    one.broker.restart()
    for _ in range(200):
        one.turn()
    assert device.is_linked
    assert device.status()["counts"].get("rounds", 0) == trained
    assert device.status()["counts"]["not signed"] > 0
    assert one.version <= version + 1
    token.is_inserted = True
    one.until(lambda: device._store.fact(SIGNER_AWAY) == 0)
    one.until(lambda: one.version >= ROUNDS)
