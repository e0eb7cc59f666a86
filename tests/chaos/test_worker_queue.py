"""kill -9 of a worker while updates are queued: none is lost, none counts twice, and no bit differs.

``GRIDFED_QUEUED=60000 pytest -s -m "" tests/chaos/test_worker_queue.py`` queues so many, and prints times.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from aggregator.config import AggregatorConfig, bind
from aggregator.daemon import Daemon
from aggregator.extensions.audit.recompute import recompute
from aggregator.extensions.authority.access.broker_process import mosquitto_program, start
from aggregator.extensions.postgres.engine import migrate
from aggregator.extensions.postgres.update_queue import open_queue
from aggregator.operations.run_setup import set_up
from aggregator.operations.signing_keys import RootSigners
from aggregator.store.dialect import DatabaseUrl
from aggregator.store.ledgers import Ledger
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice
from edge_sdk.link.transport import Message
from edge_sdk.protocol import codec, envelope, keys, topics
from edge_sdk.protocol.messages import UpdateMessage
from firmware_sim.fleet.processes import ProcessGroup, RunningProgram
from firmware_sim.testing.loopback import LoopbackBroker
from tests.aggregator.conftest import ONLINE, ROOT, write_bundle
from tests.postgres_server import missing, running
from tools.mqtt_sender import publish

UPDATES = int(os.environ.get("GRIDFED_QUEUED", "300"))
TOGETHER = 64  # updates that the daemon without workers receives at once
PATIENCE = max(1800.0, UPDATES / 10)  # s
pytestmark = [
    *(pytest.mark.chaos, pytest.mark.broker, pytest.mark.slow),
    pytest.mark.timeout(max(900, UPDATES // 4)),
]
CONFIG = """
fleet = "north"
state = "state"
broker = {{ url = "{broker}" }}
http = {{ listen = "off" }}
{more}
[run]
bundle = "toy"
method = "fedavg"
quorum = {updates}
deadline = "1d"
schedule = {{ rounds_per_day = "continuous" }}
"""


@dataclass(frozen=True)
class Fleet:
    """A fleet whose devices have been welcomed, and an update of each."""

    file: Path
    updates: list[Message]


def founded(folder: Path, broker: str) -> Fleet:
    """Set up a fleet in a file of SQLite."""
    (folder / "state").mkdir()
    keys.save_public(folder / "state" / "root.pub", ROOT.public)
    write_bundle(folder / "toy")
    file = folder / "file.toml"
    file.write_text(CONFIG.format(broker=broker, updates=UPDATES, more=""), "utf-8")
    config = AggregatorConfig.load(file, {})
    keys.save_signing_key(config.signing_key, ONLINE)
    run, rng, sent = bind(config), np.random.default_rng(3), []
    with open_store(config.database) as store:
        set_up(
            run, store, root=RootSigners.of(ROOT), online=ONLINE.public, now=int(time.time() * 1000)
        )
        with store.transaction():
            for number in range(UPDATES):
                name, key = f"meter-{number}", keys.generate()
                store.devices.save(EnrolledDevice(name, (key.public,)))
                store.ledgers.save(name, Ledger(hid=b"h" * 32, hid_life=1))
                sent.append(update(name, key, run.spec.digest, rng.normal(size=2)))
    return Fleet(file, sent)


def update(name: str, key: keys.SigningKey, spec: bytes, vector: np.ndarray) -> Message:
    """Return the signed update of a device, with its topic."""
    message = UpdateMessage(
        run=1,
        round=1,
        base=0,
        life=1,
        seq=1,
        spent=1,
        spec=spec,
        part="delta",
        enc="f4",
        n=10,
        blob=vector.astype("<f4").tobytes(),
    )
    payload = envelope.seal(
        codec.encode(message),
        signer=key,
        kind="update",
        sender=name,
        recipient="_agg",
        fleet="north",
    )
    return Message(topics.up("north", name, "update"), payload)


def served(config: AggregatorConfig, serve: Callable[[Daemon], None]) -> bytes:
    """Run a daemon without a broker until the round has closed; return the model's bytes."""
    with Daemon(config, transport=LoopbackBroker().link("_agg")) as daemon:
        begun, spent = time.monotonic(), time.process_time()
        while daemon.state.version == 0:
            serve(daemon)
            assert time.monotonic() - begun < PATIENCE, daemon.state.waiting
        seconds, spent = time.monotonic() - begun, time.process_time() - spent
        print(f"daemon: {UPDATES} updates in {seconds:.1f} s, processor {spent:.1f} s")  # noqa: T201
        return bytes(daemon.state.w.tobytes())


def worker(family: ProcessGroup, file: Path, name: str) -> RunningProgram:
    """Start a worker."""
    words = [sys.executable, "-m", "aggregator", "worker", str(file), "--name", name]
    return family.start(f"worker-{name}", words)


def wait_until(is_true: Callable[[], object]) -> None:
    begun = time.monotonic()
    while not is_true():
        assert time.monotonic() - begun < PATIENCE
        time.sleep(0.02)


def queued(url: str) -> set[str]:
    """Return the topics of the updates in the queue."""
    import psycopg  # noqa: PLC0415 - extra

    with psycopg.connect(url) as db:
        return {topic for (topic,) in db.execute("SELECT topic FROM queued_updates")}


def filled(fleet: Fleet, broker: str, place: DatabaseUrl, logs: Path) -> int:
    """Queue every update by two workers, of which one is killed; return how many were sent again."""
    file = fleet.file.with_name("workers.toml")
    with ProcessGroup(logs) as family:
        queue = open_queue(place)
        first, second = (worker(family, file, name) for name in ("1", "2"))
        wait_until(lambda: sum(one.is_alive for one in queue.workers()) == 2)
        said = [one.log for one in (first, second)]
        wait_until(lambda: all("link up" in log.read_text("utf-8", "replace") for log in said))
        sender = threading.Thread(target=publish, args=(broker, fleet.updates))
        sender.start()
        names = {"1", "2"}
        wait_until(lambda: names == {one.name for one in queue.workers() if one.queued})
        wait_until(lambda: queue.length() >= UPDATES // 3)
        first.signal(signal.SIGKILL)
        family.members.remove(first)
        assert first.wait(60) == -signal.SIGKILL
        before = queued(place.url)
        sender.join()
        sent_again = repeated(fleet.updates, broker, place, queue.length)
        assert before <= queued(place.url)
        second.signal(signal.SIGTERM)
        assert second.wait(120) == 0, second.tail()
        family.members.remove(second)
        queue.close()
    return sent_again


def repeated(
    updates: Sequence[Message], broker: str, place: DatabaseUrl, length: Callable[[], int]
) -> int:
    """Send what is not in the queue once it grows no further, as devices without a receipt do."""
    count, begun = 0, time.monotonic()
    while True:
        before = -1
        while before != length():
            before = length()
            time.sleep(1.0)
        there = queued(place.url)
        lost = [one for one in updates if one.topic not in there]
        if not lost:
            return count
        assert time.monotonic() - begun < PATIENCE, len(lost)
        count += len(lost)
        publish(broker, lost)


def test_no_queued_update_is_lost_with_a_worker_or_counted_twice(tmp_path):
    if why := missing():
        pytest.skip(why)
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    with running() as server, start("mosquitto", folder=tmp_path / "broker") as broker:
        place = DatabaseUrl(server.schema())
        fleet = founded(tmp_path, broker.url)
        plain = AggregatorConfig.load(fleet.file, {})
        migrate(plain.file_database, place, lambda _line: None)
        more = f'store = {{ url = "{place.url}" }}\nadmission = {{ workers = true }}\n'
        file = tmp_path / "workers.toml"
        file.write_text(CONFIG.format(broker=broker.url, updates=UPDATES, more=more), "utf-8")
        config = AggregatorConfig.load(file, {})

        begun = time.monotonic()
        sent_again = filled(fleet, broker.url, place, tmp_path / "logs")
        seconds = time.monotonic() - begun
        print(f"workers: {UPDATES} updates in {seconds:.1f} s, {sent_again} sent again")  # noqa: T201
        disturbed = served(config, Daemon.turn)

        groups = range(0, UPDATES, TOGETHER)
        waiting = iter([fleet.updates[at : at + TOGETHER] for at in groups])
        calm = served(plain, lambda daemon: daemon._receive(next(waiting)))
        assert disturbed == calm
        bound = bind(config)
        with open_store(place) as store:
            audit = recompute(store, bound.half, bound.first_state().w)
            assert audit.is_sound, audit.faults
            assert sum(audit.updates.values()) == len(audit.updates) == UPDATES
            assert {row.code for row in store.ledgers.settled().values()} == {0}
            assert len(store.ledgers.settled()) == UPDATES
        assert not queued(place.url)
