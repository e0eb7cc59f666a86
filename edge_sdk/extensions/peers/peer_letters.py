"""Exchange messages with the peers of a device, over the link of its session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from edge_sdk.errors import Reason, Refused, SignerUnavailable
from edge_sdk.extensions.peers.messages import PeerMessage, SettleMessage
from edge_sdk.link.transport import EXPIRY, QueuedPublish
from edge_sdk.protocol import topics
from edge_sdk.protocol.codec import decode, encode
from edge_sdk.protocol.envelope import Decrypt, Sealed, kind_of, unseal
from edge_sdk.protocol.messages import ProtocolMessage
from edge_sdk.session.bodies import BodyEncryption
from edge_sdk.session.session import Session
from edge_sdk.session.signed_link import VerifiedMessage


class PeerEncryption(BodyEncryption, Protocol):
    """The encryption of bodies, with the keys of peers."""

    def refuse_peer(self, proved: Sealed) -> None:
        """Refuse a clear message of a peer, and every message of a peer without a key."""

    def accept_peers(self, keys: Mapping[str, bytes]) -> None:
        """Replace the keys of the peers: raw public keys by id."""


class PeerLetters:
    """The messages between one device and its peers.

    Attributes:
        exchanged: Counters of the exchanges so far, which the device's metrics report.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._parts = session, session.parts
        self._fleet, self._me = session.parts.config.fleet, session.parts.config.id
        self._keys: Mapping[str, bytes] = {}
        self._is_encrypted = False
        self.exchanged: Mapping[str, int] = {}
        session.parts.reporter.include(lambda: self.exchanged)

    def record_exchange(self, counters: Mapping[str, int]) -> None:
        self.exchanged = counters

    def accept(self, peers: Mapping[str, bytes], keys: Mapping[str, bytes]) -> None:
        """Accept messages from these peers only: their public keys, and those to encrypt to, by id."""
        self._keys, self._is_encrypted = peers, bool(keys) or self._parts.bodies.is_required
        if self._is_encrypted:
            self._encryption.accept_peers(keys)
        filters = (f"{topics.ROOT}/{self._fleet}/+/peer/{self._me}",) if peers else ()
        self._parts.link.read_topics("peer", filters, self._read)

    def send(self, peer: str, message: ProtocolMessage) -> None:
        """Send a message to a peer; one that cannot be sent now is requested again."""
        payload = self._payload(peer, message) if self._parts.link.is_up else b""
        if payload:
            topic = topics.peer(self._fleet, self._me, peer)
            self._parts.link.publish(QueuedPublish(topic, payload, expiry=EXPIRY))
        self._session.count(f"bytes to neighbours {message.kind}", len(payload))

    def _payload(self, peer: str, message: ProtocolMessage) -> bytes:
        """Return a sealed message; empty if it cannot be encrypted or signed now, which is counted."""
        link, body = self._parts.link, encode(message)
        try:
            if self._is_encrypted:
                ends = self._fleet, message.kind, self._me, peer
                body = self._encryption.encrypted(body, ends, None)
            return link.signing.seal(body, message.kind, peer)
        except Refused as refused:
            link.count_refused(refused.reason)
        except SignerUnavailable as error:
            link.signing.note_away(str(error))
        return b""

    def _read(self, payload: bytes, address: topics.TopicAddress) -> VerifiedMessage:
        """Return a message of a peer.

        Raises:
            Refused: UNKNOWN_KIND: not of a kind for this device from a peer; or as ``unseal``.
        """
        kind, is_required = kind_of(payload), self._parts.bodies.is_required
        if kind not in (PeerMessage.kind, SettleMessage.kind) or address.tail != self._me:
            raise Refused(Reason.UNKNOWN_KIND, f"{kind!r} is not accepted from a peer")
        decrypt: Decrypt = lambda kind, sender, body: self._encryption.decrypted(  # noqa: E731
            body, (self._fleet, kind, sender, self._me)
        )
        proved = unseal(
            payload,
            kind=kind,
            sender=address.id,
            recipient=self._me,
            fleet=self._fleet,
            key_of=lambda sender, _kid: self._keys.get(sender),
            decrypt=decrypt if is_required else None,
        )
        if is_required:
            self._encryption.refuse_peer(proved)
        message = decode(proved.kind, proved.content)
        return VerifiedMessage(message, proved.content, proved.ref, address.id)

    @property
    def _encryption(self) -> PeerEncryption:
        return cast("PeerEncryption", self._parts.bodies.codec)
