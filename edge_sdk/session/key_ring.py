"""Hold the public keys that a device trusts."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from edge_sdk.app.cli import fields
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import Reason, Refused, StoreFull
from edge_sdk.protocol.envelope import AGGREGATOR, ALL, ROOT, KeyOf, Sealed, root_signers
from edge_sdk.protocol.keys import KID_SIZE, KeyFileError, kid_of, write_atomically
from edge_sdk.protocol.messages import KINDS, KeysMessage, ModelMessage
from edge_sdk.protocol.root_keys import RootKeys, parse_root
from edge_sdk.store.store import DeviceStore


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The trusted public keys: the root, and the keys that root announced."""

    # public keys of the operator: the pinned ones, or those that they have named as successors
    root: RootKeys
    pinned: bytes | None = None  # aggregator key pinned in the configuration, or None
    announced: KeysMessage | None = None  # the newest ``keys`` announcement, or None
    followed: FollowedRoot | None = None  # file of the root in force, or None to keep none
    # follows the authorities of TLS certificates (DER) that root names, or refuses them; None: nobody
    follow_authorities: Callable[[Sequence[bytes]], None] | None = None

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
        return () if self.announced is None else self.announced.bundle

    def is_enough(self, kind: str, signers: Collection[bytes]) -> bool:
        """Return whether these keys, which have signed an announcement of this kind, are enough."""
        if kind == ModelMessage.kind:
            role = () if self.announced is None else self.announced.model
            return not role or bool(set(role) & set(signers))
        if kind not in KINDS or not KINDS[kind].of_root:
            return bool(signers)
        is_delegated = KINDS[kind].is_delegated and bool(set(self.bundle_keys) & set(signers))
        return is_delegated or self.root.is_enough(signers)

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


MaySign = Callable[[str, Collection[bytes]], bool]
"""Kind of an announcement and public keys that have signed it, to whether they suffice."""


def sender_of(kind: str) -> str:
    """Return the sender of an announcement of a kind.

    >>> sender_of("keys"), sender_of("model")
    ('_root', '_agg')
    """
    return ROOT if kind in KINDS and KINDS[kind].of_root else AGGREGATOR


def is_of_fleet(kind: str) -> bool:
    """Return whether announcements of a kind are for the whole fleet, and not for a run's devices.

    >>> is_of_fleet("time"), is_of_fleet("model")
    (True, False)
    """
    return kind in KINDS and KINDS[kind].of_fleet


def any_key(_kind: str, signers: Collection[bytes]) -> bool:
    return bool(signers)


def check_role(proved: Sealed, key_of: KeyOf, may_sign: MaySign) -> None:
    """Refuse an announcement by a key of the aggregator that may not sign its kind.

    Raises:
        Refused: UNKNOWN_CLIENT.
    """
    kid = proved.proof[:KID_SIZE]
    if not may_sign(proved.kind, (key_of(proved.sender, kid) or b"",)):
        why = f"{proved.sender}, key {kid.hex()}: not a key that may sign {proved.kind!r}"
        raise Refused(Reason.UNKNOWN_CLIENT, why)


def check_successor(keys: KeysMessage, proved: Sealed, fleet: str) -> None:
    """Refuse a list that names a root which has not signed it: the next one could not be signed.

    Raises:
        Refused: BAD_SIGNATURE.
    """
    signers = root_signers(proved, keys.roots, recipient=ALL, fleet=fleet)
    if keys.roots and len(signers) < keys.root_min:
        why = f"the next root: {len(signers)} of its keys have signed, expected {keys.root_min}"
        raise Refused(Reason.BAD_SIGNATURE, why)


logger = logging.getLogger(__name__)

FILE: Final = "root-followed.json"


@dataclass(frozen=True, slots=True)
class FollowedRoot:
    """File with the root that a device follows."""

    path: Path  # the file; it need not exist
    fleet: str
    pinned: RootKeys

    @classmethod
    def of(cls, state: Path, fleet: str, pinned: RootKeys) -> FollowedRoot:
        return cls(state / FILE, fleet, pinned)

    def load(self) -> tuple[RootKeys, tuple[bytes, ...]]:
        """Return the root in force, and the keys to which it has delegated bundles."""
        try:
            found: Any = json.loads(self.path.read_text("utf-8"))
            if (found["fleet"], found["pinned"]) != (self.fleet, self.pinned.text):
                return self.pinned, ()
            bundle = tuple(bytes.fromhex(key) for key in found["bundle"])
            return parse_root(found["root"].strip(), self.path.name), bundle
        except FileNotFoundError:
            return self.pinned, ()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, KeyFileError) as error:
            logger.warning("stored value rejected %s", fields(what=self.path.name, why=error))
            return self.pinned, ()

    def save(self, root: RootKeys, bundle: tuple[bytes, ...]) -> None:
        """Write the root in force and the keys of bundles, atomically; nothing if they are there already.

        Raises:
            OSError: The disk is full, or the folder cannot be written.
        """
        if (root, bundle) == self.load():
            return
        content = {
            "fleet": self.fleet,
            "pinned": self.pinned.text,
            "root": root.text,
            "bundle": [key.hex() for key in bundle],
        }
        write_atomically(self.path, json.dumps(content, indent=1).encode(), 0o600)


PAPER = "refused root"
"""Saved record: the key id of the device's root, then of the one that it refuses; empty if none."""

_PERIOD = 60.0  # s between two changes that are logged and stated
REMEDY = "put the operator's root.pub in place, or ask the operator which root is right"


class RefusedKeys:
    """Refused lists of keys of one link.

    Attributes:
        foreign_root: Key id in the last list of keys that was refused because no key of the root has
            signed it; empty if none was since one was followed.
        has_followed_root: True once a list of keys was followed.
    """

    def __init__(self) -> None:
        self.foreign_root, self.has_followed_root = b"", False

    def note_foreign_root(self, kid: bytes) -> None:
        self.foreign_root = kid

    def note_followed_root(self) -> None:
        self.foreign_root, self.has_followed_root = b"", True


class RefusedRoot:
    """The root whose list of keys a device refuses.

    Attributes:
        pair: Key id of the device's root, then of the refused one, 8 bytes each; empty if none.
    """

    def __init__(self, store: DeviceStore, root: RootKeys) -> None:
        saved = store.paper(PAPER) or b""
        self._store = store
        is_of_root = bool(root.keys) and saved[:KID_SIZE] == kid_of(root.keys[0])
        self.pair = saved if is_of_root else b""
        self._is_logged, self._due = False, float("-inf")
        if saved != self.pair:
            self._save()

    def follow(self, refusals: RefusedKeys, root: RootKeys, now: float) -> bool:
        """Record refusals of the link, and log each once; a change counts at most once a minute.

        Returns:
            True if another hello has to state what has changed.
        """
        foreign = refusals.foreign_root
        without = b"" if refusals.has_followed_root else self.pair
        pair = kid_of(root.keys[0]) + foreign if foreign else without
        is_changed = pair != self.pair
        if is_changed and now < self._due:
            return False
        if foreign and (is_changed or not self._is_logged):
            own, other = named(pair)
            logger.warning("root refused %s", fields(own=own, announced=other, do=REMEDY))
            self._is_logged = True
        if is_changed:
            self.pair, self._due = pair, now + _PERIOD
            self._save()
        return is_changed

    def _save(self) -> None:
        """Save the pair for ``status`` and the next start; a full disk does not stop the session."""
        with suppress(StoreFull):
            self._store.file_paper(PAPER, self.pair)


def named(pair: bytes) -> tuple[str, str]:
    """Return the key ids of the device's root and of the refused one as hex digits.

    >>> named(bytes(8) + b"refused!")
    ('0000000000000000', '7265667573656421')
    """
    return pair[:KID_SIZE].hex(), pair[KID_SIZE:].hex()
