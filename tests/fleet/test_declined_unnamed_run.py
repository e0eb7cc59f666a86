"""A device that cannot take part in the only run of a fleet, which has no name."""

from __future__ import annotations

import tomllib

import pytest

from aggregator.commands import main as cli
from edge_sdk.extensions.inspection.status import status
from firmware_sim.fleet.run_files import toml


def limit_methods(made, number, *methods):
    path = made.folder / f"home-{number}.toml"
    table = tomllib.loads(path.read_text())
    path.write_text(toml(table | {"accept": {"methods": list(methods)}}))


def rounds(made):
    """Return the devices, and the seconds, of every closed round."""
    found = made.daemon._store.runs.versions(made.daemon._engine.number, 100)
    return [(v.report["cohort"], v.report["seconds"]) for v in found if v.report.get("cohort")]


def begun(world, **run):
    """Start three devices, of which home-1 does not know the method of the run."""
    made = world(devices=3, run={"deadline": "30s", **run})
    limit_methods(made, 1, "fedbuff")
    made.start_all()
    made.until(lambda: made.version >= 2)
    return made


def test_a_decline_of_an_unnamed_run_is_recorded_at_both_ends_over_a_restart(world, capsys, caplog):
    made = begun(world, quorum=2)
    assert "run declined device=home-1 name=- reason=UNKNOWN_KIND" in caplog.text
    assert (
        "bundle refused by devices reason=UNKNOWN_KIND devices=1 device=home-1 run=1" in caplog.text
    )
    for _ in range(2):
        assert made.daemon.snapshot.status["declined"] == {"-": {"UNKNOWN_KIND": 1}}
        (cohort,) = [driver.cohort for driver in made.daemon._driver]
        assert [cohort.takes(f"home-{n}") for n in range(3)] == [True, False, True]
        made.kill_daemon()
        capsys.readouterr()
        assert cli.main(["list", str(made.config)]) == 0
        (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("home-1")]
        assert "UNKNOWN_KIND" in line
        made.start_daemon()
        made.until(lambda: "declined" in made.daemon.snapshot.status)
    assert made.clients[1].status()["declined"] == {"-": "UNKNOWN_KIND"}
    assert status(made.clients[1].config)["declined"] == {"-": "UNKNOWN_KIND"}
    assert "declined" not in made.clients[0].status()


def test_a_quorum_of_the_others_closes_a_round_without_the_device_that_declined(world):
    made = begun(world, quorum=2)
    for devices, seconds in rounds(made):
        assert devices == ["home-0", "home-2"]
        assert seconds < 30.0


def test_a_quorum_that_counts_on_it_waits_for_the_deadline(world):
    """The configured quorum is not lowered: the operator sees the decline, and decides."""
    made = begun(world, quorum=3, min_updates=2)
    for devices, seconds in rounds(made):
        assert devices == ["home-0", "home-2"]
        assert seconds == pytest.approx(30.0, abs=1.0)


@pytest.mark.slow
def test_a_device_that_accepts_the_run_after_its_next_start_is_counted_again(world):
    made = begun(world, quorum=2)
    made.die(1)
    limit_methods(made, 1, "fedavg")
    made.start(1)
    made.until(lambda: any("home-1" in devices for devices, _ in rounds(made)))
    assert "declined" not in made.daemon.snapshot.status
    assert "declined" not in made.clients[1].status()
