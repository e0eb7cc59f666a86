"""Send signed envelopes through the link's window and return verified messages."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from edge_sdk.app.cli import fields
from edge_sdk.session.body_keys import BodyKeys, EncryptionKeyOf, no_encryption
from edge_sdk.session.poison_messages import is_defect
from edge_sdk.session.refused_weather import RefusedWeatherLog
from edge_sdk.session.signer_state import SignerState
from edge_sdk.session.signing_roles import (
    MaySign,
    any_key,
    check_role,
    check_successor,
    is_of_fleet,
    sender_of,
)
from edge_sdk.session.verified_message import VerifiedMessage, sealed_by_peer
from edge_sdk.wire.errors import LinkError, Reason, Refused, SignerUnavailable
from edge_sdk.wire.keys import Signer
from edge_sdk.wire.link.publish_queue import EXPIRY, PERISHABLE, PublishQueue, QueuedPublish
from edge_sdk.wire.link.transport import Happening, LinkDown, LinkUp, Transport
from edge_sdk.wire.link.transport import Message as Publish
from edge_sdk.wire.protocol import topics
from edge_sdk.wire.protocol.codec import decode, encode
from edge_sdk.wire.protocol.encrypted_body import BodyContext, encrypted_body
from edge_sdk.wire.protocol.envelope import (
    AGGREGATOR,
    ALL,
    KeyOf,
    digest,
    ref,
    unseal,
    wrap,
)
from edge_sdk.wire.protocol.messages import (
    FROM_DEVICES,
    HelloMessage,
    KeysMessage,
    Message,
    StatusMessage,
    WeatherMessage,
)

logger = logging.getLogger(__name__)

Will = tuple[str, bytes, bool]
"""Topic, payload and retained flag of the MQTT last will."""


class SignedLink:
    """One device's signing end of the link. Messages beyond the window wait here, in order.

    Attributes:
        refused: Refused arrivals by reason.
        unknown: Ignored header keys.
        bytes_up: Payload bytes sent.
        bytes_down: Payload bytes that arrived.
        signing: The signing key.
        is_limited: True while only a hello is sent, and only its answer and the keys are read.
    """

    def __init__(
        self,
        signer: Signer,
        *,
        fleet: str,
        device: str,
        reads_rollouts: bool = False,
        keys: BodyKeys | None = None,
    ) -> None:
        """Prepare the envelope; nothing is sent before ``connect``."""
        self._reads_rollouts = reads_rollouts
        self.refused: Counter[Reason] = Counter()
        self.unknown = 0
        self.bytes_up = self.bytes_down = 0
        self.signing = SignerState(signer, fleet, device)
        self.is_limited = False
        self._link: Transport | None = None
        self._accepts_peers = False
        self._audience = ALL
        self._part_filters: tuple[str, ...] = ()
        self._regions: frozenset[str] = frozenset()
        self._weather_log = RefusedWeatherLog()
        self._fleet, self._device = fleet, device
        self._hello_signer: Callable[[bytes], Signer] = lambda _ref: signer
        self._encryption_key: EncryptionKeyOf = no_encryption
        self._keys = keys or BodyKeys()
        self._queue = PublishQueue(on_published=self._count, on_refused=_log_refused)
        self._arrived: deque[Happening] = deque()

    def connect(self, link: Transport) -> None:
        """Start connecting over a link."""
        self._link = link
        link.open()

    def close(self, status: StatusMessage) -> None:
        """Publish a last status, and close the link."""
        if self.is_up:
            self.publish_status(status)
            self.flush()
            self.link.poll(0.0)
        self.link.close()

    @property
    def link(self) -> Transport:
        """The link in use."""
        assert self._link is not None, "not connected yet"
        return self._link

    @property
    def is_up(self) -> bool:
        """Return whether the broker has accepted the connection."""
        return self.link.is_up

    @property
    def is_refusing_unknown(self) -> bool:
        """Return whether messages of an unknown key were refused."""
        return self.refused[Reason.UNKNOWN_CLIENT] > 0

    def count_refused(self, reason: Reason) -> None:
        """Count a verified message that is not followed."""
        self.refused[reason] += 1

    def accept_peers(self, *, wanted: bool) -> None:
        """Accept messages from peers from now on, or refuse them."""
        is_new, self._accepts_peers = wanted and not self._accepts_peers, wanted
        if is_new and self._link is not None:
            self.subscribe()

    def encrypt_by(self, key_of: EncryptionKeyOf) -> None:
        """Encrypt messages to the aggregator from now on, if this function returns a key for their kind."""
        self._encryption_key = key_of

    def sign_hellos_by(self, signer_of: Callable[[bytes], Signer]) -> None:
        """Sign hellos from now on by the key that this function returns for their reference."""
        self._hello_signer = signer_of

    def follow_run(self, name: str) -> None:
        """Accept the announcements of this run from now on, and of no other."""
        audience = topics.audience(name)
        if audience == self._audience:
            return
        if self._link is not None and self._link.is_up:
            former = topics.run_filters(self._fleet, self._audience)
            self._link.unsubscribe(*former, *self._part_filters)
            self._link.subscribe(*topics.run_filters(self._fleet, audience))
        self._audience = audience

    def read_weather(self, regions: frozenset[str]) -> None:
        """Accept the weather of these regions from now on, and of no other."""
        former, self._regions = self._regions, regions
        if self._link is None or not self._link.is_up:
            return
        if gone := sorted(former - regions):
            self._link.unsubscribe(*(topics.weather(self._fleet, region) for region in gone))
        if new := sorted(regions - former):
            self._link.subscribe(*(topics.weather(self._fleet, region) for region in new))

    def poll(
        self, timeout: float, key_of: KeyOf, may_sign: MaySign = any_key
    ) -> Iterator[LinkUp | LinkDown | VerifiedMessage]:
        """Serve the link and yield events; a message is acknowledged after it was processed.

        An unreadable arrival is counted, acknowledged and dropped. An event
        that could not be processed because the disk was full is yielded again.
        """
        self._arrived.extend(self.link.poll(0.0 if self._arrived else timeout))
        while self._arrived:
            happening = self._arrived[0]
            if isinstance(happening, Publish):
                try:
                    # an empty payload clears a retained slot
                    if happening.payload and self._may_read(happening):
                        yield self._open(happening, key_of, may_sign)
                except Refused as refused:
                    self.refused[refused.reason] += 1
                    self._weather_log.record(happening.topic, refused, self._regions)
                except Exception as error:
                    if not is_defect(error):
                        raise
                    self.refused[Reason.INTERNAL] += 1
                    if self.refused[Reason.INTERNAL] == 1:  # a retained one recurs at every connect
                        logger.exception("internal error %s", fields(what=happening.topic))
                self.bytes_down += len(happening.payload)
                self.link.acknowledge(happening)
            else:
                if isinstance(happening, LinkUp):
                    self.is_limited = happening.is_limited
                yield happening
            self._arrived.popleft()

    def send(self, message: Message, *, worker: str | None = None, qos: int = 1) -> int:
        """Seal a message to the aggregator and queue it; return its size in bytes.

        One that cannot be encrypted or signed now is counted and not sent; its size is 0.
        """
        topic = topics.up(self._fleet, self._device, message.kind, worker)
        expiry = EXPIRY if message.kind in PERISHABLE else None
        payload = self._payload(message)
        if payload is None:
            return 0
        self._publish(QueuedPublish(topic, payload, qos=qos, expiry=expiry))
        return len(payload)

    def send_to_peer(self, peer: str, message: Message) -> int:
        """Seal a message to a peer and queue it; return its size, 0 if it cannot be sent."""
        if not self.link.is_up:
            return 0
        payload = self._payload(message, peer)
        if payload is None:
            return 0
        topic = topics.peer(self._fleet, self._device, peer)
        self._publish(QueuedPublish(topic, payload, expiry=EXPIRY))
        return len(payload)

    def send_sealed(self, kind: str, body: bytes, proof: bytes) -> None:
        """Queue a body that was sealed before: a resend has the same bytes.

        Raises:
            ValueError: As ``sealed``.
        """
        if kind not in FROM_DEVICES:
            raise ValueError(f"a device must not send {kind!r}")
        payload = wrap(body, kind=kind, sender=self._device, proof=proof)
        self._publish(QueuedPublish(topics.up(self._fleet, self._device, kind), payload))

    def publish_status(self, status: StatusMessage) -> None:
        """Queue the retained status; without the key it is left as it is."""
        topic, payload = topics.status(self._fleet, self._device), self._payload(status)
        if payload is not None:
            self._publish(QueuedPublish(topic, payload, retain=True))

    def will(self, status: StatusMessage) -> Will | None:
        """Return the last will; None while the key is away."""
        topic, payload = topics.status(self._fleet, self._device), self._payload(status)
        return None if payload is None else (topic, payload, True)

    def _payload(self, message: Message, recipient: str = AGGREGATOR) -> bytes | None:
        """Return a sealed message; None if it cannot be encrypted or signed now, which is counted."""
        try:
            payload = self.sealed(message, recipient)
        except Refused as refused:
            self.refused[refused.reason] += 1
            return None
        except SignerUnavailable as error:
            self.signing.note_away(str(error))
            return None
        return payload

    def sealed(self, message: Message, recipient: str = AGGREGATOR) -> bytes:
        """Write, encrypt if need be, and sign a message to the aggregator or another recipient.

        Raises:
            ValueError: A kind that no device may send (``messages.FROM_DEVICES``).
            Refused: CANNOT_OPEN: it must be encrypted, and no key to encrypt to is known.
            SignerUnavailable: The signing key is away.
        """
        if message.kind not in FROM_DEVICES:
            raise ValueError(f"a device must not send {message.kind!r}")
        body = encode(message)
        is_hello = message.kind == HelloMessage.kind
        signer = self._hello_signer(ref(digest(body))) if is_hello else None
        is_up = recipient == AGGREGATOR
        public = self._encryption_key(message.kind) if is_up else self._keys.of_peer(recipient)
        if public is not None:
            context = BodyContext(self._fleet, message.kind, self._device, recipient)
            body = encrypted_body(body, public, context)
        return self.signing.seal(body, message.kind, recipient, signer)

    def subscribe(self) -> None:
        """Subscribe to every topic that a device always needs, or that a limited connection may have."""
        if self.is_limited:
            self.link.subscribe(*topics.time_filters(self._fleet, self._device))
            return
        self.link.subscribe(*topics.device_filters(self._fleet, self._device, self._audience))
        if self._accepts_peers:
            self.link.subscribe(topics.peers_filter(self._fleet, self._device))
        if self._reads_rollouts:
            self.link.subscribe(*topics.rollout_filters(self._fleet))
        if self._regions:
            self.link.subscribe(*(topics.weather(self._fleet, x) for x in sorted(self._regions)))

    def subscribe_parts(self, *, wanted: bool, slots: Iterable[int] = ()) -> None:
        """Subscribe to slots of the common model, or unsubscribe; none named: all of them."""
        change: Callable[..., None] = self.link.subscribe if wanted else self.link.unsubscribe
        some = tuple(topics.part(self._fleet, slot, self._audience) for slot in slots)
        some = some or (topics.parts_filter(self._fleet, self._audience),)
        self._part_filters = some if wanted else ()
        change(*some)

    def flush(self) -> None:
        """Pass queued messages to the link up to its window."""
        self._queue.flush(self.link)

    def discard_queue(self) -> None:
        """Drop messages queued for a lost connection; the outbox keeps the undelivered entries."""
        self._queue.clear()

    def _publish(self, message: QueuedPublish) -> None:
        is_hello = message.topic == topics.up(self._fleet, self._device, HelloMessage.kind)
        if self.link.is_up and (is_hello or not self.is_limited):
            self._queue.append(message)
            self.flush()

    def _count(self, message: QueuedPublish) -> None:
        self.bytes_up += len(message.payload)

    def _may_read(self, publish: Publish) -> bool:
        """Return whether a message may be read now."""
        return not self.is_limited or publish.topic in topics.time_filters(
            self._fleet, self._device
        )

    def _open(self, publish: Publish, key_of: KeyOf, may_sign: MaySign) -> VerifiedMessage:
        address = topics.parse(publish.topic)
        if address is None or address.fleet != self._fleet:
            raise Refused(
                Reason.MALFORMED, f"topic {publish.topic!r} is not addressed to this device"
            )
        if address.direction == "peer":
            decrypt = self._decrypt if self._keys.is_required else None
            reader = self._fleet, self._device
            proved = sealed_by_peer(publish.payload, address, reader, key_of, decrypt)
            self._keys.refuse_peer(proved)
            message = decode(proved.kind, proved.content, on_unknown=self._count_unknown)
            return VerifiedMessage(message, proved.content, proved.ref, address.id)
        is_common = address.direction == "all"
        if address.kind == WeatherMessage.kind and address.tail not in self._regions:
            raise Refused(Reason.MALFORMED, f"topic {publish.topic!r} is of another region")
        wanted = ALL if is_of_fleet(address.kind) else self._audience
        if is_common and address.id != wanted:
            raise Refused(Reason.MALFORMED, f"topic {publish.topic!r} is of another run")
        recipient = address.id if is_common else self._device
        sender = sender_of(address.kind) if is_common else AGGREGATOR
        proved = unseal(
            publish.payload,
            kind=address.kind,
            sender=sender,
            recipient=recipient,
            fleet=self._fleet,
            key_of=key_of,
            decrypt=None if is_common else self._decrypt,
            is_enough=partial(may_sign, address.kind),
        )
        if is_common and sender == AGGREGATOR:
            check_role(proved, key_of, may_sign)
        if not is_common:
            self._keys.refuse_clear(proved)
        message = decode(proved.kind, proved.content, on_unknown=self._count_unknown)
        if isinstance(message, KeysMessage):
            check_successor(message, proved, self._fleet)
        if isinstance(message, WeatherMessage) and message.region != address.tail:
            raise Refused(Reason.MALFORMED, f"weather of {message.region!r} under {address.tail!r}")
        return VerifiedMessage(message, proved.content, proved.clear_ref)

    def _decrypt(self, kind: str, sender: str, body: bytes) -> bytes:
        return self._keys.decrypt(body, BodyContext(self._fleet, kind, sender, self._device))

    def _count_unknown(self, _key: str) -> None:
        self.unknown += 1


def _log_refused(message: QueuedPublish, error: LinkError) -> None:
    logger.warning("publish failed %s", fields(topic=message.topic, why=error))
