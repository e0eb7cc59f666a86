"""Send signed envelopes through the link's window and return verified messages."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from edge_sdk.app.cli import fields
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import LinkError, Reason, Refused, SignerUnavailable
from edge_sdk.link import transport
from edge_sdk.link.transport import Message as Publish
from edge_sdk.protocol import envelope, topics
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.codec import decode, encode
from edge_sdk.protocol.keys import RemovableSigner, Signer, kid_of
from edge_sdk.protocol.outbox_state import OutboxEntry
from edge_sdk.session import key_ring
from edge_sdk.session.agenda import is_defect
from edge_sdk.session.bodies import Bodies

logger = logging.getLogger(__name__)

OnRefused = Callable[[str, Refused], None]
"""Called with the last level of the topic of a refused announcement, and the reason."""

TopicReader = Callable[[bytes, topics.TopicAddress], "VerifiedMessage"]
"""Verify a payload under an address, as an extension reads it, or raise ``Refused``."""

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
        refusals: Refused lists of keys.
    """

    def __init__(
        self,
        signer: Signer,
        *,
        fleet: str,
        device: str,
        bodies: Bodies | None = None,
        hello_signer: Callable[[bytes], Signer] | None = None,
    ) -> None:
        """Prepare the envelope; nothing is sent before ``connect``."""
        self.refused: Counter[Reason] = Counter()
        self.unknown = 0
        self.bytes_up = self.bytes_down = 0
        self.signing = SignerState(signer, fleet, device)
        self.is_limited = False
        self._link: transport.Transport | None = None
        self._readers: dict[str, tuple[tuple[str, ...], TopicReader]] = {}
        self._audience = envelope.ALL
        self._part_filters: tuple[str, ...] = ()
        self._tails: dict[str, frozenset[str]] = {}
        self._on_refused: dict[str, OnRefused] = {}
        self._further: tuple[str, ...] = ()
        self.refusals = key_ring.RefusedKeys()
        self._fleet, self._device = fleet, device
        self._hello_signer = hello_signer or (lambda _ref: signer)
        self._bodies = bodies or Bodies()
        self._queue = transport.PublishQueue(on_published=self._count, on_refused=_log_refused)
        self._arrived: deque[transport.Happening] = deque()

    def connect(self, link: transport.Transport) -> None:
        self._link = link
        link.open()

    def close(self, status: m.StatusMessage) -> None:
        """Publish a last status, and close the link."""
        if self.is_up:
            self.publish_status(status)
            self.flush()
            self.link.poll(0.0)
        self.link.close()

    @property
    def link(self) -> transport.Transport:
        assert self._link is not None, "not connected yet"
        return self._link

    @property
    def is_up(self) -> bool:
        return self.link.is_up

    @property
    def is_refusing_unknown(self) -> bool:
        return self.refused[Reason.UNKNOWN_CLIENT] > 0

    def count_refused(self, reason: Reason) -> None:
        """Count a verified message that is not followed."""
        self.refused[reason] += 1

    def read_topics(self, direction: str, filters: Sequence[str], read: TopicReader) -> None:
        """Let an extension read the messages under topics of a direction; no filters: nobody does."""
        is_new = bool(filters) and direction not in self._readers
        self._readers.pop(direction, None)
        if filters:
            self._readers[direction] = tuple(filters), read
        if is_new and self._link is not None:
            self.subscribe()

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

    def subscribe_further(self, kinds: Iterable[str]) -> None:
        """Accept announcements of further kinds to all devices from the next connection on."""
        self._further += tuple(topics.common(self._fleet, kind) for kind in kinds)

    def follow_topics(self, kind: str, tails: frozenset[str], on_refused: OnRefused) -> None:
        """Accept announcements of a kind under these last levels of their topic, and no other.

        Args:
            on_refused: Called with the last level and the reason for each one that is refused.
        """
        former, self._tails[kind] = self._tails.get(kind, frozenset()), tails
        self._on_refused[kind] = on_refused
        if self._link is None or not self._link.is_up:
            return
        if gone := self._topics_of(kind, former - tails):
            self._link.unsubscribe(*gone)
        if new := self._topics_of(kind, tails - former):
            self._link.subscribe(*new)

    def _topics_of(self, kind: str, tails: Iterable[str]) -> list[str]:
        return [f"{topics.common(self._fleet, kind)}/{tail}" for tail in sorted(tails)]

    def poll(
        self, timeout: float, key_of: envelope.KeyOf, may_sign: key_ring.MaySign = key_ring.any_key
    ) -> Iterator[transport.LinkUp | transport.LinkDown | VerifiedMessage]:
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
                    self._note_refused(happening, refused)
                except Exception as error:
                    if not is_defect(error):
                        raise
                    self.refused[Reason.INTERNAL] += 1
                    if self.refused[Reason.INTERNAL] == 1:  # a retained one recurs at every connect
                        logger.exception("internal error %s", fields(what=happening.topic))
                self.bytes_down += len(happening.payload)
                self.link.acknowledge(happening)
            else:
                if isinstance(happening, transport.LinkUp):
                    self.is_limited = happening.is_limited
                yield happening
            self._arrived.popleft()

    def send(self, message: m.ProtocolMessage, *, worker: str | None = None, qos: int = 1) -> int:
        """Seal a message to the aggregator and queue it; return its size in bytes.

        One that cannot be encrypted or signed now is counted and not sent; its size is 0.
        """
        topic = topics.up(self._fleet, self._device, message.kind, worker)
        expiry = transport.EXPIRY if message.kind in transport.PERISHABLE else None
        payload = self._payload(message)
        if payload is None:
            return 0
        self.publish(transport.QueuedPublish(topic, payload, qos=qos, expiry=expiry))
        return len(payload)

    def send_sealed(self, kind: str, body: bytes, proof: bytes) -> None:
        """Queue a body that was sealed before: a resend has the same bytes."""
        if not m.KINDS[kind].from_device:
            raise ValueError(f"a device must not send {kind!r}")
        payload = envelope.wrap(body, kind=kind, sender=self._device, proof=proof)
        self.publish(transport.QueuedPublish(topics.up(self._fleet, self._device, kind), payload))

    def publish_status(self, status: m.StatusMessage) -> None:
        """Queue the retained status; without the key, keep the last one."""
        topic, payload = topics.status(self._fleet, self._device), self._payload(status)
        if payload is not None:
            self.publish(transport.QueuedPublish(topic, payload, retain=True))

    def will(self, status: m.StatusMessage) -> Will | None:
        """Return the last will; None while the key is away."""
        topic, payload = topics.status(self._fleet, self._device), self._payload(status)
        return None if payload is None else (topic, payload, True)

    def _payload(self, message: m.ProtocolMessage) -> bytes | None:
        """Return a sealed message; None if it cannot be encrypted or signed now, which is counted."""
        try:
            payload = self.sealed(message)
        except Refused as refused:
            self.refused[refused.reason] += 1
            return None
        except SignerUnavailable as error:
            self.signing.note_away(str(error))
            return None
        return payload

    def sealed(self, message: m.ProtocolMessage) -> bytes:
        """Write, encrypt if need be, and sign a message to the aggregator.

        Raises:
            ValueError: A kind that no device may send (``messages.ProtocolMessage.from_device``).
            Refused: CANNOT_OPEN: it must be encrypted, and no key to encrypt to is known.
            SignerUnavailable: The signing key is away.
        """
        if not message.from_device:
            raise ValueError(f"a device must not send {message.kind!r}")
        body = encode(message)
        is_hello = message.kind == m.HelloMessage.kind
        signer = self._hello_signer(envelope.ref(envelope.digest(body))) if is_hello else None
        encrypt = self._bodies.encryption(
            (self._fleet, message.kind, self._device, envelope.AGGREGATOR)
        )
        return self.signing.seal(encrypt(body), message.kind, envelope.AGGREGATOR, signer)

    def subscribe(self) -> None:
        """Subscribe to every topic that a device always needs, or that a limited connection may have."""
        if self.is_limited:
            self.link.subscribe(*topics.time_filters(self._fleet, self._device))
            return
        self.link.subscribe(*topics.device_filters(self._fleet, self._device, self._audience))
        for filters, _ in self._readers.values():
            self.link.subscribe(*filters)
        if self._further:
            self.link.subscribe(*self._further)
        for kind, tails in self._tails.items():
            if tails:
                self.link.subscribe(*self._topics_of(kind, tails))

    def subscribe_parts(self, *, wanted: bool, slots: Iterable[int] = ()) -> None:
        """Subscribe to slots of the common model, or unsubscribe; to all slots if none is named."""
        change: Callable[..., None] = self.link.subscribe if wanted else self.link.unsubscribe
        some = tuple(topics.part(self._fleet, slot, self._audience) for slot in slots)
        some = some or (topics.parts_filter(self._fleet, self._audience),)
        self._part_filters = some if wanted else ()
        change(*some)

    def flush(self) -> None:
        self._queue.flush(self.link)

    def discard_queue(self) -> None:
        """Drop messages queued for a lost connection; the outbox keeps the undelivered entries."""
        self._queue.clear()

    def publish(self, message: transport.QueuedPublish) -> None:
        """Queue a sealed message; nothing while the link is down, and only a hello while it is limited."""
        is_hello = message.topic == topics.up(self._fleet, self._device, m.HelloMessage.kind)
        if self.link.is_up and (is_hello or not self.is_limited):
            self._queue.append(message)
            self.flush()

    def _count(self, message: transport.QueuedPublish) -> None:
        self.bytes_up += len(message.payload)

    def _may_read(self, publish: Publish) -> bool:
        return not self.is_limited or publish.topic in topics.time_filters(
            self._fleet, self._device
        )

    def _open(
        self, publish: Publish, key_of: envelope.KeyOf, may_sign: key_ring.MaySign
    ) -> VerifiedMessage:
        address = topics.parse(publish.topic)
        if address is None or address.fleet != self._fleet:
            raise Refused(
                Reason.MALFORMED, f"topic {publish.topic!r} is not addressed to this device"
            )
        if address.direction in self._readers:
            return self._readers[address.direction][1](publish.payload, address)
        is_common = address.direction == "all"
        is_slot = address.kind == m.PartMessage.kind
        if is_common and address.tail and not is_slot and not self._is_followed(address):
            raise Refused(Reason.MALFORMED, f"topic {publish.topic!r} is of another region")
        wanted = envelope.ALL if key_ring.is_of_fleet(address.kind) else self._audience
        if is_common and address.id != wanted:
            raise Refused(Reason.MALFORMED, f"topic {publish.topic!r} is of another run")
        recipient = address.id if is_common else self._device
        sender = key_ring.sender_of(address.kind) if is_common else envelope.AGGREGATOR
        proved = envelope.unseal(
            publish.payload,
            kind=address.kind,
            sender=sender,
            recipient=recipient,
            fleet=self._fleet,
            key_of=key_of,
            decrypt=None if is_common else self._decrypt,
            is_enough=partial(may_sign, address.kind),
        )
        if is_common and sender == envelope.AGGREGATOR:
            key_ring.check_role(proved, key_of, may_sign)
        if not is_common and self._bodies.is_required:
            self._bodies.codec.refuse_clear(proved)
        message = decode(proved.kind, proved.content, on_unknown=self._count_unknown)
        if isinstance(message, m.KeysMessage):
            key_ring.check_successor(message, proved, self._fleet)
        if message.in_topic and (tail := getattr(message, message.in_topic)) != address.tail:
            raise Refused(Reason.MALFORMED, f"{message.kind} of {tail!r} under {address.tail!r}")
        return VerifiedMessage(message, proved.content, proved.clear_ref)

    def _is_followed(self, address: topics.TopicAddress) -> bool:
        return address.tail in self._tails.get(address.kind, ())

    def _note_refused(self, publish: Publish, refused: Refused) -> None:
        """Record the signer of a refused list of keys; report refusals to the extension of their kind."""
        address = topics.parse(publish.topic)
        if address is None:
            return
        if address.kind == m.KeysMessage.kind and refused.reason == Reason.UNKNOWN_CLIENT:
            self.refusals.note_foreign_root(envelope.claimed_signer(publish.payload))
        if self._is_followed(address):
            self._on_refused[address.kind](address.tail, refused)

    def _decrypt(self, kind: str, sender: str, body: bytes) -> bytes:
        return self._bodies.codec.decrypted(body, (self._fleet, kind, sender, self._device))

    def _count_unknown(self, _key: str) -> None:
        self.unknown += 1


def _log_refused(message: transport.QueuedPublish, error: LinkError) -> None:
    logger.warning("publish failed %s", fields(topic=message.topic, why=error))


@dataclass(frozen=True, slots=True)
class VerifiedMessage:
    """A message whose sender is verified, its clear body, and the reference to that."""

    message: m.ProtocolMessage
    body: bytes
    ref: bytes
    sender: str = envelope.AGGREGATOR


class SignerState:
    """The signing key of a device, as far as its last use has shown.

    Attributes:
        why_away: Reason why the key cannot be used at present; empty if it can.
        has_signed: Whether the key has signed in this process.
        unsigned: Number of messages that were not sent because the key was away.
    """

    def __init__(self, signer: Signer, fleet: str, device: str) -> None:
        self._signer, self._fleet, self._device = signer, fleet, device
        self.why_away, self.has_signed = "", False
        self.unsigned = 0

    def seal(self, body: bytes, kind: str, recipient: str, signer: Signer | None = None) -> bytes:
        """Wrap and sign a body, by another key of the device if one is given."""
        payload = envelope.seal(
            body,
            kind=kind,
            sender=self._device,
            recipient=recipient,
            fleet=self._fleet,
            signer=signer or self._signer,
        )
        self.has_signed = True
        return payload

    def sign_again(self, entry: OutboxEntry) -> OutboxEntry:
        """Return an outbox entry, signed again if the device has another key now; its body stays."""
        if entry.proof.startswith(kid_of(self._signer.public)):
            return entry
        proof = envelope.prove(
            entry.digest,
            kind=entry.kind,
            sender=self._device,
            recipient=envelope.AGGREGATOR,
            fleet=self._fleet,
            signer=self._signer,
        )
        return replace(entry, proof=proof)

    def note_away(self, why: str) -> None:
        """Note that the key is away: nothing is sent, and no round begins, until it is reached."""
        self.unsigned += 1
        self.why_away = why

    def reach(self) -> bool:
        """Return whether a key that was away can be used again; ask for it."""
        signer = self._signer
        if not self.why_away or not (isinstance(signer, RemovableSigner) and signer.reach()):
            return False
        self.why_away, self.has_signed = "", True
        return True
