"""Updates in few bits: the run's encoding reaches the devices, and a power cut changes no bit."""

from __future__ import annotations

import random

import numpy as np
import pytest

ROUNDS = 6


def finished(world, encoding, **options):
    one = world(run={"rounds": ROUNDS, "encoding": encoding, **options})
    one.start_all()
    one.until(lambda: one.version >= one.run["rounds"])
    return one


def test_every_device_sends_the_wished_encoding_and_the_model_is_close_to_the_exact_one(world):
    exact, quantised = (finished(world, enc, rounds=1) for enc in ("f4", "q8"))
    learner = exact.clients[0].learner
    moved = np.linalg.norm(exact.consensus() - learner.spec.shared(learner.bundle.initial))
    assert 0 < np.linalg.norm(quantised.consensus() - exact.consensus()) < 0.02 * moved
    assert [client._active.residual["enc"] for client in quantised.clients.values()] == ["q8"] * 3


def test_killed_devices_resume_to_the_same_bits(world):
    wanted = finished(world, "q4").consensus()
    one, rng = world(run={"rounds": ROUNDS, "encoding": "q4", "deadline": "600s"}), random.Random(5)
    one.start_all()
    while one.version < ROUNDS:
        for _ in range(rng.randint(1, 12)):
            one.turn()
        victim = rng.randrange(one.devices)
        one.die(victim)
        one.turn()
        one.start(victim)
    assert one.consensus().tobytes() == wanted.tobytes()


def test_a_device_that_does_not_know_the_encoding_goes_on_in_float32(world, monkeypatch):
    monkeypatch.setattr("edge_sdk.protocol.outbox_state.CAPS", ("b1", "b2"))
    older, exact = finished(world, "q4"), finished(world, "f4")
    assert older.consensus().tobytes() == exact.consensus().tobytes()


@pytest.mark.parametrize(
    "changed",
    [
        {"method": "fedasync", "settings": {}, "quorum": 1},
        {"method": "rsa", "settings": {}},
        {"method": "pfl", "settings": {}, "bundle": "load-mlp"},
    ],
)
def test_a_method_that_sends_no_differences_is_refused(world, capsys, changed):
    with pytest.raises(AssertionError):  # init refuses the configuration
        world(run={"encoding": "q4"} | changed)
    assert "run.encoding: 'q4' does not fit method" in capsys.readouterr().err
