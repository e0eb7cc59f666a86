"""What the simulator starts it also stops, weighs and, when it fails, quotes."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from firmware_sim.fleet import processes
from firmware_sim.fleet.processes import ProcessGroup, ProgramDied, ProgramRefused, run, stoppable

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True:
    time.sleep(1)
"""
WITH_CHILD = """
import subprocess, time
print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
time.sleep(60)
"""
DEAF = [sys.executable, "-c", STUBBORN]
PARENT = [sys.executable, "-c", WITH_CHILD]


def until(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def raise_after_start(family):
    family.start("sleeper", SLEEP)
    raise KeyboardInterrupt


def test_leaving_the_block_stops_and_measures_every_program(tmp_path):
    with ProcessGroup(tmp_path) as family:
        member = family.start("sleeper", SLEEP)
        until(lambda: "up" in member.tail())
    assert member.code == -signal.SIGTERM
    assert member.cpu > 0
    assert member.peak_kb > 1000


@pytest.mark.skipif(sys.platform != "linux", reason="another process's memory is in /proc")
def test_the_memory_of_the_starting_process_is_not_counted(tmp_path):
    """``ru_maxrss`` counts it: what was resident before ``exec``."""
    held = bytearray(b"1") * (150 * 2**20)
    with ProcessGroup(tmp_path) as family:
        member = family.start("sleeper", SLEEP)
        until(lambda: member.poll() is not None or "up" in member.tail())
        member.poll()
    assert len(held) == 150 * 2**20
    assert 1000 < member.peak_kb < 100_000


def test_a_program_that_ignores_sigterm_is_killed(tmp_path):
    with ProcessGroup(tmp_path) as family:
        member = family.start("deaf", DEAF)
        until(lambda: "up" in member.tail())
        family.stop([member], grace=0.2)
    assert member.code == -signal.SIGKILL


def test_a_grandchild_is_stopped_too(tmp_path):
    with ProcessGroup(tmp_path) as family:
        member = family.start("parent", PARENT)
        until(lambda: member.tail().strip().isdigit())
        grandchild = int(member.tail())
        assert is_alive(grandchild)
    until(lambda: not is_alive(grandchild))


def test_an_error_in_the_block_still_stops_them(tmp_path):
    family = ProcessGroup(tmp_path)
    with pytest.raises(KeyboardInterrupt), family:
        raise_after_start(family)
    assert family.members[0].code is not None


def test_a_failed_program_is_reported_with_its_last_output(tmp_path):
    with ProcessGroup(tmp_path) as family:
        member = family.start("bad", [sys.executable, "-c", "raise SystemExit('port in use')"])
        until(lambda: member.poll() is not None)
        with pytest.raises(ProgramDied, match="bad ended with code 1") as caught:
            family.require_running()
    assert caught.value.hint == "port in use"


def test_a_program_that_ended_with_0_is_no_failure(tmp_path):
    with ProcessGroup(tmp_path) as family:
        member = family.start("good", [sys.executable, "-c", ""])
        until(lambda: member.poll() is not None)
        family.require_running()
    assert member.code == 0


def test_run_returns_output_and_names_a_failure():
    assert run([sys.executable, "-c", "print('hello')"]) == "hello\n"
    with pytest.raises(ProgramDied, match="code 3"):
        run([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(ProgramDied, match="longer than"):
        run(SLEEP, timeout=0.3)


def test_a_refused_configuration_is_reported_with_the_programs_own_message():
    """Wrapped in a command line and folders of ours it could not be read."""
    words = "import sys; sys.stderr.write('x: run.quorum: at least 1\\n  hint: more'); sys.exit(2)"
    with pytest.raises(ProgramRefused, match=r"^x: run\.quorum: at least 1$") as caught:
        run([sys.executable, "-c", words])
    assert (caught.value.hint, caught.value.exit_code) == ("more", 2)


class Swallower:
    """An object whose finaliser is interrupted; Python discards what is raised there."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):
            pass


def wait_after_a_discarded_signal():
    one = Swallower()
    del one
    for _ in range(6000):  # a minute; without a second interrupt it comes to its end
        time.sleep(0.01)


def wait_after_a_signal():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def test_a_signal_whose_interrupt_is_discarded_still_ends_the_block(monkeypatch):
    discarded = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: discarded.append(found.exc_type))
    monkeypatch.setattr(processes, "AGAIN", 0.01)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)]
    timer = signal.getitimer(signal.ITIMER_REAL)
    with pytest.raises(KeyboardInterrupt), stoppable():
        wait_after_a_discarded_signal()
    assert discarded == [KeyboardInterrupt]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)] == before
    assert bool(signal.getitimer(signal.ITIMER_REAL)[0]) == bool(timer[0])


def test_no_further_interrupt_cuts_the_cleanup_short(monkeypatch):
    monkeypatch.setattr(processes, "AGAIN", 0.01)
    cleaned = []

    @contextmanager
    def owner():
        try:
            yield
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # an impatient second one
            for _ in range(20):
                time.sleep(0.01)
            try:
                Path("/nonexistent").read_bytes()
            except OSError:
                time.sleep(0.05)
            cleaned.append(True)

    with pytest.raises(KeyboardInterrupt), stoppable(), owner():
        wait_after_a_signal()
    assert cleaned == [True]
