"""Rounds by a schedule: when the daemon opens them, over restarts, pauses and missing data."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aggregator.daemon import Daemon
from aggregator.operations.control_queue import ControlOrder, leave
from edge_sdk.errors import Reason
from edge_sdk.protocol.messages import (
    MetricsMessage,
    ModelMessage,
    PartMessage,
    ReceiptMessage,
    RefusalMessage,
    TimeMessage,
)
from firmware_sim.testing.loopback import LoopbackBroker

DAY = 86_400.0
CONTINUOUS = 'schedule = { rounds_per_day = "continuous" }'
DAILY = (CONTINUOUS, "schedule = { min_new_rows = 4 }")


@pytest.fixture
def serve(still_clock):
    """Starts daemons on one broker and one clock, and closes them."""
    opened = []

    def make(config, broker):
        daemon = Daemon(config, transport=broker.link("_agg"), clock=still_clock)
        opened.append(daemon)
        daemon.open()
        turns(daemon)
        return daemon

    yield make
    for daemon in opened:
        daemon.close()


def turns(daemon, *puppets, count=6):
    for _ in range(count):
        daemon.turn()
        for puppet in puppets:
            puppet.poll()


def later(daemon, clock, seconds, *puppets):
    clock.now += seconds
    turns(daemon, *puppets)


def trained(daemon, puppets):
    for puppet in puppets:
        puppet.answer([0.5, 0.0])
    turns(daemon, *puppets)


def begun(serve, founded, puppets, broker, count=2):
    config = founded(replacing=[DAILY])
    daemon = serve(config, broker)
    found = puppets(broker, count)
    for puppet in found:
        puppet.hello(1)
    turns(daemon, *found)
    return config, daemon, found


def reports(daemon, puppets, new):
    for puppet in puppets:
        puppet.say(MetricsMessage(3600, 1, 0, 0, 1, 1, 0, 1, 1, new=new))
    turns(daemon, *puppets)


def test_a_round_a_day_waits_for_its_start(founded, serve, puppets, still_clock):
    _, daemon, found = begun(serve, founded, puppets, LoopbackBroker())
    assert found[0].last(ModelMessage).phase == "train"  # the first one begins at once
    trained(daemon, found)
    manifest = found[0].last(ModelMessage)
    assert (manifest.phase, manifest.until, manifest.round) == ("pause", 0, 2)
    assert (daemon.state.round, daemon.state.version) == (2, 1)
    assert daemon.snapshot.status["schedule"] == {
        "rounds a day": 1,
        "next round": "2027-01-16 00:00 UTC",  # the clock stands at 2027-01-15 08:16
    }
    later(daemon, still_clock, 15 * 3600, *found)
    assert found[0].last(ModelMessage).phase == "pause"
    later(daemon, still_clock, 3600, *found)
    manifest = found[0].last(ModelMessage)
    assert (manifest.phase, manifest.round, manifest.version) == ("train", 2, 1)
    assert manifest.until == still_clock.wall() + 60_000
    trained(daemon, found)
    assert daemon.state.version == 2
    assert found[0].last(ModelMessage).phase == "pause"


def test_a_model_crosses_the_link_once_a_round(founded, serve, puppets, still_clock):
    _, daemon, found = begun(serve, founded, puppets, LoopbackBroker())
    trained(daemon, found)
    parts = len([one for one in found[0].heard if isinstance(one, PartMessage)])
    later(daemon, still_clock, DAY, *found)
    assert len([one for one in found[0].heard if isinstance(one, PartMessage)]) == parts + 1


def test_a_late_update_is_settled_while_the_next_round_waits(founded, serve, puppets, still_clock):
    _, daemon, (*found, third) = begun(serve, founded, puppets, LoopbackBroker(), 3)
    asked = third.last(ModelMessage)
    trained(daemon, found)
    third.answer([0.0, 0.0], round=asked.round, base=asked.version)
    turns(daemon, third)
    assert third.last(ReceiptMessage).code in (Reason.LATE, Reason.TOO_STALE)


def test_no_round_opens_before_enough_devices_have_new_data(founded, serve, puppets, still_clock):
    _, daemon, (*found, third) = begun(serve, founded, puppets, LoopbackBroker(), 3)
    trained(daemon, found)
    reports(daemon, [*found, third], new=3)
    later(daemon, still_clock, DAY, *found)
    assert found[0].last(ModelMessage).phase == "pause"
    assert daemon.snapshot.status["schedule"]["next round"] == "when enough devices have new data"
    reports(daemon, found, new=4)
    later(daemon, still_clock, 1, *found)
    assert found[0].last(ModelMessage).phase == "train"


def test_a_device_that_reports_no_number_counts_as_ready(founded, serve, puppets, still_clock):
    _, daemon, found = begun(serve, founded, puppets, LoopbackBroker())
    trained(daemon, found)
    reports(daemon, found, new=None)
    later(daemon, still_clock, DAY, *found)
    assert found[0].last(ModelMessage).phase == "train"


def test_a_restart_neither_repeats_nor_forgets_a_round(founded, serve, puppets, still_clock):
    broker = LoopbackBroker()
    config, daemon, found = begun(serve, founded, puppets, broker)
    trained(daemon, found)
    daemon.close()
    daemon = serve(config, broker)
    assert daemon.snapshot.status["schedule"]["next round"] == "2027-01-16 00:00 UTC"
    assert found[0].last(ModelMessage).phase == "pause"
    daemon.close()
    still_clock.now += DAY  # its start is missed
    daemon = serve(config, broker)
    later(daemon, still_clock, 1, *found)
    assert found[0].last(ModelMessage).phase == "train"
    daemon.close()
    daemon = serve(config, broker)  # while the round is open: its deadline has not passed
    later(daemon, still_clock, 2, *found)
    assert (daemon.state.round, found[0].last(ModelMessage).phase) == (2, "train")
    trained(daemon, found)
    assert daemon.state.version == 2
    later(daemon, still_clock, 3600, *found)
    assert found[0].last(ModelMessage).phase == "pause"


def test_a_pause_by_the_operator_outlasts_starts_and_restarts(founded, serve, puppets, still_clock):
    broker = LoopbackBroker()
    config, daemon, found = begun(serve, founded, puppets, broker)
    trained(daemon, found)
    leave(config.inbox, ControlOrder("pause", "_all"))
    later(daemon, still_clock, 2, *found)
    assert found[0].last(ModelMessage).until != 0
    daemon.close()
    daemon = serve(config, broker)
    leave(config.inbox, ControlOrder("resume", "_all"))  # the next round still waits for its start
    later(daemon, still_clock, 2, *found)
    manifest = found[0].last(ModelMessage)
    assert (manifest.phase, manifest.until) == ("pause", 0)
    leave(config.inbox, ControlOrder("pause", "_all"))
    later(daemon, still_clock, DAY, *found)
    assert found[0].last(ModelMessage).phase == "pause"
    leave(config.inbox, ControlOrder("resume", "_all"))
    later(daemon, still_clock, 2, *found)
    later(daemon, still_clock, 2, *found)
    assert found[0].last(ModelMessage).phase == "train"


def test_an_operator_opens_a_round_before_its_start(founded, serve, puppets, still_clock, caplog):
    config, daemon, found = begun(serve, founded, puppets, LoopbackBroker())
    trained(daemon, found)
    leave(config.inbox, ControlOrder("round", "_all"))
    with caplog.at_level("INFO"):
        later(daemon, still_clock, 2, *found)
        assert found[0].last(ModelMessage).phase == "train"
        leave(config.inbox, ControlOrder("round", "_all"))
        later(daemon, still_clock, 2, *found)
    assert "round 2 is open" in caplog.text
    assert "no round waits for its start" in caplog.text
    trained(daemon, found)
    later(daemon, still_clock, 3600, *found)
    assert (daemon.state.version, found[0].last(ModelMessage).phase) == (2, "pause")


def test_server_time_every_hour_between_rounds(founded, serve, puppets, still_clock):
    _, daemon, found = begun(serve, founded, puppets, LoopbackBroker())
    trained(daemon, found)

    def announced(seconds):
        before = len([one for one in found[0].heard if isinstance(one, TimeMessage)])
        for _ in range(int(seconds / 60)):
            later(daemon, still_clock, 60, *found)
        return len([one for one in found[0].heard if isinstance(one, TimeMessage)]) - before

    assert announced(3 * 3600 + 1800) == 3
    before = len(found[0].heard)
    leave(daemon.config.inbox, ControlOrder("round", "_all"))
    later(daemon, still_clock, 2, *found)
    assert any(isinstance(one, TimeMessage) for one in found[0].heard[before:])


def test_a_reload_applies_another_schedule_at_once(founded, serve, puppets, still_clock):
    config, daemon, found = begun(serve, founded, puppets, LoopbackBroker())
    trained(daemon, found)
    config.file.write_text(config.file.read_text().replace(DAILY[1], CONTINUOUS))
    assert daemon.reload({})
    later(daemon, still_clock, 2, *found)
    assert found[0].last(ModelMessage).phase == "train"


KILLED = """
import os, signal, sys

sys.path.insert(0, sys.argv[3])
from aggregator.config import AggregatorConfig
from aggregator.daemon import Daemon
from aggregator.rounds.round_engine import RoundEngine
from firmware_sim.testing.loopback import LoopbackBroker
from tests.aggregator.conftest import StillClock


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


if sys.argv[4] == "before":
    RoundEngine.open_round = die
clock = StillClock()
clock.now = float(sys.argv[2])
link = LoopbackBroker().link("_agg")
daemon = Daemon(AggregatorConfig.load(sys.argv[1], {}), transport=link, clock=clock)
daemon.open()
while daemon.snapshot.status["run"]["phase"] == "pause":
    clock.now += 1
    daemon.turn()
die()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_around_the_opening_neither_repeats_nor_forgets_the_round(
    founded, serve, puppets, still_clock, when
):
    broker = LoopbackBroker()
    config, daemon, found = begun(serve, founded, puppets, broker)
    trained(daemon, found)
    daemon.close()
    still_clock.now += DAY
    words = [str(config.file), str(still_clock.now), str(Path.cwd()), when]
    ended = subprocess.run([sys.executable, "-c", KILLED, *words], check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    still_clock.now += 30.0  # within the deadline of a round that was opened before
    daemon = serve(config, broker)
    later(daemon, still_clock, 2, *found)
    assert (daemon.state.round, found[0].last(ModelMessage).phase) == (2, "train")
    trained(daemon, found)
    assert (daemon.state.round, daemon.state.version) == (3, 2)
    later(daemon, still_clock, 3600, *found)
    assert found[0].last(ModelMessage).phase == "pause"


def test_devices_that_refuse_the_bundle_are_counted_by_reason(
    founded, serve, puppets, still_clock, caplog
):
    _, daemon, found = begun(serve, founded, puppets, LoopbackBroker(), 3)
    digest = daemon._engine.run.bundle.digest[:16]
    with caplog.at_level("WARNING"):
        for puppet in found:
            puppet.say(RefusalMessage(Reason.ROLLBACK, 0, id=digest))
        later(daemon, still_clock, 2, *found)
        found[0].say(RefusalMessage(Reason.ROLLBACK, 0, id=bytes(16)))  # of nothing announced
        later(daemon, still_clock, 2, *found)
    assert daemon.snapshot.status["bundle_refused"] == {"ROLLBACK": 3}
    assert 'gridfed_bundle_refused_devices{reason="ROLLBACK"} 3.0' in daemon.metrics.text().decode()
    assert caplog.text.count("bundle refused by devices") == 2  # at one and at two
    found[0].hello(2)  # a new process, which reports again if it still refuses
    later(daemon, still_clock, 2, *found)
    assert daemon.snapshot.status["bundle_refused"] == {"ROLLBACK": 2}
