"""Pause, cut off and restart what stands between a fleet and PostgreSQL: no bit of the model differs.

Every test runs the real programs. The daemon reaches the server through a TCP proxy, its standby
through the server's own socket. The run that nothing disturbs is on SQLite.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from aggregator.config import AggregatorConfig
from aggregator.store.opener import open_store
from firmware_sim.fleet.federation import Federation, fetched, free_port, start_broker
from firmware_sim.fleet.processes import ProcessGroup, RunningProgram, command, run
from firmware_sim.fleet.run_files import prepare
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario
from tests.chaos.storm import kill, read, settled
from tests.chaos.test_standby import URL, WallClock, wait_until
from tests.postgres_server import PostgresServer, missing, running
from tests.tcp_proxy import TcpProxy, forwarding

pytestmark = [pytest.mark.chaos, pytest.mark.broker, pytest.mark.slow]

PAGE = "GRIDFED_AGGREGATOR_HTTP__LISTEN"
ROUNDS = 24
LIMIT = 240.0  # s, against hanging for ever
SCENARIO = Scenario(
    "cut off",
    samples="homes",
    devices=3,
    bundle="load-mlp",
    run=RunSettings("fedadam", ("",), ROUNDS, {"steps": 2, "server_rate": 0.01}, deadline="1h"),
    until="2018-03-01",
)


@dataclass
class Aggregator:
    """One process that serves the fleet, or waits to.

    Attributes:
        program: The process.
        page: Address of its status page.
        clock: Its wall clock.
    """

    program: RunningProgram
    page: str
    clock: WallClock

    @property
    def text(self) -> str:
        """Return everything it has logged."""
        return self.program.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, version: int) -> None:
        """Wait until its page says that the model moved so often."""
        wait_until(
            lambda: self.version >= version, f"version {version}: {self.text[-2000:]}", LIMIT
        )

    def wait_to_log(self, event: str, times: int = 1) -> None:
        """Wait until it has logged an event so often."""
        wait_until(lambda: self.text.count(event) >= times, f"{event}: {self.text[-2000:]}", LIMIT)

    @property
    def version(self) -> int:
        """Return the version on its page; -1 while it has none."""
        document = fetched(self.page, "/status")
        return int(json.loads(document or "{}").get("run", {}).get("version", -1))


@dataclass
class Fleet:
    """A fleet on one database, with as many aggregators as a test starts."""

    made: Federation
    started: list[Aggregator] = field(default_factory=list)
    count: int = 0

    def start(self, url: str | None, *, config: Path | None = None) -> Aggregator:
        """Start an aggregator on a database."""
        number, self.count = self.count, self.count + 1
        page = f"127.0.0.1:{free_port()}"
        environ = {PAGE: page} | ({URL: url} if url else {})
        clock = WallClock(self.made.prepared.folder / f"aggregator-{number}.clock")
        words = clock.command("aggregator", "run", str(config or self.made.prepared.aggregator))
        program = self.made.family.start(f"aggregator-{number}", words, environ=environ)
        self.started.append(Aggregator(program, page, clock))
        return self.started[-1]

    def start_pair(self, url: str, standby: str) -> tuple[Aggregator, Aggregator]:
        """Start an aggregator, then its standby; no round closes before both are there."""
        self.made.devices[0].signal(signal.SIGSTOP)
        first = self.start(url)
        first.wait_for(0)
        second = self.start(standby)
        second.wait_to_log("standby started")
        self.made.devices[0].signal(signal.SIGCONT)
        first.wait_for(2)
        return first, second

    def kill(self, one: Aggregator) -> None:
        """End a process with ``kill -9``."""
        kill(one.program)
        self.made.family.members.remove(one.program)
        self.started.remove(one)

    def end(self, last: Aggregator) -> dict[str, object]:
        """Wait for the last round, stop everything, and return what the database says."""
        last.wait_for(ROUNDS)
        settled(self.made)
        self.made.family.stop([*self.made.devices, *(one.program for one in self.started)])
        audit, state = read(self.made)
        assert audit.moved == ROUNDS
        assert audit.updates == {device.id: ROUNDS for device in self.made.prepared.devices}
        return {"version": state.version, "w": state.w.tobytes()}


@contextmanager
def fleet(folder: Path, rounds: int = ROUNDS) -> Iterator[Fleet]:
    """Prepare a fleet on the database of the environment, and start its devices."""
    with ProcessGroup(folder / "logs") as family:
        broker = start_broker(family, folder / "broker", "embedded")
        scenario = replace(SCENARIO, run=replace(SCENARIO.run, rounds=rounds))
        samples = sample_set(scenario.samples)
        files = prepare(
            folder / "fleet", "cut", scenario, samples, broker=broker, page="127.0.0.1:1"
        )
        made = Federation(files, rounds, family)
        made.start_devices()
        yield Fleet(made)


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> dict[str, object]:
    """Return the outcome of the run that nothing disturbs."""
    if why := missing():
        pytest.skip(why)
    with fleet(tmp_path_factory.mktemp("calm")) as one:
        return one.end(one.start(None))


@dataclass
class Place:
    """A database, and the two ways to it."""

    server: PostgresServer
    proxy: TcpProxy
    direct: str
    by_proxy: str


@pytest.fixture
def place(monkeypatch) -> Iterator[Place]:
    if why := missing():
        pytest.skip(why)
    with ExitStack() as stack:
        server = stack.enter_context(running())
        proxy = stack.enter_context(forwarding(server.folder / ".s.PGSQL.5432"))
        direct = server.schema()
        by_proxy = direct.replace("@/", f"@127.0.0.1:{proxy.port}/")
        by_proxy = by_proxy.replace(f"host={server.folder}&", "")
        monkeypatch.setenv(URL, direct)
        yield Place(server, proxy, direct, by_proxy)


@pytest.mark.parametrize(
    "hours",
    [*(pytest.param(hours, marks=pytest.mark.soak) for hours in ((0, 0), (-30, 5))), (400, -5)],
)
def test_a_paused_daemon_cannot_commit_and_says_why(calm, place, tmp_path, hours):
    """The zombie wakes up behind its successor, waits, and is the successor's standby.

    Meanwhile the wall clocks of both jump by these hours.
    """
    with fleet(tmp_path) as one:
        first, second = one.start_pair(place.by_proxy, place.direct)
        first.program.signal(signal.SIGSTOP)
        for aggregator, jump in zip((first, second), hours, strict=True):
            aggregator.clock.set(jump)
        second.wait_for(6)
        first.program.signal(signal.SIGCONT)
        first.wait_to_log("standby started")
        assert "database lost" in first.text
        assert "another process holds this database" in first.text
        second.wait_for(8)
        one.kill(second)
        assert one.end(first) == calm


@pytest.mark.parametrize("way", [pytest.param("hold", marks=pytest.mark.soak), "cut"])
def test_a_daemon_that_is_cut_off_from_the_server_is_replaced(calm, place, tmp_path, way):
    """``hold``: no packet arrives until later, then all do. ``cut``: connections are reset.

    The wall clock of one jumps before that, and the clock of the other one after it.
    """
    with fleet(tmp_path) as one:
        first, second = one.start_pair(place.by_proxy, place.direct)
        first.clock.set(5)
        getattr(place.proxy, way)()
        second.clock.set(-30)
        second.wait_for(6)
        assert first.program.poll() is None
        place.proxy.resume()
        first.wait_to_log("database lost")
        first.wait_to_log("standby started")
        one.kill(second)
        assert one.end(first) == calm


def test_a_daemon_outlives_restarts_of_the_server(calm, place, tmp_path):
    with fleet(tmp_path) as one:
        only = one.start(place.by_proxy)
        for number in (1, 2, 3):
            only.wait_for(4 * number)
            place.server.restart()
            only.wait_to_log("database lost", number)
        assert one.end(only) == calm
        assert only.text.count("database lost") == 3
        assert only.text.count("link up") >= 4


def test_a_cold_standby_goes_on_from_a_copy_of_the_file(tmp_path):
    """Copied as docs/operating.md says; the rounds after the copy are lost, and nothing counts twice."""
    with fleet(tmp_path, rounds=5000) as one:
        here = one.made.prepared.aggregator
        first = one.start(None)
        first.wait_for(4)
        copy = tmp_path / "copy.db"
        run(
            command("gridfed-aggregator", "backup", str(copy), "--config", str(here)), timeout=LIMIT
        )
        first.wait_for(8)
        one.kill(first)

        there = tmp_path / "second" / here.name
        (there.parent / "aggregator").mkdir(parents=True)
        shutil.copy(here, there)
        for name in ("aggregator.key", "root.pub", "root.key"):
            shutil.copy(here.parent / "aggregator" / name, there.parent / "aggregator")
        arguments = ("restore", str(copy), "--config", str(there))
        run(command("gridfed-aggregator", *arguments), timeout=LIMIT)
        second = one.start(None, config=there)
        second.wait_for(6)
        one.made.family.stop([*one.made.devices, second.program])

        config = AggregatorConfig.load(there)
        with open_store(config.database, read_only=True) as store:
            assert store.runs.latest().run > 1
            versions = store.runs.versions(store.runs.latest().run)
            updates = [(found.device, found.run, found.turn) for found in store.journal.applied()]
        assert versions[-1].version >= 6
        assert len(set(updates)) == len(updates)
        run(command("gridfed-aggregator", "audit", str(there)), timeout=LIMIT)
