"""Learning without a server, in one thread: real clients on a broker of lists that misbehaves."""

import logging
import re
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_sdk.client import Client
from edge_sdk.extensions.inspection import status
from edge_sdk.extensions.peers.messages import PeerMessage, SettleMessage
from edge_sdk.protocol import messages as m
from edge_sdk.protocol import topics
from edge_sdk.protocol.codec import encode
from edge_sdk.protocol.envelope import seal
from firmware_sim.testing.loopback import LinkFaults, LoopbackBroker
from tests.fleet.conftest import SlowClock, history
from tests.fleet.street import Street, ring

NAMES = [f"home-{number}" for number in range(5)]
HOURS = 120
SOUND = LinkFaults()


class Block:
    """A street's clients, their broker, and what each of them said it mixed."""

    def __init__(self, street, faults, seed=0):
        self.street, self.clock, self.seed = street, SlowClock(), seed
        self.broker = LoopbackBroker(faults=faults, seed=seed, clock=self.clock.monotonic)
        self.clients, self.used = {}, defaultdict(dict)
        for name in street.graph:
            self.start(name)

    def start(self, name):
        config = self.street.config(name)
        client = Client(
            config, transport=lambda will: self.broker.link(name, will), clock=self.clock
        )
        client._session.parts.rng.seed(f"{self.seed} {name}")  # same seed, same run
        self.observe(name, client)
        self.clients[name] = client

    @staticmethod
    def observe(name, client):
        for reading in history(int(name.rsplit("-", 1)[1]), HOURS):
            client.observe(reading)

    def die(self, name):
        """End a device without a goodbye, as a power cut does."""
        client = self.clients.pop(name)
        self.broker.cut(name)
        client._store.close()

    def turn(self, seconds=0.1):
        for client in list(self.clients.values()):
            client.tick()
        self.clock.now += seconds

    def step(self, name):
        return self.clients[name].status()["neighbours"]["step"]

    def until(self, condition, turns=3000):
        for _ in range(turns):
            if condition():
                return
            self.turn()
        pytest.fail(str({n: c.status()["neighbours"] for n, c in self.clients.items()}))

    def finish(self):
        last = self.street.config(NAMES[0]).extensions["neighbours"].total_steps
        self.until(lambda: all(self.step(name) >= last for name in self.clients))

    def close(self):
        for client in self.clients.values():
            client.close()


@pytest.fixture
def block(tmp_path, caplog):
    made = []

    def make(method="dfl_sgd", faults=SOUND, seed=0, **say):
        caplog.set_level(logging.INFO, "edge_sdk")
        made.append(Block(Street(tmp_path, ring(NAMES), method, say=say), faults, seed))
        return made[-1]

    yield make
    for one in made:
        one.close()


def mixed(caplog):
    """By exchange, how many links counted at both ends together."""
    found = defaultdict(int)
    for record in caplog.records:
        if said := re.match(r"models mixed epoch=(\d+) step=(\d+) used=(\S*)", record.getMessage()):
            found[int(said[2])] += len([x for x in said[3].split(",") if x and x != '""'])
    return found


def everybody(street, exchanges):
    return {name: dict.fromkeys(range(exchanges), near) for name, near in street.graph.items()}


@pytest.mark.parametrize(
    ("method", "say"),
    [
        ("dfl_sgd", {}),
        ("dfl_sgd", {"order": "atc", "steps": 2, "rate_decay": True}),
        ("dfl_gt", {}),
        ("dfl_gt", {"order": "atc"}),
    ],
)
def test_the_exchange_over_the_wire_equals_the_pure_halves(block, method, say):
    one = block(method, **say)
    one.finish()
    street = one.street
    found = {name: client.state.p.copy() for name, client in one.clients.items()}
    wanted = street.by_hand(everybody(street, 12), one.observe)
    assert all((found[name] == wanted[name]).all() for name in NAMES)
    assert any((found[NAMES[0]] != found[name]).any() for name in NAMES[1:])


STRICT = pytest.mark.parametrize(
    ("method", "say"), [("dfl_gt", {}), ("dfl_sgd", {"wait_for_neighbours": True})]
)


def check_that_all_agreed(one, caplog):
    """Every link counted at both ends or at neither, and nobody began anew."""
    assert {c.status()["neighbours"]["epoch"] for c in one.clients.values()} == {1}
    assert all(number % 2 == 0 for number in mixed(caplog).values()), "both ends, or neither"
    assert not any(c._session.counts["links perhaps disagreed"] for c in one.clients.values())
    if one.street.method == "dfl_gt":
        trackers = np.mean([c.state.tracker for c in one.clients.values()], axis=0)
        seen = [c.learner.spec.shared(c.state.seen) for c in one.clients.values()]
        assert trackers == pytest.approx(np.mean(seen, axis=0), abs=1e-6)


@STRICT
def test_a_lossy_link_changes_nothing_with_retransmission(block, caplog, method, say):
    bad = LinkFaults(drop=0.1, duplicate=0.2, reorder=0.3, delay=0.3)
    one = block(method, bad, seed=5, total_steps=5, **say)
    one.finish()
    check_that_all_agreed(one, caplog)


@STRICT
def test_a_delayed_first_exchange_is_no_lost_store(block, caplog, method, say):
    """The decider counts the link, goes on, and is heard two exchanges ahead before its word is."""
    one = block(method, total_steps=5, **say)
    publish, mute = one.broker.publish, topics.peer("street", "home-1", "home-2")

    def lossy(topic, payload, *, retain):
        if topic != mute or one.step("home-1") >= 2:
            publish(topic, payload, retain=retain)

    one.broker.publish = lossy
    one.until(lambda: one.step("home-1") >= 2)
    assert one.step("home-2") == 0
    one.finish()
    check_that_all_agreed(one, caplog)
    assert mixed(caplog)[0] == 2 * len(NAMES), "the first exchange counted at both ends"


def test_a_late_device_joins_at_the_round_of_its_neighbours(block):
    one = block(deadline="1s", total_steps=20)
    one.die("home-2")
    one.until(lambda: one.step("home-1") >= 8)
    one.start("home-2")
    one.finish()
    told = one.clients["home-2"].status()["neighbours"]
    assert told["epoch"] == 1
    assert 2 <= told["exchanges"] <= 12
    assert told["mixed"] > 0


@pytest.mark.parametrize("method", ["dfl_sgd", "dfl_gt"])
def test_a_device_switched_off_continues_from_its_state(block, method):
    one = block(method, deadline="30s", total_steps=8)
    for at, name in ((2, "home-0"), (4, "home-3"), (5, "home-4")):
        one.until(lambda at=at, name=name: one.step(name) >= at)
        one.die(name)
        for _ in range(20):
            one.turn()
        one.start(name)
    one.finish()
    found = {name: client.state.p.copy() for name, client in one.clients.items()}
    wanted = one.street.by_hand(everybody(one.street, 8), one.observe)
    assert all((found[name] == wanted[name]).all() for name in NAMES)
    assert one.clients["home-3"].status()["neighbours"]["epoch"] == 1


def test_a_lost_store_restarts_all_trackers(block):
    one = block("dfl_gt", deadline="2s", total_steps=14)
    one.until(lambda: one.step("home-2") >= 4)
    one.die("home-2")
    for file in (one.street.folder / "home-2").iterdir():
        file.unlink()
    one.start("home-2")
    one.finish()
    assert {c.status()["neighbours"]["epoch"] for c in one.clients.values()} == {2}
    trackers = np.mean([c.state.tracker for c in one.clients.values()], axis=0)
    seen = [c.learner.spec.shared(c.state.seen) for c in one.clients.values()]
    assert trackers == pytest.approx(np.mean(seen, axis=0), abs=1e-6)


def test_messages_of_an_unknown_device_are_ignored(block, tmp_path):
    one = block(total_steps=3)
    other = one.street.keys["home-1"]
    one.street.keys["home-1"] = one.street.keys["home-4"]
    assert other is not one.street.keys["home-1"]
    one.die("home-0")
    one.street.write("home-0", near=["home-1"])
    one.start("home-0")
    one.until(lambda: one.step("home-0") >= 3)
    counts = one.clients["home-0"].status()["counts"]
    assert counts["arrived BAD_SIGNATURE"] > 0
    assert counts["links used"] == 0


def sent(block):
    return block.clients["home-00"].status()["counts"]["bytes to neighbours peer"]


def test_bytes_depend_on_the_degree_and_not_on_the_fleet_size(tmp_path):
    told = {}
    for devices, reach in ((6, 1), (6, 2), (12, 1)):
        folder = tmp_path / f"{devices}-{reach}"
        folder.mkdir()
        one = Block(Street(folder, ring([f"home-{n:02d}" for n in range(devices)], reach)), SOUND)
        one.until(lambda one=one: all(one.step(name) >= 1 for name in one.clients))
        began, before = one.step("home-00"), sent(one)  # the first is said twice: some come late
        one.until(lambda one=one: all(one.step(name) >= 6 for name in one.clients))
        told[devices, reach] = (sent(one) - before) / (6 - began)
        size = one.clients["home-00"].learner.spec.shared_size
        one.close()
    assert told[6, 2] == pytest.approx(2 * told[6, 1], rel=0.01)
    assert told[12, 1] == pytest.approx(told[6, 1], rel=1e-4)
    headers = 4 * 300  # two neighbours, two slices each
    assert 4 * size * 2 < told[6, 1] < 4 * size * 2 + headers


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_message_of_a_neighbour_leaves_the_device_running(hostile, data):
    """Rightly signed nonsense, and mutants of what is right: refused, counted, never raised."""
    one, key = hostile
    x = one.clients["home-0"].extension("peers").driver._x
    message = data.draw(words(x))
    payload = seal(
        encode(message), kind=message.kind, sender="home-1", recipient="home-0", fleet="street",
        signer=key,
    )  # fmt: skip
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload = payload[:at] + data.draw(st.binary(max_size=8)) + payload[at + 1 :]
    link = one.broker.link("home-1")
    link.open()
    link.poll(0.0)
    link.publish(topics.peer("street", "home-1", "home-0"), payload)
    one.turn()
    assert np.isfinite(one.clients["home-0"].state.p).all()


def words(x):
    """Peers and settlements near what is right, and far from it."""
    numbers = st.one_of(st.integers(0, 8), st.sampled_from([2**24, 2**31, m.LARGEST]))
    blobs = st.sampled_from([b"", bytes(4), np.full(192, 1e38, "<f4").tobytes(), b"\xff" * 32768])
    peers = st.builds(
        PeerMessage, run=st.sampled_from([0, 0, 1]), epoch=st.sampled_from([1, 1, 1, 2]), step=numbers,
        part=st.sampled_from(["theta", "tracker"]), degree=st.integers(1, 24),
        spec=st.sampled_from([x.spec, bytes(16)]), enc=st.just("f4"),
        off=st.sampled_from([0, 8192, 1, 16384]), num=st.sampled_from([192, 8192, 1]), blob=blobs,
    )  # fmt: skip
    settles = st.builds(
        SettleMessage, st.just(0), st.sampled_from([1, 1, 2]), numbers, st.booleans()
    )
    return st.one_of(peers, settles)


@pytest.fixture
def hostile(tmp_path):
    street = Street(tmp_path, {"home-0": ["home-1"], "home-1": ["home-0"]})
    one = Block(street, SOUND)
    one.die("home-1")
    one.turn()
    yield one, street.keys["home-1"]
    one.close()


def test_a_device_with_a_spent_budget_only_receives(tmp_path):
    graph = {"home-0": ["home-1"], "home-1": ["home-0"]}
    street = Street(tmp_path, graph, say={"total_steps": 8, "deadline": "1s"})
    path = street.path("home-0")
    spare = '"mechanism" = { "name" = "none" }, "budget" = { "max_releases" = 3 }'
    path.write_text(path.read_text().replace('"mechanism" = { "name" = "none" }', spare))
    one = Block(street, SOUND)
    one.until(lambda: one.step("home-1") >= 8)
    assert one.clients["home-0"].why_stopped == "budget"
    assert one.clients["home-0"].status()["spent"] == 3
    assert one.step("home-0") == 3
    assert one.clients["home-1"].status()["neighbours"]["mixed"] == 3
    told = status.status(street.config("home-0"))["neighbours"]
    assert (told["epoch"], told["step"]) == (1, 2), "as it was saved: the exchange it began last"
    one.close()


def test_a_stopped_device_offers_nothing_after_a_restart_of_neighbours(tmp_path):
    graph = {"home-0": ["home-1"], "home-1": ["home-0"]}
    street = Street(tmp_path, graph, say={"total_steps": 8, "deadline": "1s"})
    one = Block(street, SOUND)
    one.until(lambda: one.step("home-0") >= 2)
    one.die("home-1")
    client = one.clients["home-0"]
    client._session.participation.hold(is_held=True)  # as an operator's command does
    one.turn()
    spent = client.status()["spent"]
    link = one.broker.link("home-1")
    link.open()
    link.poll(0.0)
    said = SettleMessage(run=0, epoch=2, step=0, used=False)
    payload = seal(
        encode(said), kind=said.kind, sender="home-1", recipient="home-0", fleet="street",
        signer=street.keys["home-1"],
    )  # fmt: skip
    for is_held in (True, False):
        client._session.participation.hold(is_held=is_held)
        link.publish(topics.peer("street", "home-1", "home-0"), payload)
        for _ in range(5):
            one.turn()
        assert (client.status()["neighbours"]["epoch"] == 1) is is_held
        assert (client.status()["spent"] == spent) is is_held
    one.close()


def test_a_device_without_neighbours_trains_locally(tmp_path):
    street = Street(tmp_path, {"home-0": []})
    one = Block(street, SOUND)
    for _ in range(5):
        one.turn()
    assert "neighbours" not in one.clients["home-0"].status()
    one.close()
