"""Connect to an MQTT broker with paho-mqtt's codec on the SDK's own event loop.

This is the only file that imports paho. It implements what paho leaves to its caller: the in-flight
window that the server announced, its largest packet, reconnecting with jitter, manual
acknowledgements, and the distinction between a refused and an accepted publish. Rules:
``docs/brokers.md``.

The module is one class in one file: connection, window and callbacks share the state of one socket.
Options, event loop and TLS files have modules of their own.
"""

from __future__ import annotations

import random
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Final

from edge_sdk.link import empty_module

with empty_module("urllib.request") if find_spec("socks") is None else nullcontext():
    # paho uses it for proxies only, and only with PySocks; it takes 1.5 MiB
    import paho.mqtt.client as paho
from paho.mqtt import MQTTException
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from edge_sdk.errors import LinkError
from edge_sdk.link.broker_options import (
    LARGEST,
    LARGEST_UPDATE,
    OVERHEAD,
    WINDOW,
    Broker,
    Will,
    is_current,
    renewed,
    tls_context,
)
from edge_sdk.link.event_loop import Clock, Poller
from edge_sdk.link.transport import Happening, LinkDown, LinkUp, Message
from edge_sdk.protocol.topics import is_unkept

__all__ = ["LARGEST", "LARGEST_UPDATE", "WINDOW", "Broker", "MqttLink", "Poller", "Will"]

WILL_DELAY: Final = 30  # s: a short loss of the link does not publish the will
STEADY: Final = 10.0  # s: a connection that lasted this long resets the reconnect delay
CONNACK_PATIENCE: Final = 30.0  # s
AT_ONCE: Final = 64  # packets read before other links are served
FILTERS_AT_ONCE: Final = 8  # filters in one SUBSCRIBE; some services accept no more
QOS_0_PENDING: Final = 64  # publishes without acknowledgement that may wait for the socket
REFUSED: Final = 0x80
NOBODY_LISTENS: Final = 0x10
RETAIN_NOT_SUPPORTED: Final = 0x9A

_UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    struct.error,
    MQTTException,
)
"""Errors of paho's decoder on bytes that are not MQTT. All of them end the connection."""


class _WindowShrankError(Exception):
    """An error: the new connection has a smaller in-flight window than paho would resend."""


class MqttLink:
    """A `Transport` to a broker. Links with a common poller are served together.

    Args:
        broker: Address and settings of the connection.
        poller: Poller shared by the links of a process; by default a new one.
        rng: Source of the reconnect delays: uniform in 0 … min(reconnect_max, reconnect_min · 2ⁿ).
        clock: Monotonic seconds, for a poller of its own.

    Raises:
        LinkError: The TLS files cannot be used.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        poller: Poller | None = None,
        rng: random.Random | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.broker = broker
        self._owns_poller = poller is None
        self._poller = poller if poller is not None else Poller(clock=clock)
        self._rng = rng if rng is not None else random.Random()  # noqa: S311 - jitter
        self._tls = tls_context(broker) if broker.is_tls else None
        self._happened: deque[Happening] = deque()
        self._counts = dict.fromkeys(
            ("publishes", "connects", "refused_publishes", "unheard_publishes", "abandoned",
             "refused_filters", "unreadable"), 0)  # fmt: skip
        self._unacknowledged: set[int] = set()  # packet ids of QoS 1 publishes without a PUBACK
        self._large: set[int] = set()  # packet ids of those that no chunk of the protocol reaches
        self._unsent: set[int] = set()  # packet ids of QoS 0 publishes not yet on the socket
        self._window = WINDOW
        self._max_payload = LARGEST
        self._retains = True
        self._epoch = 0  # connection number: acknowledgements are valid within one
        self._attempt = 0
        self._refusals = 0  # connections that the broker ended before it accepted them
        self._since = 0.0
        self._wanted = self._is_up = self._is_connecting = self._has_progress = False
        self._why = ""
        self._descriptor = -1
        self._client = self._new_client()

    # Methods of Transport.

    @property
    def is_up(self) -> bool:
        return self._is_up

    @property
    def has_news(self) -> bool:
        """Return whether ``poll`` would return at once: an event waits, or a publish was acknowledged."""
        return bool(self._happened) or self._has_progress

    @property
    def refusals(self) -> int:
        """Return the number of connections that the broker ended before it accepted this client."""
        return self._refusals

    @property
    def has_current_files(self) -> bool:
        return self._tls is None or is_current(self._tls, self.broker)

    @property
    def counters(self) -> Mapping[str, int]:
        """Return the link's counters since it was made."""
        return self._counts

    def open(self) -> None:
        """Start connecting. Returns at once; ``poll`` reports ``LinkUp``."""
        if not self._wanted:
            self._wanted = True
            self._poller.at(self._poller.clock(), self)

    def poll(self, timeout: float) -> Sequence[Happening]:
        """Serve the poller for at most ``timeout`` seconds; return the events of this link.

        Returns early, without an event, when a publish was acknowledged: there is room for another.
        A poller that serves other links too is served once: their events must not wait for ours.
        """
        until = time.monotonic() + timeout  # real seconds, independent of the injected clock
        self._has_progress = False
        self._poller.serve(0.0 if self._happened else timeout)
        while not (self._happened or self._has_progress) and self._owns_poller:
            if (left := until - time.monotonic()) <= 0:
                break
            self._poller.serve(left)
        happened = tuple(self._happened)
        self._happened.clear()
        return happened

    def subscribe(self, *filters: str) -> None:
        """Subscribe, ``time`` at QoS 0 and others at QoS 1; does nothing while the link is down."""
        for first in range(0, len(filters) if self._is_up else 0, FILTERS_AT_ONCE):
            some = filters[first : first + FILTERS_AT_ONCE]
            self._client.subscribe([(f, 0 if is_unkept(f) else 1) for f in some])

    def unsubscribe(self, *filters: str) -> None:
        """Stop receiving these topics; does nothing while the link is down."""
        for first in range(0, len(filters) if self._is_up else 0, FILTERS_AT_ONCE):
            self._client.unsubscribe(list(filters[first : first + FILTERS_AT_ONCE]))

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        qos: int = 1,
        expiry: int | None = None,
    ) -> bool:
        """Pass one message to the link; return False if it has no room now (nothing was sent).

        Raises:
            LinkError: The payload is larger than this broker accepts; a retry cannot succeed.
        """
        if len(payload) > self._max_payload:
            raise LinkError(
                f"{len(payload)} bytes for {topic}: the broker accepts at most {self._max_payload}"
            )
        if not self._is_up or (self.room() <= 0 if qos else len(self._unsent) >= QOS_0_PENDING):
            return False
        info = self._client.publish(
            topic, payload, qos, retain and self._retains, self._publish_properties(expiry)
        )
        if info.rc not in {paho.MQTT_ERR_SUCCESS, paho.MQTT_ERR_NO_CONN}:
            return False
        (self._unacknowledged if qos else self._unsent).add(info.mid)
        if len(payload) > LARGEST:
            self._large.add(info.mid)
        self._counts["publishes"] += 1
        return True

    def room(self) -> int:
        """Return the number of QoS 1 publishes that the link still accepts (its in-flight window)."""
        return max(0, self._window - len(self._unacknowledged)) if self._is_up else 0

    def acknowledge(self, message: Message) -> None:
        """Acknowledge a message after it is stored.

        Does nothing for a message of an earlier connection: its packet id now belongs to another
        message, and the broker delivers the message again.
        """
        if isinstance(message.receipt, tuple):
            epoch, mid, qos = message.receipt
            if epoch == self._epoch and self._is_up and qos:
                self._client.ack(mid, qos)

    def close(self) -> None:
        """Disconnect cleanly (the will is not sent) and free the socket; takes up to a second."""
        was_up, self._wanted = self._is_up, False
        if was_up:
            self._disconnect()
        self._hang_up()
        self._poller.at(None, self)
        if self._owns_poller:
            self._poller.close()

    def reconnect(self, why: str) -> None:
        """Disconnect cleanly, and connect at once with the TLS files as they are now.

        A connection attempt that is under way is left alone; one that is scheduled is made now. Does
        nothing before ``open`` and after ``close``.
        """
        if not self._wanted or self._is_connecting:
            return
        if self._is_up:
            self._why = why
            self._disconnect()
            self._lost(why)
        self._attempt = 0
        self._poller.at(self._poller.clock(), self)

    def renew_session(self, why: str) -> None:
        """Connect again with a new session; the broker discards this client's queue.

        Does nothing while the link is down, and with MQTT 3.1.1, where a session can be discarded only
        by keeping none from then on.
        """
        if self._is_up and self.broker.protocol == 5:
            self._counts["abandoned"] += len(self._unacknowledged)
            self.reconnect(why)
            self._client = self._new_client(is_clean=True)

    def cut(self) -> None:
        """Break the connection without a DISCONNECT, as a network failure would; then reconnect."""
        self._lost("cut")

    # Methods that the poller calls.

    def ready(self, *, readable: bool, writable: bool) -> None:
        """Read and write as the socket allows."""
        try:
            if readable:
                self._read()
            if writable:
                self._client.loop_write()
        except _WindowShrankError:
            self._counts["abandoned"] += len(self._unacknowledged)
            self._lost("the broker's window is smaller than what was in flight")
            self._client = self._new_client()
        except _UNREADABLE as error:
            self._refusals += self._is_connecting
            self._lost(f"the connection failed: {error!r}")

    def tick(self, now: float) -> None:
        """Connect, drop a broker that does not answer, or keep the connection alive."""
        if not self._wanted:
            return
        if self._is_connecting and now - self._since > CONNACK_PATIENCE:
            self._lost(f"no answer to CONNECT within {CONNACK_PATIENCE:.0f} s")
        elif self._is_connecting or self._is_up:
            self._client.loop_misc()
            if self._descriptor >= 0:
                self._poller.at(now + min(5.0, self.broker.keepalive / 4), self)
        elif self._poller.admits(self):
            self._connect(now)
        else:
            self._poller.at(now + 0.05, self)

    # Connecting and disconnecting.

    def _new_client(self, *, is_clean: bool = False) -> paho.Client:
        five = self.broker.protocol == 5
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=self.broker.client_id,
            clean_session=None if five else False,
            protocol=paho.MQTTv5 if five else paho.MQTTv311,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.max_inflight_messages_set(WINDOW)
        client.connect_timeout = self.broker.connect_timeout
        if self.broker.username is not None:
            client.username_pw_set(self.broker.username, self.broker.password)
        if self._tls is not None:
            client.tls_set_context(self._tls)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_socket_open = self._on_socket_open
        client.on_socket_close = self._on_socket_close
        client.on_socket_register_write = self._on_want_write
        client.on_socket_unregister_write = self._on_written
        client.connect_async(
            self.broker.host,
            self.broker.port,
            self.broker.keepalive,
            # paho's default wipes the session at the first connect
            clean_start=paho.MQTT_CLEAN_START_FIRST_ONLY if is_clean else False,
            properties=self._connect_properties() if five else None,
        )
        self._unacknowledged.clear()
        self._large.clear()
        self._unsent.clear()
        return client

    def _connect_properties(self) -> Properties:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = self.broker.session_expiry
        properties.ReceiveMaximum = self.broker.receive_maximum
        properties.MaximumPacketSize = self.broker.max_packet
        return properties

    def _publish_properties(self, expiry: int | None) -> Properties | None:
        if expiry is None or self.broker.protocol != 5:
            return None
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.MessageExpiryInterval = expiry
        return properties

    def _set_will(self) -> None:
        will = self.broker.will
        if will is None:
            return
        present = will() if callable(will) else will
        if present is None:  # none can be signed now
            self._client.will_clear()
            return
        topic, payload, retain = present
        properties = None
        if self.broker.protocol == 5:
            properties = Properties(PacketTypes.WILLMESSAGE)  # type: ignore[no-untyped-call]
            properties.WillDelayInterval = WILL_DELAY
        self._client.will_set(topic, payload, 1, retain, properties)

    def _renew(self) -> None:
        """Read the TLS files again if they changed since the last attempt.

        A large message that was on its way is given up: a line on which it never arrives before the
        connection ends would carry nothing else. Its sender offers the same bytes in chunks.
        """
        before = self._tls
        if before is not None:
            self._tls = renewed(before, self.broker)
        if self._tls is not before or self._large:
            self._counts["abandoned"] += len(self._unacknowledged)  # the sender repeats them
            self._client = self._new_client()

    def _connect(self, now: float) -> None:
        self._poller.at(now + 1.0, self)  # state is saved first, which a full disk may prevent
        self._renew()
        self._set_will()
        self._is_connecting, self._since, self._why = True, now, ""
        self._epoch += 1
        self._unsent.clear()
        try:
            self._client.reconnect()
        except _UNREADABLE as error:
            if self._tls is not None and self._tls.wrapped is not None:
                self._tls.wrapped.close()  # paho leaves it open when the handshake fails
            self._refusals += _is_refusal(error)
            self._lost(f"cannot reach {self.broker.url}: {error}")
        else:
            if self._descriptor >= 0:
                self._poller.at(now + 1.0, self)

    def _disconnect(self) -> None:
        """Send DISCONNECT; takes up to a second."""
        self._client.disconnect()
        until = time.monotonic() + 1.0
        while self._client.want_write() and time.monotonic() < until:
            self._client.loop_write()
            time.sleep(0.001 if self._client.want_write() else 0.0)

    def _lost(self, why: str) -> None:
        """Report the loss once, and schedule the next attempt."""
        was = self._is_up or self._is_connecting
        lasted = self._poller.clock() - self._since if self._is_up else 0.0
        self._hang_up()
        if not (was and self._wanted):
            return
        self._attempt = 0 if lasted >= STEADY else self._attempt
        longest = min(self.broker.reconnect_max, self.broker.reconnect_min * 2.0**self._attempt)
        self._attempt = min(self._attempt + 1, 32)
        self._poller.at(self._poller.clock() + self._rng.uniform(0.0, longest), self)
        self._happened.append(LinkDown(why))

    def _hang_up(self) -> None:
        self._is_up = self._is_connecting = False
        self._poller.settled(self)
        connection = self._client.socket()
        if connection is not None and self._descriptor >= 0:
            self._on_socket_close(self._client, None, connection)
            connection.close()

    def _read(self) -> None:
        """Read packets while messages arrive, or while TLS buffers bytes that epoll cannot see."""
        for _ in range(AT_ONCE):
            before = len(self._happened)
            self._client.loop_read()
            connection = self._client.socket()
            is_more = isinstance(connection, ssl.SSLSocket) and connection.pending()
            if not is_more and len(self._happened) == before:
                return
        self._poller.at(self._poller.clock(), self)

    # Callbacks from paho. They run no caller's code, so a caller's error cannot occur here.

    def _on_connect(
        self, _c: object, _u: object, _f: object, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.is_failure:
            self._why = f"the broker refused the connection: {_named(reason)}"
            return
        self._window = min(WINDOW, getattr(properties, "ReceiveMaximum", WINDOW))
        if len(self._unacknowledged) > self._window:
            raise _WindowShrankError
        packet = getattr(properties, "MaximumPacketSize", LARGEST + OVERHEAD)
        self._max_payload = max(0, min(LARGEST_UPDATE, packet - OVERHEAD))
        self._retains = bool(getattr(properties, "RetainAvailable", 1))
        self._is_up, self._is_connecting = True, False
        self._since = self._poller.clock()
        self._poller.settled(self)
        self._counts["connects"] += 1
        dates_by = self._tls.dates_by if self._tls is not None else ""
        is_limited = self._tls is not None and self._tls.is_limited
        shares = bool(getattr(properties, "SharedSubscriptionAvailable", 1))
        self._happened.append(
            LinkUp(self._max_payload, dates_by, is_limited, shares, self._retains)
        )

    def _on_disconnect(
        self, _c: object, _u: object, _f: object, reason: ReasonCode, _p: object
    ) -> None:
        self._refusals += self._is_connecting
        self._lost(
            self._why or (self._refusal_before_connack() if self._is_connecting else _ended(reason))
        )

    def _refusal_before_connack(self) -> str:
        """Explain a disconnect before CONNACK: TLS 1.3 checks the client certificate late."""
        text = "the broker closed the connection before CONNACK"
        if self._tls is None:
            return text
        if self.broker.cert_file is None:
            return f"{text}; it may require a client certificate; broker.cert_file is not set"
        return (
            f"{text}; it may not accept the certificate {self.broker.cert_file} "
            "(revoked, expired, or of another authority)"
        )

    def _on_message(self, _c: object, _u: object, message: paho.MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            self._counts["unreadable"] += 1
            self._client.ack(message.mid, message.qos)
            return
        receipt = (self._epoch, message.mid, message.qos)
        self._happened.append(Message(topic, bytes(message.payload), message.retain, receipt))

    def _on_publish(self, _c: object, _u: object, mid: int, reason: ReasonCode, _p: object) -> None:
        self._has_progress |= mid in self._unacknowledged
        self._unacknowledged.discard(mid)
        self._large.discard(mid)
        self._unsent.discard(mid)
        if reason.value >= REFUSED:
            self._counts["refused_publishes"] += 1
        elif reason.value == NOBODY_LISTENS:
            self._counts["unheard_publishes"] += 1

    def _on_subscribe(
        self, _c: object, _u: object, _mid: int, reasons: list[ReasonCode], _p: object
    ) -> None:
        self._counts["refused_filters"] += sum(reason.value >= REFUSED for reason in reasons)

    def _on_socket_open(self, _c: object, _u: object, connection: object) -> None:
        if isinstance(connection, socket.socket):
            self._descriptor = connection.fileno()
            self._poller.watch(self._descriptor, self)

    def _on_socket_close(self, _c: object, _u: object, _s: object) -> None:
        if self._descriptor >= 0:
            self._poller.forget(self._descriptor)
            self._descriptor = -1

    def _on_want_write(self, _c: object, _u: object, _s: object) -> None:
        if self._descriptor >= 0:
            self._poller.watch(self._descriptor, self, write=True)

    def _on_written(self, _c: object, _u: object, _s: object) -> None:
        if self._descriptor >= 0:
            self._poller.watch(self._descriptor, self)


def _is_refusal(error: Exception) -> bool:
    """Return whether the peer has ended a handshake, rather than this client or the network.

    >>> _is_refusal(ssl.SSLError("alert")), _is_refusal(ssl.SSLCertVerificationError("its name"))
    (True, False)
    >>> _is_refusal(ConnectionRefusedError()), _is_refusal(ConnectionResetError())
    (False, True)
    """
    if isinstance(error, ssl.SSLError):
        return not isinstance(error, ssl.SSLCertVerificationError)
    return isinstance(error, ConnectionResetError | BrokenPipeError)


def _ended(reason: object) -> str:
    """Say why an established connection ended; "Unspecified error" is paho's word for no reason.

    >>> _ended("Unspecified error"), _ended("Server shutting down")
    ('the broker closed the connection without a reason', 'disconnected: Server shutting down')
    """
    if str(reason) == "Unspecified error":
        return "the broker closed the connection without a reason"
    return f"disconnected: {_named(reason)}"


def _named(reason: object) -> str:
    if getattr(reason, "value", None) != RETAIN_NOT_SUPPORTED:
        return str(reason)
    return (
        f"{reason}; announcements and the presence of a device are retained: allow retained messages "
        "(mosquitto.conf: retain_available true)"
    )
