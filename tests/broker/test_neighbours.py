"""Twenty devices in processes of their own learn without a server, over a real broker."""

from __future__ import annotations

import csv
import json
import re
import selectors
import signal
import socket
import threading
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from edge_sdk.agent import open_sources
from edge_sdk.protocol.keys import save_public
from edge_sdk.sources import read_all
from edge_sdk.store.store import DeviceStore
from firmware_sim.fleet.federation import fetched, free_port, start_broker
from firmware_sim.fleet.processes import ProcessGroup, command, run
from firmware_sim.fleet.run_files import toml
from tests.broker.conftest import require
from tests.fleet.conftest import STREAMS, history
from tests.fleet.street import Street, ring

pytestmark = [pytest.mark.broker, pytest.mark.slow]

NAMES = [f"home-{number:02d}" for number in range(20)]
KILLED, CUT = "home-07", "home-13"
LAST = 110
MIXED = re.compile(r"models mixed epoch=(\d+) step=(\d+) used=(\S*)")


class Wire(threading.Thread):
    """A wire to the broker that can be pulled out."""

    def __init__(self, port: int):
        super().__init__(daemon=True)
        self.port, self.is_whole, self.ends = port, True, {}
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.chosen = selectors.DefaultSelector()
        self.chosen.register(self.listening, selectors.EVENT_READ)
        self.start()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.listening.getsockname()[1]}"

    def run(self):
        while True:
            for key, _ in self.chosen.select(0.1):
                if key.fileobj is self.listening:
                    self.accept()
                elif key.fileobj in self.ends:
                    self.pass_on(key.fileobj)
            if not self.is_whole:
                for end in list(self.ends):
                    self.drop(end)

    def accept(self):
        near, _ = self.listening.accept()
        try:
            if not self.is_whole:
                raise ConnectionRefusedError
            far = socket.create_connection(("127.0.0.1", self.port))
        except OSError:
            near.close()
            return
        self.ends |= {near: far, far: near}
        for end in (near, far):
            self.chosen.register(end, selectors.EVENT_READ)

    def pass_on(self, end):
        try:
            data = end.recv(65536)
            if data:
                self.ends[end].sendall(data)
                return
        except OSError:
            pass
        self.drop(end)

    def drop(self, end):
        for one in (end, self.ends.get(end)):
            if one in self.ends:
                self.chosen.unregister(one)
                self.ends.pop(one)
                one.close()


class Block:
    """The processes, and what they say."""

    def __init__(self, folder, family, url, method, *, names=NAMES, reach=2, **say):
        self.family, self.folder = family, folder
        for number, name in enumerate(names):
            with (folder / f"{name}.csv").open("w", newline="") as file:
                write_history(csv.writer(file), number)
        self.street = Street(folder, ring(names, reach), method, url, say=say)
        self.running, self.logs = {}, {name: [] for name in names}

    def configure(self, name, url):
        columns = {stream.rsplit(".", 1)[1]: stream for stream in STREAMS}
        source = {"type": "csv", "path": f"{name}.csv", "time_format": "epoch", "columns": columns}
        self.street.url, self.street.source = url, [source]
        self.street.write(name)

    def start(self, name):
        words = command("gridfed-edge", "run", str(self.street.path(name)), "--until-done")
        life = f"{name}.{len(self.logs[name])}"
        self.running[name] = self.family.start(life, words)
        self.logs[name].append(self.running[name].log)

    def kill(self, name):
        """End it as a power cut does."""
        self.running[name].signal(signal.SIGKILL)
        self.running[name].wait(10.0)
        self.family.members.remove(self.running[name])

    def stop(self):
        self.family.stop(self.running.values())

    def log(self, name):
        return "".join(log.read_text("utf-8") for log in self.logs[name])

    def used(self):
        """By device and exchange, who counted there."""
        found = defaultdict(dict)
        for name in self.logs:
            for said in MIXED.finditer(self.log(name)):
                found[name][int(said[2])] = [x for x in said[3].strip('"').split(",") if x]
        return found

    def step(self, name):
        return max(self.used()[name], default=-1)

    def until(self, condition, patience=240.0):
        end = time.monotonic() + patience
        while not condition():
            if time.monotonic() > end:
                pytest.fail(f"{ {name: self.step(name) for name in self.running} }")
            time.sleep(0.2)

    def model(self, name):
        return self.half(name)["p"]

    def half(self, name):
        with DeviceStore.open(self.folder / name, read_only=True) as store:
            return store.learned().leaves["half"]

    def observe(self, name, client):
        read_all(open_sources(client.config), client.observe_all)


def write_history(out, number):
    out.writerow(["time", *(stream.rsplit(".", 1)[1] for stream in STREAMS)])
    rows = defaultdict(dict)
    for reading in history(number, 100):
        rows[reading.time][reading.stream] = reading.value
    out.writerows([at, *(row[stream] for stream in STREAMS)] for at, row in sorted(rows.items()))


@pytest.fixture
def block(tmp_path):
    """The broker comes last, when every process is there: who came later would join later."""
    require("mosquitto")
    port = free_port()
    url, wire = f"mqtt://127.0.0.1:{port}", Wire(port)
    with ExitStack() as stack:
        family = stack.enter_context(ProcessGroup(tmp_path / "logs"))
        one = Block(
            tmp_path,
            family,
            url,
            "dfl_sgd",
            interval="500ms",
            deadline="5s",
            total_steps=LAST,
            rate=0.02,
        )
        for name in NAMES:
            one.configure(name, wire.url if name == CUT else url)
            one.start(name)
        one.until(lambda: all("link down" in one.log(name) for name in NAMES))
        words = ("broker", "start", "--kind", "mosquitto", "--port", str(port))
        folder = str(tmp_path / "broker")
        family.start("broker", command("gridfed-aggregator", *words, "--folder", folder))
        yield one, wire


@pytest.mark.soak
def test_neighbours_continue_when_one_is_killed_and_one_is_disconnected(block):
    one, wire = block
    rest = [name for name in NAMES if name not in (KILLED, CUT)]
    one.until(lambda: all(one.step(name) >= 3 for name in NAMES))
    one.running[KILLED].signal(signal.SIGKILL)
    one.until(lambda: all(one.step(name) >= 6 for name in rest))
    wire.is_whole, before = False, one.step(CUT)
    one.until(lambda: all(one.step(name) >= before + 6 for name in rest))
    assert one.step(CUT) <= before + 1, "it was not cut off"
    wire.is_whole = True
    one.until(lambda: all(one.step(name) >= LAST - 1 for name in NAMES if name != KILLED))
    one.until(lambda: all(one.running[n].poll() == 0 for n in NAMES if n != KILLED))

    used = one.used()
    lived = [name for name in NAMES if name != KILLED]
    assert all(set(used[name]) == set(range(LAST)) for name in lived)
    assert not any(KILLED in used[name][LAST - 1] for name in lived)
    assert set(used[CUT][LAST - 1]) == set(one.street.graph[CUT]) - {KILLED}
    assert sum(not used[CUT][step] for step in range(LAST)) >= 5
    check_ends(one, used, lived)
    wanted = one.street.by_hand(used, one.observe)
    for name in lived:
        assert (one.model(name) == wanted[name]).all(), name


def check_ends(one, used, lived):
    """A link counts at both ends or at neither, but for what the devices themselves reported."""
    apart = {
        (step, *sorted((name, other)))
        for name in lived
        for step, near in used[name].items()
        for other in one.street.graph[name]
        if other in lived and (other in near) != (name in used[other][step])
    }
    told = sum(
        running.log.read_text("utf-8").count("exchange possibly one-sided")
        for running in one.running.values()
    )
    assert len(apart) <= told
    for name in lived:
        for near in used[name].values():
            weights = [
                1 / (1 + max(len(one.street.graph[name]), len(one.street.graph[n]))) for n in near
            ]
            assert all(weight > 0 for weight in weights)
            assert 1 - sum(weights) > 0, "what a device keeps of its own makes the row 1"


@contextmanager
def hosted(folder, method, **numbers):
    """Four devices in a ring that an aggregator speaks of, and its page."""
    require("mosquitto")
    names = NAMES[:4]
    with ExitStack() as stack:
        family = stack.enter_context(ProcessGroup(folder / "logs"))
        url = start_broker(family, folder / "broker", "mosquitto")
        one = Block(folder, family, url, method, names=names, reach=1)
        host = folder / "aggregator.toml"
        settings = {"rate": 0.02, "interval": 1.0, "deadline": 6.0, **numbers}
        run_ = {"bundle": "load-mlp", "method": method, "quorum": 4, "settings": settings}
        page = {"listen": f"127.0.0.1:{free_port()}"}
        table = {"fleet": "street", "state": "aggregator", "run": run_, "http": page}
        host.write_text(toml(table | {"broker": {"url": url}}))
        run(command("gridfed-aggregator", "init", str(host)))
        (folder / "root.pub").write_bytes((folder / "aggregator" / "root.pub").read_bytes())
        for name in names:
            one.configure(name, url)
            save_public(folder / f"{name}.pub", one.street.keys[name].public)
            known = ("--public", str(folder / f"{name}.pub"), "--config", str(host))
            run(command("gridfed-aggregator", "enrol", name, *known))
            one.street.write(name, near=[])
        family.start("aggregator", command("gridfed-aggregator", "run", str(host)))
        for name in names:
            one.start(name)
        yield one, page["listen"]


@pytest.mark.parametrize("method", ["dfl_sgd", "dfl_gt"])
def test_an_aggregator_hosts_the_topology_and_receives_no_model(tmp_path, method):
    with hosted(tmp_path, method, total_steps=8) as (one, page):
        one.until(lambda: all(one.step(name) >= 7 for name in one.running))
        said = json.loads(fetched(page, "/status"))
        assert set(said["credit"]["home-00"]) == {"home-01", "home-03"}
        assert said["run"]["version"] == 0, "no model came to it"
        one.until(lambda: all(running.poll() == 0 for running in one.running.values()))
    assert all(one.used()[name][7] for name in one.running)


@pytest.mark.soak
def test_with_trackers_a_dead_decider_is_removed_and_the_others_continue(tmp_path):
    """It holds its neighbours up until then; afterwards trackers add up among who is left."""
    dead, last = "home-00", 8
    with hosted(tmp_path, "dfl_gt", total_steps=last, drop_after=2.0) as (one, page):
        one.until(lambda: all(one.step(name) >= 2 for name in one.running))
        one.kill(dead)
        del one.running[dead]
        one.until(lambda: all(one.step(name) >= last - 1 for name in one.running))
        one.until(lambda: all(running.poll() == 0 for running in one.running.values()))
        linked = json.loads(fetched(page, "/status"))["credit"]
    left = sorted(one.running)
    used = one.used()
    assert set(linked) >= set(left)
    for name in left:
        assert set(used[name][last - 1]) == set(left) - {name}, "a ring of three"
        assert dead not in linked[name]
        assert f"models mixed epoch=3 step={last - 1} " in one.logs[name][-1].read_text("utf-8")
    halves = [one.half(name) for name in left]
    trackers = [half["tracker"] for half in halves]
    seen = [half["seen"][: len(half["tracker"])] for half in halves]  # the body comes first
    assert np.mean(trackers, axis=0) == pytest.approx(np.mean(seen, axis=0), abs=1e-6)
