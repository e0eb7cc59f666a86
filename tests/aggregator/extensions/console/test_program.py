"""``gridfed-console`` as a process: it serves, streams changes, and may be killed."""

import asyncio
import hashlib
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import ClassVar

import pytest

from aggregator.operations.control_queue import waiting
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice
from tests.aggregator.extensions.console.conftest import fill


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
