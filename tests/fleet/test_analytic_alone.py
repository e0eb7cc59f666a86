"""A device with a bundle in closed form and without an aggregator solves its own windows."""

from __future__ import annotations

import numpy as np

from edge_sdk.methods.local_sgd import LocalState
from tests.fleet.conftest import history
from tests.fleet.test_analytic import VERSIONS, closed_form, finish

HOURS = 24 * 30


def test_without_ever_an_aggregator_it_forecasts_by_a_solution_of_its_own(world):
    one = world(
        devices=1,
        run={"bundle": "load-analytic", "method": "analytic", "quorum": 1, "settings": {}},
        local_rounds={"after": "60s", "interval": "20s"},
    )
    client = one.start(0, hours=HOURS)
    for _ in range(40):
        one.turn(5.0)
        if client.status()["alone"]:
            break
    assert client.status()["alone"]
    local = client._active.latest
    assert isinstance(local, LocalState)
    assert not client.state.p[106:].any()  # the state of the method has learned nothing
    frame = client.learner.frame()
    late = frame.origins()[-24 * 5 :]
    times, told, truth = client.learner.rolling(
        local, float(frame.times[late[0]]), float(frame.times[-1])
    )
    error = np.abs(told - truth).mean()
    assert len(times) > 24
    assert error < 0.5 * np.abs(np.diff(frame.raw)).mean()
    assert client.forecast().source == "model"


def test_what_the_fleet_sent_is_where_it_begins(world):
    """With the fleet's constants and coefficients, and the readings that came since."""
    one = closed_form(world)
    one.start_all()
    finish(one, VERSIONS)
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    client = one.clients[0]
    before = client.learner.vector(client.state)
    found = client.learner.learn_alone(client.state, client._local_rounds._task(0))
    assert np.array_equal(found.p[:106], before[:106])
    known = len(client.learner.windows())
    for row in list(history(0, HOURS))[-24:]:
        client.observe(row)
    again = client.learner.learn_alone(found, client._local_rounds._task(1))
    assert np.array_equal(again.p[:106], before[:106])
    assert known <= len(client.learner.windows())
    assert np.isfinite(again.p).all()
