"""Check an update without the state of a round: the work of an admission worker."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from aggregator.extensions.postgres.update_queue import QueuedUpdate
from aggregator.ingress.flood_control import FloodControl
from aggregator.ingress.message_bodies import MessageBodies
from aggregator.ingress.rate_limits import RateLimiter, RateLimits
from aggregator.store.types import EnrolledDevice
from edge_sdk.app.cli import fields
from edge_sdk.app.clock import Clock
from edge_sdk.errors import Reason, Refused
from edge_sdk.link.transport import Message
from edge_sdk.protocol import codec, topics
from edge_sdk.protocol.keys import kid_of
from edge_sdk.protocol.messages import UpdateMessage

logger = logging.getLogger(__name__)

READ_AFTER = 1.0  # s at least between two readings of the keys for a key that is unknown
READ_EVERY = 30.0  # s after which the keys are read again in any case


class DeviceKeyCache:
    """Public keys of the devices, read from the database again after a while.

    A key that is withdrawn may be used for up to ``READ_EVERY`` seconds: who takes the update from the
    queue looks it up again.
    """

    def __init__(self, clients: Callable[[], Iterable[EnrolledDevice]], clock: Clock) -> None:
        """Read the keys.

        Args:
            clock: Monotonic time.
        """
        self._clients, self._clock = clients, clock
        self._read()

    def key_of(self, device: str, kid: bytes) -> bytes | None:
        """Return a device's public key by its key id; None if there is none."""
        found, age = self._keys.get((device, kid)), self._clock.monotonic() - self._read_at
        if age >= READ_EVERY or (found is None and age >= READ_AFTER):
            self._read()
            found = self._keys.get((device, kid))
        return found

    def _read(self) -> None:
        self._read_at = self._clock.monotonic()
        self._keys = {
            (client.id, kid_of(public)): public
            for client in self._clients()
            if client.state != "revoked"
            for public in client.sign
        }


class UpdateCheck:
    """The checks of one worker: flood, size, envelope, signature, schema and the decoded vector.

    An update that fails one is passed on without a key, so that the daemon repeats the check and answers.
    Only floods and names with too many forged signatures are dropped, as the daemon drops them.

    Attributes:
        counts: Updates by result: ``checked``, ``dropped``, or the reason of a refusal.
    """

    def __init__(
        self,
        bodies: MessageBodies,
        keys: DeviceKeyCache,
        clock: Clock,
        *,
        inline: int,
        quotas: RateLimits,
        sizes: Mapping[bytes, int],
    ) -> None:
        """Start without usage.

        Args:
            clock: Monotonic time.
            inline: Largest body of an update that is sent whole, bytes.
            sizes: Number of scalars of the shared vector of each run, by its layout digest.
        """
        self.counts: Counter[str] = Counter()
        self._bodies, self._keys, self._clock = bodies, keys, clock
        self._inline, self._sizes = inline, sizes
        self._limiter, self._floods = RateLimiter(quotas), FloodControl()

    def checked(self, message: Message) -> QueuedUpdate | None:
        """Return an update with the result of the checks; None if it is dropped."""
        now, address = self._clock.monotonic(), topics.parse(message.topic)
        if (
            address is None
            or (address.fleet, address.direction, address.kind)
            != (self._bodies.fleet, "up", UpdateMessage.kind)
            or not self._floods.admits(address.id, len(message.payload), now)
            or self._limiter.is_ignored(address.id, now)
        ):
            self.counts["dropped"] += 1
            return None
        key = b""
        try:
            key = self._verified(address.id, message.payload)
            self.counts["checked"] += 1
        except Refused as refused:
            self.counts[refused.reason.name] += 1
            if refused.reason is Reason.BAD_SIGNATURE:
                self._limiter.failed(address.id, now)
        except Exception as error:  # the daemon meets the same defect, and sets the message aside
            self.counts["INTERNAL"] += 1
            about = {"device": address.id, "error": repr(error)}
            logger.exception("update not checked %s", fields(**about))
        return QueuedUpdate(message.topic, message.payload, verified_by=key)

    def _verified(self, device: str, payload: bytes) -> bytes:
        """Return the key that an update is signed with, after all checks."""
        used: list[bytes] = []

        def key_of(sender: str, kid: bytes) -> bytes | None:
            found = self._keys.key_of(sender, kid)
            used.extend([] if found is None else [found])
            return found

        kind = UpdateMessage.kind
        sealed = self._bodies.unseal(payload, kind=kind, sender=device, key_of=key_of)
        if len(sealed.body) > self._inline:
            raise Refused(Reason.TOO_LARGE, f"{len(sealed.body)} bytes")
        update = codec.decode(UpdateMessage, sealed.content)
        size = self._sizes.get(update.spec)
        if size is None:
            raise Refused(Reason.WRONG_SPEC, update.spec.hex())
        codec.unpack_tensor(update.blob, update.enc, size)
        return used[-1]
