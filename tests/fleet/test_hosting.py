"""An aggregator that only hosts the topology: the neighbours come from it, the models never go."""

import numpy as np
import pytest

RUN = {"quorum": 3, "deadline": "1h"}
NUMBERS = {"rate": 0.02, "interval": 1.0, "deadline": 3.0}


def hosted(world, method="dfl_gt", devices=4, **settings):
    one = world(devices=devices, run={**RUN, "method": method, "settings": NUMBERS | settings})
    one.start_all()
    return one


def among(one, number):
    return one.clients[number].status().get("neighbours", {"step": -1, "epoch": 0, "links": {}})


def test_devices_receive_their_neighbours_and_train_with_them(world):
    one = hosted(world, total_steps=8)
    one.until(lambda: all(among(one, n)["step"] >= 8 for n in range(4)))
    assert {len(among(one, n)["links"]) for n in range(4)} == {2}, "a ring of all four"
    heard = one.daemon._ingress.counts
    assert not heard["ACCEPTED"], "the aggregator is told no model"
    trackers = np.mean([c.state.tracker for c in one.clients.values()], axis=0)
    seen = [c.learner.spec.shared(c.state.seen) for c in one.clients.values()]
    assert trackers == pytest.approx(np.mean(seen, axis=0), abs=1e-6)


def test_neighbours_continue_without_the_host_and_after_a_restart(world):
    one = hosted(world, "dfl_sgd", total_steps=12)
    one.until(lambda: all(among(one, n)["step"] >= 3 for n in range(4)))
    one.kill_daemon()
    one.die(2)
    one.start(2)
    one.until(lambda: all(among(one, n)["step"] >= 12 for n in range(4)))
    assert among(one, 2)["epoch"] == among(one, 0)["epoch"]


def test_a_restarted_daemon_announces_the_same_topology(world):
    one = hosted(world, "dfl_sgd", total_steps=12)
    one.until(lambda: all(among(one, n)["step"] >= 2 for n in range(4)))
    epoch = one.daemon.state.round
    one.kill_daemon()
    one.start_daemon()
    one.until(lambda: all(among(one, n)["step"] >= 12 for n in range(4)))
    assert one.daemon.state.round == epoch
    assert {among(one, n)["epoch"] for n in range(4)} == {epoch}


def test_a_device_that_leaves_is_removed_and_trackers_restart(world):
    one = hosted(world, total_steps=30, drop_after=5.0)
    one.until(lambda: all(among(one, n)["step"] >= 3 for n in range(4)))
    epoch = one.daemon.state.round
    one.die(0)  # whose word its neighbours wait for
    one.until(lambda: all(among(one, n)["step"] >= 30 for n in range(1, 4)))
    assert one.daemon.state.round == epoch + 1
    assert all("home-0" not in among(one, n)["links"] for n in range(1, 4))
    left = [one.clients[n] for n in range(1, 4)]
    trackers = np.mean([c.state.tracker for c in left], axis=0)
    seen = [c.learner.spec.shared(c.state.seen) for c in left]
    assert trackers == pytest.approx(np.mean(seen, axis=0), abs=1e-6)
