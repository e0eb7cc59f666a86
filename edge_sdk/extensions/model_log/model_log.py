"""Follow the log of the run's models: every manifest must extend the checkpoint of this device.

A manifest is followed only if it is the last leaf of a checkpoint that the aggregator has signed, and that
checkpoint continues the last one here. The checkpoint is saved in the transaction that saves the manifest's
serial number, before the model is used. A checkpoint that does not continue the last one is a fork: it is
refused for as long as the run lasts, and both notes are kept as evidence. The root begins a new log by
announcing another run.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable

from edge_sdk.app.cli import fields
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.config import Config
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.model_log import merkle_tree
from edge_sdk.extensions.model_log.log_format import checkpoint_of, proved_roots
from edge_sdk.extensions.model_log.signed_note import NoteError, SignedCheckpoint, read_note
from edge_sdk.protocol.messages import ModelMessage, WelcomeMessage
from edge_sdk.session.announcements import RUN_NAME, Announcements
from edge_sdk.session.key_ring import KeyRing
from edge_sdk.session.manifest_checks import ManifestLog
from edge_sdk.session.server_clock import ServerClock
from edge_sdk.store.store import DeviceStore

logger = logging.getLogger(__name__)

REQUEST_PAUSE = 60.0
"""Seconds between two requests for a proof of consistency."""

_FORMAT = ">BQ"  # version of the record, run; the note follows
_VERSION = 1


@dataclass(frozen=True, slots=True)
class FollowedLog:
    """The last checkpoint that a device has accepted."""

    run: int
    note: SignedCheckpoint

    @property
    def size(self) -> int:
        return self.note.checkpoint.size

    @property
    def root(self) -> bytes:
        return self.note.checkpoint.root

    @property
    def place(self) -> bytes:
        return struct.pack(">2Q", self.run, self.size) + self.root

    @property
    def data(self) -> bytes:
        return struct.pack(_FORMAT, _VERSION, self.run) + self.note.text.encode()

    @classmethod
    def parse(cls, data: bytes) -> FollowedLog | None:
        """Read a record; None if it is none."""
        size = struct.calcsize(_FORMAT)
        if len(data) < size or data[0] != _VERSION:
            return None
        _, run = struct.unpack(_FORMAT, data[:size])
        try:
            return cls(run, read_note(data[size:].decode()))
        except (NoteError, UnicodeDecodeError):
            return None


class ModelLog(ManifestLog):
    """The log of the models of one device's run.

    Args:
        store: Store that keeps the last checkpoint.
        keys: Returns the aggregator's public keys in force.
        bundle: Returns the digest of the announced bundle; empty before the first.
        name: Name of the run; empty for the one announced to all.

    Attributes:
        is_behind: True while a manifest waits for a proof that it continues the last checkpoint.
    """

    def __init__(
        self,
        store: DeviceStore,
        fleet: str,
        keys: Callable[[], Iterable[bytes]],
        bundle: Callable[[], bytes],
        *,
        name: str = "",
    ) -> None:
        super().__init__(store)
        self._fleet, self._keys, self._bundle = fleet, keys, bundle
        self._requested_at = -float("inf")
        self.follow_run(name)

    def follow_run(self, name: str) -> None:
        self._name, self.is_behind = name, False
        self._last = saved_log(self._store, name)

    @property
    def place(self) -> bytes:
        """Return the last checkpoint as a hello states it; empty without one."""
        return b"" if self._last is None else self._last.place

    def continued(self, manifest: ModelMessage) -> FollowedLog | None:
        """Return the log with a manifest as its last leaf, to be saved with the manifest's serial number.

        Returns:
            None if the manifest must wait for a proof that its checkpoint continues the last one, and
            the last one unchanged if the aggregator keeps no log.

        Raises:
            Refused: NOT_LOGGED for a manifest without a proof after one with a proof; MALFORMED or
                BAD_DIGEST for a wrong proof; BAD_SIGNATURE; ROLLBACK for a shorter log; LOG_FORK.
        """
        last = self._of_run(manifest.run)
        if manifest.note is None:
            if last is not None:
                raise Refused(Reason.NOT_LOGGED, f"manifest {manifest.serial} is in no log")
            return self._last
        note, before = proved_roots(manifest, self._bundle(), self._fleet)
        self._require_signed(note)
        found = FollowedLog(manifest.run, note)
        if last is None:
            return found
        if found.size > last.size + 1:
            self.is_behind = True
            return None
        _require_longer(last.size, found)
        root = found.root if found.size == last.size else before
        if root != last.root:
            raise self._fork(last, found)
        self.is_behind = False
        return found

    def save(self, followed: FollowedLog | None, **facts: int) -> None:
        """Save the log together with numbers, in one transaction."""
        if followed is None or followed == self._last:
            self._store.set_facts(**facts)
            return
        self._store.file_paper(_paper(self._name), followed.data, **facts)
        if self._last is None or self._last.run != followed.run:
            about = {"run": followed.run, "size": followed.size, "root": followed.root.hex()[:16]}
            logger.info("model log followed %s", fields(**about))
        self._last = followed

    def receive_welcome(self, welcome: WelcomeMessage, stated: bytes) -> bool:
        """Follow the checkpoint in a welcome, which proves that it continues the one in the hello.

        A manifest may have come between hello and welcome. The proof then says nothing about the
        checkpoint of that manifest, which stays the last one unless both trees have the same size.

        Args:
            stated: Run, size and root in that hello; empty without a checkpoint.

        Returns:
            True if the log continues, so that a manifest that waited can be considered again.
        """
        last = self._last
        if welcome.note is None or last is None or not stated or not _is_of(welcome.note, last):
            return False
        run, size = struct.unpack_from(">2Q", stated)
        if run != last.run:
            return False
        note = checkpoint_of(welcome.note, self._fleet, run)
        self._require_signed(note)
        found = FollowedLog(run, note)
        _require_longer(size, found)
        try:
            path = merkle_tree.split(welcome.path)
        except ValueError as error:
            raise Refused(Reason.MALFORMED, f"proof of consistency: {error}") from error
        if not merkle_tree.is_consistent((size, stated[16:]), (found.size, found.root), path):
            raise self._fork(last, found)
        if found.size == last.size and found.root != last.root:
            raise self._fork(last, found)
        if last.size not in (size, found.size):
            return False
        self.is_behind = False
        self.save(found)
        return True

    def is_request_due(self, now: float) -> bool:
        """Return whether to say hello now for the proof that a manifest waits for."""
        if not self.is_behind or now < self._requested_at + REQUEST_PAUSE:
            return False
        self._requested_at = now
        return True

    def _of_run(self, run: int) -> FollowedLog | None:
        return self._last if self._last is not None and self._last.run == run else None

    def _require_signed(self, note: SignedCheckpoint) -> None:
        if not any(map(note.is_signed_by, self._keys())):
            raise Refused(Reason.BAD_SIGNATURE, "no key of the aggregator signed the checkpoint")

    def _fork(self, last: FollowedLog, found: FollowedLog) -> Refused:
        evidence = f"{last.note.text}\n{found.note.text}"
        if self._store.paper(_fork_paper(self._name)) != evidence.encode():
            self._store.file_paper(_fork_paper(self._name), evidence.encode())
            about = {"run": last.run, "size": last.size, "root": last.root.hex()[:16]}
            about |= {"found_size": found.size, "found_root": found.root.hex()[:16]}
            logger.error("model log fork %s", fields(**about))
        why = f"checkpoint {found.size} does not continue checkpoint {last.size}"
        return Refused(Reason.LOG_FORK, why)


def _require_longer(size: int, found: FollowedLog) -> None:
    if found.size < size:
        raise Refused(Reason.ROLLBACK, f"the log has {found.size} leaves, and had {size} before")


def _is_of(note: str, followed: FollowedLog) -> bool:
    """Return whether a note is of the log that is followed; a device may have changed its run since."""
    return note.startswith(f"{followed.note.checkpoint.origin}\n")


def saved_log(store: DeviceStore, name: str = "") -> FollowedLog | None:
    """Return the last checkpoint of the log of a run that a store holds, or None."""
    return FollowedLog.parse(store.paper(_paper(name)) or b"")


def saved_fork(store: DeviceStore, name: str = "") -> str:
    """Return the two notes of the last fork that was found; empty without one."""
    return (store.paper(_fork_paper(name)) or b"").decode()


def model_log(
    config: Config, store: DeviceStore, announcements: Announcements, time: ServerClock
) -> ModelLog:
    """Return the log of the run that a device takes part in."""
    return ModelLog(
        store,
        config.fleet,
        lambda: model_keys(announcements.ring, time.now()),
        lambda: announcements.bundle.digest if announcements.bundle is not None else b"",
        name=announcements.name,
    )


def model_keys(ring: KeyRing, now: int | None) -> tuple[bytes, ...]:
    """Return the aggregator's keys in force that may sign models and their log."""
    role = () if ring.announced is None else ring.announced.model
    return tuple(key for key in ring.online(now) if not role or key in role)


def saved_status(_config: Config, store: DeviceStore) -> dict[str, object]:
    found = log_summary(store)
    return {"model log": found} if found else {}


def log_summary(store: DeviceStore) -> dict[str, object]:
    """Return the log of models as ``gridfed-edge status`` shows it; empty before the first checkpoint."""
    name = (store.paper(RUN_NAME) or b"").decode()
    followed = saved_log(store, name)
    if followed is None:
        return {}
    fork = saved_fork(store, name)
    is_fork_of_run = bool(fork) and fork.startswith(f"{followed.note.checkpoint.origin}\n")
    found: dict[str, object] = {"run": followed.run, "size": followed.size}
    found |= {"root": followed.root.hex(), "note": followed.note.text}
    return {**found, "fork": fork if is_fork_of_run else ""}


def _paper(name: str) -> str:
    return f"model log {name}"


def _fork_paper(name: str) -> str:
    return f"model log fork {name}"
