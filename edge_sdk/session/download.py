"""Download one announced body at a time: first from retained slots, after a delay on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Protocol

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import Reason
from edge_sdk.protocol import messages as m
from edge_sdk.session.signed_link import SignedLink

if TYPE_CHECKING:
    from edge_sdk.session.body_download import BodyDownload, EarlyParts


class Announcement(Protocol):
    """A message that announces a body."""

    @property
    def digest(self) -> bytes | None:
        """SHA-256 of the body."""

    @property
    def size(self) -> int | None:
        """Bytes of the body."""


@dataclass(frozen=True, slots=True)
class DownloadCompleted:
    """A body is complete and has the announced digest."""

    manifest: Announcement
    announced: bytes  # bytes of that message, where they are kept
    body: bytes
    is_step: bool = False  # true if it is the step from the version before, not the whole model


class Downloader:
    """The download in progress on one device, if any.

    Where a round begins for all devices at once, the slots stay subscribed after a download. The
    parts of the next model then arrive before its manifest, without a request of this device.
    """

    def __init__(
        self, link: SignedLink, rng: Random, now: Callable[[], float], counts: Counter[str]
    ) -> None:
        self._link, self._rng, self._now, self._counts = link, rng, now, counts
        self._download: BodyDownload | None = None
        self._early: EarlyParts | None = None

    @property
    def manifest(self) -> Announcement | None:
        return self._download.manifest if self._download is not None else None

    @property
    def next_due(self) -> float | None:
        return self._download.next_due if self._download is not None else None

    def begin(
        self,
        manifest: Announcement,
        *,
        patience: float = 0.0,
        announced: bytes = b"",
        is_step: bool = False,
    ) -> None:
        """Begin to download a body, instead of the one in progress.

        Devices open the slots of the common model at random times within its spread.

        Args:
            patience: Seconds to wait for slots before missing chunks are requested.
            announced: Bytes of the message, if they are to be kept.
            is_step: True downloads the step that a manifest announces, not the whole model.

        Raises:
            Refused: MALFORMED or TOO_LARGE sizes.
        """
        # with the first body
        from edge_sdk.protocol.transfer import Receiving  # noqa: PLC0415
        from edge_sdk.session.body_download import BodyDownload, EarlyParts  # noqa: PLC0415

        opens, wait, chunk, first = self._now(), 0.0, m.CHUNK_LIMIT, 0
        digest, size = manifest.digest or b"", manifest.size or 0
        if isinstance(manifest, (m.ModelMessage, m.TaskMessage)):
            chunk = manifest.chunk or 0
        if isinstance(manifest, m.ModelMessage):  # only the common model waits for its slots
            opens, wait = opens + self._rng.random() * manifest.spread / 1000, patience
            if is_step:
                digest, size = manifest.step or b"", manifest.step_size or 0
                first = manifest.deltas[0][1]
        receiving = Receiving(digest, size, chunk, now=opens, rng=self._rng)
        slots = range(first, first + receiving.count) if is_step else range(0)
        asks = opens + wait
        download = BodyDownload(manifest, receiving, opens, asks, announced, step_slots=slots)
        early = self._early
        self.stop()
        self._download = download
        if isinstance(manifest, m.ModelMessage):
            for part in early.drain(download.receiving.id) if early is not None else ():
                download.add(part, opens)
            if is_common_start(manifest) and not is_step:
                self._early = EarlyParts(manifest.size)

    def stop(self) -> None:
        """End the download, and unsubscribe from its slots unless the next parts are awaited."""
        if self._early is None and self._download is not None and self._download.is_open:
            self._link.subscribe_parts(wanted=False, slots=self._download.step_slots)
        self._download = None

    def release_slots(self) -> None:
        """Unsubscribe from the slots: no parts are awaited before their manifest any more."""
        early, self._early = self._early, None
        if early is not None and (self._download is None or not self._download.is_open):
            self._link.subscribe_parts(wanted=False)

    def abandon(self) -> None:
        """End the download of another run; its slots are those of every run."""
        self._download = None
        if self._early is not None:
            self._early.drain(b"")

    def reconnected(self) -> None:
        """Subscribe to the slots again when it is due: the link came up again."""
        if self._download is not None:
            self._download.close_slots()

    def advance(self) -> None:
        """Subscribe to the slots when it is due, and request missing chunks."""
        download, now = self._download, self._now()
        if download is None or not self._link.is_up or now < download.opens:
            return
        if download.open_slots():
            self._link.subscribe_parts(wanted=True, slots=download.step_slots)
        request = download.request(now)
        if request is not None:
            self._counts["fetches asked"] += 1
            self._link.send(request)

    def add(self, piece: m.PartMessage | m.ChunkMessage) -> DownloadCompleted | None:
        """Store a chunk; return the body once it is complete.

        Raises:
            Refused: BAD_CHUNK for a wrong index or length; BAD_DIGEST for the whole.
        """
        download = self._download
        is_early = download is None or piece.id != download.receiving.id
        if is_early and self._early is not None and isinstance(piece, m.PartMessage):
            self._early.add(piece)
            return None
        if download is not None:
            download.add(piece, self._now())
        return self.completed()

    def completed(self) -> DownloadCompleted | None:
        """Return the body once it is complete, and end its download.

        Raises:
            Refused: BAD_DIGEST for the whole.
        """
        download = self._download
        if download is None or not download.receiving.is_complete:
            return None
        body = download.receiving.body()
        self.stop()
        is_step = bool(download.step_slots)
        self._counts["steps received"] += is_step
        return DownloadCompleted(download.manifest, download.announced, body, is_step)

    def refuse(self, refusal: m.RefusalMessage, *, shortest: float) -> bool:
        """Process a refusal of the requested chunks; return False if it is about something else."""
        download = self._download
        if download is None or refusal.id != download.receiving.id:
            return False
        self._counts["fetches refused"] += 1
        if refusal.code == Reason.NOT_FOUND:
            self.stop()
        else:
            download.postpone(self._now() + max(refusal.wait / 1000, shortest))
        return True


def is_common_start(manifest: m.ModelMessage) -> bool:
    """Return whether every device takes part in a round, at once when it is announced."""
    return manifest.phase == "train" and manifest.spread == 0 and manifest.share >= 1.0
