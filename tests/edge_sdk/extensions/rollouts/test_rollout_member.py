"""A device in a staged rollout: score, serve, return; whatever is lost, repeated, cut or refused."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from edge_sdk.app.settings import SettingsError
from edge_sdk.errors import EdgeError, Reason
from edge_sdk.extensions.rollouts import rollout_member
from edge_sdk.extensions.rollouts.messages import RolloutMessage, StageMessage, TrialMessage
from edge_sdk.extensions.rollouts.saved_trial import SavedTrial, saved_trial, saved_vector
from edge_sdk.extensions.rollouts.trial_record import TrialRecord
from edge_sdk.forecasting.series import Reading
from edge_sdk.protocol import codec, topics
from edge_sdk.protocol.envelope import AGGREGATOR, digest, ref
from tests.edge_sdk.conftest import (
    AGG_KEY,
    DEVICE_KEY,
    FLEET,
    MANIFEST,
    NumpyBundle,
    device_config,
    linear_forecast,
    linear_gradient,
)

ARCHIVE = b"version 2" * 40
BEGIN = 1_700_006_400  # midnight
W0 = np.array([0.1, 0.2, 0.3, 0.4], np.float32)


def worse_forecast(**feeds):
    return (linear_forecast(**feeds)[0] + 9.0,)


def broken_forecast(**feeds):
    return (np.nan * linear_forecast(**feeds)[0],)


@dataclass(frozen=True)
class Version:
    """Version 2 of the bundle: equal to the served one unless told otherwise."""

    manifest: object = replace(MANIFEST, version=2)
    digest: bytes = hashlib.sha256(ARCHIVE).digest()
    forecast: object = linear_forecast
    start: float = 0.2

    @property
    def graphs(self):
        return {"gradient": linear_gradient, "forecast": self.forecast}

    @property
    def initial(self):
        return np.linspace(-0.2, self.start, self.manifest.size, dtype=np.float32)


def described(**changes):
    plan = {
        "serial": 1, "name": "linear", "version": 2, "digest": Version().digest,
        "size": len(ARCHIVE), "served": NumpyBundle().digest, "salt": bytes(16), "waves": (0.5, 1.0),
        "shadow": 1.0, "days": 2, "least": 1, "margin": 0.02, "bound": 0.01,
    }  # fmt: skip
    return RolloutMessage(**{**plan, **changes})


@dataclass
class Rollout:
    """A fleet of one device, its server, and the version that the device will find installed."""

    fleet: object
    version: Version = field(default_factory=Version)
    plan: RolloutMessage = field(default_factory=described)
    serial: int = 0
    hour: int = 0
    trials: list = field(default_factory=list)

    def __post_init__(self):
        server = self.fleet.server
        hear = server.receive

        def hearing(publish):
            address = topics.parse(publish.topic)
            if address.kind == "trial":
                self.trials.append(opened(publish.payload))
            return hear(publish)

        server.receive = hearing
        server.contents[self.plan.digest[:16]] = ARCHIVE

    @property
    def of(self):
        return ref(digest(codec.encode(self.plan)))

    @property
    def client(self):
        return self.fleet.device.client

    @property
    def state(self):
        return self.client.status().get("rollout", {}).get("state")

    def describe(self, **options):
        self.fleet.server.announce("rollout", self.plan, **options)

    def stage(self, number, phase="run", **changes):
        self.serial += 1
        stage = replace(StageMessage(self.serial, self.of, phase, number), **changes)
        self.fleet.server.announce("stage", stage, AGG_KEY, AGGREGATOR)

    def days(self, number):
        """Let days of readings arrive hour by hour, with the device at work."""
        for _ in range(24 * number):
            self.hour += 1
            value = 1.0 + np.sin(self.hour / 3.0) * 0.5 + 0.01 * (self.hour % 7)
            reading = Reading("elec.import.energy", BEGIN + 3600 * self.hour, value)
            self.client.observe(reading)
            self.fleet.run(1)
        self.fleet.run(4)

    def restart(self):
        self.client.flush()
        self.fleet.device.kill()
        self.fleet.device.start()
        self.fleet.run()

    def served(self):
        return self.client.issue().bundle_version


def opened(payload):
    from edge_sdk.protocol.envelope import unseal  # noqa: PLC0415 - only here

    sealed = unseal(
        payload, kind="trial", sender="meter-1", recipient=AGGREGATOR, fleet=FLEET,
        key_of=lambda *_: DEVICE_KEY.public,
    )  # fmt: skip
    return codec.decode(TrialMessage, sealed.body)


@pytest.fixture
def begin(make, monkeypatch):
    """Make a fleet whose device takes part in rollouts, with some days of readings."""

    def begin(version=None, *, accepts=True, plan=None, **options):
        one = make(accept={"rollouts": accepts, **options.pop("accept", {})}, **options)
        rollout = Rollout(one, version or Version(), plan or described())

        def install(data, folder, *, trust, digest):
            assert data == ARCHIVE
            (folder / digest.hex()).mkdir(parents=True)
            return rollout.version

        def load(folder, digest, *, trust):
            assert (folder / digest.hex()).is_dir()
            if rollout.version.start > 100:
                raise EdgeError("damaged")
            return rollout.version

        monkeypatch.setattr(rollout_member, "install", install)
        monkeypatch.setattr(rollout_member, "load_installed", load)
        one.device.start()
        rollout.days(3)
        return rollout

    return begin


def started(rollout, stage=0, phase="run"):
    rollout.describe()
    rollout.stage(stage, phase)
    rollout.fleet.run(20)
    return rollout


def test_an_equal_version_is_scored_then_served_and_no_day_is_lost(begin):
    rollout = started(begin())
    assert (rollout.state, rollout.served()) == ("score", 1)
    rollout.days(3)
    assert rollout.trials[-1].lost[:2] == (1, 1)
    assert {one.state for one in rollout.trials} == {"score"}
    rollout.stage(2)
    rollout.fleet.run()
    assert (rollout.state, rollout.served()) == ("serve", 2)
    assert rollout.trials[-1].state == "serve"
    assert rollout.client.issue().forecast.source == "model"
    rollout.stage(2, "done")
    rollout.days(1)
    assert (rollout.state, rollout.served()) == ("serve", 2)


def test_a_device_reports_once_a_day_and_repeats_earlier_days(begin):
    rollout = started(begin())
    rollout.days(4)
    days = [one.day for one in rollout.trials]
    assert days == sorted(days)
    assert len(days) <= 6
    assert rollout.trials[-1].day == (BEGIN + 3600 * rollout.hour) // 86_400 - 1
    assert len(rollout.trials[-1].lost) == 7
    assert {one.of for one in rollout.trials} == {rollout.of}


def test_a_version_is_not_served_before_it_was_scored_for_the_days_of_the_gate(begin):
    rollout = started(begin(), stage=2)
    rollout.days(1)
    assert (rollout.state, rollout.served()) == ("score", 1)
    rollout.days(2)
    assert (rollout.state, rollout.served()) == ("serve", 2)


def test_a_worse_version_loses_every_day_and_is_never_served(begin):
    rollout = started(begin(Version(forecast=worse_forecast)), stage=2)
    rollout.days(4)
    assert set(rollout.trials[-1].lost[:3]) == {2}
    assert (rollout.state, rollout.served()) == ("score", 1)


@pytest.mark.parametrize("forecast", [worse_forecast, broken_forecast])
def test_a_version_that_becomes_grossly_worse_is_left_without_an_aggregator(begin, forecast):
    rollout = started(begin(), stage=2)
    rollout.days(3)
    assert rollout.served() == 2
    rollout.fleet.server.is_mute = True
    rollout.version = replace(rollout.version, forecast=forecast)
    rollout.restart()
    rollout.days(1)
    if forecast is broken_forecast:
        assert rollout.served() == 1  # the served version forecasts where the other gives no number
    rollout.days(2)
    assert (rollout.state, rollout.served()) == ("returned", 1)
    why = rollout.client.status()["rollout"]["why"]
    assert why == "twice the error of the served version on two days"


def test_a_return_is_followed_within_one_turn_and_nothing_is_left_of_the_version(begin):
    rollout = started(begin(), stage=2)
    rollout.days(3)
    before = rollout.client.state.p.copy()
    ledger = list(rollout.client._store.ledger())
    assert rollout.served() == 2
    rollout.stage(2, "return")
    rollout.fleet.server.serve()
    rollout.client.tick()
    assert (rollout.state, rollout.served()) == ("returned", 1)
    np.testing.assert_array_equal(rollout.client.state.p, before)
    assert list(rollout.client._store.ledger()) == ledger
    assert not (rollout.client.config.state / "rollout").exists()
    rollout.fleet.run()
    assert rollout.trials[-1].state == "returned"
    rollout.restart()
    assert (rollout.state, rollout.served()) == ("returned", 1)


def test_the_bundle_in_use_learns_on_while_the_version_is_served(begin):
    """So a return finds shared and personal layers of the present, that fit each other."""
    rollout = started(begin(Version(start=0.3)), stage=2)
    rollout.days(3)
    assert rollout.served() == 2
    version = rollout.client.extension("rollouts")._version
    np.testing.assert_array_equal(version.vector(W0), version.own)
    own, before = version.own.copy(), rollout.client.state.p.copy()
    rollout.fleet.server.open_round(0, 0, W0)
    rollout.fleet.run(20)
    assert len(rollout.fleet.server.updates) == 1
    after = rollout.client.state.p
    assert (after[:4] != before[:4]).all()
    assert after[4] != before[4]
    np.testing.assert_array_equal(rollout.client.extension("rollouts")._version.own, own)
    rollout.stage(2, "return")
    rollout.fleet.run()
    np.testing.assert_array_equal(rollout.client.state.p, after)
    learner = rollout.client.learner
    np.testing.assert_array_equal(
        rollout.client.forecast().values, learner.forecast(rollout.client.state).values
    )


def test_a_version_with_personal_layers_is_tuned_on_the_device_first(begin):
    rollout = started(begin(Version(start=0.3)))
    own = rollout.client.extension("rollouts")._version.own
    assert own.shape == (5,)
    assert (own != rollout.version.initial).any()
    rollout.restart()
    np.testing.assert_array_equal(rollout.client.extension("rollouts")._version.own, own)


def test_a_paused_rollout_lets_no_further_device_begin_to_serve(begin):
    rollout = started(begin(), stage=2, phase="pause")
    rollout.days(4)
    assert rollout.state == "score"
    rollout.stage(2, "run")
    rollout.fleet.run()
    assert rollout.state == "serve"
    rollout.stage(2, "pause")
    rollout.fleet.run()
    assert rollout.served() == 2


@pytest.mark.parametrize("cut", range(12))
def test_a_device_that_is_killed_anywhere_has_a_model_and_goes_on(begin, cut):
    rollout = begin()
    rollout.describe()
    rollout.stage(2)
    rollout.fleet.run(cut)
    rollout.restart()
    assert rollout.served() == 1
    for _ in range(3):
        rollout.days(1)
        rollout.restart()
        assert rollout.served() in (1, 2)
        assert np.isfinite(rollout.client.forecast().values).all()
    assert rollout.served() == 2
    rollout.stage(2, "return")
    rollout.fleet.run(cut // 2)
    rollout.restart()
    assert rollout.served() == 1


def test_a_version_whose_files_are_damaged_is_not_served_and_downloaded_again(begin):
    rollout = started(begin(), stage=2)
    rollout.days(3)
    good, rollout.version = rollout.version, replace(rollout.version, start=1000.0)
    rollout.client.flush()
    rollout.fleet.device.kill()
    rollout.fleet.device.start()
    assert rollout.served() == 1
    assert not (rollout.client.config.state / "rollout").exists()
    rollout.version = good
    rollout.fleet.run(20)
    assert rollout.served() == 2


def test_a_version_that_cannot_be_compared_is_declined(begin):
    window = replace(MANIFEST.window, horizon=2)
    golden = replace(MANIFEST.golden, yhat=(0.0, 0.0))
    manifest = replace(MANIFEST, version=2, window=window, golden=golden)
    rollout = started(begin(Version(manifest=manifest)), stage=2)
    assert rollout.state == "declined"
    assert rollout.trials[-1].state == "declined"
    assert rollout.trials[-1].lost == ()
    assert "step or horizon" in rollout.client.status()["rollout"]["why"]
    asked = rollout.fleet.server.counts["have"]
    rollout.days(2)
    assert rollout.fleet.server.counts["have"] == asked


def test_an_archive_of_another_version_than_described_is_declined(begin):
    rollout = started(begin(plan=described(version=3)))
    assert rollout.state == "declined"


def test_a_device_whose_configuration_accepts_no_rollouts_hears_of_none(begin):
    rollout = started(begin(accepts=False), stage=2)
    rollout.days(3)
    assert "rollout" not in rollout.client.status()
    assert rollout.trials == []
    assert rollout.fleet.server.counts["have"] == 0


def test_reports_without_noise_are_refused_beside_a_privacy_mechanism(tmp_path):
    mechanism = {"name": "gaussian", "noise_multiplier": 1.0, "clip_norm": 1.0}
    privacy = {"mechanism": mechanism, "budget": {"epsilon": 8.0, "delta": 1e-5}}
    with pytest.raises(
        SettingsError, match=r"accept\.rollouts: a report is computed from readings"
    ):
        device_config(tmp_path, accept={"rollouts": True}, privacy=privacy)


def test_a_device_that_serves_another_bundle_takes_no_part(begin):
    rollout = started(begin(plan=described(served=b"o" * 32)), stage=2)
    rollout.days(3)
    assert (rollout.state, rollout.served()) == ("wait", 1)
    assert rollout.trials == []


def test_the_description_counts_from_the_root_alone_and_only_upwards(begin):
    rollout = begin()
    rollout.fleet.server.announce("rollout", rollout.plan, AGG_KEY, AGGREGATOR)
    rollout.fleet.run()
    refused = rollout.client.status()["counts"]
    assert refused[f"arrived {Reason.WRONG_SENDER.name}"] == 1
    started(rollout, stage=2)
    first, rollout.plan = rollout.plan, described(serial=5, salt=b"s" * 16)
    rollout.describe()
    rollout.fleet.run()
    assert "rollout" not in rollout.client.status()  # no stage of the new one yet
    rollout.plan = first
    rollout.describe()
    rollout.fleet.run()
    assert rollout.client.status()["counts"]["arrived ROLLBACK"] == 1


def test_an_older_stage_is_refused_and_one_of_another_rollout_changes_nothing(begin):
    rollout = started(begin(), stage=2)
    rollout.days(3)
    rollout.stage(0, "return", serial=1)
    rollout.fleet.run()
    assert rollout.served() == 2
    rollout.stage(2, "return", of=bytes(16))
    rollout.fleet.run()
    assert rollout.served() == 1  # the stage in force is not of this rollout any more
    rollout.stage(2, "run")
    rollout.fleet.run()
    assert rollout.served() == 2


def test_the_stage_may_arrive_before_the_description(begin):
    rollout = begin()
    rollout.stage(0)
    rollout.fleet.run()
    rollout.describe()
    rollout.fleet.run(20)
    assert rollout.state == "score"


def test_a_later_rollout_replaces_the_former(begin):
    rollout = started(begin(), stage=2)
    rollout.days(3)
    assert rollout.served() == 2
    rollout.plan = described(serial=9, salt=b"n" * 16)
    rollout.describe()
    rollout.stage(0)
    rollout.fleet.run(1)
    assert rollout.served() == 1
    rollout.fleet.run(20)
    assert rollout.state == "score"


def test_a_full_disk_does_not_keep_a_version_in_use(begin, monkeypatch):
    from edge_sdk.errors import StoreFull  # noqa: PLC0415 - only here

    rollout = started(begin(), stage=2)
    rollout.days(3)
    assert rollout.served() == 2
    rollout.stage(2, "return")

    def full(*_args, **_more):
        raise StoreFull("no space left")

    rollout.fleet.server.serve()
    rollout.client._serve(0.0)
    monkeypatch.setattr(rollout.client._store, "file_paper", full)
    assert rollout.served() == 1
    monkeypatch.undo()


@pytest.mark.parametrize("seed", range(8))
def test_no_order_of_events_leaves_a_device_without_a_model(begin, seed):
    """Stages, descriptions, days, power cuts, damage and repetition, in any order."""
    rng = np.random.default_rng(seed)
    rollout = begin(Version(start=0.3) if seed % 2 else None)
    ledger = list(rollout.client._store.ledger())
    phases = ("run", "run", "run", "pause", "return", "done")
    for _ in range(14):
        match rng.integers(7):
            case 0:
                rollout.describe()
            case 1 | 2:
                rollout.stage(int(rng.integers(3)), phases[rng.integers(6)])
            case 3:
                rollout.days(1)
            case 4:
                rollout.fleet.run(int(rng.integers(6)))
                rollout.restart()
            case 5:
                rollout.plan = described(serial=rollout.plan.serial + 1, salt=rng.bytes(16))
            case 6:
                paper = rng.choice(["rollout", "rollout stage", "rollout trial", "rollout vector"])
                rollout.client._store.file_paper(str(paper), rng.bytes(40))
                rollout.restart()
        served, member = rollout.client.issue(), rollout.client.extension("rollouts")
        rollout_ = member._inbox.followed
        assert np.isfinite(served.forecast.values).all()
        if rollout_ is None or rollout_.stage.phase == "return":
            assert served.bundle_version == 1
        assert served.bundle_version in (1, 2)
    assert list(rollout.client._store.ledger()) == ledger
    assert rollout.client.status()["counts"].get("internal errors", 0) == 0


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_record_of_a_trial_is_refused(seed):
    """Every byte may have changed: the device begins anew, and never fails."""
    rng = np.random.default_rng(seed)
    record = TrialRecord(np.array([20_000, 20_001]), np.array([[1.0, 2.0], [1.5, 1.0]]))
    good = SavedTrial(bytes(16), "serve", "", 481_000, record)
    papers = Papers()
    good.save(papers)
    (name,) = papers
    found = saved_trial(papers)
    assert (found.state, found.upto, found.record.sums.tolist()) == (
        "serve",
        481_000,
        record.sums.tolist(),
    )
    body = bytearray(papers[name])
    for at in rng.integers(0, len(body), 1 + seed % 4):
        body[at] = rng.integers(256)
    papers[name] = bytes(body)[: len(body) - seed % 3]
    found = saved_trial(papers)
    assert found.state in ("wait", "score", "serve", "returned", "declined")
    found.record.words(20_002, 0.02)
    found.record.is_gross(20_002)
    saved_vector(papers, bytes(16))


class Papers(dict):
    """A store that keeps records in memory."""

    file_paper = dict.__setitem__
    paper = dict.get
