"""The HTTP output: pages, bounds, and who may read them."""

from __future__ import annotations

import http.client
import json
import socket
import time

import pytest

from edge_sdk.app.settings import SettingsError, from_table
from edge_sdk.extensions.outputs.http import AT_ONCE, HttpOutputSection, HttpSink


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def sink(clock):
    one = HttpSink("127.0.0.1", 0, lambda: clock[0])
    yield one
    one.close()


def get(sink, path, host=None, method="GET"):
    link = http.client.HTTPConnection(*sink.address, timeout=20)
    headers = {} if host is None else {"Host": host}
    link.request(method, path, headers=headers)
    answer = link.getresponse()
    body = answer.read()
    link.close()
    return answer.status, body, answer


def test_the_newest_forecast_and_metrics_are_served(sink, report):
    assert get(sink, "/forecast")[0] == 503
    sink.send(report, is_new=True)
    status, body, answer = get(sink, "/forecast?x=1")
    assert status == 200
    assert json.loads(body) == report.issued.document()
    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.headers["Access-Control-Allow-Origin"] is None
    assert b"gridfed_edge_linked" in get(sink, "/metrics")[1]
    assert get(sink, "/forecast", method="HEAD")[1] == b""
    assert get(sink, "/other")[0] == 404
    assert get(sink, "/forecast", method="POST")[0] == 501


def test_health_follows_the_agent(sink, report, clock):
    assert get(sink, "/health")[0] == 503
    sink.send(report, is_new=False)
    assert get(sink, "/health")[0] == 200
    clock[0] += 601.0
    status, body, _ = get(sink, "/health")
    assert status == 503
    assert json.loads(body) == {"alive": False, "seconds_since_report": 601.0}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8322", "[::1", "192.168.1.2"])
def test_a_web_page_cannot_read_it_under_another_name(sink, report, host):
    sink.send(report, is_new=True)
    assert get(sink, "/forecast", host=host)[0] == 403


def served_again(sink, patience=60.0):
    """Ask until a thread is free: each ends a moment after its connection."""
    end = time.monotonic() + patience
    while True:
        try:
            return get(sink, "/forecast")[0]
        except (OSError, http.client.HTTPException):
            assert time.monotonic() < end
            time.sleep(0.05)


def test_idle_connections_do_not_stop_it(sink, report):
    sink.send(report, is_new=True)
    idle = [socket.create_connection(sink.address) for _ in range(AT_ONCE + 4)]
    try:
        for one in idle:  # each is closed by the deadline, or at once where no thread is free
            one.settimeout(60)
            assert one.recv(1) == b""
        assert served_again(sink) == 200
    finally:
        for one in idle:
            one.close()


def test_a_thread_that_cannot_start_costs_one_request_only(sink, report, monkeypatch):
    sink.send(report, is_new=True)

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", refuse)
        for _ in range(AT_ONCE + 2):
            with pytest.raises((OSError, http.client.HTTPException)):
                get(sink, "/forecast")
    assert served_again(sink) == 200


def test_the_network_must_be_asked_for():
    with pytest.raises(SettingsError, match=r"0\.0\.0\.0 is not loopback; set remote = true"):
        from_table(HttpOutputSection, {"type": "http", "listen": "0.0.0.0:8322"}, "output[0]")
    section = from_table(
        HttpOutputSection, {"type": "http", "listen": "[::]:1", "remote": True}, "output[0]"
    )
    assert section.address == ("::", 1)
    with pytest.raises(SettingsError, match="listen"):
        from_table(HttpOutputSection, {"type": "http", "listen": "127.0.0.1:99999"}, "output[0]")


def test_a_port_in_use_is_an_error_of_the_output(sink):
    host, port = sink.address
    with pytest.raises(OSError, match=f"cannot bind {host}:{port}"):
        HttpSink(host, port)
