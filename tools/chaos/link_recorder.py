"""A link that records sent and received messages before they are processed.

One ``write`` a line, on a file opened for appending: lines written by a process survive its
``kill -9``. ``link_trace`` defines the lines, ``delivery_audit`` reads them.

A body in chunks may be sent by several processes: one offers it and sends half, the next one sends
the rest on request. The sent envelopes are therefore kept beside the record until the body is
whole, in ``NAME.pieces``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edge_sdk.app.permissions import make_private_folder, tighten
from edge_sdk.link.transport import Happening, Message, Transport
from edge_sdk.protocol import topics
from edge_sdk.protocol.envelope import KeyOf
from firmware_sim.attacks.byzantine_client import WrappedLink
from tools.chaos.link_trace import Line, PublishedBodies, Sent, came, written


class LinkRecord:
    """The record of one device's link."""

    def __init__(self, path: Path, *, device: bytes, aggregator: bytes) -> None:
        """Open or continue a record.

        Args:
            path: The file; its folder is made if missing.
            aggregator: The aggregator's raw public key: only receipts signed with it count.
        """
        if not path.parent.exists():
            make_private_folder(path.parent)
        for old in (path, path.with_suffix(".pieces")):
            tighten(old)
        pieces = path.with_suffix(".pieces")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._pieces = os.open(pieces, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._outgoing = PublishedBodies(lambda _sender, _kid: device)
        self.of_aggregator: KeyOf = lambda _sender, _kid: aggregator
        self._restore_parts(pieces.read_bytes())

    def _restore_parts(self, text: bytes) -> None:
        whole = text[: text.rfind(b"\n") + 1]
        os.ftruncate(self._pieces, len(whole))
        for line in whole.splitlines():
            topic, payload = json.loads(line)
            self._outgoing.left(topic, bytes.fromhex(payload), 0.0)

    def record_publish(self, topic: str, payload: bytes, at: float) -> None:
        """Record a message before it is published at a Unix second, if it is a release or a part of one."""
        where = topics.parse(topic)
        if where is not None and where.kind in _PARTS:
            text = json.dumps([topic, payload.hex()]) + "\n"
            os.write(self._pieces, text.encode())
        line = self._outgoing.left(topic, payload, at)
        self.note(line)
        if isinstance(line, Sent) and line.vector:
            os.ftruncate(self._pieces, 0)

    def note(self, line: Line | None) -> None:
        if line is not None:
            os.write(self._file, written(line).encode())

    def close(self) -> None:
        os.close(self._file)
        os.close(self._pieces)


_PARTS = frozenset({"offer", "chunk"})


class RecordedLink(WrappedLink):
    """A link with a record. All messages pass unchanged."""

    def __init__(
        self, link: Transport, record: LinkRecord, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Wrap a link; this wrapper should be the outermost, next to the device."""
        super().__init__(link)
        self._record, self._clock = record, clock

    def poll(self, timeout: float) -> Sequence[Happening]:
        """Serve the link, and record the receipts among the received messages."""
        events = self._link.poll(timeout)
        for event in events:
            if isinstance(event, Message):
                line = came(
                    event.topic, event.payload, key_of=self._record.of_aggregator, at=self._clock()
                )
                self._record.note(line)
        return events

    def publish(self, topic: str, payload: bytes, **options: Any) -> bool:  # noqa: ANN401 - as the link's
        self._record.record_publish(topic, payload, self._clock())
        return self._link.publish(topic, payload, **options)

    def close(self) -> None:
        super().close()
        self._record.close()
