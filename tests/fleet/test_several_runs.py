"""Three runs in one daemon, on one link: each device takes part in the run of its cohort alone."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from aggregator.commands import main as cli
from aggregator.extensions.audit.recompute import recompute
from edge_sdk.protocol import topics
from firmware_sim.fleet.run_files import toml
from firmware_sim.testing.loopback import LoopbackBroker
from tests.fleet.conftest import World

KINDS = ("meter", "charger", "cell")
METHODS = {"meter": "fedavg", "charger": "fedbuff", "cell": "fedatt"}


def section(kind, **changes):
    return {
        "name": f"{kind}s",
        "cohort": {"kind": kind},
        "bundle": "load-mlp",
        "method": METHODS[kind],
        "quorum": 2,
        "deadline": "30s",
        "schedule": {"rounds_per_day": "continuous"},
        "settings": {"steps": 2, "rate": 0.003},
    } | changes


class Town(World):
    """Two devices of each kind, and one that has no label."""

    def _found(self):
        self.devices = 7
        self.config = self.folder / "aggregator.toml"
        self.write([section(kind) for kind in KINDS])
        assert cli.main(["init", str(self.config)]) == 0
        for number in range(self.devices):
            self._write(number)
            public = ("--public", str(self.folder / f"home-{number}.pub"))
            label = ("--label", f"kind={KINDS[number % 3]}") if number < 6 else ()
            words = ("enrol", f"home-{number}", *public, *label, "--config", str(self.config))
            assert cli.main(list(words)) == 0

    def write(self, runs):
        table = {"fleet": "north", "state": "aggregator", "http": {"listen": "off"}, "run": runs}
        table["pacing"] = {"jitter": "0s", "updates_per_second": 1e6}
        table["broker"] = {"url": "mqtt://127.0.0.1:1"}
        self.config.write_text(toml(table))

    def engines(self):
        return {driver.name: driver.engine for driver in self.daemon._driver}

    def versions(self):
        return {name: engine.state.version for name, engine in self.engines().items()}

    def cohorts(self, name, last=3):
        number = self.engines()[name].number
        found = self.daemon._store.runs.versions(number, last)
        return {device for version in found for device in version.report["cohort"]}

    def said(self, *words):
        assert cli.main([*words, "--config", str(self.config)]) == 0


@pytest.fixture
def town(tmp_path):
    made = Town(tmp_path)
    yield made
    made.close()


@pytest.fixture
def delivered(monkeypatch):
    """Every topic that the broker delivered, by client."""
    heard = defaultdict(set)
    deliver = LoopbackBroker.deliver

    def tapped(self, client_id):
        messages = deliver(self, client_id)
        heard[client_id] |= {message.topic for message in messages}
        return messages

    monkeypatch.setattr(LoopbackBroker, "deliver", tapped)
    return heard


def test_each_run_learns_from_its_cohort_and_nobody_else_receives_its_tasks(town, delivered):
    town.start_all()
    town.until(lambda: all(version >= 3 for version in town.versions().values()))
    for number, kind in enumerate(KINDS):
        assert town.cohorts(f"{kind}s") == {f"home-{number}", f"home-{number + 3}"}
        audit = recompute(
            town.daemon._store,
            town.engines()[f"{kind}s"].run.half,
            town.engines()[f"{kind}s"].run.first_state().w,
            town.engines()[f"{kind}s"].number,
        )
        assert audit.is_sound, audit.faults
    assert town.daemon._ingress.counts["NOT_IN_COHORT"] == 0
    for number in range(town.devices):
        name = f"home-{number}"
        read = {topics.parse(topic) for topic in delivered[name]}
        audiences = {address.id for address in read if address.direction == "all"}
        assert audiences - {"_all"} == ({f"_{KINDS[number % 3]}s"} if number < 6 else set())
        assert {address.kind for address in read if address.id == "_all"} <= {"keys", "time"}
        assert {address.id for address in read if address.direction == "down"} <= {name}
    assert town.clients[6].status()["run"] == 0
    assert f"gf/1/north/{'home-6'}/down/task" not in delivered["home-6"]
    status = town.daemon.snapshot.status
    assert [one["name"] for one in status["runs"]] == ["meters", "chargers", "cells"]
    assert 'gridfed_run_round{run="cells"}' in town.daemon.metrics.text().decode()


@pytest.mark.slow
def test_a_device_that_is_labelled_anew_changes_its_run_and_back(town):
    town.start_all()
    town.until(lambda: all(version >= 2 for version in town.versions().values()))
    town.said("label", "kind=cell", "home-0")
    town.said("label", "kind=meter", "home-2")
    town.until(lambda: "home-0" in town.cohorts("cells", 1))
    town.until(lambda: town.cohorts("meters", 2) == {"home-2", "home-3"})
    cells = town.engines()["cells"].number
    assert town.clients[0].status()["run"] == cells
    town.said("label", "kind=meter", "home-0")  # its run's number is lower than the cells'
    town.said("label", "kind=cell", "home-2")
    town.until(lambda: town.cohorts("meters", 1) == {"home-0", "home-3"})
    assert town.clients[0].status()["counts"].get("arrived ROLLBACK", 0) == 0


def begin_two_open_runs(town):
    """Begin two runs for every device; home-1 and home-3 know only the method of the second."""
    town.write([section("meter", cohort={}), section("charger", cohort={})])
    assert cli.main(["announce", str(town.config)]) == 0
    town.start_daemon()
    for number in range(4):
        if number % 2:
            path = town.folder / f"home-{number}.toml"
            text = path.read_text()
            path.write_text(text.replace("accept = {  }", 'accept = { "methods" = ["fedbuff"] }'))
        town.start(number)
    town.until(lambda: all(version >= 3 for version in town.versions().values()))


def test_a_device_takes_the_first_run_that_it_is_able_to(town, capsys, delivered):
    begin_two_open_runs(town)
    assert town.cohorts("meters", 2) == {"home-0", "home-2"}
    assert town.cohorts("chargers", 2) == {"home-1", "home-3"}
    assert town.daemon.snapshot.status["declined"] == {"meters": {"UNKNOWN_KIND": 2}}
    assert town.daemon._ingress.counts["NOT_IN_COHORT"] == 0
    assert town.clients[1].status()["declined"] == {"meters": "UNKNOWN_KIND"}
    assert "declined" not in town.clients[0].status()
    for number in (1, 3):  # they read which run it is, and fetch nothing of it
        topics_of_meters = [one for one in delivered[f"home-{number}"] if "_meters" in one]
        assert not [one for one in topics_of_meters if topics.parse(one).kind == "part"]
    capsys.readouterr()
    town.kill_daemon()
    assert cli.main(["list", str(town.config)]) == 0
    listed = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "cannot take part in meters: UNKNOWN_KIND" in listed["home-1"]
    assert "cannot" not in listed["home-0"]


def test_a_declined_run_stays_declined_over_a_restart_until_it_is_announced_anew(town):
    begin_two_open_runs(town)
    before = town.versions()
    town.kill_daemon()
    town.start_daemon()
    town.until(lambda: town.versions()["meters"] >= before["meters"] + 2)
    assert town.cohorts("meters", 1) == {"home-0", "home-2"}
    assert town.daemon.snapshot.status["declined"] == {"meters": {"UNKNOWN_KIND": 2}}
    town.kill_daemon()
    runs = [section("meter", cohort={}, method="fedbuff"), section("charger", cohort={})]
    town.write(runs)
    assert cli.main(["announce", str(town.config)]) == 0
    town.start_daemon()
    town.until(lambda: "home-1" in town.cohorts("meters", 1))
    assert "declined" not in town.daemon.snapshot.status
    assert "declined" not in town.clients[1].status()


def test_runs_and_devices_continue_where_they_were_after_both_are_killed(town):
    town.start_all()
    town.until(lambda: all(version >= 2 for version in town.versions().values()))
    before = town.versions()
    town.kill_daemon()
    for number in (0, 1):
        town.die(number)
    town.start_daemon()
    assert town.versions() == before
    for number in (0, 1):
        town.start(number)
    town.until(lambda: all(town.versions()[name] >= 3 + before[name] for name in before))
    assert town.clients[0].status()["run"] == town.engines()["meters"].number
    assert town.cohorts("meters", 1) == {"home-0", "home-3"}


def test_a_run_halted_by_a_defect_does_not_stop_the_others(town, monkeypatch):
    town.start_all()
    town.until(lambda: all(version >= 1 for version in town.versions().values()))
    broken = town.engines()["chargers"]
    town.daemon._driver.drivers[1].halt("deadline", ZeroDivisionError("planted"))
    before = town.versions()
    town.until(lambda: town.versions()["meters"] >= before["meters"] + 3)
    assert town.versions()["chargers"] == before["chargers"]
    assert "planted" not in broken.halted
    assert "deadline: ZeroDivisionError" in town.daemon.snapshot.status["halted"]
    town.kill_daemon()
    town.start_daemon()
    assert town.engines()["chargers"].halted
    assert not town.engines()["meters"].halted
    assert cli.main(["resume", str(town.config)]) == 0
    town.until(lambda: town.versions()["chargers"] > before["chargers"])


def test_pause_resume_and_round_of_one_run_leave_the_others_alone(town, capsys, caplog):
    caplog.set_level("INFO")
    town.start_all()
    town.until(lambda: all(version >= 1 for version in town.versions().values()))
    config = str(town.config)
    assert cli.main(["pause", config, "--run", "cells"]) == 0
    town.until(lambda: town.engines()["cells"].phase == "pause")
    before = town.versions()
    town.until(lambda: town.versions()["meters"] >= before["meters"] + 3)
    assert town.versions()["cells"] == before["cells"]
    assert 'order executed result="the phase of run cells is pause; by ' in caplog.text
    assert cli.main(["round", "now", config, "--run", "cells"]) == 0
    town.until(lambda: "run cells is paused: gridfed-aggregator resume" in caplog.text)
    assert cli.main(["resume", config, "--run", "cells"]) == 0
    town.until(lambda: town.versions()["cells"] >= before["cells"] + 2)
    assert f"round closed run={town.engines()['cells'].number} name=cells round=" in caplog.text
    capsys.readouterr()
    assert cli.main(["pause", config, "--run", "boats"]) == 2
    assert "no run 'boats'; runs: meters, chargers, cells" in capsys.readouterr().err
    assert cli.main(["unlearn", "home-0", "--config", config, "--run", "meters"]) != 0
    assert "method 'fedavg' cannot unlearn" in capsys.readouterr().err


def test_audit_recomputes_every_run_that_has_the_present_definition(town, capsys):
    town.start_all()
    town.until(lambda: all(version >= 2 for version in town.versions().values()))
    town.kill_daemon()
    town.write([section("meter"), section("charger", method="fedavg"), section("cell")])
    assert cli.main(["announce", str(town.config)]) == 0
    town.start_daemon()
    town.until(lambda: all(version >= 1 for version in town.versions().values()))
    capsys.readouterr()
    assert cli.main(["audit", str(town.config), "--all", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert sorted(one["run"] for one in told["audits"]) == [1, 3, 4]
    assert told["not recomputed"] == [2]
    assert told["sound"]
    assert cli.main(["audit", str(town.config), "--all"]) == 0
    out = capsys.readouterr().out
    assert "run 2: not recomputed: begun under another configuration" in out
    assert "meters: run 1: " in out
    town.kill_daemon()
    assert cli.main(["announce", str(town.config), "--fresh"]) == 0
    capsys.readouterr()
    assert cli.main(["audit", str(town.config), "--run", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == 1


def test_a_run_that_is_added_takes_its_cohort_at_the_next_start(town, capsys):
    town.write([section("meter")])
    town.start_all()
    town.until(lambda: town.versions()["meters"] >= 2)
    town.kill_daemon()
    town.write([section("meter"), section("charger")])
    capsys.readouterr()
    assert cli.main(["announce", str(town.config), "--json"]) == 0
    begun = json.loads(capsys.readouterr().out)["runs"]
    assert [(one["name"], one["is_new"]) for one in begun] == [
        ("meters", False),
        ("chargers", True),
    ]
    town.start_daemon()
    town.until(lambda: town.versions()["chargers"] >= 2)
    assert town.cohorts("chargers", 1) == {"home-1", "home-4"}


def test_a_run_with_a_new_name_reaches_connected_devices(town):
    town.start_all()
    town.until(lambda: town.versions()["cells"] >= 1)
    town.kill_daemon()
    town.write([section("meter"), section("cell", name="antennas")])
    assert cli.main(["announce", str(town.config)]) == 0
    town.start_daemon()
    town.until(lambda: town.versions()["antennas"] >= 2)
    assert town.cohorts("antennas", 1) == {"home-2", "home-5"}
    number = town.engines()["antennas"].number
    assert number > town.engines()["meters"].number
    assert town.clients[2].status()["run"] == number
