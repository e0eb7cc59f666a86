"""Registers of a device over Modbus TCP: a SunSpec chain, and a vendor's own map."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Mapping

from firmware_sim.ports.p1 import MeterDisplay

_HEAD = struct.Struct(">HHHB")
_ILLEGAL_FUNCTION, _ILLEGAL_ADDRESS = 1, 2
SUNSPEC = 40_000  # holding register where the chain begins
VENDOR = 1_000
"""Input register where the vendor's map begins: import (big end first), export (little end first),
power, temperature (never implemented: 0x8000)."""


def registers(display: MeterDisplay) -> dict[str, dict[int, int]]:
    """Return the registers for a meter that shows ``display``.

    >>> held = registers(MeterDisplay(0.0, (1, 2), power=-5))
    >>> held["holding"][SUNSPEC], held["input"][VENDOR + 1], held["input"][VENDOR + 4]
    (21365, 3, 65531)
    """
    imported, exported = sum(display.imported), sum(display.exported)
    meter = [0xFFFF] * 107
    meter[0:2] = 203, 105
    meter[18], meter[22] = _words(">h", max(-32_767, min(32_767, display.power)))[0], 0
    meter[38:40], meter[46:48], meter[54] = _words(">I", exported), _words(">I", imported), 0
    chain = [*_text("SunS", 2), 1, 66, *_text("gridfed", 16), *_text("sim", 16), *[0] * 34]
    chain += [*meter, 0xFFFF, 0]
    vendor = [
        *_words(">I", imported),
        *reversed(_words(">I", exported)),
        *_words(">i", display.power)[1:],
        0x8000,
    ]
    return {
        "holding": {SUNSPEC + at: word for at, word in enumerate(chain)},
        "input": {VENDOR + at: word for at, word in enumerate(vendor)},
    }


def _words(form: str, value: int) -> list[int]:
    raw = struct.pack(form, value)
    return list(struct.unpack(f">{len(raw) // 2}H", raw))


def _text(text: str, words: int) -> tuple[int, ...]:
    return struct.unpack(f">{words}H", text.encode().ljust(2 * words, b"\0"))


def answer(body: bytes, held: Mapping[str, Mapping[int, int]]) -> bytes:
    """Return the response to a request, function code first; writes are refused."""
    table = {3: "holding", 4: "input"}.get(body[0])
    if table is None or len(body) != 5:
        return bytes([body[0] | 0x80, _ILLEGAL_FUNCTION])
    at, count = struct.unpack(">HH", body[1:])
    words = [held[table].get(address) for address in range(at, at + count)]
    if not 1 <= count <= 125 or None in words:
        return bytes([body[0] | 0x80, _ILLEGAL_ADDRESS])
    return struct.pack(f">BB{count}H", body[0], 2 * count, *words)


class Registers:
    """A Modbus TCP server on a port of this machine; port 0 takes a free one."""

    def __init__(self, host: str, port: int, display: Callable[[], MeterDisplay]) -> None:
        current_display = display

        class MasterConnection(socketserver.BaseRequestHandler):
            """One master's connection."""

            def handle(self) -> None:
                """Answer requests until the master disconnects."""
                while (request := _request(self.request)) is not None:
                    number, unit, body = request
                    response = answer(body, registers(current_display()))
                    self.request.sendall(_HEAD.pack(number, 0, 1 + len(response), unit) + response)

        class Server(socketserver.ThreadingTCPServer):
            """A server for several masters, with daemon threads."""

            allow_reuse_address = True
            daemon_threads = True

        self._server = Server((host, port), MasterConnection)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"tcp://{host!s}:{port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _request(channel: socket.socket) -> tuple[int, int, bytes] | None:
    head = _exactly(channel, _HEAD.size)
    if head is None:
        return None
    number, protocol, length, unit = _HEAD.unpack(head)
    if protocol != 0 or not 2 <= length <= 254:
        return None
    body = _exactly(channel, length - 1)
    return None if body is None else (number, unit, body)


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        try:
            piece = channel.recv(count - len(data))
        except OSError:
            return None
        if not piece:
            return None
        data += piece
    return data
