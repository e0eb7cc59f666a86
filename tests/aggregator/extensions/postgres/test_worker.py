"""Admission workers and the daemon over one loopback link and a queue in memory."""

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from aggregator.commands.arguments import CommandError
from aggregator.commands.main import program
from aggregator.config import AggregatorConfig
from aggregator.daemon import Daemon
from aggregator.extensions.postgres import queued_updates
from aggregator.extensions.postgres.update_queue import WorkerStatus, open_queue
from aggregator.extensions.postgres.worker import (
    GOODBYE,
    HANDOVER,
    DeviceKeyCache,
    UpdateCheck,
    UpdateWorker,
    broker_for,
    check_of,
    serve,
)
from aggregator.extensions.postgres.worker_command import run as run_command
from aggregator.ingress.flood_control import updates_filter
from aggregator.ingress.message_bodies import MessageBodies
from aggregator.ingress.rate_limits import RateLimits
from aggregator.store.errors import DatabaseError
from aggregator.store.opener import open_store
from edge_sdk.app.settings import SettingsError
from edge_sdk.errors import USAGE, Failure, Reason
from edge_sdk.link.transport import LinkDown, LinkUp, Message
from edge_sdk.protocol import keys, topics
from edge_sdk.protocol.messages import ModelMessage, ReceiptMessage, RefusalMessage
from firmware_sim.testing.loopback import LoopbackBroker

SHARED = updates_filter("north")


@dataclass
class MemoryQueue:
    """The queue of one process, with the workers that were told to it."""

    updates: list = field(default_factory=list)
    alive: list = field(default_factory=list)
    shown: list = field(default_factory=list)
    reports: list = field(default_factory=list)
    drawn: int = 0

    def append(self, updates):
        for one in updates:
            self.drawn += 1
            self.updates.append(replace(one, position=self.drawn))

    def oldest(self, most):
        return self.updates[:most]

    def remove(self, updates):
        gone = {one.position for one in updates}
        self.updates = [one for one in self.updates if one.position not in gone]

    def length(self):
        return len(self.updates)

    def show(self, *, is_receiving):
        self.shown.append(is_receiving)

    def report(self, counts):
        self.reports.append(dict(counts))

    def workers(self):
        return [WorkerStatus(name, True, len(self.updates), {"checked": 7}) for name in self.alive]

    def close(self):
        pass


class Plain:
    """A link of the loopback broker, which has no shared subscriptions, with one member in each."""

    def __init__(self, link):
        self._link, self.filters = link, set()

    def __getattr__(self, name):
        return getattr(self._link, name)

    def subscribe(self, *filters):
        self.filters |= set(filters)
        self._link.subscribe(*(one.replace("$share/admission/", "") for one in filters))

    def unsubscribe(self, *filters):
        self.filters -= set(filters)
        self._link.unsubscribe(*(one.replace("$share/admission/", "") for one in filters))


@dataclass
class Place:
    """A fleet with a daemon and a worker."""

    config: AggregatorConfig
    queue: MemoryQueue
    broker: LoopbackBroker
    daemon: Daemon
    link: Plain
    worker: UpdateWorker
    counts: Counter


@pytest.fixture
def place(founded, still_clock, monkeypatch):
    config, queue, broker = founded(), MemoryQueue(), LoopbackBroker()
    admission = replace(config.admission, workers=True)
    config = replace(config, admission=config.admission).read_from(config.file)
    object.__setattr__(config, "admission", admission)  # the checks want PostgreSQL
    monkeypatch.setattr(queued_updates, "open_queue", lambda _place: queue)
    monkeypatch.setattr(AggregatorConfig, "__post_init__", lambda _self: None)
    link = Plain(broker.link("_agg"))
    daemon = Daemon(config, transport=link, clock=still_clock)
    daemon.open()
    daemon.turn()
    check = check_of(config, daemon._store, still_clock)
    taken = Plain(broker.link("worker"))
    worker = UpdateWorker(taken, queue, check, "north", most=3, clock=still_clock)
    taken.open()
    yield Place(config, queue, broker, daemon, link, worker, check.counts)
    daemon.close()


def looked(place, clock, alive=("1",)):
    """Let the daemon look for workers."""
    place.queue.alive = list(alive)
    clock.now += 1
    place.daemon.turn()


def turns(place, *puppets, count=6):
    for _ in range(count):
        place.worker.turn()
        place.daemon.turn()
        for puppet in puppets:
            puppet.poll()


def test_a_round_goes_through_the_worker(place, puppets, still_clock):
    looked(place, still_clock)
    one, two = puppets(place.broker)
    for puppet in (one, two):
        puppet.hello(1)
    turns(place, one, two)
    one.answer([0.5, 0.0])
    two.answer([1.5, 1.0])
    turns(place, one, two)
    assert place.counts == {"checked": 2}
    assert (one.last(ReceiptMessage).code, two.last(ReceiptMessage).code) == (0, 0)
    assert one.last(ModelMessage).version == 1
    np.testing.assert_array_equal(place.daemon.state.w, [0.0, -2.5])
    assert not place.queue.updates
    assert place.daemon.snapshot.status["workers"] == {
        "1": {"state": "alive", "queued": 0, "checked": 7}
    }
    text = place.daemon.metrics.text()
    assert b"gridfed_admission_workers 1.0" in text
    assert b'gridfed_worker_updates{result="checked",worker="1"} 7.0' in text
    assert b'gridfed_queued_updates{worker="1"} 0.0' in text


def test_the_daemon_leaves_updates_to_workers_and_steps_in_without_any(place, puppets, still_clock):
    assert SHARED in place.link.filters  # nobody else is there at the start
    looked(place, still_clock)
    assert SHARED not in place.link.filters
    assert topics.up("north", "+", "hello") in place.link.filters
    assert topics.up("north", "+", "+") not in place.link.filters
    place.broker.cut("worker", stay_down=True)
    place.worker.turn()
    place.link._link.poll(0)
    looked(place, still_clock, alive=())
    assert SHARED in place.link.filters
    (one,) = puppets(place.broker, count=1)
    one.hello(1)
    turns(place, one)
    place.worker._transport.unsubscribe(SHARED)
    one.answer([0.5, 0.0])
    for _ in range(3):
        place.daemon.turn()
    assert one.last(ReceiptMessage).code == 0
    assert place.counts == {}


def test_a_new_connection_of_the_daemon_keeps_the_choice(place, still_clock):
    looked(place, still_clock)
    place.broker.cut("_agg")
    place.link.filters.clear()
    for _ in range(3):
        place.daemon.turn()
    assert SHARED not in place.link.filters
    assert topics.up("north", "+", "offer") in place.link.filters


def test_a_daemon_that_dies_before_it_removes_an_update_answers_it_again(
    place, puppets, still_clock
):
    looked(place, still_clock)
    (one,) = puppets(place.broker, count=1)
    one.hello(1)
    turns(place, one)
    one.answer([0.5, 0.0])
    place.worker.turn()
    again = list(place.queue.updates)
    turns(place, one)
    place.queue.append(again)
    turns(place, one)
    receipts = [found for found in one.heard if isinstance(found, ReceiptMessage)]
    assert [found.code for found in receipts] == [0, 0]
    assert place.daemon.state.waiting == 1


def test_what_a_worker_refuses_the_daemon_answers_with_the_same_reason(place, puppets, still_clock):
    looked(place, still_clock)
    (one,) = puppets(place.broker, count=1)
    one.hello(1)
    turns(place, one)
    one.answer([0.5, 0.0], blob=bytes(4))
    turns(place, one)
    assert place.counts == {"WRONG_SIZE": 1}
    assert one.last(ReceiptMessage).code == Reason.WRONG_SIZE
    stranger, _ = puppets(place.broker, count=2)
    stranger.key = keys.from_seed(b"\x63" * 32)
    stranger.life = 1
    stranger.heard += one.heard
    stranger.answer([0.5, 0.0])
    turns(place, stranger)
    assert place.counts["UNKNOWN_CLIENT"] == 1
    assert stranger.last(RefusalMessage).code == Reason.UNKNOWN_CLIENT


def test_a_device_revoked_while_its_update_is_queued_is_refused(place, puppets, still_clock):
    looked(place, still_clock)
    one, two = puppets(place.broker)
    for puppet in (one, two):
        puppet.hello(1)
    turns(place, one, two)
    one.answer([0.5, 0.0])
    place.worker.turn()
    assert [bool(one.verified_by) for one in place.queue.updates] == [True]
    place.daemon._registry.revoke("meter-1", "sold")
    turns(place, one)
    assert place.daemon._ingress.counts["REVOKED"] == 1
    assert place.daemon.state.waiting == 0


def test_while_the_queue_is_full_nothing_is_acknowledged(place, puppets, still_clock):
    looked(place, still_clock)
    (one,) = puppets(place.broker, count=1)
    one.hello(1)
    turns(place, one)
    for _ in range(3):
        one.answer([0.5, 0.0])
    place.worker.turn()
    assert place.queue.length() == 3
    still_clock.now += 1
    one.answer([0.5, 0.0])
    for _ in range(3):
        assert place.worker.turn() == 0
    assert place.queue.length() == 3
    assert place.queue.reports[-1] == {"checked": 3}
    place.queue.remove(place.queue.oldest(2))
    assert place.worker.turn() == 1
    assert place.queue.length() == 2


class Events:
    """A link that reports what it is told to."""

    def __init__(self, *events):
        self.events, self.acknowledged = list(events), []

    def poll(self, _timeout):
        found, self.events = self.events, []
        return found

    def subscribe(self, *_filters):
        pass


def worker_on(link, clock, **more):
    return UpdateWorker(link, MemoryQueue(), None, "north", most=9, clock=clock, **more)


def test_a_broker_without_shared_subscriptions_is_refused(still_clock):
    worker = worker_on(Events(LinkUp(65_536, shares=False)), still_clock)
    with pytest.raises(SettingsError, match="shared subscriptions of MQTT 5; this broker has none"):
        worker.turn()
    worker = worker_on(Events(LinkUp(65_536)), still_clock, refused=lambda: 1)
    with pytest.raises(SettingsError, match=r"this broker refused \$share/admission/gf/1/north"):
        worker.turn()


@pytest.mark.parametrize(
    ("lacks", "sentence"),
    [
        ({"shares": False}, "workers need shared subscriptions of MQTT 5"),
        ({"retains": False}, "this broker keeps no retained messages"),
    ],
)
def test_the_daemon_refuses_a_broker_that_lacks_what_it_needs(place, lacks, sentence):
    place.link._link._happened.append(LinkUp(65_536, **lacks))
    with pytest.raises(SettingsError, match=sentence):
        place.daemon.turn()


def test_a_worker_without_a_link_is_not_counted(still_clock):
    link = Events(LinkUp(65_536), LinkDown("cut"))
    queue = MemoryQueue()
    check = type("Check", (), {"counts": Counter()})()
    worker = UpdateWorker(link, queue, check, "north", most=9, clock=still_clock)
    worker.turn()
    assert queue.shown == [True, False]


class PassingTime(Events):
    """A link whose clock moves by what is waited for; a message arrives in every wait."""

    def __init__(self, clock):
        super().__init__()
        self.clock, self.unsubscribed_at, self.closed_at = clock, [], []

    def poll(self, timeout):
        self.clock.now += timeout
        return [Message("gf/1/north/meter-1/up/update", b"?")]

    def unsubscribe(self, *filters):
        assert filters == (SHARED,)
        self.unsubscribed_at.append(self.clock.now)

    def acknowledge(self, message):
        self.acknowledged.append((self.clock.now, message))

    def close(self):
        self.closed_at.append(self.clock.now)


def test_a_worker_that_leaves_waits_by_its_clock_and_serves_meanwhile(still_clock):
    begun = still_clock.now
    link, queue = PassingTime(still_clock), MemoryQueue()
    check = UpdateCheck(
        MessageBodies("north"),
        DeviceKeyCache(list, still_clock),
        still_clock,
        inline=9,
        quotas=RateLimits(),
        sizes={},
    )
    worker = UpdateWorker(link, queue, check, "north", most=999, clock=still_clock)
    worker.leave()
    assert queue.shown == [False]
    assert link.unsubscribed_at == [pytest.approx(begun + HANDOVER, abs=0.11)]
    assert link.closed_at == [pytest.approx(begun + HANDOVER + GOODBYE, abs=0.22)]
    assert link.unsubscribed_at[0] >= begun + HANDOVER
    assert link.closed_at[0] >= link.unsubscribed_at[0] + GOODBYE
    assert len(link.acknowledged) == len(queue.updates) > 0
    assert queue.reports[-1] == {"MALFORMED": len(queue.updates)}


# --- configuration and command


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("[admission]\nworkers = true\n", "workers need PostgreSQL; set store.url"),
        (
            '[admission]\nworkers = true\n[store]\nurl = "postgresql://db/north"\n',
            "shared subscriptions need broker.protocol = 5",
        ),
    ],
)
def test_a_configuration_without_what_workers_need_is_refused(workplace, lines, sentence):
    old = 'broker = { url = "mqtt://127.0.0.1:1883" }'
    four = 'broker = { url = "mqtt://127.0.0.1:1883", protocol = 4 }'
    path = workplace(replacing=[(old, four if "store" in lines else old)])
    path.write_text(f"{path.read_text('utf-8')}\n{lines}", "utf-8")
    with pytest.raises(SettingsError, match=sentence):
        AggregatorConfig.load(path, {})


def test_a_worker_needs_the_key_and_the_address(founded):
    config = founded()
    with pytest.raises(SettingsError, match=r"admission\.workers: expected true"):
        serve(config, "1")
    auto = replace(config, broker=replace(config.broker, url="auto")).read_from(config.file)
    with pytest.raises(SettingsError, match="a worker needs the broker's address"):
        serve(auto, "1")


def test_each_worker_has_a_client_id_and_a_session_that_ends_with_it(founded):
    config = founded()
    first, second = (broker_for(config, name) for name in ("1", "2"))
    assert first.client_id == "north._agg.worker-1"
    assert first.client_id != second.client_id
    assert first.session_expiry == 0


def test_the_certificate_of_the_daemon_is_refused(founded, monkeypatch):
    config = founded()
    config = replace(config, broker=replace(config.broker, cert_file=config.file)).read_from(
        config.file
    )
    broker = replace(broker_for(founded(), "1"), client_id="_agg")
    monkeypatch.setattr(
        "aggregator.extensions.postgres.worker.broker_of", lambda _config, _url: broker
    )
    with pytest.raises(Failure, match="whose connection a worker would end"):
        broker_for(config, "1")


def test_a_name_that_is_none_is_refused(workplace):
    args = program().parser().parse_args(["worker", str(workplace()), "--name", "a b"])
    with pytest.raises(CommandError, match="--name: expected") as met:
        run_command(args)
    assert met.value.exit_code == USAGE


def test_a_file_has_no_workers(founded):
    config = founded()
    with open_store(config.database), pytest.raises(DatabaseError, match="need PostgreSQL"):
        open_queue(config.database)
