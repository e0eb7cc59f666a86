"""Hold the public keys that a device trusts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from edge_sdk.session.followed_authorities import FollowedAuthorities
from edge_sdk.session.followed_root import FollowedRoot
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.keys import kid_of
from edge_sdk.wire.protocol.envelope import AGGREGATOR, ROOT
from edge_sdk.wire.protocol.messages import (
    BundleMessage,
    KeysMessage,
    ModelMessage,
    RolloutMessage,
)
from edge_sdk.wire.root_keys import RootKeys

_DELEGATED = frozenset((BundleMessage.kind, RolloutMessage.kind))
_OF_ROOT = _DELEGATED | {KeysMessage.kind}


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The trusted public keys: the root, and the keys that root announced.

    Attributes:
        root: Public keys of the operator: the pinned ones, or those that they have named as successors.
        pinned: Aggregator key pinned in the configuration, or None.
        announced: The newest ``keys`` announcement, or None.
        followed: File of the root in force, or None to keep none.
        authorities: Files of the authorities of TLS certificates, or None to follow none.
    """

    root: RootKeys
    pinned: bytes | None = None
    announced: KeysMessage | None = None
    followed: FollowedRoot | None = None
    authorities: FollowedAuthorities | None = None

    def key(self, sender: str, kid: bytes, now: int | None) -> bytes | None:
        """Return the key in force for a sender; without a clock, validity is not checked."""
        if sender == ROOT:
            return self.root.key(kid) or next(
                (key for key in self.bundle_keys if kid_of(key) == kid), None
            )
        if sender != AGGREGATOR:
            return None
        for public, start, end in self._online():
            if kid_of(public) == kid and (now is None or start <= now < end):
                return public
        if self.announced is None and self.pinned and kid_of(self.pinned) == kid:
            return self.pinned
        return None

    @property
    def bundle_keys(self) -> tuple[bytes, ...]:
        """Return the keys to which root has delegated bundles and rollouts."""
        return () if self.announced is None else self.announced.bundle

    def is_enough(self, kind: str, signers: Collection[bytes]) -> bool:
        """Return whether these keys, which have signed an announcement of this kind, are enough."""
        if kind == ModelMessage.kind:
            role = () if self.announced is None else self.announced.model
            return not role or bool(set(role) & set(signers))
        if kind not in _OF_ROOT:
            return bool(signers)
        is_delegated = kind in _DELEGATED and bool(set(self.bundle_keys) & set(signers))
        return is_delegated or self.root.is_enough(signers)

    def model_keys(self, now: int | None) -> tuple[bytes, ...]:
        """Return the aggregator's keys in force that may sign models and their log."""
        role = () if self.announced is None else self.announced.model
        return tuple(key for key in self.online(now) if not role or key in role)

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
        root = RootKeys(keys.roots, keys.root_min) if keys.roots else self.root
        return replace(self, announced=keys, root=root)

    def _online(self) -> tuple[tuple[bytes, int, int], ...]:
        if self.announced is None:
            return ()
        return tuple(
            zip(self.announced.sign, self.announced.from_, self.announced.until, strict=True)
        )
