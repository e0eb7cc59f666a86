"""Attacks on the answer: the numbers of the specification, and what each may look at."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge_sdk.protocol.contract.method import Up
from firmware_sim.attacks import model
from firmware_sim.attacks.attack_context import LARGEST, AttackContext, in_space, sendable

HONEST = np.array([(1, 0), (0, 1), (1, 1), (2, 1)], float)
AMONG = AttackContext.among(HONEST)


def test_the_example_has_the_stated_mean():
    assert HONEST.mean(axis=0).tolist() == [1, 0.75]


@pytest.mark.parametrize(("epsilon", "lie"), [(0.5, (-0.5, -0.375)), (2, (-2, -1.5))])
def test_ipm_agrees_with_the_hand_computed_example(epsilon, lie):
    np.testing.assert_allclose(model.ipm(AMONG, epsilon=epsilon), lie, rtol=1e-12)


@pytest.mark.parametrize(("ddof", "lie"), [(0, (-0.06066017, 0.10048095)), (1, (-0.22474487, 0.0))])
def test_alie_agrees_with_the_hand_computed_example(ddof, lie):
    np.testing.assert_allclose(model.alie(AMONG, z=1.5, ddof=ddof), lie, atol=5e-9)


@pytest.mark.parametrize(("n", "f", "z"), [(50, 24, 1.42607687), (8, 2, 0.0)])
def test_z_max_agrees_with_the_hand_computed_example(n, f, z):
    assert model.z_max(n, f) == pytest.approx(z, abs=5e-9)


def test_alie_clamps_z_where_the_formula_gives_none():
    scene = replace(AMONG, devices=8, byzantine=2)
    clamped = model.alie(scene)
    np.testing.assert_allclose(clamped, model.alie(scene, z=0.3))
    assert not np.allclose(clamped, HONEST.mean(axis=0))
    many = replace(AMONG, devices=50, byzantine=24)
    np.testing.assert_allclose(model.alie(many), model.alie(many, z=1.42607687), atol=1e-8)


@pytest.mark.parametrize(("devices", "byzantine"), [(1, 1), (2, 1), (4, 3), (3, 3)])
def test_alie_is_defined_for_every_byzantine_fraction(devices, byzantine):
    scene = replace(AMONG, honest=HONEST[:1], devices=devices, byzantine=byzantine)
    assert np.isfinite(model.alie(scene)).all()


def test_byzfl_agrees_but_for_the_sign_of_its_tau(byzfl):
    np.testing.assert_allclose(
        byzfl.InnerProductManipulation(tau=0.5)(HONEST.copy()), model.ipm(AMONG)
    )
    np.testing.assert_allclose(
        byzfl.ALittleIsEnough(tau=-1.5)(HONEST.copy()), model.alie(AMONG, z=1.5)
    )
    upside_down = byzfl.ALittleIsEnough(tau=1.5)(HONEST.copy())
    np.testing.assert_allclose(upside_down, (2.22474487, 1.5), atol=1e-8)
    np.testing.assert_allclose(
        byzfl.SignFlipping()(HONEST.copy()), model.flipping(AMONG), err_msg="of the mean"
    )


def test_mimic_and_near_copy_follow_one_honest_device():
    assert model.mimic(AMONG, victim=3).tolist() == [2, 1]
    assert model.mimic(AMONG, victim=7).tolist() == [2, 1], "modulo how many there are"
    np.testing.assert_allclose(model.near_copy(AMONG), (1.001, 0.0))


def test_near_copy_agrees_with_the_credit_example():
    """Received (3, 3), the victim trained to (1, 0) and sent the difference."""
    received = np.array([3.0, 3.0])
    scene = replace(AMONG, honest=received - HONEST, own=np.zeros(2), received=received)
    sent = in_space("weights", Up.DELTA, model.near_copy)(scene)
    np.testing.assert_allclose(received - sent, (1.001, 0.0))


def test_the_same_attack_on_weights_and_on_the_change():
    received, trained = np.array([5.0]), np.array([4.0])
    as_delta = AttackContext.alone(received - trained, received)
    as_weights = AttackContext.alone(trained, received)
    for space in ("weights", "update"):
        lie = in_space(space, Up.DELTA, model.flipping)(as_delta)
        same = in_space(space, Up.WEIGHTS, model.flipping)(as_weights)
        np.testing.assert_allclose(received - lie, same)
    assert in_space("weights", Up.DELTA, model.flipping)(as_delta) == received + trained


@pytest.mark.parametrize("part", [Up.SIGNS, Up.GRADIENT, Up.PAIR])
def test_an_update_without_weights_is_attacked_as_sent_only(part):
    with pytest.raises(ValueError, match="set target=sent"):
        in_space("weights", part, model.flipping)
    assert in_space("sent", part, model.flipping) is model.flipping


def test_a_free_rider_repeats_the_last_change_of_the_model():
    moved = np.random.default_rng(1).normal(0, 0.5, 50_000)
    scene = replace(AttackContext.alone(np.ones(50_000), moved), models=(np.zeros(50_000),))
    lie = model.free_rider(replace(scene, past=(np.ones(50_000),)))
    assert np.std(lie - moved) == pytest.approx(0.5, rel=0.02)
    assert model.free_rider(AttackContext.alone(np.ones(2), np.array([7.0, 8]))).tolist() == [7, 8]


def test_a_replay_sends_the_configured_round_or_the_oldest():
    past = tuple(np.array([float(n)]) for n in range(1, 8))
    scene = replace(AttackContext.alone(np.array([8.0])), past=past)
    assert model.replay(scene).item() == 3.0
    assert model.replay(scene, rounds=99).item() == 1.0
    assert model.replay(replace(scene, past=())).item() == 8.0


def test_devices_with_one_seed_send_the_same_vector():
    lies = [
        model.gaussian(replace(AMONG, rng=np.random.default_rng(seed))).tolist()
        for seed in (3, 3, 4)
    ]
    assert lies[0] == lies[1] != lies[2]


def test_no_attack_modifies_its_inputs():
    kept = HONEST.copy()
    scene = replace(AttackContext.among(HONEST), past=(np.ones(2),), models=(np.zeros(2),))
    for act in (model.flipping, model.scaling, model.gaussian, model.constant, model.alie):
        act(scene)
    for act in (model.ipm, model.mimic, model.near_copy, model.free_rider, model.replay):
        act(scene)[...] = 99
    assert (kept == HONEST).all()


def test_every_attack_vector_can_be_sent():
    lie = sendable(np.array([np.inf, -1e300, np.nan, 1.0]))
    assert lie.tolist() == [LARGEST, -LARGEST, 0.0, 1.0]
    assert np.isfinite(lie.astype(np.float32)).all()
