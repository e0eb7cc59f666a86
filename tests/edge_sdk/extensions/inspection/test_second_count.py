"""The count of releases outside the state folder: what a lost, old or copied one gives away (nothing)."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from aggregator.store.ledgers import Ledger, after_hello
from edge_sdk.errors import StoreFull
from edge_sdk.extensions.inspection import release_count
from edge_sdk.extensions.inspection.count_recovery import recover_count
from edge_sdk.extensions.inspection.release_count import ReleaseCount, begin_counts, read_counts
from edge_sdk.extensions.inspection.status import status
from edge_sdk.privacy.ledger import PrivacyCharge
from edge_sdk.protocol import keys
from edge_sdk.protocol import messages as m
from edge_sdk.session.identity import create_identity
from edge_sdk.store.second_count import CountPlace
from edge_sdk.store.store import COUNTED, DeviceStore
from edge_sdk.training import bootstrap
from tests.edge_sdk.conftest import DEVICE_KEY, device_config

W0 = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
MOST = 5
FIVE = {
    "mode": "honest",
    "mechanism": {"name": "gaussian", "point": "update", "clip_norm": 1.0},
    "budget": {"epsilon": 8.0, "delta": 1e-6, "max_releases": MOST},
}
AT_INPUT = {
    "mode": "honest",
    "mechanism": {"name": "gaussian", "point": "input", "range": [0.0, 4.0]},
    "budget": {"epsilon": 5.0, "delta": 1e-6},
}


@pytest.fixture
def bounded(make, numpy_bundle, monkeypatch):
    monkeypatch.setattr(bootstrap, "open_bundle", lambda _config, _announced: numpy_bundle)
    return lambda name="fleet", privacy=FIVE, **more: make(
        name, privacy=privacy, accept={"max_steps": 3}, **more
    )


def rounds(fleet, number, *, hours=60):
    """Start the device if need be, and offer it rounds; return how many updates have left in all."""
    if fleet.device.client is None:
        fleet.device.start()
        fleet.device.observe(hours)
        fleet.device.client.flush()
        fleet.run(10)
    for _ in range(number):
        at = fleet.server._serial
        fleet.server.open_round(at, at, W0)
        fleet.run(20, seconds=0.05)
    return len(fleet.server.updates)


def hostile(fleet, **more):
    """Let the aggregator say that it has counted no release, and that every life is new."""
    answer = fleet.server.answer

    def lie(message):
        fleet.server._highest = 0
        is_welcome = isinstance(message, m.WelcomeMessage)
        answer(replace(message, spent=0, **more) if is_welcome else message)

    fleet.server.answer = lie


def lost(fleet):
    fleet.device.kill()
    shutil.rmtree(fleet.device.config.state)
    fleet.server.rows.clear()
    fleet.server.chunks.clear()


def count_of(fleet):
    return read_counts(fleet.device.config.counted_in, DEVICE_KEY.public)[""]


# --- attacks ------------------------------------------------------------------------------------


def test_a_lost_state_and_an_aggregator_that_lies_give_no_new_budget(bounded):
    fleet = bounded()
    hostile(fleet)
    assert rounds(fleet, MOST + 2) == MOST
    for _ in range(2):
        lost(fleet)
        assert rounds(fleet, 2) == MOST
        assert fleet.device.client.status()["stopped"] == "budget"
    assert fleet.device.client.status()["budget"]["epsilon"] == pytest.approx(8.0, rel=1e-6)


def test_an_old_copy_of_the_state_gives_no_new_budget(bounded, tmp_path):
    fleet = bounded()
    hostile(fleet)
    assert rounds(fleet, 2) == 2
    fleet.device.kill()
    shutil.copytree(fleet.device.config.state, tmp_path / "copy")
    assert rounds(fleet, MOST) == MOST
    for _ in range(2):
        lost(fleet)
        shutil.copytree(tmp_path / "copy", fleet.device.config.state)
        assert rounds(fleet, 2) == MOST


def test_a_state_of_the_last_version_makes_its_count_from_the_ledger(bounded):
    fleet = bounded()
    hostile(fleet)
    assert rounds(fleet, 2) == 2
    fleet.device.kill()
    fleet.device.config.counted_in.unlink()
    with DeviceStore.open(fleet.device.config.state) as store:
        store.set_facts(**{COUNTED: 0})
    fleet.device.start()
    assert count_of(fleet).releases == 2
    lost(fleet)
    assert rounds(fleet, MOST) == MOST


def test_wipe_and_another_key_give_no_new_budget(bounded):
    fleet = bounded()
    hostile(fleet)
    assert rounds(fleet, MOST) == MOST
    lost(fleet)
    config = fleet.device.config
    config.keys.device.unlink()
    key, is_new = create_identity(config)
    assert is_new
    assert read_counts(config.counted_in, key.public)[""].releases == MOST


@pytest.mark.extension
def test_a_clock_that_is_set_back_gives_no_second_noise_to_a_reading(bounded):
    fleet = bounded(privacy=AT_INPUT)
    hostile(
        fleet, time=1_600_000_000_000
    )  # before the readings, as the clock of the machine from now on
    assert rounds(fleet, 2) == 2
    lost(fleet)
    fleet.clock.wall = lambda: 1_500_000_000_000
    assert rounds(fleet, 2) == 2
    with DeviceStore.open(fleet.device.config.state, read_only=True) as store:
        assert not store.noised()
        assert store.noised_since() > 1_800_000_000


# --- new devices, and what is counted -----------------------------------------------------------


def test_a_key_that_was_made_just_now_needs_no_question(tmp_path):
    config = device_config(tmp_path, privacy=FIVE)
    config.keys.device.unlink()
    config.counted_in.unlink()
    key, is_new = create_identity(config)
    assert is_new
    with DeviceStore.open(config.state) as store:
        recover_count(store, CountPlace(config.counted_in, "", is_needed=True), key)
        assert not store.lacks_count
        assert store.second_count.count == ReleaseCount()


@pytest.mark.parametrize("starts", [1, 3])
def test_a_start_costs_nothing_whether_it_is_welcomed_or_not(bounded, starts):
    """A device whose welcomes get lost was charged two releases at the aggregator by each start."""
    fleet, ledger = bounded(), Ledger()
    heard = []
    fleet.server.welcome = lambda hello, _ref: heard.append(hello)  # and its answer gets lost
    for _ in range(starts):
        fleet.device.start()
        fleet.run(5)
        fleet.device.kill()
    assert heard
    for number, hello in enumerate(heard):
        ledger, is_welcome = after_hello(ledger, hello, b"%d" % number, hold=2)
        assert is_welcome or hello.life <= ledger.top
    assert (ledger.spent, status(fleet.device.config)["budget"]["releases"]) == (0, 0)


def test_a_further_participation_has_a_count_of_its_own_in_the_same_file(tmp_path):
    path = tmp_path / "meter.count"
    begin_counts(path, DEVICE_KEY, {})
    for name, releases in (("", 2), ("meter-1-b", 3), ("", 4)):
        with DeviceStore.open(tmp_path / f"state{name}") as store:
            recover_count(store, CountPlace(path, name, is_needed=True), DEVICE_KEY)
            store.second_count.reserve(0, releases, ())
    found = read_counts(path, DEVICE_KEY.public)
    assert {name: count.releases for name, count in found.items()} == {"": 4, "meter-1-b": 3}


@pytest.mark.parametrize("epsilon", [2.0, 0.3])
def test_answers_about_scores_are_counted_too(tmp_path, epsilon):
    place = CountPlace(tmp_path / "meter.count", "", is_needed=True)
    begin_counts(place.path, DEVICE_KEY, {})
    once = PrivacyCharge(1_700_000_000_000, "device", "score", "k-ary", 1.0 / epsilon)
    for folder, losses in (
        ("state", [epsilon] * 3),
        ("state", [epsilon] * 3),
        ("lost", [3 * epsilon]),
    ):
        with DeviceStore.open(tmp_path / folder) as store:
            recover_count(store, place, DEVICE_KEY)
            if folder == "state" and not store.count_charges():
                for _ in losses:
                    store.save_answer("score answer", b"answer", once)
            charges = [1.0 / one.multiplier for one in store.ledger()]
            assert charges == pytest.approx(losses, rel=1e-5)


def test_a_second_count_inside_the_state_folder_is_refused(tmp_path):
    inside = FIVE | {"second_count": str(tmp_path / "state" / "count")}
    with pytest.raises(Exception, match=r"privacy.second_count: .* is inside state"):
        device_config(tmp_path, privacy=inside)


# --- power cuts ---------------------------------------------------------------------------------


class PowerCutError(BaseException):
    """The power fails here."""


STEPS = ("before the count", "after the count", "before the commit", "after the commit")


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_no_release_is_missing_and_at_most_one_is_too_many(
    bounded, step, monkeypatch
):
    fleet = bounded()
    hostile(fleet)
    assert rounds(fleet, 1) == 1
    write, save = release_count.write_counts, DeviceStore.save

    def cut(*_, **__):
        raise PowerCutError

    def written(*args):
        write(*args)
        cut()

    def saved(self, **what):
        save(self, **what)
        cut()

    with monkeypatch.context() as failing:
        match step:
            case "before the count":
                failing.setattr(release_count, "write_counts", cut)
            case "after the count":
                failing.setattr(release_count, "write_counts", written)
            case "before the commit":
                failing.setattr("edge_sdk.store.store.write_charges", cut)
            case "after the commit":
                failing.setattr(DeviceStore, "save", saved)
        fleet.server.open_round(1, 1, W0)
        with pytest.raises(PowerCutError):
            fleet.run(20, seconds=0.05)
    assert len(fleet.server.updates) == 1, "nothing leaves before both are written"
    fleet.device.kill()
    counted = count_of(fleet).releases
    assert counted in (1, 2)
    is_too_many = step in ("after the count", "before the commit")
    assert rounds(fleet, MOST + 1) == MOST - is_too_many
    assert count_of(fleet).releases == fleet.device.client.status()["spent"] == MOST


@pytest.mark.extension
def test_a_crash_between_the_writes_is_no_lost_store(bounded, monkeypatch):
    """Noise that was drawn stays usable: only a ledger that is shorter than the count was replaced."""
    fleet = bounded(privacy=AT_INPUT)
    assert rounds(fleet, 1) == 1
    fleet.device.kill()
    state = fleet.device.config.state
    with DeviceStore.open(state, read_only=True) as store:
        noised, line = store.noised(), store.count_charges()
    count = replace(count_of(fleet), releases=2, line=line)
    release_count.write_counts(fleet.device.config.counted_in, {"": count}, (DEVICE_KEY,))
    fleet.device.start()
    assert fleet.device.client._store.noised() == noised
    assert not fleet.device.client._store.numbers().lost


def test_a_count_that_cannot_be_written_stops_releases_and_loses_nothing(bounded, monkeypatch):
    fleet = bounded()
    assert rounds(fleet, 1) == 1

    def full(*_args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as failing:
        failing.setattr(release_count, "write_atomically", full)
        assert rounds(fleet, 2) == 1
        with pytest.raises(
            StoreFull, match=r"meter.count: the count of releases cannot be written"
        ):
            release_count.write_counts(fleet.device.config.counted_in, {}, (DEVICE_KEY,))
    assert rounds(fleet, MOST) == MOST
    assert [charge.releases for charge in fleet.device.client._store.ledger()] == [1] * MOST


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_power_cut_while_the_key_is_replaced_leaves_a_count_of_either_key(tmp_path, is_renamed):
    path, new = tmp_path / "meter.count", keys.from_seed(b"n" * 32)
    release_count.write_counts(path, {"": ReleaseCount(3)}, (DEVICE_KEY,))
    release_count.renew_counts(path, DEVICE_KEY, new)
    public = new.public if is_renamed else DEVICE_KEY.public
    assert read_counts(path, public)[""].releases == 3


@pytest.mark.parametrize(
    "damage", ["", "{}", "[]", "not JSON", '{"counts": {"": [1, 2]}, "signatures": 7}']
)
def test_a_damaged_count_is_refused_with_the_remedy(tmp_path, damage):
    path = tmp_path / "meter.count"
    path.write_text(damage)
    with pytest.raises(release_count.CountError, match=r"meter\.count") as refused:
        read_counts(path, DEVICE_KEY.public)
    assert "--accept-loss" in refused.value.hint


def test_a_smaller_number_in_the_file_breaks_its_signature(tmp_path):
    path = tmp_path / "meter.count"
    release_count.write_counts(path, {"": ReleaseCount(5)}, (DEVICE_KEY,))
    path.write_text(path.read_text().replace("5,", "2,", 1))
    with pytest.raises(release_count.CountError, match="not signed by this device"):
        read_counts(path, DEVICE_KEY.public)
