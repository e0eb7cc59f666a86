"""A rollout from the signed description to its end, over the store that a daemon has."""

import json
from dataclasses import replace

import numpy as np
import pytest

from aggregator.audit_log import Initiator
from aggregator.commands.main import main
from aggregator.config import AggregatorConfig
from aggregator.extensions.rollouts import rollout_control as control
from aggregator.extensions.rollouts.rollout_table import RolloutTable
from aggregator.operations.commands import OrderError
from aggregator.rounds.announcements import Ends
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice
from edge_sdk.extensions.rollouts.messages import RolloutMessage, StageMessage, TrialMessage
from edge_sdk.extensions.rollouts.rollout_roles import role
from edge_sdk.protocol import topics
from edge_sdk.protocol.codec import decode, encode
from edge_sdk.protocol.envelope import digest, ref, unproved
from edge_sdk.protocol.keys import from_seed

DAY = control.DAY
FIRST = 20_780
FLEET = "north"
ANN = Initiator("command", "ann")


class Clock:
    """A wall clock that stands at noon of a day."""

    def __init__(self):
        self.day = FIRST

    def wall(self):
        return self.day * DAY + DAY // 2


def plan(**changes):
    fields = {
        "serial": 1, "name": "load", "version": 2, "digest": b"t" * 32, "size": 900, "served": b"s" * 32,
        "salt": bytes(16), "waves": (0.01, 0.05, 0.25, 1.0), "shadow": 0.25, "days": 3, "least": 5, "margin": 0.02,
        "bound": 0.01,
    }  # fmt: skip
    return RolloutMessage(**{**fields, **changes})


class Fleet:
    """A store with a rollout that has just begun, and two hundred devices."""

    def __init__(self, store, plan_):
        self.store, self.plan, self.clock = store, plan_, Clock()
        self.of = ref(digest(encode(plan_)))
        self.ends = Ends(FLEET, from_seed(bytes(32)))
        self.published = []
        self.devices = [f"meter-{i:03}" for i in range(200)]
        topic = topics.common(FLEET, RolloutMessage.kind)
        state = control.RolloutState(since=FIRST, why="start")
        control._save(
            store, self.ends, self.of, "load version 2", state, by=ANN, now=self.clock.wall(),
            more={topic: Ends(FLEET, from_seed(b"r" * 32)).to_all(plan_, "_root")},
        )  # fmt: skip
        self.restart()

    def restart(self):
        """Read everything from the store, as a daemon does that was killed."""
        self.control = control.RolloutControl(
            self.store, self.ends, self.clock, self.published.extend
        )

    @property
    def open(self):
        return control.newest(self.store, FLEET)

    def day(self, loses):
        """Let a day pass: every member reports it, and the daemon judges the reports."""
        day, stage = self.clock.day, self.open.state.stage
        self.clock.day += 1
        for device in self.devices:
            place = role(self.plan, stage, device)
            if place != "none":
                word = 2 if loses(device) else 1
                report = TrialMessage(self.of, place, day, (word,))
                assert self.control.record(device, report)
        self.control.advance()
        return self.open.state


@pytest.fixture
def fleet(tmp_path):
    with open_store(tmp_path / "fleet.db") as store:
        for i in range(200):
            store.devices.save(EnrolledDevice(f"meter-{i:03}", (bytes([i] * 32),)))
        yield Fleet(store, plan())


def test_a_good_version_reaches_the_whole_fleet(fleet):
    rng = np.random.default_rng(1)
    states = [fleet.day(lambda _: rng.random() < 0.4) for _ in range(24)]
    stages = [state.stage for state in states]
    assert stages == sorted(stages)
    assert (states[-1].phase, states[-1].stage) == ("done", 4)
    changes = fleet.store.table(RolloutTable).changes()
    assert [(one.phase, one.stage) for one in changes] == [
        ("run", 0), ("run", 1), ("run", 2), ("run", 3), ("run", 4), ("done", 4),
    ]  # fmt: skip
    assert [one.who for one in changes] == ["ann", "", "", "", "", ""]


def test_a_grossly_bad_version_is_served_by_no_device(fleet):
    """Twice the error loses every day: the members that only score it convict it on the first."""
    found = fleet.day(lambda _: True)
    assert (found.phase, found.stage, found.why) == ("return", 0, "harm")
    stage = decode(StageMessage, unproved(fleet.published[-1].payload))
    assert (stage.phase, stage.of) == ("return", fleet.of)


def test_a_daemon_that_is_killed_after_any_step_continues(tmp_path, fleet):
    rng = np.random.default_rng(1)
    with open_store(tmp_path / "other.db") as store:
        twin, draws = Fleet(store, plan()), {}
        for day in range(24):
            draws[day] = {device: rng.random() < 0.4 for device in fleet.devices}
            first = fleet.day(draws[day].__getitem__)
            twin.restart()
            second = twin.day(draws[day].__getitem__)
            assert first == second
            before = len(twin.store.table(RolloutTable).changes())
            twin.restart()
            twin.control.advance()  # again, after a crash
            assert len(twin.store.table(RolloutTable).changes()) == before


def test_the_stage_and_its_announcement_are_one_transaction(fleet, monkeypatch):
    monkeypatch.setattr(
        "aggregator.store.announcements.RetainedAnnouncements.save",
        lambda *_: (_ for _ in ()).throw(RuntimeError),
    )
    before = fleet.store.table(RolloutTable).changes()
    with pytest.raises(RuntimeError):
        fleet.control.act("abort", Initiator("command", "bob"))
    assert fleet.store.table(RolloutTable).changes() == before
    monkeypatch.undo()
    fleet.restart()
    assert fleet.open.state.phase == "run"


def test_acts_have_who_and_when_and_are_published(fleet):
    assert (
        fleet.control.act("pause", Initiator("command", "bob"))
        == "rollout of load version 2: pause"
    )
    assert fleet.control.act("resume", Initiator("command", "bob")).endswith("run")
    assert fleet.control.act("abort", Initiator("command", "eve"), "complaints").endswith("return")
    assert fleet.control.act("abort", Initiator("command", "eve")).endswith(
        "return"
    )  # twice: an order may be repeated
    changes = fleet.store.table(RolloutTable).changes()
    assert [(one.phase, one.who) for one in changes] == [
        ("run", "ann"), ("pause", "bob"), ("run", "bob"), ("return", "eve"),
    ]  # fmt: skip
    assert [one.why for one in changes[1:]] == ["operator", "operator", "operator: complaints"]
    assert {one.time for one in changes} == {fleet.clock.wall()}
    serials = [decode(StageMessage, unproved(one.payload)).serial for one in fleet.published]
    assert serials == sorted(set(serials))
    with pytest.raises(OrderError, match="resume: the rollout is over"):
        fleet.control.act("resume", Initiator("command", "bob"))


def test_reports_that_do_not_count(fleet):
    outside = next(one for one in fleet.devices if role(fleet.plan, 0, one) == "none")
    member = next(one for one in fleet.devices if role(fleet.plan, 0, one) == "score")
    good = TrialMessage(fleet.of, "score", FIRST, (2,))
    fleet.clock.day += 1
    assert not fleet.control.record(outside, good)
    assert not fleet.control.record(member, replace(good, of=bytes(16)))
    assert not fleet.control.record(member, replace(good, day=FIRST + 2))
    assert fleet.store.table(RolloutTable).trials(fleet.of) == []
    assert fleet.control.record(member, good)
    assert fleet.control.record(member, replace(good, day=FIRST + 1, lost=(0, 1)))
    (trial,) = fleet.store.table(RolloutTable).trials(fleet.of)
    assert trial.results == {FIRST: (True, False)}  # the first word of a day stays


def test_a_member_that_lies_about_the_days_before_the_rollout_stops_nothing(fleet):
    """Each lost day multiplies the evidence by up to 1.94, and 1970 is twenty thousand days ago."""
    liar = next(one for one in fleet.devices if role(fleet.plan, 0, one) == "score")
    for day in range(FIRST - 100, FIRST, 7):
        assert fleet.control.record(liar, TrialMessage(fleet.of, "score", day, (2,) * 7))
    assert fleet.control.record(liar, TrialMessage(fleet.of, "score", FIRST, (2,) * 7))
    fleet.restart()
    assert fleet.control.record(liar, TrialMessage(fleet.of, "score", FIRST, (2,) * 7))
    fleet.control.advance()
    assert fleet.open.state.phase == "run"
    (trial,) = fleet.store.table(RolloutTable).trials(fleet.of)
    assert trial.results == {FIRST: (True, False)}


def test_the_summary_counts_devices_that_say_nothing(fleet):
    fleet.day(lambda device: device < "meter-050")
    found = control.summary(fleet.store, FLEET)
    members = sum(role(fleet.plan, 0, one) != "none" for one in fleet.devices)
    assert found["reported"] == {"score": members, "nothing": 200 - members}
    assert sum(found["places"].values()) == 200
    assert 0 < found["evidence of harm"] < 1
    json.dumps(found)


def test_a_rollout_by_commands(tmp_path, capsys, monkeypatch):
    """Init, two versions in the registry, start, status, pause, resume, abort, start again."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aggregator.toml").write_text(
        'fleet = "north"\nstate = "state"\n[run]\nmethod = "fedavg"\nquorum = 1\nbundle = "load-week-1@live"\n'
    )

    def run(*args, code=0):
        assert main([*args, "--json"]) == code, capsys.readouterr()
        return json.loads(capsys.readouterr().out or "null")

    run("bundle", "promote", "load-week-1")
    run("init", "aggregator.toml")
    run("bundle", "rollback", "load-week-1", "--to", "1", "--alias", "next")
    assert run("rollout", "status") == {"rollout": None}
    main(["rollout", "start", "load-week-1", "--who", "ann"])
    assert "the same archive" not in capsys.readouterr().err
    config = AggregatorConfig.load("aggregator.toml")
    with open_store(config.database, read_only=True) as store:
        found = control.newest(store, config.fleet)
        assert found.plan.waves == (0.01, 0.05, 0.25, 1.0)
        assert store.contents.get(found.plan.digest[:16]).body
    assert run("rollout", "status")["rollout"]["phase"] == "run"
    run("rollout", "pause", "--who", "bob")
    run("rollout", "resume", "--who", "bob")
    assert run("rollout", "start", "load-week-1", code=1) is None
    run("rollout", "abort", "--who", "bob")
    changes = run("rollout", "status")["rollout"]["changes"]
    assert [one["who"] for one in changes] == ["ann", "bob", "bob", "bob"]
    assert [one["phase"] for one in changes] == ["run", "pause", "run", "return"]
    versions = len(run("bundle", "list")["bundles"])
    run("rollout", "start", "load-week-1", "--version", "2")
    assert len(run("bundle", "list")["bundles"]) == versions


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--waves", "5,1"], "--waves: expected 1 to 8 rising numbers"),
        (["--gate", "day=3"], "unknown name 'day'; known: days"),
        (["--gate", "days=2.5"], "days: expected a whole number from 1 to 31"),
        (["--gate", "margin=80"], "margin: expected a number from 0 to 50"),
    ],
)
def test_waves_and_gates_that_cannot_be(args, why, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aggregator.toml").write_text(
        'fleet = "north"\nstate = "state"\n[run]\nmethod = "fedavg"\nquorum = 1\nbundle = "load-week-1"\n'
    )
    main(["init", "aggregator.toml"])
    capsys.readouterr()
    assert main(["rollout", "start", "load-week-1", *args]) == 2
    assert why in capsys.readouterr().err
