"""Finding, starting, watching and losing a broker."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import signal
import socket
import subprocess
import sys
import time

import pytest

from aggregator.extensions.authority.access import broker_process as brokers
from aggregator.extensions.authority.access.broker_process import (
    embedded_config,
    find,
    has_embedded,
    mosquitto_program,
    probe,
    start,
)
from edge_sdk.errors import LinkError

pytestmark = pytest.mark.broker


def require(kind: str) -> None:
    if not (mosquitto_program() if kind == "mosquitto" else has_embedded()):
        pytest.skip(f"the {kind} broker is not installed")


PARENT = """
import pathlib, sys, time
from aggregator.extensions.authority.access.broker_process import start
broker = start(sys.argv[1], folder=pathlib.Path(sys.argv[2]))
print(broker.url, flush=True)
time.sleep(60)
"""
KINDS = pytest.mark.parametrize("kind", ["mosquitto", "embedded"])


def test_a_configured_broker_is_used(tmp_path):
    one = find("mqtt://127.0.0.1:1", folder=tmp_path)
    assert (one.kind, one.url, one.pid) == ("configured", "mqtt://127.0.0.1:1", None)
    assert not one.healthy()
    assert not one.ensure()
    one.stop()


def test_auto_selects_mosquitto_first_and_reports_it(tmp_path):
    require("mosquitto")
    with find(folder=tmp_path) as one:
        assert one.kind == "mosquitto"
        assert "Mosquitto" in one.sentence
        assert one.url in one.sentence


def test_auto_selects_the_embedded_broker_without_mosquitto(tmp_path, monkeypatch):
    require("embedded")
    monkeypatch.setattr(brokers, "mosquitto_program", lambda: None)
    with find(folder=tmp_path) as one:
        assert one.kind == "embedded"


def test_without_any_broker_the_error_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(brokers, "mosquitto_program", lambda: None)
    monkeypatch.setattr(brokers, "has_embedded", lambda: False)
    with pytest.raises(LinkError, match="install mosquitto"):
        find(folder=tmp_path)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "broker.example", "::"])
def test_the_embedded_broker_refuses_a_public_address(host):
    with pytest.raises(LinkError, match="use Mosquitto"):
        embedded_config(1883, 1884, host=host)


@KINDS
def test_the_embedded_broker_listens_on_loopback_only(kind, tmp_path):
    require(kind)
    with start(kind, folder=tmp_path) as one:
        port = int(one.url.rsplit(":", 1)[1])
        with contextlib.ExitStack() as stack:  # another loopback address is another host
            try:
                stack.enter_context(socket.create_connection(("127.0.0.2", port), 1))
            except OSError:
                return
            pytest.fail("it listens on more than 127.0.0.1")


@KINDS
def test_a_killed_broker_is_restarted_on_its_port(kind, tmp_path):
    require(kind)
    with start(kind, folder=tmp_path) as one:
        url = one.url
        assert one.healthy()
        assert not one.ensure()
        killed = one.pid
        os.kill(killed, signal.SIGKILL)
        os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
        assert one.ensure()
        assert one.healthy()
        assert one.url == url
    assert one.pid is None
    assert not probe(url)


def test_a_mosquitto_that_is_busy_has_a_minute_to_answer(tmp_path, monkeypatch):
    require("mosquitto")
    monkeypatch.setattr(brokers, "probe", functools.partial(probe, patience=0.2))
    with start("mosquitto", folder=tmp_path) as one:
        pid = one.pid
        os.kill(pid, signal.SIGSTOP)
        assert not one.healthy()
        assert not one.ensure()
        assert one.pid == pid
        monkeypatch.setattr(brokers, "SILENCE", 0.0)
        assert one.ensure()
        assert one.healthy()
        assert one.pid != pid


def test_an_open_port_without_an_answer_is_unhealthy():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        assert not probe(f"mqtt://127.0.0.1:{mute.getsockname()[1]}", patience=0.2)


def test_a_broker_that_stopped_answering_on_an_open_port_is_detected(tmp_path):
    """One malformed packet ends the embedded broker's MQTT 5 half; TCP still accepts."""
    require("embedded")
    with start("embedded", folder=tmp_path) as one:
        port = int(one.url.rsplit(":", 1)[1])
        for seed in range(400):
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), 1) as bad,
            ):
                bad.sendall(bytes([0x10, 0x7F, (seed * 37) % 256]) + bytes([seed % 256]) * 40)
        assert one.healthy() or one.ensure()
        assert one.healthy()


@KINDS
def test_the_broker_ends_when_its_parent_is_killed(kind, tmp_path):
    require(kind)
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            PARENT,
            kind,
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        url = parent.stdout.readline().strip()
        assert probe(url)
        parent.kill()
    until = time.monotonic() + 120
    while probe(url, patience=0.5):
        assert time.monotonic() < until, "it still answers"
        time.sleep(0.1)


@KINDS
@pytest.mark.chaos
def test_links_reconnect_after_the_broker_was_killed(kind, tmp_path, room):
    require(kind)
    with start(kind, folder=tmp_path) as one:
        ear, mouth = room.join(one.url, "ear", "t/#"), room.join(one.url, "mouth")
        mouth.link.publish("t/1", b"before")
        room.until(lambda: b"before" in ear.payloads)
        one.kill()
        room.until(lambda: not (ear.link.is_up or mouth.link.is_up))
        one.restart()
        room.until(lambda: ear.link.is_up and mouth.link.is_up)
        room.subscribe(ear, "t/#")  # whatever the broker remembers
        mouth.link.publish("t/1", b"after")
        room.until(lambda: b"after" in ear.payloads)


@KINDS
def test_a_daemon_with_1100_open_files_still_connects(kind, tmp_path, room):
    require(kind)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2_000:
        pytest.skip(f"this process may open only {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_000), hard))
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(start(kind, folder=tmp_path))
        for _ in range(1_100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        line = room.join(one.url, "late", "t")
        assert line.link._descriptor > 1_024
        line.link.publish("t", b"x")
        room.until(lambda: line.payloads == [b"x"])
        room.close()
        room.lines.clear()


def test_the_error_for_a_port_in_use_quotes_the_broker(tmp_path):
    require("mosquitto")
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(LinkError, match="in use"),
    ):
        start("mosquitto", folder=tmp_path, port=taken.getsockname()[1])
