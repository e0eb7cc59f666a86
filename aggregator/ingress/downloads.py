"""Downloads of model contents and bundles, chunk by chunk, driven by the receiver."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from aggregator.store.types import DownloadBody
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.protocol.messages import ChunkMessage, HaveMessage
from edge_sdk.wire.protocol.transfer import IDLE, Sending

_KEPT = 4  # contents in memory: the current and the previous model and bundle


@dataclass(frozen=True, slots=True)
class _Pull:
    """Download of one device, and the time of its last request."""

    sending: Sending
    at: float


class Downloads:
    """At most one download per device; a new request replaces the old one."""

    def __init__(self, find: Callable[[bytes], DownloadBody | None], window: int) -> None:
        """Start without downloads.

        Args:
            find: Returns a content by the first 16 bytes of its digest.
            window: Largest number of chunks in flight to one device.
        """
        self._find = find
        self._window = window
        self._pulls: dict[str, _Pull] = {}
        self._contents: OrderedDict[bytes, DownloadBody] = OrderedDict()

    def wanted(self, device: str, have: HaveMessage, now: float, room: int) -> list[ChunkMessage]:
        """Return the chunks that a ``have`` message lacks, at most ``room`` bytes.

        Raises:
            Refused: NOT_FOUND for an unknown or expired body; MALFORMED.
        """
        content = self._content(have.id)
        pull = self._pulls.get(device)
        if pull and pull.sending.id == have.id:
            sending = pull.sending
        else:
            sending = Sending(content.body, content.chunk, now=now)
        sending.heard(have.have, min(have.win, self._window), now)
        self._pulls[device] = _Pull(sending, now)
        if sending.is_complete:
            self.stop(device, have.id)
        indices = sending.due(min(self._window, room // content.chunk), now)
        return [ChunkMessage(have.id, i, blob=sending.piece(i)) for i in indices]

    def stop(self, device: str, ref: bytes | None) -> None:
        """Cancel a device's download of a body."""
        pull = self._pulls.get(device)
        if pull and pull.sending.id == ref:
            del self._pulls[device]

    def drop(self, device: str) -> None:
        """Delete the download of a device."""
        self._pulls.pop(device, None)

    def forget(self, now: float) -> None:
        """Delete downloads that have timed out."""
        for device in [d for d, pull in self._pulls.items() if now - pull.at > IDLE]:
            del self._pulls[device]

    def _content(self, ref: bytes) -> DownloadBody:
        """Return a content; all downloads of it share its bytes."""
        if ref not in self._contents:
            found = self._find(ref)
            if found is None:
                raise Refused(Reason.NOT_FOUND, ref.hex())
            self._contents[ref] = found
            while len(self._contents) > _KEPT:
                self._contents.popitem(last=False)
        return self._contents[ref]
