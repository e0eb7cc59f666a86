"""Receive the announcements of the fleet: keys of the aggregator, and bundles with their runs.

A broker can replay, reorder or withhold them. One takes effect only if it passes every rule of
``docs/threat-model.md`` ("Rules for announcements"); the first broken one refuses it and changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from edge_sdk.app.cli import fields
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol.codec import decode
from edge_sdk.protocol.messages import BundleMessage, KeysMessage, TaskMessage
from edge_sdk.session import manifest_checks
from edge_sdk.session.agenda import BundleAnnounced, FoundBundle
from edge_sdk.session.download import DownloadCompleted, Downloader
from edge_sdk.session.key_ring import KeyRing
from edge_sdk.store.store import DeviceStore

logger = logging.getLogger(__name__)

RUN_NAME = "run name"
_OWNER = "bundle of"
"""Saved notes: the run of the device, and the run whose announcement is saved."""

M = TypeVar("M", BundleMessage, KeysMessage, TaskMessage)


@dataclass(frozen=True, slots=True)
class KeysAdopted:
    """The device follows a list of keys."""

    is_changed: bool  # true if the list is another one than before
    is_renumbered: bool  # true if none of the keys was known: serial numbers begin anew


class Announcements:
    """The keys and the bundle announcement in force on one device.

    Attributes:
        ring: The trusted keys.
        bundle: The bundle announcement in force, or None before the first of the present run.
        name: Name of the run that the device takes part in; empty for the one announced to all.
        serials: Saved facts that are serial numbers: they begin again with an aggregator's other key.
    """

    def __init__(
        self, store: DeviceStore, downloads: Downloader, ring: KeyRing, methods: Sequence[str]
    ) -> None:
        self._store, self._downloads, self._methods = store, downloads, methods
        self.ring = replace(ring, announced=saved_message(store, KeysMessage, "keys"))
        self.name = _saved_text(store, RUN_NAME)
        is_its_own = _saved_text(store, _OWNER) == self.name
        self.bundle = saved_message(store, BundleMessage, "bundle") if is_its_own else None
        self.serials = ["serial"]
        self._installed = b""
        self._left: BundleMessage | None = None  # no longer in force, of the same run

    def receive_keys(self, keys: KeysMessage, body: bytes) -> KeysAdopted:
        """Adopt and save a list of keys.

        Raises:
            Refused: ROLLBACK for an older list, MALFORMED for one that names no authorities as such.
        """
        before, ring = self.ring, self.ring.accept(keys)
        if keys.ca and ring.follow_authorities is not None:
            ring.follow_authorities(keys.ca)
        if ring.followed is not None:  # first: the list is received again
            ring.followed.save(ring.root, ring.bundle_keys)
        self.ring = ring
        if ring.root != before.root:
            logger.warning("root replaced %s", fields(root=ring.root.name, before=before.root.name))
        known = before.announced
        is_renumbered = known is not None and not set(known.sign) & set(keys.sign)
        self._store.file_paper(
            "keys", body, **dict.fromkeys(self.serials if is_renumbered else (), 0)
        )
        return KeysAdopted(self.ring != before, is_renumbered)

    def encryption_key(self, kind: str) -> bytes | None:
        """Return the key to which messages of a kind must be encrypted; None if they are sent clear.

        Raises:
            Refused: CANNOT_OPEN if they must be, and no key has been announced (yet).
        """
        if self.bundle is None or kind not in self.bundle.seal:
            return None
        if self.ring.encryption_key is None:
            raise Refused(
                Reason.CANNOT_OPEN,
                f"{kind} must be encrypted, and no key to encrypt to is announced",
            )
        return self.ring.encryption_key

    def follow_run(self, name: str) -> None:
        """Take part in the run of this name from now on, and save it.

        The announcement in force stays in use until one of the run arrives.
        """
        self._store.file_paper(RUN_NAME, name.encode())
        self.name, self.bundle, self._left = name, None, None

    def record_installed(self, digest: bytes) -> None:
        """Set the digest of the archive of the bundle in use.

        The announcement of another bundle is not in force any more: it is followed again, and its
        archive requested, when it arrives. An older one is still refused.
        """
        self._installed = digest
        if self.bundle is not None and self.bundle.digest != digest:
            self._left, self.bundle = self.bundle, None

    def receive_bundle(
        self, announced: BundleMessage, body: bytes, *, time: int
    ) -> Iterator[BundleAnnounced]:
        """Follow a newer announcement; download its archive first if another bundle is installed.

        An expired one is refused also if it is the one in force, which stays in use.

        Args:
            body: Its bytes.
            time: Latest signed server time, Unix milliseconds.

        Raises:
            Refused: As ``manifest_checks.judge_bundle`` and ``manifest_checks.check_expiry``, or
                sizes that no archive has.
        """
        pending = self._downloads.manifest
        floor = [self._store.fact(name) for name in self._floor]
        newest = self.bundle or self._left
        manifest_checks.judge_bundle(announced, newest, self._methods, floor=(floor[0], floor[1]))
        manifest_checks.check_expiry(announced, time)
        if self.bundle is not None and announced.serial == self.bundle.serial:
            return
        if announced.digest == self._installed:
            yield BundleAnnounced(FoundBundle(announced, body, None))
        elif not isinstance(pending, BundleMessage) or pending.serial < announced.serial:
            self._downloads.begin(announced, announced=body)

    @staticmethod
    def downloaded(completed: DownloadCompleted) -> Iterator[BundleAnnounced]:
        """Return a bundle whose archive is complete."""
        if isinstance(completed.manifest, BundleMessage):
            found = FoundBundle(completed.manifest, completed.announced, completed.body)
            yield BundleAnnounced(found)

    def adopt(self, found: FoundBundle) -> None:
        """Set and save the announcement in force."""
        announced = found.announced
        floor = dict(zip(self._floor, (announced.serial, announced.run), strict=True))
        self._store.file_paper("bundle", found.body, **floor if self.name else {})
        if _saved_text(self._store, _OWNER) != self.name:
            self._store.file_paper(_OWNER, self.name.encode())
        self.bundle, self._left = announced, None

    @property
    def _floor(self) -> tuple[str, str]:
        return f"bundle serial {self.name}", f"bundle run {self.name}"


def _saved_text(store: DeviceStore, name: str) -> str:
    return (store.paper(name) or b"").decode()


def saved_message(store: DeviceStore, what: type[M], name: str) -> M | None:
    """Read a saved announcement, or None.

    One that holds a number out of bounds is ignored: the next one replaces it.
    """
    paper = store.paper(name)
    try:
        return None if paper is None else decode(what, paper)
    except Refused as refused:
        logger.warning("stored value rejected %s", fields(what=name, why=refused))
        return None
