"""The device's shell against a scripted aggregator: a round, a loss, a crash, a stop."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk.errors import Reason
from edge_sdk.forecasting.series import Reading
from edge_sdk.protocol import keys
from edge_sdk.protocol import messages as m

W0 = np.array([0.1, 0.2, 0.3, 0.4], np.float32)


def test_a_round_is_trained_uploaded_in_one_message_and_receipted(fleet):
    fleet.device.start()
    fleet.device.observe()
    fleet.server.open_round(0, 0, W0)
    fleet.run()
    (update,) = fleet.server.updates
    assert (update.run, update.round, update.base, update.part) == (1, 0, 0, "delta")
    assert fleet.server.counts["update"] == 1
    assert fleet.server.counts["offer"] == 0
    status = fleet.device.client.status()
    assert (status["outbox"], status["counts"]["accepted"], status["spent"]) == (0, 1, 1)


def test_the_update_is_received_minus_trained_without_personal_layers(fleet):
    client = fleet.device.start()
    fleet.device.observe()
    head_before = client.state.p[4]
    fleet.server.open_round(0, 0, W0)
    fleet.run()
    delta = np.frombuffer(fleet.server.updates[0].blob, "<f4")
    assert delta.shape == (4,)
    np.testing.assert_array_equal(delta, W0 - client.state.p[:4])
    assert client.state.p[4] != head_before


def test_a_lost_receipt_is_requested_and_the_update_counts_once(fleet):
    fleet.device.start()
    fleet.device.observe()
    fleet.run()
    fleet.server.is_mute = True
    fleet.server.open_round(0, 0, W0)
    fleet.run()
    assert len(fleet.server.updates) == 1
    assert fleet.device.client.status()["outbox"] == 1
    fleet.server.is_mute = False
    fleet.run(40, seconds=0.5)
    assert fleet.device.client.status()["outbox"] == 0
    assert len(fleet.server.updates) == 1
    assert fleet.server.counts["update"] == 1  # asked with an offer, never sent again unasked
    assert fleet.server.counts["offer"] >= 1


def test_a_large_body_is_sent_as_offer_and_chunks(make):
    fleet = make(inline=0)
    fleet.device.start()
    fleet.device.observe()
    fleet.server.open_round(0, 0, W0)
    fleet.run()
    assert fleet.server.counts["update"] == 0
    assert fleet.server.counts["chunk"] == 1
    assert len(fleet.server.updates) == 1


def test_a_model_without_retained_parts_is_requested(fleet):
    fleet.device.start()
    fleet.device.observe()
    fleet.server.open_round(0, 0, W0, retained=False)
    fleet.run()
    assert fleet.server.updates == []
    fleet.run(80, seconds=1.0)
    assert fleet.server.counts["have"] >= 1
    assert len(fleet.server.updates) == 1


def test_the_hello_is_repeated_unchanged_until_the_welcome(fleet):
    fleet.server.is_mute = True
    fleet.device.start()
    fleet.run(30, seconds=1.0)
    assert fleet.server.counts["hello"] > 1
    assert fleet.server._highest == 1
    fleet.server.is_mute = False
    fleet.run(
        round(fleet.device.client._session.outbox.retry.cap) + 2, seconds=1.0
    )  # the longest wait
    assert fleet.device.client.status()["ready"]
    assert fleet.device.client.status()["life"] == 1


def test_a_used_life_is_refused_with_a_floor_and_a_larger_one_proposed(fleet):
    fleet.server._highest = 7
    fleet.device.start()
    fleet.run()
    assert fleet.device.client.status()["life"] == 8


@pytest.mark.parametrize("turns", range(1, 12))
def test_killed_anywhere_the_device_ends_with_the_same_bits(make, turns):
    whole, cut = make("whole"), make("cut")
    for fleet in (whole, cut):
        fleet.device.start()
        fleet.device.observe()
        fleet.device.client.flush()
        fleet.server.open_round(0, 0, W0)
    whole.run(20)
    cut.run(turns)
    cut.device.kill()
    cut.run(3)
    cut.device.start()
    cut.run(60, seconds=0.5)
    for fleet in (whole, cut):
        fleet.server.open_round(1, 1, W0 * 0.5)
        fleet.run(60, seconds=0.5)
    np.testing.assert_array_equal(
        whole.device.client.state.p.view(np.uint32), cut.device.client.state.p.view(np.uint32)
    )
    assert [u.blob for u in whole.server.updates] == [u.blob for u in cut.server.updates]
    assert [u.round for u in cut.server.updates] == [0, 1]


def test_a_retained_manifest_starts_no_second_training(fleet):
    fleet.device.start()
    fleet.device.observe()
    fleet.server.open_round(3, 5, W0)
    fleet.run()
    fleet.device.kill()
    fleet.device.start()
    fleet.run(40, seconds=0.5)
    assert len(fleet.server.updates) == 1


def test_an_abandoned_round_is_trained_again_without_a_download(fleet):
    fleet.device.start()
    fleet.device.observe()
    fleet.server.open_round(0, 0, W0)
    fleet.run()
    down = fleet.device.client.status()["counts"]["bytes_down"]
    fleet.server.open_round(1, 0, W0, retained=False)
    fleet.run()
    assert [u.round for u in fleet.server.updates] == [0, 1]
    assert fleet.device.client.status()["counts"]["bytes_down"] - down < 700


def test_the_final_model_is_adopted_without_an_update(fleet):
    client = fleet.device.start()
    fleet.device.observe()
    fleet.server.open_round(0, 0, W0)
    fleet.run()
    head = client.state.p[4]
    fleet.server.open_round(1, 1, W0 * 2, phase="stop", vals={})
    fleet.run()
    np.testing.assert_array_equal(client.state.p[:4], W0 * 2)
    assert client.state.p[4] == head
    assert len(fleet.server.updates) == 1
    assert client.status()["stopped"] == "stop"


def test_without_a_complete_window_the_model_is_adopted_without_training(fleet, caplog):
    client = fleet.device.start()
    fleet.device.observe(3)  # the window has 4 rows, and a target after them
    with caplog.at_level("INFO"):
        fleet.server.open_round(0, 0, W0)
        fleet.run()
    np.testing.assert_array_equal(client.state.p[:4], W0)
    assert fleet.server.updates == []
    (refusal,) = fleet.server.refusals
    assert refusal.code == Reason.NO_WINDOWS
    assert [refusal.id] == [*fleet.server.contents]
    counts = client.status()["counts"]
    assert (counts["rounds without windows"], counts.get("rounds", 0)) == (1, 0)
    assert client.status()["missing"] == "1 more reading without a gap (1 hour)"
    assert "round trained" not in caplog.text
    assert 'round skipped run=1 round=0 why="1 more reading without a gap (1 hour)"' in caplog.text
    fleet.device.observe(60)
    fleet.server.open_round(1, 1, W0)
    fleet.run()
    assert [u.round for u in fleet.server.updates] == [1]
    assert client.status()["missing"] == ""


def test_before_the_first_reading_a_forecast_has_no_time_and_names_the_missing_readings(fleet):
    forecast = fleet.device.start().forecast()
    assert forecast.source == "none"
    assert forecast.times.shape == forecast.values.shape == (0,)
    assert forecast.missing == (
        "no reading of elec.import.energy yet; then 4 readings without a gap (4 hours)"
    )


def test_an_older_manifest_is_counted_and_ignored(fleet):
    fleet.device.start()
    fleet.device.observe()
    fleet.server._serial = 5
    fleet.server.open_round(4, 4, W0)
    fleet.run()
    fleet.server.open_round(9, 3, W0)  # a newer serial with an older version
    fleet.run()
    fleet.server._serial = 0
    fleet.server.open_round(10, 4, W0)  # an older serial
    fleet.run()
    assert [u.round for u in fleet.server.updates] == [4]
    assert fleet.device.client.status()["counts"]["arrived ROLLBACK"] >= 2


def test_a_task_with_more_steps_than_allowed_is_refused(make):
    fleet = make(accept={"max_steps": 2})
    fleet.device.start()
    fleet.device.observe()
    fleet.server.open_round(0, 0, W0)
    fleet.run()
    assert fleet.server.updates == []
    assert fleet.device.client.status()["counts"]["arrived BAD_SCALAR"] == 1


def test_at_most_hold_updates_wait_for_receipts(fleet):
    fleet.device.start()
    fleet.device.observe()
    fleet.run()
    fleet.server.is_mute = True
    for number in range(5):
        fleet.server.open_round(number, number, W0)
        fleet.run()
    assert fleet.device.client.status()["outbox"] == 2
    assert fleet.device.client.status()["spent"] == 2


def test_a_device_forecasts_before_its_first_connection(fleet):
    client = fleet.device.start()
    assert not client.is_ready
    fleet.device.observe(10)
    assert client.is_ready
    forecast = client.forecast()
    assert forecast.source == "model"
    assert np.isfinite(forecast.median).all()


def test_the_status_counts_connections_and_the_will_states_lost(fleet):
    fleet.device.start()
    fleet.run()
    fleet.broker.cut("meter-1")
    fleet.run()
    states = [(s.state, s.conn) for s in fleet.server.statuses]
    assert ("lost", 1) in states
    assert states[-1] == ("online", 2)
    fleet.device.client.close()
    fleet.device.client = None
    fleet.run()
    assert fleet.server.statuses[-1].state == "offline"


def test_a_new_run_with_other_shared_layers_is_followed(fleet):
    client = fleet.device.start()
    fleet.device.observe()
    fleet.server.open_round(0, 0, W0)
    fleet.run()
    fleet.server.announce_bundle(serial=2, run=2, shared=("body.", "head."))
    fleet.server.spec = fleet.device.client.learner.manifest.spec(("body.", "head."))
    fleet.run()
    fleet.server.open_round(0, 0, np.append(W0, 0.5), run=2)
    fleet.run()
    assert [(u.run, u.round, len(u.blob)) for u in fleet.server.updates] == [
        (1, 0, 16),
        (2, 0, 20),
    ]
    assert client.status()["run"] == 2


def test_an_announcement_with_another_signature_is_ignored(fleet):
    fleet.device.start()
    fleet.run()
    from_stranger = fleet.server
    from_stranger.announce(
        "bundle",
        m.BundleMessage(9, "x", 1, b"x" * 32, 1, b"y" * 16, "0.1.0", "fedavg", 9, ()),
        signer=keys.from_seed(b"s" * 32),
    )
    fleet.run()
    assert fleet.device.client.status()["run"] == 1
    assert fleet.device.client.status()["counts"]["arrived UNKNOWN_CLIENT"] == 1


def test_a_closed_round_is_not_trained(fleet):
    fleet.device.start()
    fleet.device.observe()
    fleet.run()
    fleet.server.open_round(0, 0, W0, until=1)
    fleet.run()
    assert fleet.server.updates == []
    assert fleet.device.client.status()["spent"] == 0


def test_on_a_full_disk_the_device_continues_and_releases_nothing(fleet):
    fleet.device.start()
    fleet.device.observe()
    fleet.run()
    db = fleet.device.client._store._db
    db.execute("PRAGMA max_page_count = 1")  # cannot shrink: now no page can be added
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    fleet.device.client.observe(Reading("elec.import.energy", 1_700_000_000 // 3600 * 3600, 9.0))
    fleet.server.open_round(0, 0, np.float32(W0))
    fleet.run()
    assert fleet.device.client.forecast().source == "model"
    db.execute("PRAGMA max_page_count = 100000")
    fleet.server.open_round(1, 0, W0)
    fleet.run(30, seconds=0.5)
    assert fleet.server.updates[-1].round == 1
    assert fleet.device.client.status()["outbox"] == 0


def test_readings_recorded_together_are_counted_saved_and_used_as_those_recorded_one_by_one(make):
    together, one_by_one = (make(name).device.start() for name in ("together", "one"))
    stream = "elec.import.energy"
    some = [Reading(stream, 3600.0 * (460_000 + hour), float(hour % 5)) for hour in range(90)]
    some += [*some[:3], Reading("unused", 0.0, 1.0), Reading(stream, some[7].time, 9.0)]
    for reading in some:
        one_by_one.observe(reading)
    together.observe_all(some[:60])  # by column
    together.observe_all(some[60:])  # has a change of an earlier reading: one by one
    counts = [
        {key: n for key, n in client.status()["counts"].items() if key.startswith("readings")}
        for client in (together, one_by_one)
    ]
    assert (
        counts[0]
        == counts[1]
        == {
            "readings new": 90,
            "readings again": 3,
            "readings unused": 1,
            "readings changed": 1,
        }
    )
    values = [client.learner.series.values(stream) for client in (together, one_by_one)]
    np.testing.assert_array_equal(*values)
    assert together.learner.series.pending() == one_by_one.learner.series.pending()
