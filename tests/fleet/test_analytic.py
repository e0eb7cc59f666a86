"""Federation in closed form end to end: the fleet's solution, restarts, removal of a device."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from aggregator.commands import main as cli
from aggregator.extensions.analytic.fleet import AnalyticFleet
from aggregator.extensions.audit.recompute import recompute
from aggregator.extensions.authoring.closed_form import ANALYTIC, made
from aggregator.ingress.admission_policy import OpenRound, admit_update
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.analytic.bundle_section import statistic_layout
from edge_sdk.extensions.analytic.solve import fleet_solution
from edge_sdk.extensions.analytic.statistics import total
from edge_sdk.protocol.messages import UpdateMessage
from firmware_sim.testing.loopback import LinkFaults
from tests.fleet.conftest import SEEDS

VERSIONS = 4  # the constants of the features, and three passes


def closed_form(world, **more):
    settings = more.pop("settings", {})
    run = {"bundle": "load-analytic", "method": "analytic", "quorum": 4, "deadline": "600s"}
    run |= {"settings": settings}
    return world(devices=4, run=run | more.pop("run", {}), **more)


def finish(one, versions=VERSIONS):
    one.until(lambda: one.version >= versions and one.daemon._engine.is_done)
    sound(one)
    return one.consensus()


def sound(one):
    engine = one.daemon._engine
    audit = recompute(one.daemon._store, engine.run.half, engine.run.first_state().w)
    assert audit.is_sound, audit.faults
    return audit


def test_the_model_is_the_solution_of_the_sum_of_what_the_devices_sent(world):
    one = closed_form(world)
    one.start_all()
    w = finish(one)
    manifest = one.daemon._engine.run.bundle.manifest
    fleet = AnalyticFleet(manifest.analytic, 3, None)
    known = fleet.statistics(one.daemon.state.held)
    assert sorted(known) == [f"home-{number}" for number in range(4)]
    wanted = fleet_solution(total(known), manifest.analytic.penalty)
    np.testing.assert_array_equal(w[106:], wanted.ravel())
    assert one.daemon.metrics.refusals() == {}
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    for client in one.clients.values():
        np.testing.assert_array_equal(client.state.p, w.astype(np.float32))
    solved = [client.state for client in one.clients.values()]
    assert any((state.own != state.p).any() for state in solved)


def test_it_forecasts_better_than_the_last_value(world):
    one = closed_form(world)
    one.start_all()
    finish(one)
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    for client in one.clients.values():
        learner, state = client.learner, client.state
        begin = learner.frame().times[340]
        _, told, truth = learner.rolling(state, begin, 1e12)
        last = learner.frame().raw[339 : 339 + len(truth), None]
        assert np.abs(told - truth).mean() < 0.8 * np.abs(last - truth).mean()
        assert client.forecast().source == "model"
        assert client.forecast().interval.shape == (1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_power_cuts_on_either_side_change_no_bit(world, seed):
    calm = closed_form(world)
    calm.start_all()
    wanted = finish(calm)
    one, rng = closed_form(world), random.Random(seed)
    one.start_all()
    one.cut_power_until(lambda: one.daemon._engine.is_done, rng)
    assert finish(one).tobytes() == wanted.tobytes()


@pytest.mark.slow
def test_a_link_that_drops_duplicates_and_reorders_changes_no_bit(world):
    calm = closed_form(world)
    calm.start_all()
    wanted = finish(calm)
    faults = LinkFaults(drop=0.1, duplicate=0.2, reorder=0.3, delay=0.3)
    one = closed_form(world, faults=faults)
    one.start_all()
    assert finish(one).tobytes() == wanted.tobytes()


def test_votes_under_a_median_exclude_a_byzantine_statistic(world):
    settings = {"combine": "votes"}
    one = closed_form(world, settings=settings, run={"rule": {"name": "median"}})
    one.start_all()
    assert np.isfinite(finish(one)).all()


def test_a_late_device_counts_in_the_next_round(world):
    one = closed_form(world, run={"quorum": 4, "min_updates": 3, "deadline": "5s"})
    one.start_daemon()
    for number in range(3):
        one.start(number)
    one.until(lambda: one.version >= 2)
    one.start(3)
    finish(one)
    assert "home-3" in one.daemon.state.held
    assert one.daemon.metrics.refusals() == {}


def carried_out(one, *order):
    """Queue an order for the running daemon, and let it be carried out."""
    assert cli.main([*order, "--config", str(one.config)]) == 0
    one.until(lambda: not list(one.daemon.config.inbox.glob("*.json")))


@pytest.mark.slow
def test_unlearning_a_device_by_command_is_audited(world, capsys):
    one = closed_form(world)
    one.start_all()
    finish(one)
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    held = dict(one.daemon.state.held)
    carried_out(one, "unlearn", "home-2")
    manifest = one.daemon._engine.run.bundle.manifest
    fleet = AnalyticFleet(manifest.analytic, 3, None)
    others = {name: vector for name, vector in held.items() if name != "home-2"}
    wanted = fleet_solution(total(fleet.statistics(others)), manifest.analytic.penalty)
    np.testing.assert_array_equal(one.consensus()[106:], wanted.ravel())
    assert one.version == VERSIONS + 1
    assert sound(one).unlearned[0][1] == "home-2"
    present = [one.clients[number] for number in (0, 1, 3)]
    published = one.consensus().astype(np.float32)
    one.until(lambda: all((client.state.p == published).all() for client in present))
    carried_out(one, "unlearn", "home-2")  # twice is once
    assert one.version == VERSIONS + 1
    one.kill_daemon()
    capsys.readouterr()
    assert cli.main(["audit", str(one.config)]) == 0
    assert "home-2 was unlearned" in capsys.readouterr().out
    one.start_daemon()
    np.testing.assert_array_equal(one.consensus()[106:], wanted.ravel())


def test_unlearning_in_an_open_round_leaves_the_next_model_without_the_device(world):
    one = closed_form(world, run={"quorum": 4, "min_updates": 3, "deadline": "5s"})
    one.start_all()
    one.until(lambda: one.version >= 2)
    one.die(3)
    carried_out(one, "unlearn", "home-3")
    assert "home-3" not in one.daemon.state.held
    finish(one)
    assert sorted(one.daemon.state.held) == ["home-0", "home-1", "home-2"]
    assert sound(one).unlearned[0][1] == "home-3"


def test_a_method_without_unlearning_refuses_the_command(world, capsys):
    one = world(run={"rounds": 1})
    one.start_all()
    capsys.readouterr()
    assert cli.main(["unlearn", "home-0", "--config", str(one.config)]) != 0
    assert "cannot unlearn" in capsys.readouterr().err


def test_an_invalid_statistic_is_refused_with_a_receipt(world):
    one = closed_form(world, run={"quorum": 3})
    one.start_daemon()
    for number in range(4):
        one.start(number)
    one.until(lambda: one.clients[3].learner.role.method == "analytic")
    half = one.clients[3].learner.half

    def lying(state, event):
        state, effects = half.apply(state, event)
        return state, tuple(replace(e, vector=e.vector * np.float32(-1.0)) for e in effects)

    one.clients[3].learner.half = half._replace(apply=lying)
    finish(one)
    assert "home-3" not in one.daemon.state.held
    one.until(lambda: "NORM_EXCEEDED" in one.daemon.metrics.refusals())


def test_an_update_of_another_bundles_width_is_refused_by_its_layout(world):
    one = closed_form(world)
    one.start_daemon()
    limits = one.daemon._engine.run.limits
    wide, _ = made(replace(ANALYTIC["load-analytic"], units=61), name="wide", version=1)
    message = UpdateMessage(
        run=1, round=1, base=0, life=1, seq=1, spent=1, spec=wide.spec().digest, part="stat",
        enc="f4", n=0, vals={}, blob=bytes(4 * statistic_layout(3, 115).size),
    )  # fmt: skip
    now = OpenRound(1, 1, 0)
    for said, reason in (
        (message, Reason.WRONG_SPEC),
        (replace(message, spec=limits.spec), Reason.WRONG_SIZE),
        (replace(message, spec=limits.spec, part="delta"), Reason.WRONG_ENCODING),
    ):
        with pytest.raises(Refused) as refused:
            admit_update(said, sender="home-0", limits=limits, round_state=now)
        assert refused.value.reason is reason
