"""``gridfed-console`` as a process: it serves, streams changes, replays, and may be killed."""

import asyncio
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import ClassVar

import pytest

from aggregator.extensions.console.replay_process import ReplayFailedError, ReplayProcess
from aggregator.operations.control_queue import waiting
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice
from tests.aggregator.extensions.console.browser import token_in
from tests.aggregator.extensions.console.conftest import BROWSER, fill


def read(address):
    with urllib.request.urlopen(address, timeout=60) as page:
        return page.read().decode(), page.headers


def journal_digest(config):
    with open_store(config.database, read_only=True) as store:
        return hashlib.sha256("\n".join(store._db.iterdump()).encode()).hexdigest()


@pytest.mark.slow
def test_killing_the_console_changes_nothing_in_the_database(served):
    address, config, process = served
    before = journal_digest(config)
    for page in ("/", "/devices", "/device?id=meter-1", "/suspects", "/orders"):
        text, headers = read(f"{address}{page}")
        assert "</html>" in text
        assert "unsafe" not in headers["content-security-policy"]
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    assert journal_digest(config) == before
    assert not list(waiting(config.inbox))


@pytest.mark.slow
def test_sigterm_ends_the_console_with_an_open_stream(served):
    address, _, process = served
    with urllib.request.urlopen(f"{address}/events", timeout=60) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.readline() == b"retry: 5000\n"
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_stream_names_a_change_once(config, console, monkeypatch):
    monkeypatch.setattr("aggregator.extensions.console.app.POLL", 0.0)
    fill(config)
    app = console(config).console
    public = bytes(range(32))

    class Request:
        query_params: ClassVar = {}

        async def is_disconnected(self):
            return False

    async def listened():
        stream, found = app._changes(Request()), []
        for n in range(6):
            found.append(await anext(stream))
            if n == 2:
                with open_store(config.database) as store:
                    store.devices.save(EnrolledDevice("new", (public,)))
        await stream.aclose()
        return found

    found = asyncio.run(listened())
    assert (
        found
        == ["retry: 5000\n\n", ": \n\n", ": \n\n", "event: changed\ndata: 1\n\n"] + [": \n\n"] * 2
    )
    assert app._viewers == 0


def test_stream_names_a_change_since_the_page_was_made(config, console):
    """The stream opens after the page; what changes between them is not missed."""
    fill(config)
    browser = console(config)
    mark = re.search(r'data-live="([0-9a-f]{16})"', browser.get("/").text)[1]

    class Request:
        def __init__(self, since):
            self.query_params = {"since": since}

        async def is_disconnected(self):
            return False

    async def second(since):
        stream = browser.console._changes(Request(since))
        await anext(stream)
        found = await anext(stream)
        await stream.aclose()
        return found

    assert asyncio.run(second(mark)) == ": \n\n"
    assert asyncio.run(second("0" * 16)) == "event: changed\ndata: 1\n\n"


def test_streams_are_bounded(config, console):
    client = console(config)
    client.console._viewers = 64
    assert client.get("/events").status_code == 503


def test_replay_page_runs_the_command_and_shows_its_error(config, console):
    """The recorded digests of this database are made up, so the command refuses the replay."""
    fill(config)
    client = console(config)
    page = client.get("/replay?run=1").text
    form = {"token": token_in(page), "rounds": "1:2", "rule": "median", "run": "1"}
    answer = client.post("/replay", data=form, headers=BROWSER)
    assert answer.status_code == 409
    assert "the journal closes only 0 of them under this configuration" in answer.text
    assert 'value="median"' in answer.text
    assert client.post("/replay", data=form | {"token": ""}, headers=BROWSER).status_code == 403


def test_replay_page_shows_the_result(config, console, monkeypatch):
    course = {"moved": True, "why": "", "used": ["a"], "excluded": {"<b>": "far"}, "step": 0.5}
    course |= {"loss": 0.25, "model": "00"}
    round_ = {"round": 2, "recorded": course, "single": course, "chained": course}
    round_ |= {"single_distance": 0.125, "chained_distance": 0.25}
    result = {
        "rule": {"recorded": {"name": "mean"}, "replayed": {"name": "krum"}},
        "limits": ["exact"],
    }
    result |= {"rounds": [round_], "without": ["<i>"], "run": 1}
    seen = []

    def ended(command, **_):
        seen.append(command)
        return subprocess.CompletedProcess(command, 0, json.dumps(result), "")

    monkeypatch.setattr("aggregator.extensions.console.replay_process.subprocess.run", ended)
    client = console(config)
    form = {"token": token_in(client.get("/replay").text), "rounds": "2", "rule": "--out=/x"}
    answer = client.post("/replay", data=form, headers=BROWSER)
    assert answer.status_code == 200
    assert "&lt;b&gt;" in answer.text
    assert "&lt;i&gt;" in answer.text
    assert "0.125" in answer.text
    assert "<svg" in answer.text
    assert seen[0][-2:] == ["--rounds=2", "--rule=--out=/x"], "a value never becomes an option"


def test_one_replay_at_a_time(tmp_path):
    runner = ReplayProcess(tmp_path / "aggregator.toml")
    runner._busy.acquire()
    with pytest.raises(ReplayFailedError, match="Another replay is running"):
        runner.result({"rounds": "1"})


def test_a_fleet_that_is_not_set_up_is_one_sentence(workplace):
    done = subprocess.run(
        [sys.executable, "-m", "aggregator.extensions.console", "--config", str(workplace())],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "this fleet is not set up" in done.stderr
