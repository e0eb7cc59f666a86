"""Consoles that are killed while a fleet learns change no bit of the journal."""

import http.client
import signal

import pytest

pytest.importorskip("starlette", reason="the console extra is not installed")

from firmware_sim.fleet.federation import free_port
from tests.fleet.test_attacks import learned
from tools.console_load import RunningConsole, journal_digest

pytestmark = pytest.mark.slow
ROUNDS = 3


def digest_of(world, between):
    """Let a fleet learn some rounds, and do something before each; return the journal's digest."""
    one = world(devices=3)
    one.start_all()
    for number in range(1, ROUNDS + 1):
        between(one)
        learned(one, number)
    return journal_digest(one.config.parent / "aggregator" / "aggregator.db")


def test_journal_is_that_of_a_fleet_without_a_console(world):
    served = []

    def watch_and_kill(one):
        port = free_port()
        text = one.config.read_text("utf-8")
        config = one.config.with_name("console.toml")
        config.write_text(f'{text}\n[console]\nlisten = "127.0.0.1:{port}"\n', "utf-8")
        console = RunningConsole(config, port).wait()
        try:
            served.extend(console.request(path)[0] for path in ("/", "/run?run=1", "/devices"))
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            link.request("GET", "/events")
            assert link.getresponse().readline() == b"retry: 5000\n"
            one.turn()
        finally:
            console.end(signal.SIGKILL)
        link.close()

    watched = digest_of(world, watch_and_kill)
    assert served == [200] * 3 * ROUNDS
    assert digest_of(world, lambda one: one.turn()) == watched
