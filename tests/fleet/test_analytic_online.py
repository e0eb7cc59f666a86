"""A device's forecast takes every new reading between two rounds; a killed process loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from edge_sdk import Client, Config
from edge_sdk.extensions.analytic import boosting, bundle_functions
from edge_sdk.extensions.analytic.bundle_functions import AnalyticModel
from edge_sdk.extensions.analytic.online_vector import OnlineVector, TrainedVector
from edge_sdk.extensions.analytic.personal import fit_personal
from edge_sdk.extensions.analytic.solve import ridge
from edge_sdk.extensions.analytic.statistics import gather
from edge_sdk.extensions.choice.combination import CANDIDATES
from edge_sdk.forecasting.forecast import COMMON, FLEET
from firmware_sim.testing.loopback import LoopbackBroker
from tests.fleet.conftest import HOURS, history

MORE = 30
"""Hours after the run: the start of a day is among them."""


@pytest.fixture
def finished(world, monkeypatch):
    """A fleet whose run has ended, with the final model on every device, made personal there.

    These homes are so alike that a device would keep the fleet's coefficients.
    """
    chosen = partial(fit_personal, strengths=(0.01,), alone=(0.001,))
    monkeypatch.setattr(bundle_functions, "fit_personal", chosen)
    run = {"bundle": "load-analytic", "method": "analytic", "quorum": 2, "deadline": "600s"}
    one = world(devices=2, run=run | {"settings": {}})
    one.start_all()
    one.until(lambda: one.daemon._engine.is_done)
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    return one


def later(number, hours=MORE):
    """The readings of the hours after those that the run was solved with, hour by hour."""
    known = list(history(number, HOURS + hours))
    count = HOURS + hours
    columns = [known[i * count : (i + 1) * count] for i in range(3)]
    return [[column[hour] for column in columns] for hour in range(HOURS, count)]


def fed(client, rows):
    for row in rows:
        client.observe(row)


def served(client):
    """Return the vector that the last forecast was made with."""
    learner = client.learner
    return learner.form._online.latest(learner.vector(client.state))


def recomputed(client):
    """Return the vector from the readings alone, in a new process's place."""
    learner = client.learner
    fresh = OnlineVector(
        AnalyticModel(learner.manifest), forgetting=1.0, capacity=learner.series.capacity
    )
    return fresh.updated(TrainedVector.of(learner.half.model(client.state)), learner.windows())


def test_readings_between_two_rounds_change_the_forecast_as_the_batch_solution_would(finished):
    client = finished.clients[0]
    client.forecast()
    before = served(client)
    for rows in later(0):
        fed(client, rows)
        assert client.forecast().source == "model"
    after = served(client)
    assert (after != before).any()
    np.testing.assert_array_equal(after, recomputed(client))
    found = np.stack([model.coefficients[0] for model in client.learner.form._online._state.models])
    np.testing.assert_allclose(found, pooled(client), rtol=0, atol=1e-8)


def pooled(client):
    """Solve the weighted least squares of all readings at once: the oracle."""
    learner, windows = client.learner, client.learner.windows()
    model, state = AnalyticModel(learner.manifest), learner.form._online._state
    trained = TrainedVector.of(learner.half.model(client.state))
    first, last = windows.span()
    here, some = windows.named(np.arange(first, last + 1))
    (design,) = model.design(trained.fleet, some.x)
    missed = model.missed(trained.own, design, some.y)
    before = int(here[: state.cut + 1 - first].sum())
    found = []
    for o, rows, target, kind in model.outputs(design, some.y):
        raw = kind.weights(missed[:, o : o + 1], is_normalised=False)
        centre = model.parts(trained.fleet)[1][o : o + 1] * (not trained.is_alone[o])
        known = gather(rows, target, raw / raw[:before].mean())
        found.append(ridge(known, trained.strengths[o] * before, centre)[0])
    return np.stack(found)


def test_a_late_and_a_corrected_reading_are_in_the_forecast_too(finished):
    client, hours = finished.clients[0], later(0)
    for rows in hours[:10]:
        fed(client, rows)
    held_back = hours[12]
    for rows in (*hours[10:12], *hours[13:20]):
        fed(client, rows)
        client.forecast()
    fed(client, held_back)
    client.forecast()
    np.testing.assert_array_equal(served(client), recomputed(client))
    client.observe(replace(hours[4][0], value=hours[4][0].value + 1.0))
    client.forecast()
    np.testing.assert_array_equal(served(client), recomputed(client))


def test_intervals_stay_calibrated_on_what_the_model_had_not_seen(finished):
    client = finished.clients[0]
    client.forecast()
    since = client.learner.forecaster.kept.since
    for rows in later(0):
        fed(client, rows)
        found = client.forecast()
    assert client.learner.forecaster.kept.since == since
    assert found.calibrated >= MORE


def test_online_false_serves_the_trained_vector(finished):
    client = finished.clients[0]
    path = finished.folder / "home-0.toml"
    finished.die(0)
    path.write_text(path.read_text() + "\n[forecast]\nonline = false\n")
    client = finished.start(0)
    for rows in later(0)[:3]:
        fed(client, rows)
        client.forecast()
    assert client.learner.form._online is None


CHILD = """
import sys
from edge_sdk import Client, Config
from edge_sdk.extensions.choice.combination import CANDIDATES
from edge_sdk.forecasting.forecast import COMMON, FLEET
from edge_sdk.extensions.analytic import boosting
from firmware_sim.testing.loopback import LoopbackBroker
from tests.fleet.test_analytic_online import fed, later, served
client = Client(Config.load(sys.argv[1]), transport=lambda will: LoopbackBroker().link("home-0", will))
for hour, rows in enumerate(later(0)):
    fed(client, rows)
    client.forecast()
    if hour % 4 == 1:
        client.flush()
    print(hour, served(client).tobytes().hex(), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("killed_at", [5, 14, 26])
def test_a_killed_process_continues_with_the_solution_of_the_readings_it_kept(finished, killed_at):
    """The parent lets the device take hour by hour, kills it, and opens what it left."""
    finished.die(0)
    path = finished.folder / "home-0.toml"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["."])}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as child:  # fmt: skip
        told = {}
        for hour in range(killed_at + 1):
            number, vector = child.stdout.readline().split()
            told[int(number)] = bytes.fromhex(vector)
            assert int(number) == hour
            if hour < killed_at:
                child.stdin.write("\n")
                child.stdin.flush()
        child.send_signal(signal.SIGKILL)
        child.wait()
    link = LoopbackBroker()
    config = Config.load(path)
    with closing(Client(config, transport=lambda will: link.link("home-0", will))) as client:
        client.forecast()
        kept = len(client.learner.series) - HOURS
        assert kept == (killed_at - 1) // 4 * 4 + 2  # hours up to the last flush
        assert served(client).tobytes() == told[kept - 1]
        np.testing.assert_array_equal(served(client), recomputed(client))
        for rows in later(0)[kept : killed_at + 1]:  # the source reads them again
            fed(client, rows)
            client.forecast()
        assert served(client).tobytes() == told[killed_at]


def test_the_fleets_solution_and_the_devices_own_are_candidates_each(finished):
    client = next(iter(finished.clients.values()))
    learner, state = client.learner, client.state
    models = client.extension("choice").candidates.models(learner, state)
    assert COMMON in models.available
    frame = learner.frame()
    late = frame.origins()[-24:]
    fans = models.fans(learner.vector(state), frame, late)
    own, common = (fans[CANDIDATES.index(name)] for name in (FLEET, COMMON))
    assert np.isfinite(own).all()
    assert np.isfinite(common).all()
    assert not np.array_equal(own, common)
    assert np.array_equal(models.common, np.asarray(learner.half.model(state)["fleet"]))


def test_trees_beside_closed_form_leave_the_held_back_weeks_out_of_the_own_solution(finished):
    client = next(iter(finished.clients.values()))
    learner, state = client.learner, client.state
    frame = learner.frame()
    origins = frame.origins()
    early, late = origins[: len(origins) // 2], origins[len(origins) // 2 :]
    found = boosting._fleet_models(learner, state, frame, early, late)
    assert set(found) == {FLEET, COMMON}
    some = late[-5:]
    assert not np.array_equal(found[FLEET].early(some), found[FLEET].final(some))
    assert np.array_equal(found[COMMON].early(some), found[COMMON].final(some))
    changed = replace(frame, raw=np.where(np.arange(len(frame)) > early[-1] + 1, 9.9, frame.raw))
    again = boosting._fleet_models(learner, state, changed, early, late)
    assert np.array_equal(found[FLEET].early(some), again[FLEET].early(some))
