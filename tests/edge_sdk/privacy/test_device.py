"""A device with a mechanism: what leaves, what is booked, what is kept, what a budget stops."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import numpy as np
import pytest

from edge_sdk import client as client_module
from edge_sdk.app.settings import from_table
from edge_sdk.errors import ConfigError, Reason
from edge_sdk.forecasting.series import Reading
from edge_sdk.privacy import PrivacySection
from edge_sdk.privacy.noise import epsilon_of
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.contract.manifest import GraphFile
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore
from edge_sdk.training import bootstrap

STREAM = "elec.import.energy"
W0 = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
UPDATE = {"name": "gaussian", "point": "update", "clip_norm": 1.0, "noise_multiplier": 20.0}
INPUT = {"name": "gaussian", "point": "input", "range": [0.0, 4.0]}
GRADIENT = {"name": "gaussian", "point": "gradient", "clip_norm": 1.0, "noise_multiplier": 200.0}
GRADIENT["range"] = [0.0, 4.0]


def privacy(mechanism, epsilon=5.0, **budget):
    return {
        "mechanism": mechanism,
        "mode": "honest",
        "budget": {"epsilon": epsilon, "delta": 1e-6, **budget},
    }


def clipped_gradient(p, x, y, bound):
    """The gradient of each window on its own, clipped, summed."""
    rows, targets = x[:, :, 0], y[:, 0]
    error = rows @ p[:4] + p[4] - targets
    each = 2 * error[:, None] * np.concatenate([rows, np.ones((len(x), 1))], 1)
    sizes = np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-12)
    return np.float32(np.mean(error**2)), (each * np.minimum(1.0, bound / sizes)).sum(0)


@pytest.fixture
def numpy_bundle(numpy_bundle, monkeypatch):
    """The bundle of the other tests, with a graph that clips window by window."""
    graph = GraphFile("clipped.onnx", ("p", "x", "y", "bound"), ("loss", "g"))
    manifest = replace(
        numpy_bundle.manifest, graphs={**numpy_bundle.manifest.graphs, "clipped_gradient": graph}
    )
    graphs = {**numpy_bundle.graphs, "clipped_gradient": clipped_gradient}
    bundle = replace(numpy_bundle, manifest=manifest, graphs=graphs)
    for module in (client_module, bootstrap):
        monkeypatch.setattr(module, "open_bundle", lambda _config, _announced: bundle)
    return bundle


def started(make, mechanism, name="fleet", **options):
    fleet = make(name, privacy=privacy(mechanism, **options), accept={"max_steps": 3})
    fleet.device.start()
    fleet.device.observe()
    fleet.device.client.flush()
    return fleet


def rounds(fleet, numbers):
    for number in numbers:
        fleet.server.open_round(number, number, W0)
        fleet.run(20, seconds=0.05)


def ledger(fleet):
    with DeviceStore.open(fleet.device.config.state, read_only=True) as store:
        return list(store.ledger())


def forgotten(fleet):
    """The flash is replaced: the same device, with an empty state."""
    fleet.device.kill()
    for file in fleet.device.config.state.iterdir():
        file.unlink()
    fleet.server.chunks.clear()


# --- what leaves --------------------------------------------------------------------------------


def test_a_protected_update_is_noisy_has_no_metrics_and_is_charged(make):
    fleet = started(make, UPDATE)
    rounds(fleet, [0])
    (update,) = fleet.server.updates
    assert (update.n, update.vals, update.spent) == (0, {}, 1)
    delta = np.frombuffer(update.blob, "<f4")
    assert np.linalg.norm(delta) > 2.0  # clipped to 1 and noised with 20
    (charge,) = ledger(fleet)
    assert (charge.unit, charge.multiplier, charge.count, charge.releases) == ("device", 10.0, 1, 1)
    assert charge.time == pytest.approx(fleet.clock.wall(), abs=5000)


def test_without_a_mechanism_the_ledger_is_unbounded(make):
    fleet = make("plain")
    fleet.device.start()
    fleet.device.observe()
    rounds(fleet, [0])
    assert fleet.server.updates[0].n > 0
    assert [(c.mechanism, c.multiplier) for c in ledger(fleet)] == [("none", 0.0)]
    assert fleet.device.client.status()["budget"]["epsilon"] is None


@pytest.mark.parametrize("restart", [False, True])
def test_a_resend_is_the_same_bytes_and_charged_once(make, restart):
    fleet = started(make, UPDATE)
    fleet.run()
    fleet.server.is_mute = True
    rounds(fleet, [0])
    (first,) = fleet.server.updates
    stored = fleet.device.client._session.outbox.entries[0].body
    fleet.server.rows.clear()  # the server lost everything it heard
    fleet.server.updates.clear()
    if restart:
        fleet.device.kill()
        fleet.device.start()
        assert fleet.device.client._session.outbox.entries[0].body == stored
    fleet.server.is_mute = False
    fleet.run(80, seconds=0.5)
    (again,) = [u for u in fleet.server.updates if u.round == 0]
    assert again == first
    assert again.blob == first.blob
    assert sum(c.releases for c in ledger(fleet)) == fleet.device.client.status()["spent"] == 1


@pytest.mark.extension
def test_gradient_noise_charges_every_step(make):
    fleet = started(make, GRADIENT, epsilon=0.5)
    rounds(fleet, [0, 1])
    assert [(c.point, c.count, c.releases) for c in ledger(fleet)] == [("gradient", 3, 1)] * 2
    assert all((u.n, u.vals) == (0, {}) for u in fleet.server.updates)
    scale = fleet.device.client.learner.scale
    assert (scale.low, scale.high) == (0.0, 4.0)
    worth = fleet.device.client.status()["budget"]["epsilon"]
    assert worth == pytest.approx(epsilon_of(100.0 / np.sqrt(6), 1e-6), rel=1e-6)


@pytest.mark.extension
def test_noise_that_exceeds_the_budget_with_earlier_releases_sends_nothing(make):
    fleet = started(make, UPDATE)
    rounds(fleet, [0])
    assert len(fleet.server.updates) == 1
    fleet.device.kill()
    fleet.device.config = replace(fleet.device.config, privacy=noisy_section(privacy(INPUT)))
    client = fleet.device.start()
    rounds(fleet, [1, 2])
    assert client.status()["stopped"] == "budget"
    assert len(fleet.server.updates) == 1
    assert client.status()["budget"]["epsilon"] <= 5.0


@pytest.mark.extension
def test_with_gradient_noise_no_clean_loss_selects_a_model(make):
    """What is chosen is learned on from, so the choice would leave with every later update."""
    for name, mechanism in (("gradient", GRADIENT), ("update", UPDATE), ("input", INPUT)):
        said = {"privacy": privacy(mechanism, epsilon=50.0), "training": {"holdout_fraction": 0.2}}
        fleet = make(name, accept={"max_steps": 3}, **said)
        fleet.device.start()
        fleet.device.observe()
        learner = fleet.device.client.learner
        assert learner.held_back() is not None
        loss = learner.judged(learner.bundle.initial)
        assert (loss is None) is (name == "gradient")


# --- the input ----------------------------------------------------------------------------------


@pytest.mark.extension
def test_the_same_reading_has_the_same_noise_in_every_window_and_after_a_restart(make):
    fleet = started(make, INPUT)
    rounds(fleet, [0])
    learner = fleet.device.client.learner
    frame = learner.learnable().frame
    origins = frame.origins()
    x, y = frame.inputs(origins)[:, :, 0], frame.targets(origins)[:, 0]
    by_slot = {}
    for row, origin in enumerate(origins):
        for back in range(4):
            by_slot.setdefault(origin - 3 + back, set()).add(float(x[row, back]))
        by_slot.setdefault(origin + 1, set()).add(float(y[row]))
    assert len(by_slot) > 50
    assert all(len(values) == 1 for values in by_slot.values())
    before = frame.raw.copy()
    fleet.device.kill()
    fleet.device.start()
    np.testing.assert_array_equal(fleet.device.client.learner.learnable().frame.raw, before)
    assert [(c.unit, c.count) for c in ledger(fleet) if not c.releases] == [("reading", 60)]


@pytest.mark.extension
def test_training_uses_noisy_and_serving_clean_readings(make):
    fleet = started(make, INPUT)
    rounds(fleet, [0])
    learner = fleet.device.client.learner
    clean = learner.series.values(STREAM)
    noisy = learner.learnable().frame.raw
    assert np.abs(noisy - clean).mean() > 1.0
    np.testing.assert_array_equal(learner.frame().raw, clean)
    assert learner.scale.width == pytest.approx(noisy.max() - noisy.min())
    assert "not covered" in fleet.device.client.status()["privacy"]


@pytest.mark.extension
def test_a_corrected_reading_keeps_its_first_noisy_value(make):
    fleet = started(make, INPUT)
    rounds(fleet, [0])
    learner = fleet.device.client.learner
    before = learner.learnable().frame.raw.copy()
    last = int(learner.series.times()[-1])
    fleet.device.client.observe(Reading(STREAM, last, 3.9))
    fleet.device.client.observe(Reading(STREAM, last + 3600, 3.9))
    after = learner.learnable().frame.raw
    np.testing.assert_array_equal(after[:-1], before)
    assert len(after) == len(before) + 1


@pytest.mark.extension
def test_further_updates_from_noisy_readings_cost_nothing(make):
    fleet = started(make, INPUT, epsilon=5.0)
    rounds(fleet, range(4))
    assert len(fleet.server.updates) == 4
    budget = fleet.device.client.status()["budget"]
    assert budget["epsilon"] == pytest.approx(5.0, rel=1e-6)
    assert (budget["releases"], budget["left"]) == (4, None)
    assert fleet.server.updates[0].n > 0  # from noised readings, as all of it


@pytest.mark.extension
def test_layers_trained_on_clean_readings_are_discarded(make):
    fleet = make("plain")
    fleet.device.start()
    fleet.device.observe()
    fleet.device.client.flush()
    rounds(fleet, [0])
    head = fleet.device.client.state.p[4]
    fleet.device.kill()
    said = privacy(INPUT, unclaimed_releases=1)
    fleet.device.config = replace(fleet.device.config, privacy=noisy_section(said))
    client = fleet.device.start()
    assert client.state.p[4] != head
    assert client.learner.scale is None
    assert client.status()["budget"]["epsilon"] == 0.0  # the first release is outside, aloud


def noisy_section(table):
    return from_table(PrivacySection, table, "meter.toml")


# --- budgets ------------------------------------------------------------------------------------


def test_a_spent_budget_stops_updates_and_local_training_continues(make, caplog):
    fleet = make(
        "spent",
        privacy=privacy(UPDATE, epsilon=0.75),
        accept={"max_steps": 3},
        timeouts={"reply": "1s"},
        local_rounds={"interval": "1s"},
    )
    fleet.device.start()
    fleet.device.observe()
    rounds(fleet, range(6))
    status = fleet.device.client.status()
    sent = len(fleet.server.updates)
    assert 1 < sent < 6
    assert status["budget"]["epsilon"] <= 0.75
    assert (status["budget"]["left"], status["stopped"]) == (0, "budget")
    assert epsilon_of(10.0 / np.sqrt(sent + 1), 1e-6) > 0.75
    fleet.run(30, seconds=0.3)
    assert fleet.device.client.status()["alone"]
    assert fleet.device.client.status()["counts"]["rounds alone"] > 1
    assert sum("privacy budget exhausted" in record.message for record in caplog.records) == 1
    fleet.device.kill()
    fleet.device.start()
    fleet.run(30, seconds=0.3)
    assert fleet.device.client.status()["stopped"] == "budget"
    assert len(fleet.server.updates) == sent


def test_the_number_of_updates_is_limited(make):
    fleet = started(make, UPDATE, epsilon=50.0, max_releases=2)
    rounds(fleet, range(4))
    assert len(fleet.server.updates) == 2


@pytest.mark.extension
def test_an_operator_may_lower_the_number_of_releases_only(make):
    fleet = started(make, UPDATE, epsilon=50.0, max_releases=3)
    rounds(fleet, [0])
    fleet.server.answer(m.CommandMessage(1, "budget", {"releases": 2.0}))
    fleet.run(10)
    rounds(fleet, [1, 2])
    assert len(fleet.server.updates) == 2
    fleet.server.answer(m.CommandMessage(2, "budget", {"releases": 9.0}))
    fleet.run(10)
    fleet.device.kill()
    fleet.device.start()
    rounds(fleet, [3, 4])
    assert len(fleet.server.updates) == 3
    assert [receipt.code for receipt in fleet.server.receipts] == [0, 0]


@pytest.mark.extension
def test_a_command_without_a_count_is_refused(make):
    fleet = started(make, UPDATE)
    fleet.run()
    fleet.server.answer(m.CommandMessage(1, "budget"))
    fleet.run(10)
    assert fleet.server.receipts[0].code == Reason.BAD_COMMAND


def test_when_the_aggregators_account_is_exhausted_the_device_stops(make):
    fleet = started(make, UPDATE, epsilon=50.0)

    def refuse(update, whole):
        fleet.server.updates.append(update)
        code = Reason.BUDGET_SPENT
        fleet.server.answer(
            m.ReceiptMessage(update.life, update.seq, whole[:16], code, 1, update.round)
        )

    fleet.server.settle = refuse
    rounds(fleet, range(3))
    assert len(fleet.server.updates) == 1
    assert fleet.device.client.status()["stopped"] == "budget"


def test_after_a_lost_store_the_aggregators_count_is_charged(make):
    fleet = started(make, UPDATE, epsilon=50.0)
    rounds(fleet, range(3))
    forgotten(fleet)
    remember(fleet, spent=5)  # three, and two that may have left unseen
    fleet.device.start()
    fleet.device.observe()
    rounds(fleet, [3])
    lost, new = ledger(fleet)
    assert (lost.count, lost.releases, new.releases) == (5, 5, 1)
    worth = fleet.device.client.status()["budget"]["epsilon"]
    assert worth == pytest.approx(epsilon_of(10.0 / np.sqrt(6), 1e-6), rel=1e-6)
    assert fleet.server.updates[-1].spent == 6


@pytest.mark.extension
def test_after_a_lost_store_no_older_reading_is_perturbed_again(make):
    fleet = started(make, INPUT)
    rounds(fleet, [0])
    forgotten(fleet)
    remember(fleet, spent=3)
    fleet.device.start()
    fleet.device.observe()
    rounds(fleet, [1])
    assert len(fleet.server.updates) == 1  # there is nothing that may be learned from
    start = 1_800_000_000 // 3600 * 3600
    for hour in range(40):
        value = 1.0 + 0.1 * (hour % 7)
        fleet.device.client.learner.observe(Reading(STREAM, start + hour * 3600, value), np.inf)
    rounds(fleet, [2])
    assert len(fleet.server.updates) == 2
    with DeviceStore.open(fleet.device.config.state, read_only=True) as store:
        assert min(slot for _, slot in store.noised()) * 3600 >= 1_800_000_000


def remember(fleet, spent):
    """Let the server tell a new store what it has counted."""
    answer = fleet.server.answer

    def said(message):
        if isinstance(message, m.WelcomeMessage):
            message = replace(message, spent=max(message.spent, spent))
        answer(message)

    fleet.server.answer = said


# --- the store ----------------------------------------------------------------------------------


def test_the_ledger_cannot_be_rewritten(make):
    fleet = started(make, UPDATE)
    rounds(fleet, [0])
    fleet.device.kill()
    with sqlite3.connect(fleet.device.config.state / FILE) as db:
        for statement in ("DELETE FROM ledger", "UPDATE ledger SET count = 0"):
            with pytest.raises(sqlite3.IntegrityError, match="only grows"):
                db.execute(statement)
    db.close()


def test_releases_without_noise_count_unless_excluded_explicitly(make):
    fleet = make("turn")
    fleet.device.start()
    fleet.device.observe()
    fleet.device.client.flush()
    rounds(fleet, [0])
    fleet.device.kill()
    fleet.device.config = replace(
        fleet.device.config, privacy=noisy_section(privacy(UPDATE, epsilon=50.0))
    )
    fleet.device.start()
    rounds(fleet, [1])
    assert fleet.device.client.status()["stopped"] == "budget"
    fleet.device.kill()
    fleet.device.config = replace(
        fleet.device.config,
        privacy=noisy_section(privacy(UPDATE, epsilon=50.0, unclaimed_releases=1)),
    )
    fleet.device.start()
    rounds(fleet, [2])
    assert len(fleet.server.updates) == 2


# --- before connecting --------------------------------------------------------------------------


@pytest.mark.extension
def test_an_invalid_privacy_section_is_refused_before_connecting(make):
    fleet = make("classical", privacy=privacy(INPUT | {"calibration": "classical"}))
    with pytest.raises(ConfigError, match=r"privacy.mechanism.calibration"):
        fleet.device.start()
    fleet.run()
    assert not fleet.server.counts


@pytest.mark.extension
def test_a_run_of_a_method_that_noise_breaks_is_refused(make):
    fleet = started(make, UPDATE)
    fleet.run()
    fleet.server.announce_bundle(serial=2, run=2, method="afl")
    fleet.run(20)
    status = fleet.device.client.status()
    assert status["counts"]["bundles refused"] == 1
    assert (status["method"], status["run"]) == ("fedavg", 1)
