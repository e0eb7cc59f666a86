"""Hold the public keys that a device trusts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.keys import kid_of
from edge_sdk.wire.protocol.envelope import AGGREGATOR, ROOT
from edge_sdk.wire.protocol.messages import KeysMessage


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The trusted public keys: the pinned root key, and the aggregator keys that root announced.

    Attributes:
        root: Raw public key of the operator.
        pinned: Aggregator key pinned in the configuration, or None.
        announced: The newest ``keys`` announcement, or None.
    """

    root: bytes
    pinned: bytes | None = None
    announced: KeysMessage | None = None

    def key(self, sender: str, kid: bytes, now: int | None) -> bytes | None:
        """Return the key in force for a sender; without a clock, validity is not checked."""
        if sender == ROOT:
            return self.root if kid_of(self.root) == kid else None
        if sender != AGGREGATOR:
            return None
        for public, start, end in self._online():
            if kid_of(public) == kid and (now is None or start <= now < end):
                return public
        if self.announced is None and self.pinned and kid_of(self.pinned) == kid:
            return self.pinned
        return None

    def online(self, now: int | None) -> tuple[bytes, ...]:
        """Return the aggregator's keys in force; without a clock, validity is not checked."""
        if self.announced is None:
            return (self.pinned,) if self.pinned else ()
        known = self._online()
        return tuple(key for key, start, end in known if now is None or start <= now < end)

    @property
    def encryption_key(self) -> bytes | None:
        """Return the X25519 key to which messages to the aggregator are encrypted, or None."""
        return (
            self.announced.open[0] if self.announced is not None and self.announced.open else None
        )

    def is_in_force(self, now: int) -> bool:
        """Return whether some announced key is valid at a time, or none is announced."""
        known = self._online()
        return not known or any(start <= now < end for _, start, end in known)

    def accept(self, keys: KeysMessage) -> KeyRing:
        """Adopt a newer list of keys; it revokes the old one.

        Raises:
            Refused: ROLLBACK for an older list.
        """
        if self.announced is not None and keys.serial < self.announced.serial:
            why = f"serial number {keys.serial} of the keys is below {self.announced.serial}"
            raise Refused(Reason.ROLLBACK, why)
        return replace(self, announced=keys)

    def _online(self) -> tuple[tuple[bytes, int, int], ...]:
        if self.announced is None:
            return ()
        return tuple(
            zip(self.announced.sign, self.announced.from_, self.announced.until, strict=True)
        )
