"""Real brokers on loopback, and links to them that tests can wait for."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable

import pytest

from aggregator.extensions.authority.access.broker_process import (
    BrokerProcess,
    has_embedded,
    mosquitto_program,
    probe,
    start,
)
from edge_sdk.link.mqtt import Broker, MqttLink, Poller
from edge_sdk.link.transport import Happening, Message
from tests.broker.single_meter import Meter


def require(kind: str) -> None:
    if kind == "mosquitto" and mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    if kind == "embedded" and not has_embedded():
        pytest.skip("the embedded broker (iotcore) is not installed")


class CountingLink(MqttLink):
    """A link that counts the broker's answers to its subscriptions."""

    subscribed = 0

    def _on_subscribe(self, *answer) -> None:
        super()._on_subscribe(*answer)
        self.subscribed += 1


class Line:
    """A link and everything it said, acknowledged as it comes."""

    def __init__(self, link: CountingLink):
        self.link = link
        self.heard: list[Happening] = []

    @property
    def messages(self) -> list[Message]:
        return [h for h in self.heard if isinstance(h, Message)]

    @property
    def payloads(self) -> list[bytes]:
        return [m.payload for m in self.messages]


class Room:
    """Links on one poller; ``until`` serves them all."""

    def __init__(self):
        self.poller = Poller()
        self.lines: list[Line] = []

    def join(self, url: str, name: str, *filters: str, protocol: int = 5, **more) -> Line:
        more = {"reconnect_min": 0.2, "keepalive": 20} | more
        broker = Broker(url=url, client_id=name, protocol=protocol, **more)
        line = Line(CountingLink(broker, poller=self.poller))
        self.lines.append(line)
        line.link.open()
        self.until(lambda: line.link.is_up)
        if filters:
            self.subscribe(line, *filters)
        return line

    def subscribe(self, line: Line, *filters: str) -> None:
        """Subscribe, and wait for the broker's answer: later messages are received."""
        before = line.link.subscribed
        line.link.subscribe(*filters)
        self.until(lambda: line.link.subscribed > before)

    def serve(self, seconds: float) -> None:
        self.until(lambda: False, seconds, must=False)

    def until(
        self, done: Callable[[], bool], patience: float = 200.0, *, must: bool = True
    ) -> None:
        end = time.monotonic() + patience
        while not done():
            if time.monotonic() > end:
                assert not must, [line.heard for line in self.lines]
                return
            self.poller.serve(0.02)
            self.take()

    def take(self) -> None:
        for line in self.lines:
            for happening in line.link.poll(0):
                line.heard.append(happening)
                if isinstance(happening, Message):
                    line.link.acknowledge(happening)

    def close(self, lines: Iterable[Line] | None = None) -> None:
        for line in self.lines if lines is None else lines:
            line.link.close()


@pytest.fixture
def room():
    one = Room()
    yield one
    one.close()
    one.poller.close()


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory):
    require("mosquitto")
    with start("mosquitto", folder=tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture(params=["mosquitto", "embedded"])
def broker(request, tmp_path):
    """Return a broker: Mosquitto for the module, an embedded one for the test alone.

    The embedded broker can stop serving when a session of MQTT 5 and one of 3.1.1 meet in it.
    """
    if request.param == "mosquitto":
        yield request.getfixturevalue("mosquitto")
        return
    require("embedded")
    with start("embedded", folder=tmp_path / "broker") as process:
        yield process


@pytest.fixture(params=[5, 4], ids=["v5", "v311"])
def protocol(request) -> int:
    return request.param


@pytest.fixture
def url(broker: BrokerProcess, protocol: int) -> str:
    """Return the address for a protocol, at which the broker still answers after its start.

    A start tries both protocols, after which the embedded broker may close every connection.
    """
    chosen = broker.url if protocol == 5 else broker.url_v4
    for _ in range(5):
        if broker.kind != "embedded" or probe(chosen, protocol=protocol):
            return chosen
        broker.restart()
    pytest.fail("the embedded broker did not answer after five starts")


@pytest.fixture
def meter(tmp_path):
    made = []

    def make(more, **how):
        made.append(Meter(tmp_path, more, **how))
        return made[-1]

    yield make
    for one in made:
        one.stop(signal.SIGKILL)
