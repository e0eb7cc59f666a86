"""kill -9 of the aggregator with a standby on PostgreSQL: the standby goes on, to the same bits.

``GRIDFED_KILLS=100 pytest -s tests/chaos/test_standby.py`` kills a hundred times and prints the times.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from firmware_sim.fleet.federation import Federation, fetched
from firmware_sim.fleet.processes import ProcessGroup, RunningProgram
from firmware_sim.scenario import RunSettings, Scenario
from tests.chaos.storm import federation, kill, read, settled
from tests.postgres_server import missing, running

pytestmark = [pytest.mark.chaos, pytest.mark.broker, pytest.mark.slow]

URL = "GRIDFED_AGGREGATOR_STORE__URL"
KILLS = int(os.environ.get("GRIDFED_KILLS", "3"))
ROUNDS = 4 + 4 * KILLS
SCENARIO = Scenario(
    "takeover",
    samples="homes",
    devices=3,
    bundle="load-mlp",
    run=RunSettings("fedadam", ("",), ROUNDS, {"steps": 2, "server_rate": 0.01}, deadline="1h"),
    until="2018-03-01",
)


HOURS = (-30, -5, -1, 0, 1, 5, 30, 400)
"""Hours by which a process's clock stands away from the machine's after a jump."""


class WallClock:
    """The wall clock of one aggregator process, which a test sets (``tests.broker.shifted_clock``)."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.set(0)

    def set(self, hours: float) -> None:
        """Set the clock so many hours away from the machine's."""
        beside = self.file.with_suffix(".new")
        beside.write_text(str(int(3_600_000 * hours)))
        beside.replace(self.file)  # the process reads it at every look at its clock

    def command(self, *words: str) -> list[str]:
        """Return the command of a program with this clock."""
        return [sys.executable, "-m", "tests.broker.shifted_clock", str(self.file), *words]


def outcome(made: Federation) -> dict[str, object]:
    """Return what the database says: every update once, every round recomputed, the model's bytes."""
    audit, state = read(made)
    assert audit.moved == ROUNDS
    assert audit.updates == {device.id: ROUNDS for device in made.prepared.devices}
    return {"version": state.version, "w": state.w.tobytes()}


def wait_until(is_true: Callable[[], object], what: str, limit: float = 120.0) -> float:
    """Wait; return the seconds."""
    begun = time.monotonic()
    while not is_true():
        assert time.monotonic() - begun < limit, what
        time.sleep(0.01)
    return time.monotonic() - begun


class Killer:
    """Ends the active aggregator when a round has closed, and starts it again as the standby.

    With ``hours`` the clocks of both jump: that of the active before it is killed, and that of the
    standby before it takes over and when it has.
    """

    def __init__(self, made: Federation, *, seed: int, hours: tuple[int, ...] = (0,)) -> None:
        self.made, self.rng, self.hours = made, random.Random(seed), hours
        self.takeovers: list[float] = []
        self.clocks: list[WallClock] = []
        self.standby = self.begun(0)

    def jump(self, clock: WallClock) -> None:
        """Set a clock to any of the hours."""
        clock.set(self.rng.choice(self.hours))

    def begun(self, number: int) -> RunningProgram:
        """Start another process, and wait until it waits; no round closes meanwhile."""
        self.made.devices[0].signal(signal.SIGSTOP)
        config = str(self.made.prepared.aggregator)
        name = f"standby-{number}"
        clock = WallClock(self.made.prepared.folder / f"{name}.clock")
        self.clocks.append(clock)
        process = self.made.family.start(name, clock.command("aggregator", "run", config))
        wait_until(lambda: "standby started" in process.tail(), process.tail())
        self.made.devices[0].signal(signal.SIGCONT)
        return process

    def __call__(self) -> None:
        if len(self.takeovers) >= KILLS:
            return
        for clock in self.clocks[-2:]:
            self.jump(clock)
            time.sleep(self.rng.uniform(0.0, 0.25))
        before, self.made.aggregator = self.made.aggregator, self.standby
        self.made.family.members.remove(before)
        kill(before)
        page = self.made.prepared.page
        self.takeovers.append(
            wait_until(lambda: fetched(page, "/status") is not None, self.standby.tail())
        )
        self.jump(self.clocks[-1])
        self.standby = self.begun(len(self.takeovers))


def play(
    folder, url: str | None, monkeypatch, *, hours: tuple[int, ...] = (0,)
) -> tuple[dict[str, object], list[float]]:
    """Run the fleet on a database; kill if it is one of PostgreSQL."""
    with monkeypatch.context() as patch, ProcessGroup(folder / "logs") as family:
        if url is not None:
            patch.setenv(URL, url)
        made, _ = federation(folder, family, "embedded", SCENARIO)
        killer = Killer(made, seed=7, hours=hours) if url is not None else None
        for _ in made.watch(60 + 60 * KILLS, serve=killer or (lambda: None)):
            pass
        settled(made)
        if killer is not None:
            killer.standby.signal(signal.SIGTERM)
            killer.standby.wait(60)
            family.members.remove(killer.standby)
        made.stop()
        return outcome(made), killer.takeovers if killer else []


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> dict[str, object]:
    """Return the outcome of the run without kills; it is on SQLite: the engines agree to the bit."""
    if why := missing():
        pytest.skip(why)
    with pytest.MonkeyPatch.context() as patch:
        found, _ = play(tmp_path_factory.mktemp("calm"), None, patch)
    return found


@pytest.mark.parametrize(
    "hours",
    [
        pytest.param((0,), id="clocks right", marks=pytest.mark.soak),
        pytest.param(HOURS, id="clocks jump"),
    ],
)
def test_a_standby_takes_over_after_every_kill_and_no_bit_differs(
    calm, tmp_path, monkeypatch, hours
):
    with running(fsync=True) as server:
        disturbed, seconds = play(tmp_path, server.schema(), monkeypatch, hours=hours)
    ordered = sorted(seconds)
    print(  # noqa: T201 - the figures
        f"hours={hours} kills={len(ordered)} median={ordered[len(ordered) // 2]:.2f} s"
        f" worst={ordered[-1]:.2f} s"
    )
    assert len(seconds) == KILLS
    assert disturbed == calm
