"""Publish many prepared messages to an MQTT broker as fast as it takes them."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from edge_sdk.link.transport import Message

PATIENCE = 300.0  # s until the broker has acknowledged all


def publish(broker: str, messages: Sequence[Message]) -> None:
    """Publish messages with quality of service 1 (MQTT 3.1.1), and wait for every acknowledgement."""
    place = urlsplit(broker)
    packets = b"".join(
        _packet(0x32, _text(one.topic) + struct.pack("!H", 1 + at % 65_535) + one.payload)
        for at, one in enumerate(messages)
    )
    hello = _packet(0x10, _text("MQTT") + b"\x04\x02" + struct.pack("!H", 0) + _text("bench"))
    with socket.create_connection((place.hostname or "", place.port or 1883)) as link:
        link.sendall(hello)
        missing, sent = 4 + 4 * len(messages), memoryview(packets)
        link.setblocking(False)
        until = time.monotonic() + PATIENCE
        while missing:
            if time.monotonic() > until:
                raise SystemExit("the broker did not acknowledge every update")
            try:
                if sent:
                    sent = sent[link.send(sent[: 1 << 18]) :]
            except BlockingIOError:
                time.sleep(0.001)
            try:
                missing -= len(link.recv(65_536))
            except BlockingIOError:
                time.sleep(0.0 if sent else 0.001)
        link.setblocking(True)
        link.sendall(b"\xe0\x00")


def _text(value: str) -> bytes:
    return struct.pack("!H", len(value)) + value.encode()


def _packet(kind: int, rest: bytes) -> bytes:
    """Return a packet of MQTT.

    >>> _packet(0x30, bytes(200))[:3].hex()
    '30c801'
    """
    length, left = bytearray(), len(rest)
    while left > 127:
        length.append(left & 127 | 128)
        left >>= 7
    length.append(left)
    return bytes([kind]) + bytes(length) + rest
