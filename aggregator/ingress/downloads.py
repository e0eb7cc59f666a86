"""Common bodies on their way out: the model's content and the bundle, pulled chunk by chunk."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from aggregator.store.types import DownloadBody
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.protocol.messages import ChunkMessage, HaveMessage
from edge_sdk.wire.protocol.transfer import IDLE, Sending

_KEPT = 4  # contents in memory: current and last, of model and bundle


@dataclass(frozen=True, slots=True)
class _Pull:
    """A device's download, and when it last asked."""

    sending: Sending
    at: float


class Downloads:
    """One download a device; the receiver drives, and a new request replaces the old one."""

    def __init__(self, find: Callable[[bytes], DownloadBody | None], window: int) -> None:
        """Begin with nobody.

        Args:
            find: Returns a content by the first 16 bytes of its digest.
            window: Most chunks on their way to one device.
        """
        self._find = find
        self._window = window
        self._pulls: dict[str, _Pull] = {}
        self._contents: OrderedDict[bytes, DownloadBody] = OrderedDict()

    def wanted(self, device: str, have: HaveMessage, now: float, room: int) -> list[ChunkMessage]:
        """Return the chunks to send a device that told what it has: at most ``room`` bytes.

        Raises:
            Refused: NOT_FOUND for a body that is not, or no longer, ours; MALFORMED.
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
        """A device wants no more of a body."""
        pull = self._pulls.get(device)
        if pull and pull.sending.id == ref:
            del self._pulls[device]

    def drop(self, device: str) -> None:
        """Forget the download of a device, whatever it is of."""
        self._pulls.pop(device, None)

    def forget(self, now: float) -> None:
        """Forget the downloads of devices that went silent."""
        for device in [d for d, pull in self._pulls.items() if now - pull.at > IDLE]:
            del self._pulls[device]

    def _content(self, ref: bytes) -> DownloadBody:
        """Return a content; all downloads of one share its bytes."""
        if ref not in self._contents:
            found = self._find(ref)
            if found is None:
                raise Refused(Reason.NOT_FOUND, ref.hex())
            self._contents[ref] = found
            while len(self._contents) > _KEPT:
                self._contents.popitem(last=False)
        return self._contents[ref]
