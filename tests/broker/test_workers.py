"""Admission workers on Mosquitto and PostgreSQL: real programs, shared subscriptions, kill -9."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from firmware_sim.fleet.federation import Federation, fetched
from firmware_sim.fleet.processes import ProcessGroup, RunningProgram, command
from firmware_sim.scenario import RunSettings, Scenario
from tests.chaos.storm import federation, kill, read, settled
from tests.chaos.test_standby import URL, wait_until
from tests.postgres_server import missing, running

pytestmark = [pytest.mark.broker, pytest.mark.slow]

WORKERS = "GRIDFED_AGGREGATOR_ADMISSION__WORKERS"
ROUNDS = 16
SCENARIO = Scenario(
    "workers",
    samples="homes",
    devices=3,
    bundle="load-mlp",
    run=RunSettings(
        "fedadam", ("head.",), ROUNDS, {"steps": 2, "server_rate": 0.01}, deadline="1h"
    ),
    until="2018-03-01",
)


def begun(made: Federation, name: str) -> RunningProgram:
    """Start a worker without a state folder, which it does not need; wait for its subscription."""
    words = command("gridfed-aggregator", "worker", str(made.prepared.aggregator), "--name", name)
    state = made.prepared.aggregator.with_name(f"no-state-{name}")
    words = ["env", f"GRIDFED_AGGREGATOR_STATE={state}", *words]
    worker = made.family.start(f"worker-{name}", words)
    wait_until(lambda: "link up" in worker.log.read_text("utf-8", errors="replace"), worker.tail())
    return worker


def version(made: Federation) -> int:
    """Return the version on the aggregator's page; -1 while it has none."""
    document = fetched(made.prepared.page, "/status")
    return int(json.loads(document or "{}").get("run", {}).get("version", -1))


def said(log: Path, event: str) -> int:
    """Return how often the daemon has logged an event."""
    return len(re.findall(f": {event}", log.read_text("utf-8", errors="replace")))


@contextmanager
def held(made: Federation, until: int = 0) -> Iterator[None]:
    """Wait for a version, and stop a device: no round closes meanwhile."""
    wait_until(lambda: version(made) >= until, made.aggregator.tail())
    made.devices[0].signal(signal.SIGSTOP)
    yield
    made.devices[0].signal(signal.SIGCONT)


def outcome(made: Federation) -> dict[str, object]:
    """Return what the database says: every update once, every round recomputed, the model's bytes."""
    audit, state = read(made)
    assert audit.moved == ROUNDS
    assert audit.updates == {device.id: ROUNDS for device in made.prepared.devices}
    return {"version": state.version, "w": state.w.tobytes()}


def test_workers_that_are_killed_change_no_bit_and_the_daemon_steps_in(tmp_path, monkeypatch):
    """Two workers; both are killed, the daemon admits alone; a worker comes back."""
    if why := missing():
        pytest.skip(why)
    with ProcessGroup(tmp_path / "logs") as family:
        calm, _ = federation(tmp_path / "calm", family, "mosquitto", SCENARIO)
        for _ in calm.watch(240):
            pass
        settled(calm)
        calm.stop()
        undisturbed = outcome(calm)
    with running() as server, ProcessGroup(tmp_path / "logs-2") as family:
        monkeypatch.setenv(URL, server.schema())
        monkeypatch.setenv(WORKERS, "true")
        made, _ = federation(tmp_path / "workers", family, "mosquitto", SCENARIO)
        log = made.aggregator.log
        with held(made):
            workers = [begun(made, "1"), begun(made, "2")]
            wait_until(lambda: said(log, "workers admit updates") == 1, made.aggregator.tail())
        for at, one in enumerate(workers):
            with held(made, until=3 + 3 * at):
                kill(one)
                made.family.members.remove(one)
                if at:  # the last one
                    wait_until(lambda: said(log, "no worker admits updates") == 2, "two")
        with held(made, until=9):
            last = begun(made, "3")
            wait_until(lambda: said(log, "workers admit updates") == 2, made.aggregator.tail())
        for _ in made.watch(240):
            pass
        settled(made)
        last.signal(signal.SIGTERM)
        assert last.wait(60) == 0
        assert re.search(r"stopped: [1-9]\d* checked", last.tail()), last.tail()
        made.family.members.remove(last)
        made.stop()
        assert outcome(made) == undisturbed
        assert not list(made.prepared.aggregator.parent.glob("no-state-*")), "workers write nothing"
