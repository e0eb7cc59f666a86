"""An admission worker as its unit for systemd starts it: TLS, access rules, PostgreSQL, notifications."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from aggregator.config import AggregatorConfig, bind
from aggregator.extensions.postgres.update_queue import open_queue
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice
from edge_sdk.errors import OK
from edge_sdk.link.broker_options import Broker
from edge_sdk.link.mqtt import MqttLink
from edge_sdk.protocol import codec, keys
from edge_sdk.protocol.messages import UpdateMessage
from tests.broker.test_enrolment import ROOT, Site, run, sites, until
from tests.postgres_server import missing, running
from tools.bench_workers import signed

pytestmark = [pytest.mark.broker, pytest.mark.slow]

UNIT = (ROOT / "examples/gridfed-aggregator-worker@.service").read_text("utf-8")
MORE = """
[store]
url = "{url}"
[admission]
workers = true
"""


@pytest.fixture
def site(tmp_path):
    yield from sites(Site, tmp_path)


def as_the_unit_starts(here: Site, name: str) -> tuple[list[str], dict[str, str]]:
    """Return the unit's command and variables, with this test's folders for those of a machine."""
    etc, credentials = here.folder / "etc", here.folder / "credentials"
    etc.mkdir()
    credentials.mkdir()
    for suffix in ("pem", "key"):
        shutil.copy(here.ca / "issued" / f"worker-{name}.{suffix}", etc)
    places = {
        "%i": name,
        "%d": str(credentials),
        "/etc/gridfed/aggregator.toml": str(here.config),
        "/etc/gridfed": str(etc),
        "/var/lib/gridfed-aggregator": str(here.folder / "no-state"),
        "/opt/gridfed/bin/gridfed-aggregator": f"{sys.executable} -m aggregator",
    }
    text = re.sub("|".join(map(re.escape, places)), lambda found: places[found[0]], UNIT)
    for credential, source in re.findall(r"^LoadCredential=([^:]+):(.+)$", text, re.MULTILINE):
        shutil.copy(source, credentials / credential)
    named = " ".join(re.findall(r"^Environment=(.+)$", text, re.MULTILINE)).split()
    (words,) = re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)
    return words.split(), dict(one.split("=", 1) for one in named)


def test_a_worker_queues_an_update_under_its_own_certificate(site, tmp_path):
    if why := missing():
        pytest.skip(why)
    with running() as server:
        here = site(more=MORE.format(url=server.database()))
        config = AggregatorConfig.load(here.config, {})
        key = keys.generate()
        with open_store(config.database) as store:
            store.devices.save(EnrolledDevice("meter-1", (key.public,)))
        for name in ("worker-1", "meter-1"):
            assert run("ca", "issue", name, "--folder", here.ca) == OK
        rules = ("broker", "access", "--config", here.config, "--file", here.access)
        assert run(*rules, "--worker", "worker-1") == OK
        here.broker.restart()  # it has read the rules
        words, variables = as_the_unit_starts(here, "1")
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(120)
        variables["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        log = tmp_path / "worker.log"
        with manager, log.open("w") as file:
            environ = os.environ | {"PYTHONPATH": str(ROOT)} | variables
            worker = subprocess.Popen(words, env=environ, stderr=file)
            here.programs.append(worker)
            assert manager.recv(100) == b"READY=1"
            until(lambda: "link up" in log.read_text(), "a link of the worker")
            assert manager.recv(100) == b"WATCHDOG=1"
            queue = open_queue(config.database)
            until(lambda: [one.name for one in queue.workers() if one.is_alive], "a worker")
            issued = here.ca / "issued"
            link = MqttLink(
                Broker(
                    url=here.url,
                    client_id="meter-1",
                    ca_file=here.ca / "ca.pem",
                    cert_file=issued / "meter-1.pem",
                    key_file=issued / "meter-1.key",
                )
            )
            link.open()
            until(lambda: link.poll(0.1) and link.is_up, "a link of the device")
            spec = bind(config).spec
            update = UpdateMessage(
                run=1,
                round=1,
                base=0,
                life=1,
                seq=1,
                spent=1,
                spec=spec.digest,
                part="delta",
                enc="q4",
                n=64,
                blob=codec.pack_tensor(np.zeros(spec.shared_size), "q4"),
            )
            message = signed("meter-1", key, update, fleet="north")
            assert link.publish(message.topic, message.payload)
            until(lambda: link.poll(0.1) is not None and queue.length(), "the update in the queue")
            (found,) = queue.oldest(9)
            assert found.payload == message.payload
            assert found.verified_by == key.public, queue.workers()
            link.close()
            queue.close()
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0, log.read_text()
        assert "refused" not in log.read_text()
        assert not (here.folder / "no-state").exists(), "a worker writes no file"
