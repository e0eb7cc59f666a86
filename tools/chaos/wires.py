"""TCP proxy between a fleet and its broker, which can reset or stall connections.

    python -m tools.chaos.wires BROKER_PORT CONTROL_PORT NAME=PORT...

A separate process with a control port: ``cut NAME`` resets every connection, ``hold NAME SECONDS``
keeps them open without traffic and resets them then. Returns the number of connections.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import closing

_BLOCK = 65_536


class Wire:
    """One listening port and its connections."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open: set[asyncio.StreamWriter] = set()
        self._sound = asyncio.Event()
        self._sound.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection to the broker; refuse it if there is no broker."""
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, back}
        self._open |= ends
        try:
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        finally:
            self._open -= ends
            for end in ends:
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while block := await reader.read(_BLOCK):
                await self._sound.wait()
                writer.write(block)
                await writer.drain()
        except OSError:
            pass  # the other side is gone: so is this one
        finally:
            writer.transport.abort()

    def cut(self) -> int:
        """Reset every connection at once."""
        met = list(self._open)
        for writer in met:
            writer.transport.abort()
        return len(met) // 2

    async def hold(self, seconds: float) -> int:
        """Stop traffic, then reset: open but dead sockets."""
        self._sound.clear()
        await asyncio.sleep(seconds)
        met = self.cut()
        self._sound.set()
        return met


async def serve(target: int, control: int, ports: dict[str, int]) -> None:
    """Forward connections until the process is killed."""
    wires = {name: Wire(target) for name in ports}
    for name, port in ports.items():
        await asyncio.start_server(wires[name].carry, "127.0.0.1", port, backlog=512)

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        order, name, *rest = (await reader.readline()).decode().split()
        wire = wires[name]
        met = wire.cut() if order == "cut" else await wire.hold(float(rest[0]))
        writer.write(f"{met}\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", control)
    await server.serve_forever()


def tell(control: int, order: str, *, timeout: float = 60.0) -> int:
    """Send the proxy a command and return the number of connections."""
    with closing(socket.create_connection(("127.0.0.1", control), timeout)) as line:
        line.sendall(f"{order}\n".encode())
        return int(line.makefile().readline() or 0)


if __name__ == "__main__":
    pairs = (pair.split("=") for pair in sys.argv[3:])
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), {name: int(p) for name, p in pairs}))
