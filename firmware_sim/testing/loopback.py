"""Simulate a broker inside the process: no sockets, no threads, and faults on request.

It shows the worst behaviour that MQTT permits: a session outlives its connection, an unacknowledged
message is delivered again, overlapping filters bring a copy each, and a publisher gets no delivery
confirmation. Time advances only with the given clock.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from edge_sdk.errors import LinkError
from edge_sdk.link.broker_options import LARGEST, WINDOW, Will
from edge_sdk.link.transport import Happening, LinkDown, LinkUp, Message


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """Probabilities of each fault per delivered copy; drawn from the broker's seed."""

    drop: float = 0.0  # the broker accepts the publish and loses it for this subscriber
    duplicate: float = 0.0  # one more copy arrives
    reorder: float = 0.0  # the message overtakes those queued before it
    delay: float = 0.0  # longest extra delay in seconds; drawn uniformly


NO_FAULTS = LinkFaults()


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether an MQTT filter with ``+`` and ``#`` matches a topic.

    >>> matches("gf/1/+/up/+", "gf/1/a/up/hello"), matches("gf/1/+/up/+", "gf/1/a/up/chunk/w1")
    (True, False)
    >>> matches("a/#", "a"), matches("+", "a/b"), matches("#", "a/b")
    (True, False, True)
    """
    wanted, levels = topic_filter.split("/"), topic.split("/")
    for i, level in enumerate(wanted):
        if level == "#":
            return True
        if i >= len(levels) or level not in {"+", levels[i]}:
            return False
    return len(wanted) == len(levels)


@dataclass(slots=True)
class _Node:
    """One level of the subscription tree: a publish visits only the branches that match."""

    below: dict[str, _Node] = field(default_factory=dict)
    clients: dict[str, None] = field(default_factory=dict)  # ordered: same seed, same run

    def at(self, levels: Sequence[str]) -> _Node:
        node = self
        for level in levels:
            node = node.below.setdefault(level, _Node())
        return node

    def matching(self, levels: Sequence[str]) -> Iterator[str]:
        """Yield every subscriber, once per filter that matches."""
        if (rest := self.below.get("#")) is not None:
            yield from rest.clients
        if not levels:
            yield from self.clients
            return
        for level in (levels[0], "+"):
            if (node := self.below.get(level)) is not None:
                yield from node.matching(levels[1:])


@dataclass(slots=True)
class _Waiting:
    due: float
    message: Message


@dataclass(slots=True)
class _Session:
    """The broker's state of one client, connected or not."""

    filters: dict[str, None] = field(default_factory=dict)
    queue: list[_Waiting] = field(default_factory=list)
    unacknowledged: dict[int, Message] = field(default_factory=dict)


class LoopbackBroker:
    """Broker in memory: sessions, retained messages and wills for the links of this process.

    Attributes:
        faults: Faults in force, read at every publish; assign to change them.
        is_running: False refuses and ends all connections at their next poll.
        published: Number of publishes accepted; ``dropped`` counts the copies lost to a fault.

    >>> broker = LoopbackBroker()
    >>> ear, mouth = broker.link("ear"), broker.link("mouth")
    >>> ear.open(), mouth.open(), ear.poll(0), mouth.poll(0)[0].max_payload
    (None, None, (LinkUp(max_payload=65536, dates_by='', is_limited=False, shares=True, retains=True),), 65536)
    >>> ear.subscribe("news/#")
    >>> mouth.publish("news/today", b"hello")
    True
    >>> [message.payload for message in ear.poll(0)]
    [b'hello']

    An unacknowledged message is delivered again after a broken connection:

    >>> broker.cut("ear")
    >>> [type(h).__name__ for h in ear.poll(0)], [type(h).__name__ for h in ear.poll(0)]
    (['LinkDown'], ['LinkUp', 'Message'])
    """

    def __init__(
        self,
        *,
        faults: LinkFaults = NO_FAULTS,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        window: int = WINDOW,
        max_payload: int = LARGEST,
    ) -> None:
        self.faults = faults
        self.is_running = True
        self.published = self.dropped = 0
        self.clock = clock
        self.window = window
        self.max_payload = max_payload
        self._rng = random.Random(seed)  # noqa: S311 - a reproducible network, not a secret
        self._retained: dict[str, bytes] = {}
        self._sessions: dict[str, _Session] = {}
        self._links: dict[str, LoopbackLink] = {}
        self._tree = _Node()
        self._kept_down: set[str] = set()
        self._number = 0

    def link(
        self, client_id: str, will: Will | Callable[[], Will | None] | None = None
    ) -> LoopbackLink:
        """Return a link for one client; a second link with the same id takes the connection over."""
        return LoopbackLink(self, client_id, will)

    def cut(self, client_id: str, *, stay_down: bool = False) -> None:
        """Break a client's connection: its will is published, its session is kept."""
        if stay_down:
            self._kept_down.add(client_id)
        if (link := self._links.get(client_id)) is not None:
            self._lose(link, "connection lost")

    def restore(self, client_id: str) -> None:
        """Let a client reconnect that was cut with ``stay_down``."""
        self._kept_down.discard(client_id)

    def restart(self, *, forget: bool = True) -> None:
        """Restart the broker; with ``forget``, sessions and retained messages are lost."""
        for link in list(self._links.values()):
            link.broke("the broker restarted")
        self._links.clear()
        if forget:
            self._sessions.clear()
            self._retained.clear()
            self._tree = _Node()

    def retained(self, topic_filter: str = "#") -> dict[str, bytes]:
        return {t: p for t, p in self._retained.items() if matches(topic_filter, t)}

    # Methods that a link calls.

    def connect(self, link: LoopbackLink) -> bool:
        """Accept a client; return False if the broker is down or the client is kept out."""
        if not self.is_running or link.client_id in self._kept_down:
            return False
        if (other := self._links.get(link.client_id)) is not None and other is not link:
            other.broke("session taken over")
        self._links[link.client_id] = link
        session = self._sessions.setdefault(link.client_id, _Session())
        again = [_Waiting(self.clock(), m) for m in session.unacknowledged.values()]
        session.queue[:0] = again
        session.unacknowledged.clear()
        return True

    def disconnect(self, link: LoopbackLink) -> None:
        """Disconnect a client cleanly: the will is not published."""
        if self._links.get(link.client_id) is link:
            del self._links[link.client_id]

    def discard(self, client_id: str) -> None:
        """Remove the session of a client: its filters and its messages."""
        for topic_filter in list(self._sessions[client_id].filters):
            self.unsubscribe(client_id, topic_filter)
        del self._sessions[client_id]

    def subscribe(self, client_id: str, topic_filter: str) -> None:
        """Store a filter and send the retained messages under it, at every subscription."""
        self._sessions[client_id].filters[topic_filter] = None
        self._tree.at(topic_filter.split("/")).clients[client_id] = None
        for topic, payload in self.retained(topic_filter).items():
            self._enqueue(client_id, topic, payload, retained=True)

    def unsubscribe(self, client_id: str, topic_filter: str) -> None:
        self._sessions[client_id].filters.pop(topic_filter, None)
        self._tree.at(topic_filter.split("/")).clients.pop(client_id, None)

    def publish(self, topic: str, payload: bytes, *, retain: bool) -> None:
        """Accept one publish and queue a copy for every matching filter."""
        self.published += 1
        if retain and payload:
            self._retained[topic] = payload
        elif retain:
            self._retained.pop(topic, None)
        for client_id in list(self._tree.matching(topic.split("/"))):
            self._enqueue(client_id, topic, payload, retained=False)

    def deliver(self, client_id: str) -> list[Message]:
        """Return the messages due for a client, within its window of unacknowledged messages."""
        session, now = self._sessions[client_id], self.clock()
        room = self.window - len(session.unacknowledged)
        ready = [w for w in session.queue if w.due <= now][: max(0, room)]
        taken = {id(w) for w in ready}
        session.queue = [w for w in session.queue if id(w) not in taken]
        for waiting in ready:
            session.unacknowledged[_number_of(waiting.message)] = waiting.message
        return [w.message for w in ready]

    def acknowledge(self, client_id: str, message: Message) -> None:
        """Drop an acknowledged message; it is not delivered again."""
        if (session := self._sessions.get(client_id)) is not None:
            session.unacknowledged.pop(_number_of(message), None)

    def _enqueue(self, client_id: str, topic: str, payload: bytes, *, retained: bool) -> None:
        draw, faults = self._rng.random, self.faults
        queue = self._sessions[client_id].queue
        if draw() < faults.drop:
            self.dropped += 1
            return
        for _ in range(1 + (draw() < faults.duplicate)):
            self._number += 1
            due = self.clock() + faults.delay * draw()
            waiting = _Waiting(due, Message(topic, payload, retained, self._number))
            overtakes = draw() < faults.reorder
            queue.insert(self._rng.randint(0, len(queue)) if overtakes else len(queue), waiting)

    def _lose(self, link: LoopbackLink, why: str) -> None:
        del self._links[link.client_id]
        link.broke(why)
        if link.last_words is not None:
            topic, payload, retain = link.last_words
            self.publish(topic, payload, retain=retain)


def _number_of(message: Message) -> int:
    assert isinstance(message.receipt, int)
    return message.receipt


class LoopbackLink:
    """A `Transport` over an in-memory queue. ``poll`` never waits, whatever its timeout.

    A publish is in flight until the link's next poll, so that ``room`` runs out as it does on a
    real connection.
    """

    def __init__(
        self,
        broker: LoopbackBroker,
        client_id: str,
        will: Will | Callable[[], Will | None] | None = None,
    ) -> None:
        self.client_id = client_id
        self.last_words: Will | None = None
        self.counters = dict.fromkeys(("bytes_up", "bytes_down", "publishes", "connects"), 0)
        self._broker = broker
        self._will = will
        self._wanted = self._is_up = False
        self._in_flight = 0
        self._happened: list[Happening] = []

    @property
    def is_up(self) -> bool:
        return self._is_up

    def open(self) -> None:
        """Start connecting; the next ``poll`` reports ``LinkUp``."""
        self._wanted = True

    def poll(self, timeout: float) -> Sequence[Happening]:  # noqa: ARG002 - nothing to wait for
        """Return events since the last call: connection events first, then messages."""
        if self._is_up and not self._broker.is_running:
            self._broker.disconnect(self)
            self.broke("the broker is gone")
        elif self._wanted and not self._is_up and not self._happened:
            self._connect()
        self._in_flight = 0
        if self._is_up:
            arrived = self._broker.deliver(self.client_id)
            self.counters["bytes_down"] += sum(len(m.topic) + len(m.payload) for m in arrived)
            self._happened += arrived
        happened, self._happened = tuple(self._happened), []
        return happened

    def subscribe(self, *filters: str) -> None:
        """Subscribe to these topics; does nothing while the link is down."""
        for topic_filter in filters if self._is_up else ():
            self._broker.subscribe(self.client_id, topic_filter)

    def unsubscribe(self, *filters: str) -> None:
        """Stop receiving these topics; does nothing while the link is down."""
        for topic_filter in filters if self._is_up else ():
            self._broker.unsubscribe(self.client_id, topic_filter)

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        qos: int = 1,
        expiry: int | None = None,  # noqa: ARG002 - nothing grows old here
    ) -> bool:
        """Pass one message to the broker; return False if there is no room now.

        Raises:
            LinkError: The payload is larger than the broker accepts.
        """
        if len(payload) > self._broker.max_payload:
            raise LinkError(
                f"{len(payload)} bytes for {topic}: the broker accepts at most {self._broker.max_payload}"
            )
        if not self._is_up or (qos and self.room() <= 0):
            return False
        self._in_flight += bool(qos)
        self.counters["publishes"] += 1
        self.counters["bytes_up"] += len(topic) + len(payload)
        self._broker.publish(topic, payload, retain=retain)
        return True

    def room(self) -> int:
        """Return the number of QoS 1 publishes that the link still accepts before its next poll."""
        return self._broker.window - self._in_flight if self._is_up else 0

    def acknowledge(self, message: Message) -> None:
        """Acknowledge a message after it is stored."""
        if self._is_up:
            self._broker.acknowledge(self.client_id, message)

    def renew_session(self, why: str) -> None:
        """Connect again with a new session; the broker discards this client's queue."""
        if self._is_up:
            self._broker.disconnect(self)
            self._broker.discard(self.client_id)
            self.broke(why)

    def close(self) -> None:
        """Disconnect cleanly; the will is not published and the session is kept."""
        self._wanted = self._is_up = False
        self._broker.disconnect(self)

    def broke(self, why: str) -> None:
        """Handle a connection lost on the broker's side."""
        self._is_up = False
        self._happened.append(LinkDown(why))

    def _connect(self) -> None:
        self.last_words = self._will() if callable(self._will) else self._will
        if self._broker.connect(self):
            self._is_up = True
            self.counters["connects"] += 1
            self._happened.append(LinkUp(self._broker.max_payload))
