"""Liars in a real fleet: real clients, real keys, the real daemon, one thread, a slow clock."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk.errors import Reason
from edge_sdk.protocol.contract.method import ALL, Task
from firmware_sim.attacks.attack_plan import AttackPlan, AttackRoles


def begin(world, plan, *, hours=400, liar_reads=0):
    """Start a fleet in which an assault is played; ``home-0`` is the first to lie."""
    world.start_daemon()
    ids = [f"home-{number}" for number in range(world.devices)]
    cast = AttackRoles.of(plan, ids, world.clock.monotonic)
    for number, name in enumerate(ids):
        source = number or liar_reads
        world.start(number, cast.role(name), source=source, hours=hours)
    return cast


def refusals(world):
    """Reasons for which the aggregator refused something, and how often."""
    counts, reasons = world.daemon._ingress.counts, set(Reason.__members__) - {"ACCEPTED"}
    return {name: n for name, n in counts.items() if name in reasons}


def answers(world):
    """What lies at the aggregator when everybody has answered and one more is waited for."""
    world.until(lambda: len(world.daemon.state.pending) == world.devices)
    return dict(world.daemon.state.pending)


def learned(world, rounds):
    world.until(lambda: world.version >= rounds)
    return world.consensus()


@pytest.fixture
def calm(world):
    """What three rounds come to when nobody lies."""
    one = world()
    one.start_all()
    return learned(one, 3)


@pytest.mark.parametrize("attack", ["alie", "flipping", "label_flip", "nan", "drop", "twin"])
def test_without_byzantine_devices_the_model_is_identical(world, calm, attack):
    one = world()
    begin(one, AttackPlan(attack, byzantine=0.0))
    np.testing.assert_array_equal(learned(one, 3), calm)


@pytest.mark.parametrize("attack", ["alie", "flipping", "label_flip", "nan"])
def test_before_its_start_round_an_attack_has_no_effect(world, calm, attack):
    one = world()
    begin(one, AttackPlan(attack, byzantine=0.4, start_round=4))
    np.testing.assert_array_equal(learned(one, 3), calm)


@pytest.mark.parametrize(
    "attack", ["flipping", "scaling", "gaussian", "constant", "ipm", "mimic", "label_flip"]
)
def test_an_attack_moves_the_mean(world, calm, attack):
    one = world()
    begin(one, AttackPlan(attack, byzantine=0.4))
    assert not np.array_equal(learned(one, 3), calm)
    assert not refusals(one), "well-formed lies are admitted"


def test_flipped_weights_arrive_as_defined(world):
    """Uploading -w where the difference is asked for: received + trained, not the difference."""
    honest = world(run={"quorum": 4})
    honest.start_all()
    truth = answers(honest)
    one = world(run={"quorum": 4})
    begin(one, AttackPlan("flipping", byzantine=0.4))
    lied = answers(one)
    w = one.consensus()
    np.testing.assert_allclose(lied["home-0"], 2 * w - truth["home-0"], atol=1e-6)
    assert lied["home-0"] @ w > 0.9 * np.linalg.norm(lied["home-0"]) * np.linalg.norm(w)
    for name in ("home-1", "home-2"):
        np.testing.assert_array_equal(lied[name], truth[name])


def test_data_attacks_affect_others_through_uploads_only(world):
    """A constant upload depends on no reading: other data at the liar must change nothing."""
    seen = []
    for source in (0, 77):
        one = world()
        begin(one, AttackPlan("constant", byzantine=0.4), liar_reads=source)
        learned(one, 3)
        seen.append([one.clients[number].state.p.copy() for number in (1, 2)])
    for here, there in zip(*seen, strict=True):
        np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize("attack", ["gaussian", "scaling", "label_flip"])
def test_colluders_send_one_vector(world, attack):
    one = world(devices=4, run={"quorum": 5})
    begin(one, AttackPlan(attack, byzantine=0.5, colluding=True))
    sent = answers(one)
    np.testing.assert_array_equal(sent["home-0"], sent["home-1"])
    assert not np.array_equal(sent["home-1"], sent["home-2"])


def test_omniscient_attackers_receive_the_updates_of_the_same_round(world):
    one = world()
    cast = begin(one, AttackPlan("mimic", byzantine=0.4))
    one.until(lambda: len(one.daemon.state.pending) == 2)
    assert "home-0" not in one.daemon.state.pending, "the liar waited"
    rows = cast.coalition.rows(Task(ALL, 1, "train"))
    np.testing.assert_array_equal(rows[0], one.daemon.state.pending["home-1"])
    w0 = one.consensus()
    one.until(lambda: one.version == 1)
    np.testing.assert_allclose(w0 - one.consensus(), (2 * rows[0] + rows[1]) / 3, atol=1e-7)


def test_the_wait_for_honest_updates_times_out(world):
    """One honest device has no readings and never answers: the liar waits for it once."""
    one = world(run={"quorum": 2})
    one.start_daemon()
    ids = ["home-0", "home-1", "home-2"]
    cast = AttackRoles.of(
        AttackPlan("mimic", byzantine=0.4, timeout="5s"), ids, one.clock.monotonic
    )
    for number, hours in enumerate((400, 400, 0)):
        one.start(number, cast.role(ids[number]), hours=hours)
    one.until(lambda: one.version == 1)
    assert one.clock.now > 5
    begun = one.clock.now
    one.until(lambda: one.version == 3)
    assert one.clock.now - begun < 10


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        ("nan", "NOT_FINITE"),
        ("wrong_size", "WRONG_SIZE"),
        ("wrong_version", "FROM_FUTURE"),
        ("empty_vector", "WRONG_SIZE"),
    ],
)
def test_an_invalid_body_is_refused_and_the_others_are_unaffected(world, attack, reason):
    one = world(run={"quorum": 2})
    begin(one, AttackPlan(attack, byzantine=0.4))
    moved = learned(one, 3)
    assert refusals(one)[reason] >= 2
    two = world(run={"quorum": 2})
    two.start_daemon()
    for number in (1, 2):
        two.start(number)
    np.testing.assert_array_equal(moved, learned(two, 3))


@pytest.mark.parametrize("attack", ["duplicate", "reorder", "delay", "drop"])
def test_a_tampering_link_changes_no_bit(world, calm, attack):
    one = world(run={"deadline": "900s"})
    begin(one, AttackPlan(attack, byzantine=0.4))
    np.testing.assert_array_equal(learned(one, 3), calm)


def test_an_empty_payload_has_no_effect(world):
    one = world(run={"quorum": 2})
    begin(one, AttackPlan("empty_payload", byzantine=0.4))
    moved = learned(one, 2)
    two = world(run={"quorum": 2})
    two.start_daemon()
    for number in (1, 2):
        two.start(number)
    np.testing.assert_array_equal(moved, learned(two, 2))


def test_two_devices_with_one_id_do_not_count_twice(world):
    one = world(run={"quorum": 2})
    begin(one, AttackPlan("twin", byzantine=0.4))
    assert len(one.fleet.clients) == 4
    learned(one, 3)
    told = refusals(one)
    assert told.get("CLOSED", 0) + told.get("FORK", 0) > 0, "each hello ends the other's life"
    assert one.daemon._ingress.counts["ACCEPTED"] <= 3 * 3, "one a round and id"


@pytest.mark.parametrize("method", ["rsa_weights", "bsfdp"])
def test_the_influence_on_an_l1_consensus_is_bounded(world, method):
    settings = {"steps": 2, "rate": 0.003} | ({"regulariser": "off"} if method == "bsfdp" else {})
    ends = []
    for value in ("1e3", "1e30"):
        one = world(run={"method": method, "settings": settings, "rounds": 4})
        begin(one, AttackPlan("constant", byzantine=0.4, options={"value": value}))
        ends.append(learned(one, 4))
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("attack", ["flipping", "scaling", "gaussian", "alie", "mimic"])
def test_attacked_signs_are_valid_signs(world, attack):
    run = {"method": "rsa", "settings": {"steps": 2, "rate": 0.01}, "rounds": 3}
    honest = world(run=run)
    honest.start_all()
    one = world(run=run)
    begin(one, AttackPlan(attack, byzantine=0.4))
    moved = learned(one, 3)
    assert not refusals(one)
    assert np.array_equal(moved, learned(honest, 3)) == (attack == "scaling")


@pytest.mark.parametrize("method", ["fedbuff", "fedasync"])
def test_asynchronous_omniscient_attackers_use_the_latest_updates(world, method):
    one = world(run={"method": method, "quorum": 1 if method == "fedasync" else 2})
    begin(one, AttackPlan("alie", byzantine=0.4))
    learned(one, 6)
    assert not refusals(one)
