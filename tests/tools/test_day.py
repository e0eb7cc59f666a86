"""The clock of a simulated day, and the look from outside: before a whole day rests on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from tools.day.outside import Seen
from tools.day.town import Town

PROGRAM = """
import json, select, selectors, socket, threading, time
one, other = socket.socketpair()
chosen = selectors.DefaultSelector()
chosen.register(one, selectors.EVENT_READ)
looked = select.poll()
looked.register(one, select.POLLIN)
waits = {
    "sleep": lambda: time.sleep(60),
    "event": lambda: threading.Event().wait(60),
    "select": lambda: select.select([one], [], [], 60),
    "poll": lambda: looked.poll(60_000),
    "selector": lambda: chosen.select(60),
}
took = {}
for name, wait in waits.items():
    began = time.monotonic()
    wait()
    took[name] = time.monotonic() - began
other.send(b"!")
began = time.monotonic()
found = [bool(any(waits["select"]())), bool(waits["poll"]()), bool(waits["selector"]())]
print(json.dumps([took, found, time.time(), time.time_ns() / 1e9]))
"""


@pytest.fixture
def town(tmp_path):
    made = Town(tmp_path / "clock", 1000.0)
    made.go()
    made.look()
    return made


def test_a_program_waits_by_the_clock_of_its_town(town):
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | town.environ,
        capture_output=True,
        check=True,
        timeout=300,
    )
    took, found, wall, ns = json.loads(done.stdout)
    assert min(took.values()) >= 60.0, "no wait ended early"
    assert found == [True, True, True]
    assert time.monotonic() - began < 150.0, "300 of its seconds were not 300 of ours"
    assert 0 <= ns - wall < 1000.0 * (time.monotonic() - began)
    assert abs(town.now - wall) < 1000.0 * (time.monotonic() - began)


def test_time_is_slow_while_somebody_speaks_and_never_goes_back(town):
    moments = [town.now]
    for change in (town.hear, town.ping, town.pong, town.look, town.tire, town.look):
        change()
        moments.append(town.now)
    assert moments == sorted(moments)
    town.hear()
    began, before = time.monotonic(), town.now  # ours is read first and last: it cannot be less
    passed = town.now - before
    assert passed <= time.monotonic() - began + 0.001


def test_two_threads_may_change_the_pace(town):
    def change():
        for _ in range(2000):
            town.hear()
            town.go()
            town.look()

    threads = [threading.Thread(target=change) for _ in range(2)]
    for thread in threads:
        thread.start()
    seen = [town.now for _ in range(2000)]
    for thread in threads:
        thread.join()
    assert seen == sorted(seen)


@pytest.mark.skipif(sys.platform != "linux", reason="another process's counters are in /proc")
def test_what_a_process_writes_is_seen_from_outside(tmp_path):
    script = (
        f"import os; f = open({str(tmp_path / 'x')!r}, 'wb'); f.write(bytes(10**6)); f.flush();"
    )
    script += "os.fsync(f.fileno()); print(1, flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe) as child:
        child.stdout.readline()
        seen = Seen()
        seen.look(child.pid)
        child.communicate(b"\n")
    assert seen.said >= 10**6
    assert seen.written in (0, *range(10**6, 10**7))
    assert seen.flash >= 10**6
    assert seen.data > 0
    assert seen.resident >= seen.anonymous > 0
    assert seen.processor >= 0.0


def test_of_a_process_that_is_gone_nothing_is_seen():
    seen = Seen()
    seen.look(2**22 + 1)
    assert seen == Seen()
